"""One reader per upstream layout; `read` asks them all and gives one tidy table.

A reader is a module with ``SOURCE`` and ``files(root)``, which knows its files by their place, in
the shared data folder as in a clone of the upstream repository. To add one, write such a module
and list it in `READERS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hymell.dtypes import ALIASES
from hymell.errors import HymellError
from hymell.measure.location import locate
from hymell.measure.readers import (
    aiconfigurator,
    llmservingsim,
    llmservingsim_v0,
    neusight,
    vidur,
)
from hymell.measure.readers.filters import tidy
from hymell.measure.readers.layout import MeasuredFile, gpu_name
from hymell.measure.table import Table, Tally, column_names, dims

__all__ = ["measured_files", "read", "tallies"]

READERS = (aiconfigurator, vidur, neusight, llmservingsim, llmservingsim_v0)

_FLOATS = ("time_s", "power_w", "spread")


def measured_files(root: Path) -> Iterator[MeasuredFile]:
    """Every file below ``root`` that a reader knows, by reader and path."""
    for reader in READERS:
        yield from reader.files(root)


def read(
    op: str,
    gpu: str,
    library: str,
    version: str | None = None,
    dtype: str | None = None,
    root: Path | None = None,
    source: str | None = None,
) -> Table:
    """The measured rows of one op on one GPU with one library, filtered and merged.

    ``gpu`` and ``dtype`` may be written loosely (``h100``, ``bf16``); versions are different
    targets, so tell them apart by ``version`` or by that column. ``root`` defaults to `locate`.
    Raises HymellError for an op that no reader gives, where there is no data folder, and where
    nothing fits, saying what there is.
    """
    dims(op)
    name = gpu_name(gpu)
    folder = locate() if root is None else root
    files = [file for file in measured_files(folder) if op in file.ops]
    wanted = [
        file
        for file in files
        if file.gpu == name
        and file.library == library
        and version in (None, file.version)
        and source in (None, file.source)
    ]
    results = list(_tidied(wanted, op))
    if not results:
        what = f"no {op} measurements for {name} with {library}{f' {version}' if version else ''}"
        raise HymellError(f"{what} in {folder}; {_there(files, wanted)}")
    rows = pd.concat([frame for frame, _ in results], ignore_index=True)
    notes = [tally for _, tallied in results for tally in tallied]
    if dtype is not None:
        known = ALIASES.get(dtype.strip().lower(), dtype)
        found = sorted({tally.dtype for tally in notes})
        if known not in found:
            raise HymellError(
                f"no {op} measurements in {dtype!r} for {name} with {library}; "
                f"there are: {', '.join(found)}"
            )
        rows = rows[rows["dtype"] == known]
        notes = [tally for tally in notes if tally.dtype == known]
    return Table(op, _columns(op, rows), tuple(notes))


def tallies(root: Path) -> Iterator[Tally]:
    """What the filters left of everything below ``root``."""
    for _, tallied in _tidied(list(measured_files(root))):
        yield from tallied


def _tidied(
    files: Iterable[MeasuredFile], op: str | None = None
) -> Iterator[tuple[pd.DataFrame, list[Tally]]]:
    """Tidy rows per op and per source, GPU, library and version, of ``op`` or of every op."""
    groups: dict[tuple[str, ...], list[MeasuredFile]] = defaultdict(list)
    for file in files:
        groups[file.source, file.gpu, file.library, file.version].append(file)
    for members in groups.values():
        parts: dict[str, list[tuple[MeasuredFile, pd.DataFrame]]] = defaultdict(list)
        for file in members:
            for part in file.load(file.path):
                if op in (None, part.op) and len(part.frame):
                    parts[part.op].append((file, part.frame))
        for name, frames in parts.items():
            yield tidy(name, frames)


def _columns(op: str, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    columns = {}
    for name in column_names(op):
        if name in _FLOATS or name in dims(op):
            columns[name] = rows[name].to_numpy(dtype=np.float64)
        elif name == "repeats":
            columns[name] = rows[name].to_numpy(dtype=np.int64)
        elif name == "sustained":
            columns[name] = rows[name].to_numpy(dtype=bool)
        else:
            columns[name] = rows[name].to_numpy(dtype=object)
    return columns


def _there(files: list[MeasuredFile], wanted: list[MeasuredFile]) -> str:
    """What there is instead, where ``files`` may hold the op and ``wanted`` what was asked for."""
    if wanted:
        return f"{wanted[0].path.name} is there and has no such rows"
    if not files:
        return "there are none of this op for any GPU"
    have = sorted({f"{file.gpu} {file.library} {file.version}" for file in files})
    return f"there are: {', '.join(have)}"
