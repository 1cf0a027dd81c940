"""ai-dynamo/aiconfigurator: kernel times by GPU, engine and version, as parquet files.

Layout: ``systems/data/SYSTEM/[KIND/]LIBRARY/VERSION/NAME_perf.parquet``. Times are in milliseconds,
power in watts. The data type of scans is not stated upstream and bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.errors import HymellError
from hymell.measure.readers.aiconfigurator_tables import TABLES
from hymell.measure.readers.layout import MeasuredFile, Part, find_folders, gpu_name

SOURCE = "aiconfigurator"


def files(root: Path) -> Iterator[MeasuredFile]:
    """The tables below ``root`` that a reader is written for."""
    for data in find_folders(root, "systems/data"):
        for path in sorted(data.rglob("*_perf.parquet")):
            place = path.relative_to(data).parts
            if path.stem in TABLES and len(place) in (4, 5):
                yield MeasuredFile(
                    path=path,
                    source=SOURCE,
                    gpu=gpu_name(place[0]),
                    library=place[-3],
                    version=place[-2],
                    ops=TABLES[path.stem][0],
                    load=load,
                )


def load(path: Path) -> Iterator[Part]:
    """The rows of one table, by op.

    Raises HymellError without pyarrow, and for a file that is not parquet (a Git LFS pointer).
    """
    raw = _read(path)
    common = pd.DataFrame(
        {
            "kernel": raw["kernel_source"],
            "time_s": raw["latency"] * 1e-3,
            "drop": _drops(raw),
        }
    )
    if "power" in raw:
        common["power_w"] = raw["power"]
    for op, rows in TABLES[path.stem][1](raw):
        yield Part(op, rows.join(common))


def _drops(raw: pd.DataFrame) -> pd.Series:
    """Copies, and strays of another version; a file all of one other version is its folder's."""
    drop = pd.Series("", index=raw.index)
    drop[raw.duplicated()] = "exact_copy"
    if raw["version"].nunique() > 1:
        main = raw["version"].value_counts().index[0]
        drop[raw["version"] != main] = "other_version"
    return drop


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError as error:
        raise HymellError(
            f"reading {path.name} needs pyarrow: run `pip install pyarrow`"
        ) from error
    except (ValueError, OSError) as error:
        raise HymellError(
            f"{path} is not a parquet file; in a clone made without Git LFS run `git lfs pull`"
        ) from error
