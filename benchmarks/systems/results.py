"""A campaign judged: records, coefficients, what ships, and where the largest errors are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hymell.estimators.calibrated import system_for
from hymell.estimators.level1.device import Device
from hymell.estimators.level3.system import System
from hymell.estimators.level3.terms import TERMS, total
from hymell.hardware import load_gpu
from systems.campaigns import ARGONNE, Spec
from systems.judge import Campaign, Cell, Form
from systems.rows import Array, Left, Runs

SHEET, COMPOSED, FITTED = "data sheet", "level-1 composition", "fitted system"
ABROAD: Final = "system of other GPUs"
SIBLING: Final = "system of one family"
SHIPPED: Final = "shipped system"

Record = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What came out for one campaign; ``worst``: groups of runs with the largest mean errors."""

    spec: Spec
    records: Sequence[Record]
    forms: Mapping[str, Form]
    final: Form
    coefficients: Mapping[Cell, Mapping[str, float]]
    systems: Sequence[System]
    unfit: Sequence[Cell]
    worst: Sequence[tuple[Cell, str, str, int, float, float]]
    left: Sequence[Left]


def judged(spec: Spec, cache: Path) -> Result:
    """Every figure of a campaign."""
    campaign, left = spec.load(cache)
    final = campaign.choose()
    fitted = {cell: campaign.coefficients(final, cell, frozenset()) for cell in campaign.cells}
    records: list[Record] = []
    systems: list[System] = []
    unfit: list[Cell] = []
    # Whether coefficients helped on each relative that they were tried on.
    carried: dict[tuple[str, str], list[bool]] = {}
    worst: list[tuple[Cell, str, str, int, float, float]] = []
    for cell, rows in campaign.cells.items():
        runs = campaign.runs.take(rows)
        predicted = predictions(campaign, cell)
        held, near = predicted[FITTED], predicted[SIBLING]
        if near is not None:
            helped = _mape(near, runs) < _mape(runs.composed_s, runs)
            carried.setdefault(_kernels(cell), []).append(helped)
        if spec is not ARGONNE:
            predicted[SHIPPED] = _shipped(cell, runs)
        records += _records(spec, cell, runs, predicted)
        if held is None:
            unfit.append(cell)
            continue
        worst += _worst(cell, runs, held)
        mape, plain = _mape(held, runs), _mape(runs.composed_s, runs)
        if mape >= plain:
            unfit.append(cell)
        elif spec is ARGONNE:
            models = tuple(sorted(runs.labels["zoo"].unique()))
            values = fitted[cell]
            made = System(cell[1], cell[0], spec.title, values, len(runs), models, mape, plain)
            systems.append(made)
    if spec is ARGONNE:
        for place, made in enumerate(systems):
            tried = carried.get(_kernels((made.gpu, made.engine)), [])
            systems[place] = replace(made, transfers=bool(tried) and all(tried))
    return Result(spec, records, campaign.chosen, final, fitted, systems, unfit, worst, left)


def predictions(campaign: Campaign, cell: Cell) -> dict[str, Array | None]:
    """Predicted seconds of the runs of a cell by estimator, none of which has seen their models.

    None where there are no other models, or no other GPUs, to fit.
    """
    runs = campaign.runs.take(campaign.cells[cell])
    held = campaign.held_out(cell) if _several_groups(campaign, cell) else None
    found = {SHEET: runs.sheet_s, COMPOSED: runs.composed_s, FITTED: held}
    return found | _abroad(campaign, cell)


def _shipped(cell: Cell, runs: Runs) -> Array | None:
    """What a report says of runs that its coefficients were not fitted on.

    A report's time per token has no prefill of other requests in it.
    """
    system = system_for(load_gpu(cell[0]), cell[1])
    if system is None:
        return None
    values = {name: system.value(name) for name in TERMS}
    served = (runs.labels["what"] == "tpot").to_numpy()
    return total({**runs.terms, "prefill": np.where(served, 0.0, runs.terms["prefill"])}, values)


def _several_groups(campaign: Campaign, cell: Cell) -> bool:
    return len(np.unique(campaign.group[campaign.cells[cell]])) > 1


def _kernels(cell: Cell) -> tuple[str, str]:
    """Engine and kernel family."""
    return cell[1], Device.of(load_gpu(cell[0])).family


def _abroad(campaign: Campaign, cell: Cell) -> dict[str, Array | None]:
    """By the same engine on all other GPUs, and on those of the same kernel family."""
    others = [c for c in campaign.cells if c != cell and c[1] == cell[1]]
    near = [c for c in others if _kernels(c) == _kernels(cell)]
    return {
        ABROAD: campaign.abroad(cell, others) if others else None,
        SIBLING: campaign.abroad(cell, near) if near else None,
    }


def _mape(predicted_s: Array, runs: Runs) -> float:
    return float(np.abs(predicted_s / runs.time_s - 1).mean() * 100)


def _records(
    spec: Spec, cell: Cell, runs: Runs, predicted: Mapping[str, Array | None]
) -> Iterator[Record]:
    for what, mask in spec.lines(runs.labels):
        labels = runs.labels[mask]
        for estimator, seconds in predicted.items():
            if seconds is None:
                continue
            percent = (seconds[mask] / runs.time_s[mask] - 1) * 100
            size = np.abs(percent)
            figures = {
                "mape": size.mean(),
                "median": np.median(size),
                "p90": np.percentile(size, 90),
                "max": size.max(),
                "bias": percent.mean(),
            }
            yield {
                "set": f"{spec.name}: {what}",
                "gpu": cell[0],
                "library": cell[1],
                "op": "end_to_end",
                "dtype": "/".join(sorted(labels["dtype"].unique())),
                "estimator": estimator,
                "split": split(spec, estimator),
                "rows": int(mask.sum()),
                **{name: round(float(value), 2) for name, value in figures.items()},
                "models": int(labels["zoo"].nunique()),
            }


def split(spec: Spec, estimator: str) -> str:
    """What an estimator has not seen of the runs that it is judged on."""
    if estimator in (SHEET, COMPOSED):
        return "all runs"
    if estimator == SHIPPED:
        return "unseen campaign"
    return spec.split + (" and GPU" if estimator in (ABROAD, SIBLING) else "")


def _worst(
    cell: Cell, runs: Runs, held: Array
) -> Iterator[tuple[Cell, str, str, int, float, float]]:
    """(cell, dimension, value, runs, MAPE, bias) of the worst model, batch and length."""
    percent = pd.Series((held / runs.time_s - 1) * 100, index=runs.labels.index)
    lengths = pd.cut(
        runs.labels["prompt"] + runs.labels["output"],
        [0, 512, 1024, 2048, np.inf],
        labels=["up to 512", "513-1024", "1025-2048", "over 2048"],
    )
    batches = pd.cut(
        runs.labels["batch"],
        [0, 1, 8, 32, 64, 128, np.inf],
        labels=["1", "2-8", "9-32", "33-64", "65-128", "over 128"],
    )
    models = runs.labels["zoo"] + ", " + runs.labels["n_gpus"].astype(int).astype(str) + " GPU"
    for name, values in (("model", models), ("batch", batches), ("tokens", lengths)):
        groups = percent.groupby(values.astype(str))
        size = percent.abs().groupby(values.astype(str)).mean()[groups.size() >= 3]
        if len(size):
            key = str(size.idxmax())
            mean = float(groups.mean()[key])
            yield cell, name, key, int(groups.size()[key]), float(size[key]), mean
