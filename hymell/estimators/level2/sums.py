"""What level 2 sees of a block: seconds of its kernels by kind, and ratios that have no scale.

A block is the attention or the FFN of one layer. Widths and numbers of heads as such are no input:
fed with them, a correction fails on models of another size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gemm,
    GroupedGemm,
    Memory,
    Primitive,
    RowReduce,
    Scan,
    Value,
)

Array = NDArray[np.float64]

#: Kinds of kernel that a block's seconds are summed by.
KINDS: Final = ("gemm", "attention", "experts", "rows", "pointwise", "scan", "rest")

_KIND_OF: Final[Mapping[type, str]] = {
    Gemm: "gemm",
    Attention: "attention",
    Experts: "experts",
    GroupedGemm: "experts",
    RowReduce: "rows",
    Memory: "pointwise",
    Scan: "scan",
}

#: Ratios, in log2: tokens that the products see, tokens attended to (1 without attention), query
#: heads per KV head, the widest and the narrowest product (out per in), bytes of a weight and of an
#: element of the cache.
RATIOS: Final = (
    "tokens",
    "context",
    "group",
    "widest",
    "narrowest",
    "weight_bytes",
    "cache_bytes",
)

#: Features: log2 of the microseconds, the share of each kind, `RATIOS`.
FEATURES: Final = ("log2_us", *KINDS, *RATIOS)


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Blocks of one layer, a row each: ``seconds`` (rows, `KINDS`), ``ratios`` (rows, `RATIOS`)."""

    seconds: Array
    ratios: Array

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def total_s(self) -> Array:
        """The sum of level 1, (rows,)."""
        total: Array = self.seconds.sum(axis=1)
        return total

    def features(self) -> Array:
        """(rows, `FEATURES`)."""
        total = self.total_s
        shares = self.seconds / total[:, None]
        return np.column_stack([np.log2(total * 1e6), shares, self.ratios])

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> BlockSums:
        """The blocks that a mask or an index array picks."""
        return BlockSums(self.seconds[rows], self.ratios[rows])


def stacked(many: Iterable[BlockSums]) -> BlockSums:
    """Blocks of several groups one after another."""
    parts = list(many)
    return BlockSums(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.ratios for part in parts]),
    )


def kind_of(primitive: Primitive) -> str:
    """The kind of `KINDS` that a kernel counts in."""
    return _KIND_OF.get(type(primitive), "rest")


def block_sums(kernels: Iterable[tuple[Primitive, Value]], rows: int) -> BlockSums:
    """From kernels with their sizes put in and the seconds of each, numbers or (rows,) arrays."""
    seconds = np.zeros((rows, len(KINDS)))
    tokens = np.ones(rows)
    context, group = np.ones(rows), np.ones(rows)
    weight_bytes = cache_bytes = 1.0
    widest, narrowest = np.full(rows, -np.inf), np.full(rows, np.inf)
    largest: Value = 0.0
    for primitive, time_s in kernels:
        seconds[:, KINDS.index(kind_of(primitive))] += time_s
        if isinstance(primitive, Attention):
            context = np.maximum(context, primitive.kv_len)
            group = np.maximum(group, primitive.heads / primitive.kv_heads)
            cache_bytes = bytes_per_element(primitive.kv_dtype)
        elif isinstance(primitive, Experts):
            tokens = np.maximum(tokens, primitive.tokens)
        elif isinstance(primitive, Gemm) and primitive.b_is_weight:
            tokens = np.maximum(tokens, primitive.m)
            ratio = primitive.n / primitive.k
            widest, narrowest = np.maximum(widest, ratio), np.minimum(narrowest, ratio)
            if primitive.n * primitive.k > largest:
                largest = primitive.n * primitive.k
                weight_bytes = bytes_per_element(primitive.b_dtype)
    none = ~np.isfinite(widest)
    widest, narrowest = np.where(none, 1.0, widest), np.where(none, 1.0, narrowest)
    ratios = (tokens, context, group, widest, narrowest, weight_bytes, cache_bytes)
    columns = [np.broadcast_to(np.asarray(ratio, dtype=np.float64), rows) for ratio in ratios]
    return BlockSums(seconds, np.log2(np.column_stack(columns)))
