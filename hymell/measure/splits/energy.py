"""What is held out of the power labels, and which tables have labels that can be used.

NVML samples power every 100 ms and the tables' windows are under a second, so a short kernel shows
the power of the one before it. The reader blanks power below 55 us and near idle. Here only rows of
at least `SHORTEST_S` count, and no mean of a single sample, which the kernel before still colours:
NVML reads whole milliwatts, so such a mean is a whole number of them, and one of more samples
rarely is. Neither rule looks at a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.measure.table import Table
from hymell.op_registry.primitives import selection_chances

Mask = NDArray[np.bool_]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

SHORTEST_S: Final = 3e-4
#: Upstream keeps power to about 1e-6 W; a whole milliwatt is one within this many mW.
_WHOLE_MW: Final = 1e-3
SEEDS: Final = (0, 1, 2)
_HELD_SHARE: Final = 0.2


class Target(NamedTuple):
    """One table with usable power labels."""

    op: str
    gpu: str
    library: str
    version: str
    dtype: str


TARGETS: Final = tuple(
    Target(op, gpu, library, version, dtype)
    for gpu, library, version, ops in (
        (
            "h200-sxm",
            "vllm",
            "0.22.0",
            {
                "gemm": ("bfloat16", "float8_block128"),
                "attention_prefill": ("bfloat16",),
                "attention_decode": ("bfloat16",),
                "moe": ("bfloat16", "float8_e4m3", "float8_block128"),
            },
        ),
        (
            "b200-sxm",
            "vllm",
            "0.22.0",
            {
                "gemm": ("bfloat16", "float8_block128", "nvfp4"),
                "attention_prefill": ("bfloat16",),
                "attention_decode": ("bfloat16",),
                "moe": ("bfloat16", "float8_e4m3", "float8_block128"),
            },
        ),
        (
            "b200-sxm",
            "trtllm",
            "1.3.0rc15",
            {
                "gemm": ("bfloat16", "float8_e4m3", "float8_block128", "nvfp4"),
                "attention_prefill": ("bfloat16", "float8_e4m3"),
                "attention_decode": ("bfloat16",),
                "moe": ("bfloat16", "float8_e4m3", "float8_block128", "nvfp4"),
            },
        ),
    )
    for op, dtypes in ops.items()
    for dtype in dtypes
)

#: What a shape is: held out with every other size.
_SHAPE: Final = {
    "gemm": ("n", "k"),
    "attention_prefill": ("heads", "kv_heads", "head_dim"),
    "attention_decode": ("heads", "kv_heads", "head_dim"),
    "moe": ("experts", "top_k", "hidden", "intermediate", "tp", "ep"),
}


def usable(table: Table) -> Table:
    """The rows whose power says something about their own kernel."""
    milliwatts = table["power_w"] * 1e3
    several = np.abs(milliwatts - np.round(milliwatts)) >= _WHOLE_MW
    return table.take(np.isfinite(milliwatts) & several & (table["time_s"] >= SHORTEST_S))


def splits(table: Table) -> Iterator[Split]:
    """Whole shapes (three seeds), and the longest fifth of the kernels."""
    shapes = np.stack([table[name] for name in _shape(table.op)])
    distinct, which = np.unique(shapes, axis=1, return_inverse=True)
    count = max(1, round(_HELD_SHARE * distinct.shape[1]))
    for seed in SEEDS:
        held = np.random.default_rng(seed).permutation(distinct.shape[1])[:count]
        test = np.isin(which.ravel(), held)
        yield f"unseen shape {seed}", ~test, test
    test = table["time_s"] > np.quantile(table["time_s"], 0.8)
    yield "longest", ~test, test


def work(table: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """FLOPs and bytes of each row, what one GPU does, every byte counted once."""
    kernels = {
        "gemm": _gemm,
        "attention_prefill": _attention,
        "attention_decode": _attention,
        "moe": _moe,
    }
    _shape(table.op)
    return kernels[table.op](table)


def _shape(op: str) -> tuple[str, ...]:
    if op not in _SHAPE:
        raise HymellError(f"no power labels are used for {op}; use one of: {', '.join(_SHAPE)}")
    return _SHAPE[op]


def _gemm(table: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    m, n, k = table["m"], table["n"], table["k"]
    size = _element_bytes(table["dtype"])
    return 2.0 * m * n * k, size * (m * k + n * k) + 2.0 * m * n


def _attention(table: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Causal: query i of a row sees its history, itself and no more than the window."""
    batch, q_len, kv_len = table["batch"], table["q_len"], table["kv_len"]
    width = np.where(table["window"] > 0, table["window"], np.inf)
    history = kv_len - q_len
    growing = np.clip(width - history, 0.0, q_len)
    full = np.where(growing < q_len, np.minimum(width, kv_len), 0.0)
    pairs = growing * history + growing * (growing + 1.0) / 2.0 + (q_len - growing) * full
    heads, dim = table["heads"], table["head_dim"]
    flops = 4.0 * batch * heads * dim * pairs
    read = np.minimum(kv_len, width + q_len - 1.0)
    kv_size, size = _element_bytes(table["kv_dtype"]), _element_bytes(table["dtype"])
    kv = 2.0 * batch * read * table["kv_heads"] * dim * kv_size
    return flops, kv + 2.0 * batch * q_len * heads * dim * size


def _moe(table: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Routed experts cut by tp and ep; under ep a rank has its share of the experts and pairs."""
    tokens, top_k, experts = table["tokens"], table["top_k"], table["experts"]
    width = table["intermediate"] / table["tp"]
    matrices = 2.0 + table["gated"]
    active = np.empty(len(table))
    keys = np.stack([experts, top_k, table["skew"]])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    for index, (count, chosen, skew) in enumerate(distinct.T):
        rows = which.ravel() == index
        chances = np.minimum(selection_chances(int(count), int(chosen), float(skew)), 1 - 1e-12)
        active[rows] = -np.expm1(tokens[rows][:, None] * np.log1p(-chances)).sum(axis=1)
    pairs = tokens * top_k / table["ep"]
    flops = 2.0 * pairs * matrices * table["hidden"] * width
    weights = active / table["ep"] * matrices * table["hidden"] * width
    moved = 2.0 * pairs * (2.0 * table["hidden"] + matrices * width)
    return flops, weights * _element_bytes(table["dtype"]) + moved


def _element_bytes(names: NDArray[np.object_]) -> NDArray[np.float64]:
    sizes = {str(name): float(bytes_per_element(str(name))) for name in np.unique(names)}
    return np.array([sizes[str(name)] for name in names])
