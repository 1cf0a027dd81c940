"""Runs of the end-to-end campaigns with the estimate of a system that never saw their model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from systems.campaigns import SPECS
from systems.predictions import FITTED, judge

from hymell.estimators.offset_fit import PRIORS

Array = NDArray[np.float64]

#: Campaigns with several models, so that every estimate is by a system without the model.
CAMPAIGNS: Final = ("argonne", "mlenergy_v3 H100", "mlenergy_v3 B200", "aic_silicon H100")

#: Those whose dense models stand apart from models with experts, and how.
_SPLIT: Final = ("mlenergy_v3 H100", "mlenergy_v3 B200")
_KINDS: Final = {" dense": np.logical_not, " MoE": np.asarray}
_WHOLE: Final = {"": lambda moe: np.ones(len(moe), dtype=bool)}

#: What offsets belong to.
CONFIGURATION: Final = ("gpu", "library", "version", "model", "dtype", "n_gpus")

#: Three runs calibrate, and at least this many others judge.
JUDGES: Final = 2


@dataclass(frozen=True)
class Configuration:
    """Runs of one configuration: seconds estimated, measured, and by the data sheet.

    ``columns``: what each of `PRIORS` is multiplied with, one entry per run. ``group`` is the model
    or its near twins.
    """

    gpu: str
    library: str
    model: str
    n_gpus: int
    group: str
    columns: dict[str, Array]
    time_s: Array
    sheet_s: Array

    def __len__(self) -> int:
        return len(self.time_s)

    def take(self, rows: NDArray[Any]) -> tuple[dict[str, Array], Array]:
        """Columns and measured seconds of some runs."""
        return {name: self.columns[name][rows] for name in PRIORS}, self.time_s[rows]


@dataclass(frozen=True)
class Held:
    """A campaign: its configurations, and how many runs are in ones too small to judge."""

    name: str
    title: str
    configurations: tuple[Configuration, ...]
    too_few: int


def campaigns(cache: Path) -> list[Held]:
    """Every campaign of `CAMPAIGNS`."""
    found = []
    for spec in SPECS:
        if spec.name not in CAMPAIGNS:
            continue
        print(spec.name, file=sys.stderr, flush=True)
        campaign, _ = spec.load(cache)
        seconds = judge(spec, campaign, cache).seconds
        # One fit prices dense models and models with experts; what one run is worth differs.
        for kind, of_kind in _KINDS.items() if spec.name in _SPLIT else _WHOLE.items():
            parts: list[Configuration] = []
            too_few = 0
            for cell, rows in campaign.cells.items():
                if len(np.unique(campaign.group[rows])) == 1:
                    continue
                mine = of_kind(campaign.runs.labels["moe"].to_numpy(dtype=bool)[rows])
                runs = campaign.runs.take(rows[mine])
                estimate_s = seconds[cell][FITTED][mine]
                columns = _columns(runs.labels, dict(runs.terms), estimate_s)
                found_here = list(_split(runs, columns, campaign.group[rows[mine]]))
                parts += [each for each in found_here if len(each) >= 3 + JUDGES]
                too_few += sum(len(each) for each in found_here if len(each) < 3 + JUDGES)
            found.append(Held(f"{spec.name}{kind}", spec.title, tuple(parts), too_few))
    return found


def _columns(labels: pd.DataFrame, terms: dict[str, Array], estimate_s: Array) -> dict[str, Array]:
    """The estimate cut into phases as the seconds of their kernels are; steps; sequences.

    A time per token is all decode: a server's prefills in it are part of what is measured.
    """
    kernels = sum(terms[name] for name in ("prefill", "dense", "experts", "attention"))
    what = labels["what"].to_numpy()
    share = np.where(what == "tpot", 0.0, np.where(what == "ttft", 1.0, terms["prefill"] / kernels))
    return {
        "prefill": share * estimate_s,
        "decode": (1 - share) * estimate_s,
        "step_s": terms["step_s"],
        "sequence_s": terms["sequence_s"],
    }


def _split(runs: Any, columns: dict[str, Array], group: NDArray[Any]) -> Iterator[Configuration]:
    labels = runs.labels.reset_index(drop=True)
    for key, mine in labels.groupby(list(CONFIGURATION), sort=True):
        rows = mine.index.to_numpy()
        named = dict(zip(CONFIGURATION, key, strict=True))
        yield Configuration(
            gpu=named["gpu"],
            library=named["library"],
            model=named["model"],
            n_gpus=int(named["n_gpus"]),
            group=str(group[rows[0]]),
            columns={name: values[rows] for name, values in columns.items()},
            time_s=runs.time_s[rows],
            sheet_s=runs.sheet_s[rows],
        )
