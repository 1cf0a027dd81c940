"""Kernels bound by the bytes they move: element-wise, activation, RoPE, gather, append, quantise.

Element-wise kernels spread their elements over threads without regard to rows:

    time = t0 + join(waves * wave_s, bytes / bandwidth(L2 share))

A fused activation, RoPE, the append to the KV cache and the quantisation of activations give each
token one thread block, so they take the form of `hymell.estimators.level1.row_ops.row_wave` with a
token as the row. A gather (an embedding) is the same, with rows read from a table that is never in
L2 when the table is large. Where there are no measurements of a kernel (append, quantise), the
priors of the form stand: data-sheet bandwidth and a launch.
"""

from __future__ import annotations

import numpy as np

from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import (
    Array,
    Choice,
    Coefficient,
    Coefficients,
    Dims,
    Form,
    Terms,
    as_dims,
    join,
)
from hymell.estimators.level1.row_ops import (
    MEMORY_COEFFICIENTS,
    memory_seconds,
    row_wave,
    warm_floor_s,
    waves,
)
from hymell.op_registry.primitives import Memory

#: Sizes of an element-wise kernel: elements written, bytes read and written.
ELEMENT_DIMS = ("elements", "bytes")

#: Elements that an SM has in flight in one wave of PyTorch's element-wise kernels: 2048 threads of
#: four elements.
_ELEMENTS_PER_SM = 8192.0


def element_dims(primitive: Memory) -> Dims:
    """`ELEMENT_DIMS` of a primitive whose sizes are numbers or arrays."""
    return as_dims(
        elements=primitive.elements, bytes=primitive.bytes_read + primitive.bytes_written
    )


def _evaluate(c: Coefficients, dims: Dims, device: Device, choice: Choice) -> Terms:
    filled = np.maximum(dims["elements"], 1.0) / (device.sm_count * _ELEMENTS_PER_SM)
    work = waves(filled, 1.0, c["quantised"]) * c["wave_s"]
    memory, miss = memory_seconds(c, dims["bytes"], device)
    launch = np.full_like(memory, c["t0"])
    total = launch + join(work, memory, 1.0 + c["overlap"])
    return Terms(total, launch, memory, work, {"miss": miss, "filled": filled})


def _features(dims: Dims, terms: Terms, device: Device) -> Array:
    total, filled = terms.time_s, terms.extra["filled"]
    near = np.minimum(filled, 4.0)
    columns = (
        np.log2(np.maximum(dims["bytes"], 1.0) / device.l2_bytes),
        np.log2(np.maximum(dims["bytes"], 1.0) / np.maximum(dims["elements"], 1.0)),
        terms.extra["miss"],
        terms.launch_s / total,
        terms.memory_s / total,
        terms.compute_s / total,
        near - np.floor(near),
    )
    return np.column_stack(columns)


ELEMENTWISE = Form(
    name="elementwise",
    op="pointwise",
    dims=ELEMENT_DIMS,
    range_dims=ELEMENT_DIMS,
    coefficients=(
        *MEMORY_COEFFICIENTS,
        Coefficient("wave_s", "s per wave", lambda d: 5e-7, 1.5),
        Coefficient("quantised", "1", lambda d: 0.3),
    ),
    evaluate=_evaluate,
    floor_s=warm_floor_s,
    features=_features,
    source="launch + waves of elements beside an L2/HBM roofline; docs/estimators/rows.md",
)

#: One thread block per token: sizes are `row_ops.ROW_DIMS`, the row being a token.
ROPE = row_wave("rope")
EMBEDDING = row_wave("embedding")
KV_APPEND = row_wave("kv_append")
