"""ml-energy: energy and time per output token of served models (the ML.ENERGY leaderboard).

Three generations with harnesses of their own: never mix them. Prompt lengths are not published;
those of version 3 are typical lengths of its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e import names
from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "ml-energy/leaderboard"

#: Typical prompts of the tasks of version 3, tokens (shared/data/README.md).
_PROMPTS = {"lm-arena-chat": 100, "gpqa": 250, "sourcegraph-fim": 500}


def files(root: Path) -> Iterator[RunFile]:
    """The tables of this source."""
    loads = {"mlenergy_v3": version_3, "mlenergy_v2": version_2, "mlenergy_v1_legacy": version_1}
    return tidy_tables(root, SOURCE, loads)


def version_3(path: Path) -> pd.DataFrame:
    """Median time between tokens, energy per output token, power over all GPUs.

    Experts are spread over all GPUs where attention is not (``epar``), attention over those that no
    data parallelism takes (``dpar``).
    """
    rows = _per_token(path)
    prompt = rows["task"].map(_PROMPTS)
    zoo = rows["model_id"].map(names.zoo)
    return rows.assign(
        model=rows["model_id"],
        zoo=zoo,
        dtype=list(map(names.stored_dtype, rows["dtype"], zoo)),
        dp=rows["dpar"],
        ep=rows["epar"],
        tp=rows["n_gpus"] / rows["dpar"],
        prompt=prompt,
        # Long answers are in flight for longer: their mean, weighted by length, sets the cache.
        context=prompt + rows["lb_out"] / 2,
        prompt_stated=False,
    )


def version_2(path: Path) -> pd.DataFrame:
    """Steady state of vLLM 0.5; its power is energy per token x batch / time per token."""
    rows = _per_token(path)
    rows["n_gpus"] = rows["tp"] * rows["pp"]
    rows.loc[rows["pp"] > 1, "drop"] = "pipeline_cut"
    return rows


def version_1(path: Path) -> pd.DataFrame:
    """One sequence at a time in eager mode: whole answers, their energy and mean power.

    Which A100 and V100 boards is not stated; the usual ones are meant.
    """
    rows = common(path)
    rows["latency_s"] = rows["latency_ms"] / 1e3
    rows["prompt_stated"] = False
    return rows


def _per_token(path: Path) -> pd.DataFrame:
    rows = common(path)
    return rows.assign(
        tpot_s=rows["latency_ms"] / 1e3,
        energy_per_token_j=rows["energy_j"],
        energy_j=float("nan"),
        throughput=rows["tput"],
        queued=True,
        prompt_stated=False,
    )
