"""The filters that all readers share: named, worded, counted, and fixed before any fit.

No filter looks at a prediction. Rows are never dropped for being slow, fast or odd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from hymell.measure.readers.layout import MeasuredFile
from hymell.measure.table import OPTIONAL, Tally, column_names, dims, labels

#: Why a row is left out, by the name under which it is counted.
REASONS: Final[Mapping[str, str]] = {
    "exact_copy": "the same row, time included, stands twice in one file",
    "other_version": "the row names another library version than the rest of its file",
    "copied_file": "the file is byte for byte the one of another GPU",
    "crosses_nodes": "the GPUs are in several machines; the network between them is not stated",
    "unknown_model": "the sizes of the model are not known, so the row has no shape",
    "several_kernels": "the row times several kernels and host gaps of an eager layer as one",
    "size_below_one": "a size is 0 or missing, or less than one cached token per sequence",
    "time_not_positive": "the time is 0, negative or missing",
    "repeat": "merged into the mean of the rows with equal sizes, labels and kernel",
}

#: Why the power of a row is blanked; its time is kept.
POWER_REASONS: Final[Mapping[str, str]] = {
    "power_short": "a kernel under 55 us: the 100 ms samples of NVML still show the one before it",
    "power_idle": "within 10% of the table's lowest power: the GPU waited for the host",
}

_SHORTEST_POWERED_S = 55e-6
_NEAR_IDLE = 1.1


def tidy(
    op: str, parts: Sequence[tuple[MeasuredFile, pd.DataFrame]]
) -> tuple[pd.DataFrame, list[Tally]]:
    """One frame with the columns of `table.column_names`, and what was left out, per dtype.

    ``parts`` are the frames of one op, source, GPU, library and version, each with its file. Rows
    with equal sizes, labels, dtype, kernel and regime become their mean, in the order of the first.
    """
    origin = parts[0][0]
    rows = pd.concat([_framed(file, frame) for file, frame in parts], ignore_index=True)
    unusable = _blank_power(rows)
    needed = rows[[d for d in dims(op) if d not in OPTIONAL]]
    mark(rows, ~needed.ge(1).all(axis=1), "size_below_one")
    mark(rows, ~rows["time_s"].gt(0), "time_not_positive")
    kept = _merge(
        rows[rows["drop"] == ""], [*dims(op), *labels(op), "dtype", "kernel", "sustained"]
    )
    for name in ("source", "gpu", "library", "version"):
        kept[name] = getattr(origin, name)
    kept["op"] = op
    tallies = [
        _tally(origin, op, str(dtype), rows[rows["dtype"] == dtype], kept, unusable)
        for dtype in rows["dtype"].unique()
    ]
    return kept[list(column_names(op))], tallies


def _framed(file: MeasuredFile, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with every optional column filled in."""
    frame = frame.assign(file=str(file.path), sustained="power_w" in frame)
    if "power_w" not in frame:
        frame["power_w"] = np.nan
    if "drop" not in frame:
        frame["drop"] = ""
    return frame


def mark(rows: pd.DataFrame, bad: pd.Series, reason: str) -> None:
    """Note the reason for the bad rows that have none yet, so that each is counted once."""
    rows.loc[bad & (rows["drop"] == ""), "drop"] = reason


def _blank_power(rows: pd.DataFrame) -> pd.Series:
    """Blank the unusable powers in place; returns the reason per row, "" for none."""
    why = pd.Series("", index=rows.index)
    measured = rows["power_w"].notna()
    if not measured.any():
        return why
    short = measured & rows["time_s"].lt(_SHORTEST_POWERED_S)
    lowest = rows.groupby("file")["power_w"].transform("min")
    idle = measured & ~short & rows["power_w"].le(_NEAR_IDLE * lowest)
    why[short] = "power_short"
    why[idle] = "power_idle"
    rows.loc[short | idle, "power_w"] = np.nan
    return why


def _merge(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per distinct ``keys``: mean time and power, their number, and how far apart."""
    if not rows.duplicated(keys).any():
        return rows.assign(repeats=1, spread=0.0)
    groups = rows.groupby(keys, sort=False, dropna=False)
    merged = groups.agg(
        time_s=("time_s", "mean"),
        low_s=("time_s", "min"),
        high_s=("time_s", "max"),
        repeats=("time_s", "size"),
        power_w=("power_w", "mean"),
        file=("file", "first"),
    ).reset_index()
    merged["spread"] = (merged["high_s"] - merged["low_s"]) / merged["time_s"]
    return merged


def _tally(
    origin: MeasuredFile,
    op: str,
    dtype: str,
    rows: pd.DataFrame,
    kept: pd.DataFrame,
    unusable: pd.Series,
) -> Tally:
    mine = kept[kept["dtype"] == dtype]
    repeats = int(mine["repeats"].sum()) - len(mine)
    return Tally(
        source=origin.source,
        gpu=origin.gpu,
        library=origin.library,
        version=origin.version,
        op=op,
        dtype=dtype,
        rows_in=len(rows),
        dropped=counts(rows["drop"]) | ({"repeat": repeats} if repeats else {}),
        rows=len(mine),
        power_rows=int(mine["power_w"].notna().sum()),
        power_unusable=counts(unusable[rows.index]),
    )


def counts(reasons: Any) -> dict[str, int]:
    """How many rows have each reason, those without one left out."""
    return {str(name): int(n) for name, n in reasons.value_counts().items() if name}
