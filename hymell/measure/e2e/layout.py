"""What a reader of whole-model runs hands over, and what the tidy tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hymell.measure.e2e import names
from hymell.measure.readers.layout import find_folders, read_csv

Load = Callable[[Path], pd.DataFrame]


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file, or folder, of one set; ``load`` gives its runs before any shared filter.

    A loaded frame has columns of `table.RUN_COLUMNS`; those left out are filled in. ``drop`` may
    hold a reason of `filters.REASONS`, ``power_drop`` one of `filters.POWER_REASONS` ("" for none),
    and ``joined`` how many upstream rows stand in one (1).
    """

    path: Path
    set: str
    source: str
    load: Load


def tidy_tables(root: Path, source: str, loads: Mapping[str, Load]) -> Iterator[RunFile]:
    """The files ``e2e/SET.csv`` at or below ``root`` that a reader is written for, no others."""
    for folder in find_folders(root, "e2e"):
        for name, load in loads.items():
            if (path := folder / f"{name}.csv").is_file():
                yield RunFile(path, name, source, load)


def common(path: Path) -> pd.DataFrame:
    """The rows of a tidy table with hymell's names beside upstream's columns.

    Upstream's ``tp`` counts GPUs; a reader that knows how they share the model says so.
    """
    raw = read_csv(path)
    found = raw.get("framework", pd.Series("", raw.index)).fillna("").map(names.library)
    return raw.assign(
        model=raw["model"],
        zoo=raw["model"].map(names.zoo),
        gpu=raw["gpu"].map(names.gpu),
        library=found.str[0],
        version=found.str[1],
        engine=found.str[2],
        dtype=raw["dtype"].map(names.dtype),
        n_gpus=raw["tp"],
        prompt=raw["input_len"],
        output=raw["output_len"],
        drop="",
        power_drop="",
    )
