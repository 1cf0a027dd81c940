"""`Eager` and `EagerHalf`: kernels of PyTorch eager, and its host, as others' whole runs say.

The coefficients of `hymell.estimators.level3.eager` and `eager_host` lie in
``hymell/hardware/systems/eager.json``, written by ``benchmarks/eager.py --ship``. Fused attention,
experts and scans were not in the runs in float32: the data sheet prices them there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hymell.errors import DAMAGED, HymellError
from hymell.estimators.base import COMPUTE, MEMORY, Estimator, KernelTime, Origin
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.level3.eager import (
    OPERATORS,
    SHEET,
    TERMS,
    has_matrix_units,
    is_low_power,
)
from hymell.estimators.level3.system import FOLDER
from hymell.graph import OpGraph
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    GroupedGemm,
    Primitive,
    Scan,
    Value,
)
from hymell.workload import Precision

SCHEMA_VERSION = 1

FILE = FOLDER / "eager.json"

_NOT_SEEN = (Attention, Collective, Experts, GroupedGemm, Scan)


@dataclass(frozen=True)
class EagerHost:
    """What the host of eager takes per launch, and kernels in 16-bit formats more than by roofline.

    ``source`` names the runs, the other fields are as `EagerSystem`'s.
    """

    source: str
    rows: int
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    mape: float
    composed_mape: float
    kernels: float
    host_s: float

    def describe(self) -> str:
        """Whose runs they are and how far off, in a line."""
        return (
            f"{self.host_s * 1e6:.0f} us of host per launch, as in {self.rows} runs of "
            f"{self.source} ({len(self.gpus)} GPUs, {len(self.models)} models, batch 1; "
            f"{self.mape:.0f}% off on GPUs and models left out, {self.composed_mape:.0f}% by "
            "typical overheads); another CPU takes another time"
        )


@dataclass(frozen=True)
class EagerSystem:
    """Fitted multipliers, by name, of `SHEET` and `OPERATORS`; ``slowness`` by GPU.

    ``source`` names the runs, ``rows``, ``gpus`` and ``models`` count them. ``mape`` and
    ``composed_mape`` are the mean absolute errors in % of runs whose GPU and model were left out,
    of this and of typical overheads over the data sheet.
    """

    source: str
    rows: int
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    mape: float
    composed_mape: float
    multipliers: Mapping[str, Mapping[str, float]]
    slowness: Mapping[str, float]
    host: EagerHost

    def kind(self, gpu: Gpu) -> str:
        """Which multipliers hold for a GPU."""
        return OPERATORS if gpu.name in self.slowness else SHEET

    def products(self, gpu: Gpu) -> float:
        """By what products with weights take longer than at the data-sheet rate."""
        found = self.multipliers[self.kind(gpu)]
        value = found["matrix_gemm" if has_matrix_units(gpu) else "gemm"]
        if is_low_power(gpu):
            value += found.get("low_power", 0.0)
        return value * self.slowness.get(gpu.name, 1.0)

    def memory(self, gpu: Gpu) -> float:
        """By what kernels that move tensors take longer than at the data-sheet rate."""
        return self.multipliers[self.kind(gpu)]["memory"]


@dataclass(frozen=True)
class Eager:
    """`hymell.estimators.base.Estimator` of float32 in PyTorch eager."""

    gpu: Gpu
    system: EagerSystem
    fallback: Roofline = field(default_factory=Roofline)

    @property
    def name(self) -> str:
        """Short name, shown in a report's assumptions."""
        return "eager float32"

    @property
    def calibrated(self) -> bool:
        """True when runs of this GPU itself were among those fitted to."""
        return self.gpu.name in self.system.gpus

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time and regime of a primitive whose sizes are numbers or arrays."""
        matrix_s, vector_s, memory_s = self.terms(primitive, gpu)
        compute_s = np.maximum(matrix_s, vector_s)
        regime = np.where(compute_s > memory_s, COMPUTE, MEMORY)
        return KernelTime(np.maximum(compute_s, memory_s), regime)

    def describe(self, gpu: Gpu) -> str:
        """Whose runs they are, how far off, and what they say, in a line."""
        system = self.system
        how = (
            "single operators of this GPU and whole runs"
            if system.kind(gpu) == OPERATORS
            else "whole runs"
        )
        return (
            f"{self.name}: fitted on {how} of {system.source} ({system.rows} runs, "
            f"{len(system.gpus)} GPUs, {len(system.models)} models; {system.mape:.1f}% off on GPUs "
            f"and models left out, {system.composed_mape:.1f}% without): products x "
            f"{system.products(gpu):.2g}, tensors read and written x {system.memory(gpu):.2g}; "
            "passes over prompts, attention written out: no decode step was among them; fused "
            f"attention, experts and scans: {self.fallback.describe(gpu)}"
        )

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The runs, or the data sheet for kernels that were not in them."""
        if isinstance(primitive, _NOT_SEEN):
            return self.fallback.origin(primitive, gpu)
        return Origin(self.name, self.system.source, self.calibrated)

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """None: the data-sheet power model."""
        return self.fallback.energy_j(primitive, gpu, time_s)

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The data sheet, whatever the primitive."""
        return self.fallback.energy_origin(primitive, gpu)

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, Value, Value]:
        """The roofline's limits, as much longer as products and moved tensors take."""
        matrix_s, vector_s, memory_s = self.fallback.terms(primitive, gpu)
        if isinstance(primitive, _NOT_SEEN):
            return matrix_s, vector_s, memory_s
        memory = self.system.memory(self.gpu)
        return self.system.products(self.gpu) * matrix_s, memory * vector_s, memory * memory_s


@dataclass(frozen=True)
class EagerHalf:
    """`hymell.estimators.base.Estimator` of 16-bit formats in eager: a multiple of roofline."""

    gpu: Gpu
    host: EagerHost
    fallback: Roofline = field(default_factory=Roofline)

    @property
    def name(self) -> str:
        """Short name, shown in a report's assumptions."""
        return "eager 16-bit"

    @property
    def calibrated(self) -> bool:
        """True when runs of this GPU itself were among those fitted to."""
        return self.gpu.name in self.host.gpus

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time and regime of a primitive whose sizes are numbers or arrays."""
        found = self.fallback.time(primitive, gpu)
        return KernelTime(self.host.kernels * found.time_s, found.regime)

    def describe(self, gpu: Gpu) -> str:
        """Whose runs they are and what they say, in a line."""
        return (
            f"{self.name}: x {self.host.kernels:.2g} of {self.fallback.describe(gpu)}, as in whole "
            f"runs of {self.host.source}"
        )

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The runs, whatever the primitive."""
        return Origin(self.name, self.host.source, self.calibrated)

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """None: the data-sheet power model."""
        return self.fallback.energy_j(primitive, gpu, time_s)

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The data sheet, whatever the primitive."""
        return self.fallback.energy_origin(primitive, gpu)

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, ...]:
        """The roofline's limits, each as much longer as the kernel."""
        return tuple(self.host.kernels * t for t in self.fallback.terms(primitive, gpu))


def in_eager(
    fitted: Estimator | None,
    graph: OpGraph,
    gpu: Gpu,
    engine: Engine,
    calibration: str | os.PathLike[str],
    precision: Precision,
) -> tuple[Estimator | None, Engine]:
    """``fitted`` and the engine, or for eager what others' runs say of kernels and of the host.

    Quantised models stay with the data sheet and typical overheads, as does everything where
    ``calibration`` is not "auto". None stands for the data sheet.
    """
    if fitted is not None or calibration != "auto" or engine.name != "eager":
        return fitted, engine
    system = shipped_eager()
    stored = precision.weights is not None or graph.facts.quantization is not None
    if system is None or stored:
        return None, engine
    runs_in = precision.activations or graph.facts.dtype
    priced: Estimator
    if runs_in == "float32":
        priced = Eager(gpu, system)
    elif runs_in in _HALF:
        priced = EagerHalf(gpu, system.host)
    else:
        return None, engine
    # Gaps and work per step are in what was fitted.
    overheads = replace(
        engine.overheads, host_s_per_launch=system.host.host_s, gap_s=0.0, step_s=0.0
    )
    notes = (*engine.notes, system.host.describe())
    return priced, replace(engine, overheads=overheads, notes=notes)


_HALF = ("bfloat16", "float16")


@cache
def shipped_eager() -> EagerSystem | None:
    """The shipped multipliers, None where none were shipped; errors as `load_eager`."""
    return load_eager(FILE) if FILE.is_file() else None


def load_eager(file: Path) -> EagerSystem:
    """Multipliers from their file. Raises HymellError for a file that is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}")
        multipliers = {
            kind: {name: _positive(entry["value"]) for name, entry in content[kind].items()}
            for kind in (SHEET, OPERATORS)
        }
        for found in multipliers.values():
            if not {"gemm", "matrix_gemm", "memory"} <= set(found) <= set(TERMS):
                raise ValueError(f"multipliers {', '.join(found)}")
        return EagerSystem(
            source=str(content["source"]),
            rows=int(content["rows"]),
            gpus=tuple(str(gpu) for gpu in content["gpus"]),
            models=tuple(str(model) for model in content["models"]),
            mape=float(content["mape"]),
            composed_mape=float(content["composed_mape"]),
            multipliers=multipliers,
            slowness={str(gpu): _positive(v) for gpu, v in content["slowness"].items()},
            host=_host(content["host"]),
        )
    except DAMAGED as error:
        raise HymellError(
            f"{file} holds no multipliers of this version ({type(error).__name__}: {error}); "
            "write it anew with benchmarks/eager.py --ship"
        ) from None


def _host(content: Mapping[str, Any]) -> EagerHost:
    return EagerHost(
        source=str(content["source"]),
        rows=int(content["rows"]),
        gpus=tuple(str(gpu) for gpu in content["gpus"]),
        models=tuple(str(model) for model in content["models"]),
        mape=float(content["mape"]),
        composed_mape=float(content["composed_mape"]),
        kernels=_positive(content["kernels"]),
        host_s=_positive(content["host_s"]),
    )


def _positive(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not 0 <= number < 100:
        raise ValueError(f"a multiplier of {number}")
    return number


def save_eager(system: EagerSystem, file: Path) -> None:
    """Write multipliers: each with what it says."""
    content = {
        "schema_version": SCHEMA_VERSION,
        **_facts(system),
        **{
            kind: {
                name: {"value": float(f"{value:.4g}"), "meaning": TERMS[name].meaning}
                for name, value in found.items()
            }
            for kind, found in system.multipliers.items()
        },
        "slowness": {gpu: float(f"{value:.4g}") for gpu, value in system.slowness.items()},
        "host": {
            **_facts(system.host),
            "kernels": float(f"{system.host.kernels:.4g}"),
            "host_s": float(f"{system.host.host_s:.4g}"),
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _facts(fitted: EagerSystem | EagerHost) -> dict[str, Any]:
    """What both say of the runs that they were fitted to."""
    return {
        "source": fitted.source,
        "rows": fitted.rows,
        "gpus": list(fitted.gpus),
        "models": list(fitted.models),
        "mape": round(fitted.mape, 2),
        "composed_mape": round(fitted.composed_mape, 2),
    }
