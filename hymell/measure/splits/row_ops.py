"""What is held out of the tables of row kernels.

A width is held out with all its rows; so are row counts, and the longest of them. NeuSight's own
split (its training rows are smaller than its test rows) is kept as the hardest range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.measure.table import Table

Mask = NDArray[np.bool_]
Array = NDArray[np.float64]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

SEEDS: Final = (0, 1, 2)
_HELD_SHARE: Final = 0.25
#: A band of row counts held out whole, beside a quarter of the others.
_BAND: Final = (700.0, 1100.0)
#: Widths of NeuSight's evaluation that have enough rows to be judged on.
_EAGER_WIDTHS: Final = (2048.0, 2560.0, 4096.0, 8192.0)
_FEWEST: Final = 4


_OPS: Final = ("rms_norm", "layer_norm", "softmax")


def dims(table: Table) -> dict[str, Array]:
    """Rows, columns, and bytes read and written once (``row_ops.ROW_DIMS``)."""
    if table.op not in _OPS:
        raise HymellError(f"{table.op} is no row kernel; use one of: {', '.join(_OPS)}")
    rows, cols = table["rows"], table["cols"]
    return {"rows": rows, "cols": cols, "bytes": 2.0 * rows * cols * element_bytes(table)}


def splits(table: Table) -> Iterator[Split]:
    """Unseen widths, unseen rows (three seeds), the longest; NeuSight's own split where it is."""
    eager = bool(np.all(table["source"] == "neusight"))
    widths = _EAGER_WIDTHS if eager else tuple(np.unique(table["cols"]))
    if len(np.unique(table["cols"])) > 1:
        for width in widths:
            test = table["cols"] == width
            if test.sum() >= _FEWEST:
                yield f"unseen width {width:.0f}", ~test, test
    if eager:
        yield from _random_shapes(table)
        yield from _published(table)
    else:
        yield from unseen_counts(table["rows"])


def unseen_counts(count: Array) -> Iterator[Split]:
    """A quarter of the counts and a whole band of them (three seeds); then the longest fifth."""
    distinct = np.unique(count)
    band = (count >= _BAND[0]) & (count <= _BAND[1])
    for seed in SEEDS:
        held = np.random.default_rng(seed).permutation(distinct)[: len(distinct) // 4]
        test = np.isin(count, held) | band
        yield f"unseen rows {seed}", ~test, test
    test = count > np.quantile(distinct, 0.8)
    yield "longest rows", ~test, test


def element_bytes(table: Table) -> Array:
    """Bytes of an element of each row's format."""
    sizes = {str(name): float(bytes_per_element(str(name))) for name in np.unique(table["dtype"])}
    return np.array([sizes[str(name)] for name in table["dtype"]])


def _random_shapes(table: Table) -> Iterator[Split]:
    """Rows are distinct shapes already: a random quarter of them."""
    for seed in SEEDS:
        test = np.random.default_rng(seed).random(len(table)) < _HELD_SHARE
        yield f"unseen shapes {seed}", ~test, test


def _published(table: Table) -> Iterator[Split]:
    test = np.array(["/test/" in str(path) for path in table["file"]])
    if 0 < test.sum() < len(table):
        yield "published split", ~test, test
