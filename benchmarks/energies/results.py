"""Records of a page, what ships, and where the largest errors are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from energies.held_out import CAPPED, FITTED, KERNEL_POWER, SHIPPED, Judged, with_energies
from energies.judge import Campaign, Form, Harness
from hymell.estimators.level1.device import Device
from hymell.estimators.level3.energies import Energies
from hymell.hardware import load_gpu

Record = dict[str, Any]
Pick = Callable[[pd.DataFrame], Any]

_ALL: Final[Mapping[str, Pick]] = {"all": lambda r: r["n_gpus"] >= 1}

#: The lines of each harness: name to the runs it is about.
LINES: Final[Mapping[str, Mapping[str, Pick]]] = {
    "ML.ENERGY v3": {
        "dense, 1 GPU": lambda r: ~r["moe"] & (r["n_gpus"] == 1),
        "dense, 1-8 GPUs": lambda r: ~r["moe"],
        "dense, attention alone, 1-8 GPUs": lambda r: ~r["moe"] & ~r["model"].isin(HYBRIDS),
        "experts": lambda r: r["moe"],
        "lm-arena-chat": lambda r: r["task"] == "lm-arena-chat",
        **_ALL,
    },
}

#: Models whose layers are mostly recurrences.
HYBRIDS: Final = ("nemotron-nano-9b-v2", "nemotron-nano-12b-v2")

#: Which harness ships where several measured a GPU: the newest first.
_NEWEST: Final = ("ML.ENERGY v3", "ML.ENERGY v2", "Wilkins")

_GROUPS: Final[Mapping[str, tuple[Sequence[float], Sequence[str]]]] = {
    "batch": (
        [0, 1, 8, 32, 128, 512, np.inf],
        ["1", "2-8", "9-32", "33-128", "129-512", "over 512"],
    ),
    "tokens": (
        [0, 512, 1024, 4096, np.inf],
        ["up to 512", "513-1024", "1025-4096", "over 4096"],
    ),
}


@dataclass(frozen=True)
class Worst:
    """A group of runs with a large mean error: ``value`` of ``dimension``, MAPE and bias in %."""

    campaign: str
    gpu: str
    dimension: str
    value: str
    rows: int
    mape: float
    bias: float


def records(rows: pd.DataFrame) -> Iterator[Record]:
    """One per harness, GPU, line, estimator and time, of rows as `held_out.COLUMNS`."""
    for (campaign, gpu), cell in rows.groupby(["campaign", "gpu"], sort=False):
        for line, pick in LINES.get(campaign, _ALL).items():
            mine = cell[np.asarray(pick(cell), dtype=bool)]
            for (estimator, split, time), part in mine.groupby(
                ["estimator", "split", "time"], sort=False
            ):
                yield {
                    "set": f"{campaign}: {line}",
                    "gpu": gpu,
                    "library": "/".join(sorted(part["library"].unique())),
                    "op": "energy",
                    "dtype": "/".join(sorted(part["dtype"].unique())),
                    "estimator": estimator,
                    "split": split,
                    "time": time,
                    "rows": len(part),
                    **_figures(part),
                    "models": int(part["model"].nunique()),
                }


def _figures(part: pd.DataFrame) -> dict[str, float]:
    percent = (part["predicted_j"] / part["measured_j"] - 1).to_numpy() * 100
    size = np.abs(percent)
    figures = {
        "mape": size.mean(),
        "median": np.median(size),
        "p90": np.percentile(size, 90),
        "max": size.max(),
        "bias": percent.mean(),
    }
    return {name: round(float(value), 2) for name, value in figures.items()}


def worst(rows: pd.DataFrame) -> Iterator[Worst]:
    """The worst model, batch and length of each cell, fitted energies at the measured time."""
    ours = rows[(rows["estimator"] == FITTED) & (rows["time"] == "measured")]
    for (campaign, gpu), cell in ours.groupby(["campaign", "gpu"], sort=False):
        percent = (cell["predicted_j"] / cell["measured_j"] - 1) * 100
        gpus = cell["n_gpus"].astype(int).astype(str)
        values = {
            "model": cell["model"] + ", " + gpus + " GPU " + cell["task"],
            "batch": _cut(cell["batch"], "batch"),
            "tokens": _cut(cell["prompt"] + cell["output"], "tokens"),
        }
        for dimension, value in values.items():
            sizes = percent.abs().groupby(value).agg(["size", "mean"])
            means = percent.groupby(value).mean()
            large = sizes[sizes["size"] >= 3].sort_values("mean", ascending=False)
            for name, found in large.head(2 if dimension == "model" else 1).iterrows():
                key = str(name)
                rows_, mape = int(found["size"]), float(found["mean"])
                yield Worst(campaign, gpu, dimension, key, rows_, mape, float(means[key]))


def _cut(values: pd.Series, dimension: str) -> pd.Series:
    edges, labels = _GROUPS[dimension]
    return pd.cut(values, list(edges), labels=list(labels)).astype(str)


@dataclass(frozen=True)
class Shipping:
    """Energies to ship with the harness and form they come from; ``tried``: on other runs.

    ``tried`` holds rows as `held_out.COLUMNS`, of harnesses that the energies were not fitted to.
    ``unfit``: (harness, GPU) whose fits are no nearer than the power of kernels.
    """

    energies: Sequence[Energies]
    forms: Mapping[str, Form]
    tried: pd.DataFrame
    unfit: Sequence[tuple[str, str]]


def shipping(found: Sequence[Judged], rows: pd.DataFrame) -> Shipping:
    """What is nearer to unseen models than the power of kernels, at the measured time.

    Relatives use it where there were runs of one, and it was nearer on all of those.
    """
    by_name = {each.spec.name: each for each in found}
    made: dict[str, Energies] = {}
    forms: dict[str, Form] = {}
    unfit = []
    for name in _NEWEST:
        each = by_name.get(name)
        if each is None or each.harness is None:
            continue
        # Linear forms carry over to other harnesses badly: nothing holds them below the limit.
        form = each.harness.choose(capped=True)
        for gpu, campaign in each.harness.campaigns.items():
            if gpu in made:
                continue
            mape, plain = _mape(rows, name, gpu, CAPPED), _mape(rows, name, gpu, KERNEL_POWER)
            if mape >= plain:
                unfit.append((name, gpu))
                continue
            made[gpu], forms[gpu] = _energies(each, campaign, form, mape, plain), form
    frames, carried = [], {gpu: list[bool]() for gpu in made}
    for each in found:
        for gpu in each.runs:
            for home, energies in made.items():
                if home != gpu and not _relatives(home, gpu):
                    continue
                if home == gpu and energies.source == each.spec.source:
                    continue
                if home != gpu and gpu in made:
                    continue
                tried = with_energies(each, gpu, energies)
                frames.append(tried)
                if home != gpu:
                    ours = _mape(tried, each.spec.name, gpu, SHIPPED)
                    carried[home].append(ours < _mape(rows, each.spec.name, gpu, KERNEL_POWER))
    shipped = [
        replace(energies, transfers=bool(carried[gpu]) and all(carried[gpu]))
        for gpu, energies in made.items()
    ]
    return Shipping(shipped, forms, pd.concat(frames, ignore_index=True), unfit)


def _energies(each: Judged, campaign: Campaign, form: Form, mape: float, plain: float) -> Energies:
    models = tuple(sorted(campaign.runs.labels["zoo"].unique()))
    values = campaign.fit(form).coefficients_
    gpu, rows = campaign.gpu.name, len(campaign.runs)
    return Energies(gpu, each.spec.source, values, rows, models, mape, plain)


def _relatives(a: str, b: str) -> bool:
    return Device.of(load_gpu(a)).family == Device.of(load_gpu(b)).family


def _mape(rows: pd.DataFrame, campaign: str, gpu: str, estimator: str) -> float:
    mine = rows[(rows["campaign"] == campaign) & (rows["gpu"] == gpu)]
    mine = mine[(mine["estimator"] == estimator) & (mine["time"] == "measured")]
    return float((mine["predicted_j"] / mine["measured_j"] - 1).abs().mean() * 100)


def forms_of(harness: Harness) -> tuple[Form, int, int]:
    """The form chosen with all runs, and in how many of how many hold-outs it was chosen too."""
    final = harness.choose()
    held = harness.chosen().values()
    return final, sum(form == final for form in held), len(held)
