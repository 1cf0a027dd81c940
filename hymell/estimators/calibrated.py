"""`Calibrated`: an estimator that prices each kernel with what was fitted for it.

Where nothing was, the data-sheet roofline prices the kernel and says so. A GPU without
measurements of its own takes those of its nearest relative, every coefficient scaled as its
data-sheet prior (`relatives`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hymell.errors import HymellError
from hymell.estimators import calibration as calibrations
from hymell.estimators.base import (
    BALANCED_COMPUTE,
    BALANCED_MEMORY,
    COMPUTE,
    LAUNCH,
    MEMORY,
    KernelTime,
    Origin,
)
from hymell.estimators.calibration import Calibration
from hymell.estimators.fitted import Found, find_fitted, is_stock, native, own, predict_rows
from hymell.estimators.fitted_energy import FittedEnergy, like_power
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.level2.shipped import BlockEstimates, shipped_blocks
from hymell.estimators.level3.energies import Energies, fitted_energies, shipped_energies
from hymell.estimators.level3.system import System, fitted_systems, shipped_system
from hymell.estimators.queries import Query, columns, query
from hymell.hardware import Gpu, load_gpu
from hymell.op_registry.primitives import Primitive, Value

#: Codes of `base.REGIMES` in the order of `form.REGIMES`.
_REGIMES = np.array([LAUNCH, MEMORY, BALANCED_MEMORY, BALANCED_COMPUTE, COMPUTE])

#: Whose measurements price each engine, best first. Eager and compiled PyTorch have none yet.
LIBRARIES = {"vllm": ("vllm",), "sglang": ("sglang",), "trtllm": ("trtllm",)}


@dataclass(frozen=True)
class Calibrated:
    """`hymell.estimators.base.Estimator` over calibrations, those first in the list winning.

    ``gpu`` is what is priced; calibrations of another GPU are scaled to it. ``system`` is what the
    engine adds to these kernels, None for its typical overheads; ``energies`` what boards draw over
    a phase, None for the power of the kernels; ``blocks`` corrects the sums over measured
    blocks.
    """

    gpu: Gpu
    sources: tuple[Calibration, ...]
    system: System | None = None
    energies: Energies | None = None
    blocks: BlockEstimates | None = None
    fallback: Roofline = field(default_factory=Roofline)
    _found: dict[object, Found | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def energy(self) -> FittedEnergy:
        """What gives the energy of kernels whose time is known."""
        return FittedEnergy(self.gpu, self.sources)

    @property
    def name(self) -> str:
        """Short name, shown in a report's assumptions."""
        return "calibrated"

    @property
    def calibrated(self) -> bool:
        """True when the first calibration is of this GPU itself."""
        return bool(self.sources) and own(self.gpu, self.sources[0])

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time, regime and range of a primitive whose sizes are numbers or arrays."""
        asked, found = self._find(primitive)
        if asked is None or found is None:
            return self.fallback.time(primitive, gpu)
        if asked.included:
            rows = len(columns(asked.sizes())["rows"])
            return KernelTime(np.zeros(rows), np.full(rows, LAUNCH), np.ones(rows, dtype=bool))
        priced = predict_rows(found.estimator, columns(asked.sizes()))
        in_range = priced.in_range & (not asked.stand_in)
        return KernelTime(priced.time_s, _REGIMES[priced.regime], in_range)

    def describe(self, gpu: Gpu) -> str:
        """Whose measurements they are, in a line for a report's assumptions."""
        words = [
            f"fitted on measurements of {c.library} on {c.gpu}"
            if own(self.gpu, c)
            else f"transferred from measurements of {c.library} on {c.gpu}"
            for c in self.sources
        ]
        return f"{', else '.join(words)}, else {self.fallback.describe(gpu)}; weights from HBM"

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The form and the measurements that price this kind of primitive."""
        asked, found = self._find(primitive)
        if asked is None or found is None:
            return self.fallback.origin(primitive, gpu)
        if asked.stand_in and not asked.included:
            # Measurements of another kernel are none of this one.
            return Origin(_named(asked, found))
        return Origin(
            estimator=_named(asked, found),
            calibration=found.calibration,
            calibrated=found.at_home,
        )

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """Joules by a fitted power form; None for a kernel without one."""
        return self.energy.energy_j(primitive, time_s)

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The measurements behind the power of this kind of primitive."""
        return self.energy.origin(primitive)

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, ...] | None:
        """The roofline's where it prices the primitive; fitted forms have no such terms."""
        _, found = self._find(primitive)
        return self.fallback.terms(primitive, gpu) if found is None else None

    def _find(self, primitive: Primitive) -> tuple[Query | None, Found | None]:
        asked = query(primitive)
        if asked is None:
            return None, None
        if asked.host is not None and asked.beside is not None:
            _, host = self._find(asked.host)
            if host is not None and host.library:
                asked = asked.beside(host.library)
                if asked.included:
                    return asked, host
        key = (asked.keys, asked.stand_in, primitive.math)
        if key not in self._found:
            self._found[key] = self._search(asked, primitive.math)
        return asked, self._found[key]

    def _search(self, asked: Query, math: str) -> Found | None:
        if not native(self.gpu, math):
            return None
        found = find_fitted(self.gpu, self.sources, asked.keys)
        if found is not None or asked.unfitted is None:
            return found
        try:
            return Found(asked.unfitted(Device.of(self.gpu)), "", False)
        except HymellError:
            return None


def _named(asked: Query, found: Found) -> str:
    form = found.estimator.form
    if asked.included:
        return f"in {form.op}"
    if not found.estimator.rows_:
        return f"{form.name}, data-sheet priors"
    return f"{form.name}, {form.op} stands in" if asked.stand_in else form.name


def choose(
    gpu: Gpu,
    engine: str,
    calibration: str | os.PathLike[str] = "auto",
    version: str | None = None,
) -> Calibrated | None:
    """What prices kernels: "auto" `calibrated_for`, "none" nothing fitted, a file that one.

    None stands for the data-sheet roofline. ``version`` is the engine's, as `system_for` takes it.
    Raises HymellError for a file that is no calibration, and for a version of which nothing is
    fitted.
    """
    if calibration == "auto":
        return calibrated_for(gpu, engine, version)
    if version is not None:
        raise HymellError(
            f"engine version {version!r} names a fitted system, and those hold for shipped "
            "calibrations only: leave the calibration at auto"
        )
    if calibration == "none":
        return None
    return Calibrated(gpu, (calibrations.load(calibration),))


def calibrated_for(gpu: Gpu, engine: str, version: str | None = None) -> Calibrated | None:
    """The estimator of shipped calibrations for an engine on a GPU, None where there is none.

    The GPU's own calibration comes first, then that of its nearest relative. With it come the
    engine's system and the GPU's energies, where they were fitted; errors as `system_for`.
    """
    system = system_for(gpu, engine, version)
    for library in LIBRARIES.get(engine, ()):
        homes = [name for name, held in calibrations.available() if held == library]
        chosen = [name for name in homes if is_stock(gpu, name)]
        chosen += relatives(gpu, [name for name in homes if name not in chosen])[:1]
        found = [calibrations.shipped(name, library) for name in chosen]
        if found:
            sources = tuple(c for c in found if c is not None)
            blocks = shipped_blocks(gpu.name, library) if own(gpu, sources[0]) else None
            return Calibrated(gpu, sources, system, energies_for(gpu), blocks)
    return None


def system_for(gpu: Gpu, engine: str, version: str | None = None) -> System | None:
    """The shipped system of an engine on this GPU or its nearest relative of one kernel family.

    That of the newest version, or of ``version``; None where there is none. Raises HymellError for
    a ``version`` that there is nothing of, saying which there are.
    """
    found = list(_systems(gpu, engine))
    if version is None:
        return found[0] if found else None
    for system in found:
        if system.version == version:
            return system
    there = ", ".join(dict.fromkeys(system.version for system in found)) or "none"
    raise HymellError(
        f"no system of {engine} {version} was fitted for {gpu.name}; versions there are: {there}"
    )


def _systems(gpu: Gpu, engine: str) -> Iterator[System]:
    """All that may price a GPU: its own, newest first, then those of relatives, nearest first."""
    homes = fitted_systems(engine)
    family = Device.of(gpu).family
    names = {home for home, _ in homes}
    own_gpu = gpu.name in names and is_stock(gpu, gpu.name)
    for name in sorted(relatives(gpu, sorted(names)), key=lambda name: name != gpu.name):
        for version in (version for home, version in homes if home == name):
            found = shipped_system(engine, name, version)
            if found is None:
                continue
            if own_gpu and name == gpu.name:
                yield found
            elif found.transfers and Device.of(load_gpu(name)).family == family:
                yield replace(found, transferred=True)


def energies_for(gpu: Gpu) -> Energies | None:
    """The shipped energies of this GPU or its nearest relative of one kernel family.

    A relative is a board of about the same power limit with the same kind of memory: what was seen
    to carry over (A100 of 40 GB to 80 GB) says nothing of others.
    """
    homes = fitted_energies()
    if gpu.name in homes and is_stock(gpu, gpu.name):
        return shipped_energies(gpu.name)
    family = Device.of(gpu).family
    for name in relatives(gpu, homes):
        found, home = shipped_energies(name), load_gpu(name)
        near = Device.of(home).family == family and _alike(gpu, home)
        if found is not None and found.transfers and near:
            return replace(found, transferred=True)
    return None


def _alike(a: Gpu, b: Gpu) -> bool:
    """Boards of like power with memory of one kind (HBM2 and HBM2e are one, GDDR6 is another)."""
    return like_power(a, b) and a.memory_type[:3] == b.memory_type[:3]


def relatives(gpu: Gpu, names: Sequence[str]) -> list[str]:
    """GPUs by how near they are: the same kernel family first, then the data sheets' distance.

    The distance is over the logarithms of 16-bit rate, bandwidth, SMs and L2. A CPU has none.
    """
    if gpu.vendor.lower() not in _GPU_VENDORS:
        return []
    return sorted(names, key=lambda name: (_distance(gpu, name), name))


_GPU_VENDORS = frozenset({"nvidia", "amd"})


def _distance(gpu: Gpu, name: str) -> tuple[bool, float]:
    here, there = Device.of(gpu), Device.of(load_gpu(name))
    steps = [math.log(a / b) for a, b in zip(_figures(here), _figures(there), strict=True)]
    return here.family != there.family, math.hypot(*steps)


def _figures(device: Device) -> tuple[float, ...]:
    rate = max(device.peak_flops.get(f, 0.0) for f in ("bf16", "fp16", "fp32"))
    return rate, device.bandwidth, float(device.sm_count), device.l2_bytes
