"""What is held out of the tables of kernels bound by bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from hymell.errors import HymellError
from hymell.measure.splits.row_ops import SEEDS, Array, Split, element_bytes, unseen_counts
from hymell.measure.table import Table

_HELD_SHARE: Final = 0.2


_INDEX_BYTES: Final = 8.0


def dims(table: Table) -> dict[str, Array]:
    """``row_ops.ROW_DIMS`` and ``elements``: what either form of `pointwise` asks for.

    RoPE reads and writes queries and keys, and reads a cosine and a sine per token and half head.
    """
    size = element_bytes(table)
    if table.op == "pointwise":
        rows, cols = table["rows"], table["cols"]
        moved = rows * cols * size * (table["reads"] + 1.0)
    elif table.op == "rope":
        rows, cols = table["tokens"], (table["heads"] + table["kv_heads"]) * table["head_dim"]
        moved = rows * size * (2.0 * cols + table["head_dim"])
    elif table.op == "embedding":
        rows, cols = table["tokens"], table["hidden"]
        moved = 2.0 * rows * cols * size + _INDEX_BYTES * rows
    else:
        raise HymellError(f"{table.op} is not priced by its bytes: use pointwise, rope, embedding")
    return {"rows": rows, "cols": cols, "bytes": moved, "elements": rows * cols}


def splits(table: Table) -> Iterator[Split]:
    """Whole widths (three seeds), unseen counts, the longest; NeuSight's own split where it is."""
    sizes = dims(table)
    distinct = np.unique(sizes["cols"])
    if len(distinct) > 1:
        count = max(1, round(_HELD_SHARE * len(distinct)))
        for seed in SEEDS:
            held = np.random.default_rng(seed).permutation(distinct)[:count]
            test = np.isin(sizes["cols"], held)
            yield f"unseen width {seed}", ~test, test
    if np.all(table["source"] == "neusight"):
        test = np.array(["/test/" in str(path) for path in table["file"]])
        if 0 < test.sum() < len(table):
            yield "published split", ~test, test
    else:
        yield from unseen_counts(sizes["rows"])
