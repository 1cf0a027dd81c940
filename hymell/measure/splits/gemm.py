"""What is held out of the GEMM tables, and how their weights rotated.

``shapes`` holds out one in five (n, k) pairs with every m, one split per seed; ``m-band`` two bands
of m; ``m-large``, ``nk-large`` and ``m-one`` what lies beyond the rest.
"""

from __future__ import annotations

from typing import Final

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
