"""Wilkins et al., Offline Energy-Optimal LLM Serving: energy over prompt x output on A100s.

Transformers in eager mode, one sequence, and no cache of keys and values: every token recomputes
the whole prefix. Models of several GPUs are cut by layers: while one GPU works the others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "Wilkins et al."

_SHORTEST = 32


def files(root: Path) -> Iterator[RunFile]:
    """The table of this source."""
    return tidy_tables(root, SOURCE, {"wilkins_grid_a100": load})


def load(path: Path) -> pd.DataFrame:
    """Whole runs; ``tp`` counts the GPUs that hold the layers."""
    rows = common(path)
    rows = rows.assign(
        version="unknown",
        latency_s=rows["latency_ms"] / 1e3,
        pp=rows["n_gpus"],
        tp=1,
        kv_cache=False,
    )
    rows.loc[rows["maxout"] < _SHORTEST, "drop"] = "short_output"
    return rows
