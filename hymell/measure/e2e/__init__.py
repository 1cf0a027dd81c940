"""Whole models as others measured them: one reader per upstream, one tidy table.

A reader is a module with ``files(root)`` and a loader per table. To add one, write such a module
and list it in `READERS`; `filters` words what is left out. The file of withheld rows beside the
tables is read by nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hymell.errors import HymellError
from hymell.measure.e2e import (
    argonne,
    llmservingsim,
    mlenergy,
    neusight,
    published,
    silicon,
    splitwise,
    wilkins,
)
from hymell.measure.e2e.filters import tidy
from hymell.measure.e2e.layout import RunFile
from hymell.measure.e2e.table import FLAGS, MEASURED, PEERS, RUN_COLUMNS, SIZES, WHOLE_MODEL
from hymell.measure.location import locate
from hymell.measure.table import Table, Tally

__all__ = ["read_runs", "run_files", "tallies"]

READERS = (argonne, splitwise, mlenergy, wilkins, silicon, neusight, llmservingsim, published)

_FLOATS = frozenset({*SIZES, *MEASURED, *PEERS, "arrival_s", "spread"})


def run_files(root: Path) -> Iterator[RunFile]:
    """Every table of runs below ``root`` that a reader knows."""
    for reader in READERS:
        yield from reader.files(root)


def read_runs(name: str | None = None, root: Path | None = None) -> Table:
    """The runs of one set, or of all, filtered, in the columns of `table.RUN_COLUMNS`.

    ``table.tallies`` says what was left out; ``table.where(gpu="h100-sxm", zoo="llama-3-8b")``
    picks rows. ``root`` defaults to `locate`. Raises HymellError where there is no data folder and
    for a set that is not there, saying which are.
    """
    folder = locate() if root is None else root
    files = list(run_files(folder))
    wanted = [file for file in files if name in (None, file.set)]
    if not wanted:
        there = ", ".join(sorted({file.set for file in files})) or "none"
        what = f"no end-to-end set {name!r}" if name else "no end-to-end measurements"
        raise HymellError(f"{what} in {folder}; there are: {there} (docs/data.md)")
    found = [tidy(file) for file in wanted]
    rows = pd.concat([frame for frame, _ in found], ignore_index=True)
    columns = {column: rows[column].to_numpy(dtype=_type(column)) for column in RUN_COLUMNS}
    return Table(WHOLE_MODEL, columns, tuple(t for _, tallied in found for t in tallied))


def tallies(root: Path) -> Iterator[Tally]:
    """What the filters left of every set below ``root``."""
    for file in run_files(root):
        yield from tidy(file)[1]


def _type(column: str) -> type:
    if column in _FLOATS:
        return np.float64
    if column == "repeats":
        return np.int64
    return bool if column in FLAGS else object
