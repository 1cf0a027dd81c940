"""Mutinifni/splitwise-sim: prompt and token times of large models under vLLM of 2023, in float16.

Powers are fractions of the boards' limit; those of H100 are not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "Mutinifni/splitwise-sim"

_RUN = ["model", "gpu", "tp", "batch", "prompt", "output"]
_TOLERANCE = 0.02
_UNSAMPLED_PROMPT = 8192


def files(root: Path) -> Iterator[RunFile]:
    """The table of this source."""
    return tidy_tables(root, SOURCE, {"splitwise": load})


def load(path: Path) -> pd.DataFrame:
    """One row per run: the time of the prompts, per token, and of the whole.

    Energy is mean power x the time of the whole. ``spread`` is the larger coefficient of variation.
    """
    raw = common(path)
    names = {"prefill": "ttft_s", "decode": "tpot_s", "e2e": "latency_s"}
    times = raw.pivot(index=_RUN, columns="phase", values="latency_ms").rename(columns=names) / 1e3
    whole = raw[raw["phase"] == "e2e"].drop(columns="cv")
    rows = whole.merge(times.reset_index(), on=_RUN)
    rows["repeats"] = rows["n_rep"]
    spread = raw.groupby(_RUN)["cv"].max().rename("spread")
    rows = rows.merge(spread.reset_index(), on=_RUN)
    rows["joined"] = rows.merge(raw.groupby(_RUN).size().rename("n").reset_index(), on=_RUN)["n"]
    apart = (rows["e2e_check"] - 1).abs() >= _TOLERANCE
    rows.loc[apart, "drop"] = "parts_do_not_add_up"
    unsampled = rows["power_w"].notna() & (rows["prompt"] >= _UNSAMPLED_PROMPT)
    rows.loc[unsampled, "power_drop"] = "power_of_another_window"
    return rows
