"""What is held out of the GEMM tables, which tables there are, and how their weights rotated.

``shapes`` holds out one in five (n, k) pairs with every m, one split per seed; ``m-band`` two bands
of m; ``m-large``, ``nk-large`` and ``m-one`` what lies beyond the rest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.measure.splits.attention import Split, held_groups
from hymell.measure.table import Table

_M_BANDS: Final = ((33, 81), (1025, 1792))
_TRAINED_M: Final = 4353
_LARGE_NK: Final = 51200

#: Copies of B that a benchmark rotates through. Vidur and NeuSight repeat one; LLMServingSim runs
#: whole layers, where B is never in L2.
_COPIES: Final = {
    "trtllm": 5.0,
    "vllm": 6.0,
    "sglang": 6.0,
    "vidur": 1.0,
    "pytorch": 1.0,
    "llmservingsim": np.inf,
}


class Target(NamedTuple):
    """One table to fit: products of a dtype on a GPU with a library."""

    op: str
    gpu: str
    library: str
    version: str
    dtype: str


_BF16: Final = ("bfloat16",)
_FP8: Final = ("bfloat16", "float8_e4m3", "float8_block128")
_FP4: Final = (*_FP8, "nvfp4")

_ENGINES: Final[tuple[tuple[str, str, str, tuple[str, ...]], ...]] = (
    ("a100-sxm-80gb", "sglang", "0.5.10", _BF16),
    ("a100-sxm-80gb", "trtllm", "1.0.0", ("bfloat16", "int8_wo", "int4_wo", "sq")),
    ("a100-sxm-80gb", "vllm", "0.14.0", _BF16),
    ("b200-sxm", "sglang", "0.5.14", _FP4),
    ("b200-sxm", "trtllm", "1.3.0rc15", _FP4),
    ("b200-sxm", "trtllm", "1.3.0rc20", _FP4),
    ("b200-sxm", "vllm", "0.22.0", ("bfloat16", "float8_block128", "nvfp4")),
    ("b200-sxm", "vllm", "0.24.0", _FP4),
    ("h100-sxm", "sglang", "0.5.14", _FP8),
    ("h100-sxm", "trtllm", "1.2.0rc5", _FP8),
    ("h100-sxm", "trtllm", "1.3.0rc20", _FP8),
    ("h100-sxm", "vllm", "0.19.0", _FP8),
    ("h100-sxm", "vllm", "0.24.0", _FP8),
    ("h200-sxm", "sglang", "0.5.14", _FP8),
    ("h200-sxm", "trtllm", "1.3.0rc20", _FP8),
    ("h200-sxm", "vllm", "0.22.0", ("bfloat16", "float8_block128")),
    ("h200-sxm", "vllm", "0.24.0", _FP8),
    ("l40s", "sglang", "0.5.14", ("bfloat16", "float8_e4m3")),
    ("l40s", "trtllm", "1.3.0rc20", _FP8),
    ("l40s", "vllm", "0.24.0", _FP8),
    ("rtx-4090", "vllm", "0.19.0", _BF16),
    ("rtx-pro-6000-server", "vllm", "0.19.0", _BF16),
    ("rtx-3090", "llmservingsim", "v0", _BF16),
    ("rtx-a6000", "llmservingsim", "v0", _BF16),
    ("h100-sxm", "vidur", "unknown", ("float16",)),
    ("a100-sxm-80gb", "vidur", "unknown", ("float16",)),
    ("a40", "vidur", "unknown", ("float16",)),
)

#: GPUs of the fp32 tables that hymell has a data sheet of.
_FP32_GPUS: Final = ("a100-pcie-40gb", "a100-pcie-80gb", "h100-sxm", "l4", "t4")

TARGETS: Final[tuple[Target, ...]] = (
    *(
        Target("gemm", gpu, library, version, dtype)
        for gpu, library, version, dtypes in _ENGINES
        for dtype in dtypes
    ),
    *(
        Target(op, gpu, "pytorch", "2.1.0", "float32")
        for op in ("gemm", "batched_gemm")
        for gpu in _FP32_GPUS
    ),
)


def dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """The sizes that `gemm_tile.tile_form` takes, ``copies`` as the benchmark rotated them.

    Raises HymellError for a table of another op.
    """
    _check(table)
    ones = np.ones(len(table))
    libraries = [_copies(str(source), str(name)) for source, name in _pairs(table)]
    return {
        "m": table["m"],
        "n": table["n"],
        "k": table["k"],
        "batch": table["batch"] if table.op == "batched_gemm" else ones,
        "copies": np.array(libraries, dtype=np.float64),
    }


def splits(table: Table) -> list[Split]:
    """(name, rows to fit on, rows to judge on): unseen shapes, then ranges of m, n and k.

    A range that the table does not reach, or that leaves fewer than 30 rows to fit on, is left
    out. Raises HymellError for a table of another op.
    """
    _check(table)
    m = table["m"]
    large = np.maximum(table["n"], table["k"]) >= _LARGE_NK
    band = np.zeros(len(table), dtype=bool)
    for low, high in _M_BANDS:
        band |= (m >= low) & (m <= high)
    ranges = {"m-band": band, "m-large": m > _TRAINED_M, "nk-large": large, "m-one": m == 1}
    held = [(name, ~mask, mask) for name, mask in ranges.items()]
    return [
        *held_groups(table, ("n", "k"), "shapes"),
        *((name, train, test) for name, train, test in held if test.any() and train.sum() >= 30),
    ]


def learning_rows(train: NDArray[np.bool_], samples: int, seed: int) -> NDArray[np.int64]:
    """Rows of a learning curve: ``samples`` of the training rows, or all where there are fewer."""
    rows = np.flatnonzero(train)
    if samples >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).choice(rows, samples, replace=False)
    return np.sort(chosen)


def _pairs(table: Table) -> list[tuple[object, object]]:
    return list(zip(table["source"], table["library"], strict=True))


def _copies(source: str, library: str) -> float:
    """LLMServingSim's tables of vLLM run whole layers, unlike aiconfigurator's."""
    return _COPIES["llmservingsim" if source.startswith("llmservingsim") else library]


def _check(table: Table) -> None:
    if table.op not in ("gemm", "batched_gemm"):
        raise HymellError(f"GEMM splits do not cut a table of {table.op}; use its own module")
