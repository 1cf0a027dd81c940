"""What of a kernel costs energy: FLOPs by format, cache and activation bytes, padded experts."""

from __future__ import annotations

from typing import Final

import numpy as np

from hymell.estimators.level1.routing import BLOCKS, independent, loads
from hymell.hardware import Gpu
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    GroupedGemm,
    Primitive,
    Scan,
    Value,
)

#: Rows of an expert are computed in blocks of this many, of block-quantised fp8 in the larger.
_BLOCK: Final = 64
_FP8_BLOCK: Final = 128


def energy_counts(primitive: Primitive, gpu: Gpu) -> tuple[Value, Value, Value, Value]:
    """(matrix seconds, padded matrix seconds, cache bytes, activation bytes) of one execution.

    Matrix seconds are FLOPs at the data-sheet rate of their format, so that those of fp8 count by
    half; the padded ones are those of routed experts with every expert's rows rounded up to whole
    blocks, 0 of other kernels. Cache bytes are keys, values and recurrent states, activation bytes
    what is left of the bytes that are no weights; messages between GPUs count as neither. Sizes
    are numbers or arrays.
    """
    if isinstance(primitive, Collective):
        return 0.0, 0.0, 0.0, 0.0
    moved = primitive.bytes_read + primitive.bytes_written - primitive.weight_bytes
    per_s = gpu.peak(gpu.compute_dtype(primitive.math)[0])
    matrix_s = primitive.flops_causal / per_s
    if isinstance(primitive, Attention):
        return matrix_s, 0.0, primitive.kv_bytes, moved - primitive.kv_bytes
    if isinstance(primitive, Scan):
        return matrix_s, 0.0, moved, 0.0
    return matrix_s, _padded_flops(primitive) / per_s, 0.0, moved


def _padded_flops(primitive: Primitive) -> Value:
    """FLOPs with every expert's rows rounded up to whole blocks; 0 of kernels without experts."""
    if isinstance(primitive, Experts):
        tokens, top_k, experts = primitive.tokens, primitive.top_k, primitive.experts
        skew, ranks = primitive.skew, primitive.ranks
    elif isinstance(primitive, GroupedGemm):
        tokens, top_k, experts, skew, ranks = primitive.m, 1, primitive.groups, 0.0, 1
    else:
        return 0.0
    # Rows of all ranks together, of which a rank computes its share.
    count = np.maximum(np.ceil(np.atleast_1d(np.asarray(tokens, dtype=np.float64))), 1.0)
    constants = (np.full(len(count), float(value)) for value in (top_k, experts, 1, skew))
    padded = loads(independent, count, *constants)[3]
    block = _FP8_BLOCK if primitive.b_dtype == "float8_block128" else _BLOCK
    per_row = primitive.flops * ranks / (tokens * top_k)
    return per_row * padded[BLOCKS.index(block)] / ranks
