"""casys-kaist/LLMServingSim's benchmark: every request of a vLLM server under load.

A run is one server that answers three hundred requests as they come; their time to first token
holds the waiting. ``dp`` replicas share the requests of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "casys-kaist/LLMServingSim"

_RUN = ["model", "gpu", "tp", "dp", "max_num_seqs"]


def files(root: Path) -> Iterator[RunFile]:
    """The table of this source."""
    return tidy_tables(root, SOURCE, {"llmservingsim_bench": load})


def load(path: Path) -> pd.DataFrame:
    """One row per request: its time to first token and its mean time per further token."""
    raw = common(path)
    key = [*_RUN, "request_id"]
    names = {"ttft_serving": "ttft_s", "tpot_serving": "tpot_s"}
    times = raw.pivot(index=key, columns="phase", values="latency_ms").rename(columns=names) / 1e3
    count = raw.groupby(key).size().rename("joined")
    rows = raw.drop_duplicates(key).merge(times.join(count).reset_index(), on=key)
    first = rows.groupby(_RUN)["arrival"].transform("min")
    label = rows["gpu"] + " " + rows["model"] + " tp" + rows["tp"].astype(str)
    return rows.assign(
        n_gpus=rows["tp"] * rows["dp"],
        run=label + " dp" + rows["dp"].astype(str) + " max " + rows["max_num_seqs"].astype(str),
        arrival_s=rows["arrival"] - first,
        queued=True,
    )
