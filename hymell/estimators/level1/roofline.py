"""The data-sheet roofline: the baseline every calibrated estimator has to beat.

time = max(matrix FLOPs / peak of their format, vector FLOPs / fp32 peak, bytes / memory bandwidth),
with the peaks as published: no efficiency factor, no launch cost (Williams, Waterman, Patterson:
Roofline, CACM 52(4), 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hymell.estimators.base import COMPUTE, DATA_SHEET_POWER, MEMORY, KernelTime, Origin
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Primitive, Value


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that each part of the GPU alone needs at its data-sheet rate."""

    matrix_s: Value
    vector_s: Value
    memory_s: Value


def limits(primitive: Primitive, gpu: Gpu) -> Limits:
    """Seconds at the data-sheet rates, per workload.

    Matrix work is what a kernel that skips masked scores does; it runs in the primitive's format,
    or in what the GPU computes that format in (`Gpu.compute_dtype`). fp32 is the plain rate, not
    TF32. Raises HymellError for a format that nothing on the GPU stands in for.
    """
    matrix_format, _ = gpu.compute_dtype(primitive.math)
    moved = primitive.bytes_read + primitive.bytes_written
    return Limits(
        primitive.flops_causal / gpu.peak(matrix_format),
        primitive.vector_flops / gpu.peak("fp32"),
        moved / gpu.memory_bandwidth_bytes_per_s,
    )


@dataclass(frozen=True, slots=True)
class Roofline:
    """`hymell.estimators.base.Estimator` of the data-sheet roofline."""

    name: str = "roofline"
    calibrated: bool = False

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time and regime of a primitive whose sizes are numbers or arrays."""
        matrix_s, vector_s, memory_s = self.terms(primitive, gpu)
        compute_s = np.maximum(matrix_s, vector_s)
        regime = np.where(compute_s > memory_s, COMPUTE, MEMORY)
        return KernelTime(np.maximum(compute_s, memory_s), regime)

    def describe(self, gpu: Gpu) -> str:
        """The form in words, for a report's assumptions."""
        return f"{self.name}, data-sheet peaks of {gpu.display_name}"

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The data sheet, whatever the primitive."""
        return Origin(self.name)

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """None: the data-sheet power model."""
        return None

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """The data sheet, whatever the primitive."""
        return Origin(DATA_SHEET_POWER)

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, Value, Value]:
        """The three limits; their maximum is the time."""
        bound = limits(primitive, gpu)
        return bound.matrix_s, bound.vector_s, bound.memory_s
