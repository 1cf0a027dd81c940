"""A campaign judged: records, coefficients, what ships, and where the largest errors are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hymell.estimators.calibrated import relatives
from hymell.estimators.level3.system import System
from hymell.estimators.level3.terms import MULTIPLIERS, TERMS, total
from hymell.hardware import load_gpu
from systems.campaigns import ARGONNE, Spec
from systems.judge import Campaign, Cell, Form
from systems.predictions import (
    ANALYTIC,
    COMPOSED,
    FITTED,
    KEPT,
    NETWORK,
    SHEET,
    SHIPPED,
    SIBLING,
    Predictions,
    judge,
    kernels,
    split,
)
from systems.rows import Array, Left, Runs

Record = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What came out for one campaign; ``worst``: groups of runs with the largest mean errors.

    ``helped``: by cell, in how many hold-outs of how many a network on top was kept, and the MAPE
    without it, with it, and with it where it was kept.
    """

    spec: Spec
    records: Sequence[Record]
    forms: Mapping[str, Form]
    final: Form
    coefficients: Mapping[Cell, Mapping[str, float]]
    systems: Sequence[System]
    unfit: Sequence[tuple[Cell, str]]
    worst: Sequence[tuple[Cell, str, str, int, float, float]]
    left: Sequence[Left]
    helped: Mapping[Cell, tuple[int, int, float, float, float]]


def judged(spec: Spec, cache: Path, earlier: Sequence[System] = ()) -> Result:
    """Every figure of a campaign. ``earlier``: systems of versions before it, oldest first."""
    campaign, left = spec.load(cache)
    kept_before = judge(spec, campaign, cache)
    final, found = kept_before.final, kept_before.seconds
    fitted = {cell: campaign.coefficients(final, cell, frozenset()) for cell in campaign.cells}
    records: list[Record] = []
    systems: list[System] = []
    unfit: list[tuple[Cell, str]] = []
    worst: list[tuple[Cell, str, str, int, float, float]] = []
    helped: dict[Cell, tuple[int, int, float, float, float]] = {}
    for cell, predicted in found.items():
        runs = campaign.runs.take(campaign.cells[cell])
        version = spec.version_of(runs.labels)
        shipped = None if spec is ARGONNE else _shipped(cell, runs, earlier)
        records += _records(
            spec, cell, runs, predicted | ({SHIPPED: shipped} if shipped is not None else {})
        )
        if FITTED not in predicted:
            unfit.append((cell, version))
            continue
        held = predicted[FITTED]
        groups = campaign.group[campaign.cells[cell]]
        kept = set(groups[predicted[KEPT] == predicted[NETWORK]])
        figures = [_mape(predicted[name], runs) for name in (FITTED, NETWORK, KEPT)]
        helped[cell] = (len(kept), len(np.unique(groups)), *figures)
        records += one_row_records(spec, cell, runs, predicted)
        worst += _worst(cell, runs, held)
        mape, plain = _mape(held, runs), _mape(runs.composed_s, runs)
        if spec.by != "model":
            # Other numbers of GPUs are no other models.
            continue
        if mape >= plain or not _plausible(fitted[cell]):
            unfit.append((cell, version))
        else:
            made = _system(spec, cell, version, fitted[cell], runs, earlier)
            systems.append(replace(made, mape=mape, composed_mape=plain))
    if spec is ARGONNE:
        systems = [replace(made, transfers=_carries(made, campaign, found)) for made in systems]
    return Result(
        spec, records, kept_before.forms, final, fitted, systems, unfit, worst, left, helped
    )


def _plausible(values: Mapping[str, float]) -> bool:
    """Whether no kernel is off by a factor of 2: more is no overhead, but a wrong calibration."""
    served = [values[name] for name in MULTIPLIERS if name in values and name != "prefill"]
    return all(1 / _FURTHEST < value < _FURTHEST for value in served)


_FURTHEST = 2.0


def _system(
    spec: Spec,
    cell: Cell,
    version: str,
    values: Mapping[str, float],
    runs: Runs,
    earlier: Sequence[System],
) -> System:
    """What ships. Servers are timed in decode: prefill's multiplier is that of before, or 1."""
    source, coefficients = spec.title, dict(values)
    if spec.served:
        before = [s for s in earlier if (s.gpu, s.engine) == cell]
        coefficients["prefill"] = before[-1].value("prefill") if before else 1.0
        whose = f"that of {before[-1].version}" if before else "1, never measured"
        source += f" (decode; prefill's multiplier is {whose})"
    stated = sorted(set(runs.labels["version"]))
    if len(stated) > 1:
        source += f", versions {', '.join(stated)}"
    models = tuple(sorted(runs.labels["zoo"].unique()))
    return System(cell[1], cell[0], version, source, coefficients, len(runs), models, 0.0, 0.0)


def _carries(system: System, campaign: Campaign, found: Predictions) -> bool:
    """Whether coefficients helped on each relative that they were tried on, one at least."""
    mine = kernels((system.gpu, system.engine))
    tried = [
        _mape(predicted[SIBLING], runs) < _mape(runs.composed_s, runs)
        for cell, predicted in found.items()
        if kernels(cell) == mine and SIBLING in predicted
        for runs in [campaign.runs.take(campaign.cells[cell])]
    ]
    return bool(tried) and all(tried)


def _lender(cell: Cell, earlier: Sequence[System]) -> System | None:
    """The system of 2024 of a GPU, or of its nearest relative of one kernel family."""
    homes = {
        system.gpu: system
        for system in earlier
        if system.version == ARGONNE.version
        and kernels((system.gpu, system.engine)) == kernels(cell)
    }
    nearest = relatives(load_gpu(cell[0]), sorted(homes))
    return homes.get(cell[0]) or (homes[nearest[0]] if nearest else None)


def not_lent(results: Sequence[Result]) -> list[Result]:
    """The results, no system lent that did worse than the plain composition on any relative.

    Siblings of a system's own campaign were looked at already; here are GPUs of other campaigns.
    """
    systems = [system for result in results for system in result.systems]
    worse = set()
    for result in results:
        by_line: dict[tuple[str, Cell], dict[str, float]] = {}
        for record in result.records:
            key = record["set"], (record["gpu"], record["library"])
            by_line.setdefault(key, {})[record["estimator"]] = record["mape"]
        for (_, cell), mapes in by_line.items():
            lender = _lender(cell, systems) if SHIPPED in mapes else None
            if lender is not None and lender.gpu != cell[0] and mapes[SHIPPED] >= mapes[COMPOSED]:
                worse.add((lender.gpu, lender.engine, lender.version))
    return [
        replace(
            result,
            systems=[
                replace(system, transfers=False)
                if (system.gpu, system.engine, system.version) in worse
                else system
                for system in result.systems
            ],
        )
        for result in results
    ]


def _shipped(cell: Cell, runs: Runs, earlier: Sequence[System]) -> Array | None:
    """What the system of 2024, its own or lent, says of runs, none of which are in its fit.

    A report's time per token has no prefill of other requests in it.
    """
    system = _lender(cell, earlier)
    if system is None:
        return None
    values = {name: system.value(name) for name in TERMS}
    served = (runs.labels["what"] == "tpot").to_numpy()
    return total({**runs.terms, "prefill": np.where(served, 0.0, runs.terms["prefill"])}, values)


def _mape(predicted_s: Array, runs: Runs) -> float:
    return float(np.abs(predicted_s / runs.time_s - 1).mean() * 100)


def _records(
    spec: Spec, cell: Cell, runs: Runs, predicted: Mapping[str, Array]
) -> Iterator[Record]:
    for what, mask in spec.lines(runs.labels):
        for estimator, seconds in predicted.items():
            yield _record(spec, cell, runs.take(mask), what, estimator, seconds[mask])


def _record(
    spec: Spec, cell: Cell, runs: Runs, what: str, estimator: str, predicted_s: Array
) -> Record:
    percent = (predicted_s / runs.time_s - 1) * 100
    size = np.abs(percent)
    figures = {
        "mape": size.mean(),
        "median": np.median(size),
        "p90": np.percentile(size, 90),
        "max": size.max(),
        "bias": percent.mean(),
    }
    return {
        "set": f"{spec.name}: {what}",
        "gpu": cell[0],
        "library": cell[1],
        "op": "end_to_end",
        "dtype": "/".join(sorted(runs.labels["dtype"].unique())),
        "estimator": estimator,
        "split": split(spec, estimator),
        "rows": len(runs),
        **{name: round(float(value), 2) for name, value in figures.items()},
        "models": int(runs.labels["zoo"].nunique()),
    }


def one_row_records(
    spec: Spec, cell: Cell, runs: Runs, predicted: Mapping[str, Array]
) -> Iterator[Record]:
    """The subset ``spec.one_row`` where a user measured one run of each configuration.

    A configuration is a model in a format on a number of GPUs; its run of middle batch gives a
    difference in seconds, or a ratio, which the others take over. Which of the two is chosen for
    each model by the other models. The runs measured are not judged.
    """
    if not spec.one_row:
        return
    mask = np.asarray(spec.subsets[spec.one_row](runs.labels), dtype=bool)
    if not mask.any():
        return
    mine, held = runs.take(mask), predicted[FITTED][mask]
    found, judged_rows = with_one_row(mine, held)
    if not judged_rows.any():
        return
    rest = mine.take(judged_rows)
    what = f"{spec.one_row}, one run per configuration measured"
    for name in (SHEET, ANALYTIC, COMPOSED):
        yield _record(spec, cell, rest, what, name, predicted[name][mask][judged_rows])
    yield _record(spec, cell, rest, what, FITTED, found[judged_rows])


def with_one_row(runs: Runs, predicted_s: Array) -> tuple[Array, NDArray[np.bool_]]:
    """(seconds with the offset of one measured run, mask of the runs that may be judged)."""
    labels = runs.labels.reset_index(drop=True)
    shifted, scaled = predicted_s.copy(), predicted_s.copy()
    judged_rows = np.ones(len(labels), dtype=bool)
    for _, mine in labels.groupby(["zoo", "dtype", "n_gpus", "library"], sort=True):
        places = mine.sort_values(["batch", "task", "prompt"]).index.to_numpy()
        known = places[len(places) // 2]
        judged_rows[known] = False
        shifted[places] += runs.time_s[known] - predicted_s[known]
        scaled[places] *= runs.time_s[known] / predicted_s[known]
    # A difference may not leave less than a tenth of what was predicted.
    shifted = np.maximum(shifted, predicted_s / 10)
    errors = [np.abs(each / runs.time_s - 1) for each in (shifted, scaled)]
    found = shifted.copy()
    for model in np.unique(runs.group):
        others = judged_rows & (runs.group != model)
        if not others.any() or errors[1][others].mean() < errors[0][others].mean():
            found[runs.group == model] = scaled[runs.group == model]
    return found, judged_rows


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
