"""What is held out of the power labels, and which tables have labels that can be used.

NVML samples power every 100 ms and the tables' windows are under a second, so a short kernel shows
the power of the one before it. The reader blanks power below 55 us and near idle. Here only rows of
at least `SHORTEST_S` count, and no mean of a single sample, which the kernel before still colours:
NVML reads whole milliwatts, so such a mean is a whole number of them, and one of more samples
rarely is. Neither rule looks at a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.estimators.energy import MEMORY_SHARE, PowerModel
from hymell.estimators.level1.kernel_energy import SIZES
from hymell.hardware import Gpu, load_gpu
from hymell.measure.splits import moe
from hymell.measure.table import Table

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

SHORTEST_S: Final = 3e-4
#: Upstream keeps power to about 1e-6 W; a whole milliwatt is one within this many mW.
_WHOLE_MW: Final = 1e-3
SEEDS: Final = (0, 1, 2)
_HELD_SHARE: Final = 0.2


#: Bytes of an activation.
_WIDE_BYTES: Final = 2.0

#: Data-sheet row of each stored format's arithmetic.
_MATH: Final = {
    "bfloat16": "bf16",
    "float8_e4m3": "fp8",
    "float8_block128": "fp8",
    "nvfp4": "fp4",
}


class Work(NamedTuple):
    """What a kernel does: FLOPs of the matrix units and of the vector units, and bytes."""

    matrix_flops: Array
    vector_flops: Array
    bytes: Array


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
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
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


def splits(table: Table) -> list[Split]:
    """Whole shapes (three seeds), and the longest fifth of the kernels."""
    return list(_splits(table))


def _splits(table: Table) -> Iterator[Split]:
    shapes = np.stack([table[name] for name in _shape(table.op)])
    distinct, which = np.unique(shapes, axis=1, return_inverse=True)
    count = max(1, round(_HELD_SHARE * distinct.shape[1]))
    for seed in SEEDS:
        held = np.random.default_rng(seed).permutation(distinct.shape[1])[:count]
        test = np.isin(which.ravel(), held)
        yield f"unseen shape {seed}", ~test, test
    test = table["time_s"] > np.quantile(table["time_s"], 0.8)
    yield "longest", ~test, test


def labelled(table: Table) -> Table:
    """The usable rows of those tables of the op that are `TARGETS`."""
    wanted = np.zeros(len(table), dtype=bool)
    for target in TARGETS:
        if target.op == table.op:
            mine = np.ones(len(table), dtype=bool)
            for name in ("gpu", "library", "version", "dtype"):
                mine &= table[name] == getattr(target, name)
            wanted |= mine
    return usable(table.take(wanted))


def energy_j(table: Table) -> Array:
    """Measured J of each row: its mean power over its time."""
    joules: Array = table["power_w"] * table["time_s"]
    return joules


def dims(table: Table) -> dict[str, Array]:
    """The sizes that the op's form of `kernel_energy` takes, of rows of one GPU."""
    gpu = _gpu(table)
    matrix, vector, moved = work(table)
    math_s = np.empty(len(table))
    for name in np.unique(table["dtype"].astype(str)):
        rows = table["dtype"] == name
        math_s[rows] = matrix[rows] / gpu.peak(_MATH[str(name)])
    return {
        "time_us": 1e6 * table["time_s"],
        "compute_us": 1e6 * np.maximum(math_s, vector / gpu.peak("fp32")),
        "memory_us": 1e6 * moved / gpu.memory_bandwidth_bytes_per_s,
        **_KERNELS[table.op][1](table),
    }


def data_sheet_j(table: Table) -> Array:
    """What the data sheet alone says of each row's energy, given its measured time."""
    at = dims(table)
    busy_us = np.minimum(
        np.maximum(at["compute_us"], MEMORY_SHARE * at["memory_us"]), at["time_us"]
    )
    joules: Array = PowerModel.of(_gpu(table)).energy_j(table["time_s"], 1e-6 * busy_us)
    return joules


def work(table: Table) -> Work:
    """What one GPU does in each row, every byte counted once."""
    _shape(table.op)
    return _KERNELS[table.op][0](table)


def _gpu(table: Table) -> Gpu:
    (name,) = np.unique(table["gpu"].astype(str))
    return load_gpu(str(name))


def _shape(op: str) -> tuple[str, ...]:
    if op not in SHAPES:
        raise HymellError(f"no power labels are used for {op}; use one of: {', '.join(SHAPES)}")
    return SHAPES[op]


def _gemm(table: Table) -> Work:
    m, n, k = table["m"], table["n"], table["k"]
    # Activations come in 16 bits; their quantisation is part of the kernel.
    moved = _element_bytes(table["dtype"]) * n * k + _WIDE_BYTES * (m * k + m * n)
    return Work(2.0 * m * n * k, np.zeros(len(table)), moved)


def _gemm_sizes(table: Table) -> dict[str, Array]:
    return {name: table[name] for name in SIZES["gemm"]}


def _attention(table: Table) -> Work:
    """Causal: query i of a row sees its history, itself and no more than the window."""
    batch, q_len, kv_len = table["batch"], table["q_len"], table["kv_len"]
    width = np.where(table["window"] > 0, table["window"], np.inf)
    history = kv_len - q_len
    growing = np.clip(width - history, 0.0, q_len)
    full = np.where(growing < q_len, np.minimum(width, kv_len), 0.0)
    pairs = growing * history + growing * (growing + 1.0) / 2.0 + (q_len - growing) * full
    heads, dim = table["heads"], table["head_dim"]
    scores = batch * heads * pairs
    read = np.minimum(kv_len, width + q_len - 1.0)
    kv_size, size = _element_bytes(table["kv_dtype"]), _element_bytes(table["dtype"])
    kv = 2.0 * batch * read * table["kv_heads"] * dim * kv_size
    return Work(4.0 * dim * scores, 5.0 * scores, kv + 2.0 * batch * q_len * heads * dim * size)


def _attention_sizes(table: Table) -> dict[str, Array]:
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    width = np.where(table["window"] > 0, table["window"], np.inf)
    return {name: table[name] for name in names} | {
        "reach": np.minimum(table["kv_len"], width),
        "kv_bits": 8.0 * _element_bytes(table["kv_dtype"]),
    }


def _moe(table: Table) -> Work:
    """Routed experts on the fullest rank, cut by tp."""
    at = moe.dims(table)
    pairs, hidden, width = at["pairs"], at["hidden"], at["width"]
    matrices = 2.0 + at["gated"]
    weights = at["active"] * matrices * hidden * width
    # As `Experts`: routed rows into and out of both products, tokens read and written once.
    rows_through = 2.0 * pairs * (hidden + (1.0 + at["gated"]) * width)
    moved = rows_through + 2.0 * table["tokens"] / table["ep"] * hidden
    return Work(
        2.0 * pairs * matrices * hidden * width,
        8.0 * pairs * width,
        weights * _element_bytes(table["dtype"]) + _WIDE_BYTES * moved,
    )


def _moe_sizes(table: Table) -> dict[str, Array]:
    at = moe.dims(table)
    return {name: at[name] for name in SIZES["moe"]}


#: Of each op: its work, and the sizes that the correction sees.
_KERNELS: Final[
    Mapping[str, tuple[Callable[[Table], Work], Callable[[Table], dict[str, Array]]]]
] = {
    "gemm": (_gemm, _gemm_sizes),
    "attention_prefill": (_attention, _attention_sizes),
    "attention_decode": (_attention, _attention_sizes),
    "moe": (_moe, _moe_sizes),
}


def _element_bytes(names: NDArray[np.object_]) -> Array:
    sizes = {str(name): float(bytes_per_element(str(name))) for name in np.unique(names)}
    return np.array([sizes[str(name)] for name in names])
