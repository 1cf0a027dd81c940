"""Held-out predictions row by row: what intervals and other looks at the errors start from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from systems.campaigns import SPECS, Spec
from systems.judge import Campaign, Cell
from systems.predictions import judge, split

#: The columns of `held_out_rows`. ``campaign`` and ``set`` say whose runs they are, ``what`` is
#: ttft, tpot or latency, ``group`` the model with its near twins under one name.
COLUMNS: Final = (
    *("campaign", "set", "gpu", "library", "version", "what", "model", "group", "dtype"),
    *("n_gpus", "moe", "batch", "prompt", "output", "estimator", "split"),
    *("predicted_s", "measured_s"),
)


def held_out_rows(cache: Path, campaigns: Sequence[str] | None = None) -> pd.DataFrame:
    """Every run with its measured seconds and those of each estimator, as `COLUMNS`.

    No estimator has seen the model of the run (in Splitwise: its number of GPUs), nor any run of
    its GPU where ``split`` says so. ``campaigns`` are names of `SPECS`, by default all. Kept in
    ``cache``, as prices of runs are. Raises HymellError where the measurements are not there.
    """
    wanted = [spec for spec in SPECS if campaigns is None or spec.name in campaigns]
    return pd.concat([_of(spec, cache) for spec in wanted], ignore_index=True)


def _of(spec: Spec, cache: Path) -> pd.DataFrame:
    campaign, _ = spec.load(cache)
    return pd.concat(
        [
            _labelled(spec, campaign, cell).assign(
                estimator=estimator,
                split=split(spec, estimator),
                predicted_s=seconds,
                measured_s=campaign.runs.time_s[campaign.cells[cell]],
            )[list(COLUMNS)]
            for cell, found in judge(spec, campaign, cache).seconds.items()
            for estimator, seconds in found.items()
        ],
        ignore_index=True,
    )


def _labelled(spec: Spec, campaign: Campaign, cell: Cell) -> pd.DataFrame:
    mine = campaign.cells[cell]
    labels = campaign.runs.labels.iloc[mine]
    return labels.assign(campaign=spec.name, model=labels["zoo"], group=campaign.group[mine])
