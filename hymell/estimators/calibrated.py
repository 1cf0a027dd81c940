"""`Calibrated`: an estimator that prices each kernel with what was fitted for it.

Where nothing was, the data-sheet roofline prices the kernel and says so. A GPU without
measurements of its own takes those of its nearest relative, every coefficient scaled as its
data-sheet prior (`relatives`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1, Prediction
from hymell.estimators.level1.form import Dims
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.queries import Query, columns, query
from hymell.hardware import Gpu, load_gpu
from hymell.op_registry.primitives import Primitive, Value

#: Codes of `base.REGIMES` in the order of `form.REGIMES`.
_REGIMES = np.array([LAUNCH, MEMORY, BALANCED_MEMORY, BALANCED_COMPUTE, COMPUTE])

#: Whose measurements price each engine, best first. Eager and compiled PyTorch have none yet.
LIBRARIES = {"vllm": ("vllm",), "sglang": ("sglang",), "trtllm": ("trtllm",)}

#: 16-bit formats run at one rate.
_TWIN = {"bf16": "fp16", "fp16": "bf16"}

#: Rows from which on equal rows are priced once.
_WORTH_SORTING = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A fitted estimator for a kernel, ready for the GPU that is priced."""

    estimator: Level1
    calibration: str
    at_home: bool


@dataclass(frozen=True)
class Calibrated:
    """`hymell.estimators.base.Estimator` over calibrations, those first in the list winning.

    ``gpu`` is what is priced; calibrations of another GPU are scaled to it.
    """

    gpu: Gpu
    sources: tuple[Calibration, ...]
    fallback: Roofline = field(default_factory=Roofline)
    _found: dict[object, Found | None] = field(default_factory=dict, repr=False, compare=False)

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
            rows = len(columns(asked.sizes())["elements"])
            return KernelTime(np.zeros(rows), np.full(rows, LAUNCH), np.ones(rows, dtype=bool))
        priced = predict_rows(found.estimator, columns(asked.sizes()))
        in_range = priced.in_range & (found.estimator.rows_ > 0)
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
        return Origin(
            estimator=_named(asked, found),
            calibration=found.calibration,
            calibrated=found.at_home,
        )

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, ...] | None:
        """The roofline's where it prices the primitive; fitted forms have no such terms."""
        _, found = self._find(primitive)
        return self.fallback.terms(primitive, gpu) if found is None else None

    def _find(self, primitive: Primitive) -> tuple[Query | None, Found | None]:
        asked = query(primitive)
        if asked is None:
            return None, None
        # A conversion runs where the product that it is for runs.
        math = "fp32" if asked.included else primitive.math
        key = (asked.keys, math)
        if key not in self._found:
            self._found[key] = self._search(asked, math)
        return asked, self._found[key]

    def _search(self, asked: Query, math: str) -> Found | None:
        # A form measured where the format has units says nothing of a GPU that emulates it.
        if self.gpu.compute_dtype(math)[0] not in (math, _TWIN.get(math)):
            return None
        for calibration in self.sources:
            for key in asked.keys:
                made = calibration.estimator(key)
                if made is not None:
                    at_home = own(self.gpu, calibration)
                    where = f"{calibration.gpu}, {calibration.entries[key].origin}"
                    if at_home:
                        return Found(made, where, at_home)
                    return _transferred(made, key[0], Device.of(self.gpu), where)
        if asked.unfitted is None:
            return None
        try:
            return Found(asked.unfitted(Device.of(self.gpu)), "", False)
        except HymellError:
            return None


def _transferred(made: Level1, op: str, device: Device, where: str) -> Found:
    """An estimator scaled to a device; its correction comes along where that was seen to help."""
    same = made.device.family == device.family
    error = calibrations.transfer_errors().get((op, same))
    helps = error is not None and error.corrected < error.analytical
    about = "" if error is None else f", error about {min(error.corrected, error.analytical):.0f}%"
    ready = scaled(made, device, corrected=helps)
    return Found(ready, f"transferred from {where}{about}", False)


def _named(asked: Query, found: Found) -> str:
    if asked.included:
        return f"in {asked.keys[0][0]}"
    name = found.estimator.form.name
    return name if found.estimator.rows_ else f"{name}, data-sheet priors"


def own(gpu: Gpu, calibration: Calibration) -> bool:
    """True when a calibration was taken on this very GPU, data sheet unchanged."""
    return gpu.name == calibration.gpu and gpu == load_gpu(calibration.gpu)


def scaled(fitted: Level1, device: Device, *, corrected: bool = True) -> Level1:
    """A fitted estimator for another device: each coefficient keeps its ratio to its prior.

    ``corrected`` False leaves the correction behind.
    """
    ratio = {c.name: c.prior(device) / c.prior(fitted.device) for c in fitted.form.coefficients}
    made = Level1(fitted.form, device, corrected=corrected)
    made.coefficients_ = {n: value * ratio[n] for n, value in fitted.coefficients_.items()}
    made.choice_, made.ranges_ = fitted.choice_, fitted.ranges_
    made.spread_, made.rows_ = fitted.spread_, fitted.rows_
    made.correction_ = fitted.correction_ if corrected else None
    return made


def predict_rows(estimator: Level1, dims: Dims) -> Prediction:
    """`Level1.predict` with equal rows priced once: many workloads share a kernel's sizes."""
    rows = len(next(iter(dims.values())))
    if rows < _WORTH_SORTING:
        return estimator.predict(dims)
    first, inverse = _distinct(dims)
    if 2 * len(first) > rows:
        return estimator.predict(dims)
    priced = estimator.predict({name: values[first] for name, values in dims.items()})
    return Prediction(
        priced.time_s[inverse],
        priced.spread[inverse],
        priced.regime[inverse],
        priced.in_range[inverse],
    )


def _distinct(dims: Dims) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A row of each distinct combination of sizes, and which of them every row is."""
    code: NDArray[np.int64] = np.zeros(len(next(iter(dims.values()))), dtype=np.int64)
    for values in dims.values():
        if (values != values[0]).any():
            _, index = np.unique(values, return_inverse=True)
            _, code = np.unique(code * (int(index.max()) + 1) + index, return_inverse=True)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse


def choose(
    gpu: Gpu, engine: str, calibration: str | os.PathLike[str] = "auto"
) -> Calibrated | None:
    """What prices kernels: "auto" `calibrated_for`, "none" nothing fitted, a file that one.

    None stands for the data-sheet roofline. Raises HymellError for a file that is no calibration.
    """
    if calibration == "none":
        return None
    if calibration == "auto":
        return calibrated_for(gpu, engine)
    return Calibrated(gpu, (calibrations.load(calibration),))


def calibrated_for(gpu: Gpu, engine: str) -> Calibrated | None:
    """The estimator of shipped calibrations for an engine on a GPU, None where there is none.

    The GPU's own calibration comes first, then that of its nearest relative.
    """
    for library in LIBRARIES.get(engine, ()):
        homes = [name for name, held in calibrations.available() if held == library]
        chosen = [name for name in homes if name == gpu.name and gpu == load_gpu(name)]
        chosen += relatives(gpu, [name for name in homes if name not in chosen])[:1]
        found = [calibrations.shipped(name, library) for name in chosen]
        if found:
            return Calibrated(gpu, tuple(c for c in found if c is not None))
    return None


def relatives(gpu: Gpu, names: Sequence[str]) -> list[str]:
    """GPUs by how near they are: the same kernel family first, then the data sheets' distance.

    The distance is over the logarithms of 16-bit rate, bandwidth, SMs and L2. A CPU has none.
    """
    if gpu.vendor.lower() not in _GPU_VENDORS:
        return []
    return sorted(names, key=lambda name: (_distance(gpu.name, gpu, name), name))


_GPU_VENDORS = frozenset({"nvidia", "amd"})


def _distance(_: str, gpu: Gpu, name: str) -> tuple[bool, float]:
    here, there = Device.of(gpu), Device.of(load_gpu(name))
    steps = [math.log(a / b) for a, b in zip(_figures(here), _figures(there), strict=True)]
    return here.family != there.family, math.hypot(*steps)


def _figures(device: Device) -> tuple[float, ...]:
    rate = max(device.peak_flops.get(f, 0.0) for f in ("bf16", "fp16", "fp32"))
    return rate, device.bandwidth, float(device.sm_count), device.l2_bytes
