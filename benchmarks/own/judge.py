"""Offsets by one to three runs judged on the others, their widths chosen on other campaigns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.offset_fit import WIDTHS, OffsetFit
from own.rows import Array, Configuration, Held

COUNTS: Final = (1, 2, 3)
SEED: Final = 0
#: Draws of two or three runs of a configuration; every run is the single one once.
DRAWS: Final = 8

#: Configurations named per line.
WORST: Final = 3

_FACTORS: Final = (0.0, 0.03, 0.06, 0.1, 0.2)
_STEPS_S: Final = (0.0, 5e-4, 1e-3, 2e-3)
_SEQUENCES_S: Final = (0.0, 1e-5, 3e-5)

#: Kinds of offsets that compete.
BOTH, FACTORS, ADDED = "factors and added time", "factors alone", "added time alone"


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of the priors: of both factors, of seconds per step, per sequence and step."""

    factor: float
    step_s: float
    sequence_s: float

    def of(self) -> dict[str, float]:
        """As `OffsetFit` takes them."""
        return {
            "prefill": self.factor,
            "decode": self.factor,
            "step_s": self.step_s,
            "sequence_s": self.sequence_s,
        }

    @property
    def kind(self) -> str:
        """Which of the kinds of offsets this is."""
        added = self.step_s > 0 or self.sequence_s > 0
        if self.factor and added:
            return BOTH
        return FACTORS if self.factor else ADDED

    def __str__(self) -> str:
        return (
            f"factors {self.factor:g}, {self.step_s * 1e6:g} us per step, "
            f"{self.sequence_s * 1e6:g} us per sequence and step"
        )


FORMS: Final = tuple(
    Widths(*each) for each in product(_FACTORS, _STEPS_S, _SEQUENCES_S) if any(each)
)

SHIPPED: Final = Widths(WIDTHS["decode"], WIDTHS["step_s"], WIDTHS["sequence_s"])

#: Errors in % by the number of runs that calibrate.
Errors = Mapping[int, float]


@dataclass(frozen=True)
class Worst:
    """A configuration that stays far off: mean absolute errors in % before and after one run."""

    model: str
    n_gpus: int
    runs: int
    before: float
    after: float


@dataclass(frozen=True)
class Line:
    """One GPU and engine of a campaign: mean absolute errors in %.

    ``before`` and ``after`` are over the runs that did not calibrate, by how many did; ``after``
    also by kind of offsets. ``shared``: of the time added per step and sequence that three runs of
    another model say. ``worst``: the configurations that are farthest off with one run.
    """

    campaign: str
    gpu: str
    library: str
    configurations: int
    runs: int
    sheet: float
    before: Errors
    after: Mapping[str, Errors]
    widths: Mapping[str, Widths]
    shared: float | None
    shared_before: float | None
    worst: Sequence[Worst]


@dataclass(frozen=True)
class Result:
    """Every line, and the widths that are best over all campaigns."""

    lines: Sequence[Line]
    best: Widths
    too_few: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """For the JSON: one record per line, number of runs and kind of offsets."""
        return {
            "widths": {"shipped": SHIPPED.of(), "best_over_all_campaigns": self.best.of()},
            "runs_in_configurations_too_small": dict(self.too_few),
            "records": [record for line in self.lines for record in _records(line)],
        }


def _records(line: Line) -> Iterator[dict[str, Any]]:
    for kind, errors in line.after.items():
        for count, after in errors.items():
            yield {
                "set": line.campaign,
                "gpu": line.gpu,
                "library": line.library,
                "offsets": kind,
                "widths_chosen_on_other_campaigns": line.widths[kind].of(),
                "calibrating_runs": count,
                "configurations": line.configurations,
                "rows": line.runs,
                "data_sheet": round(line.sheet, 2),
                "before": round(line.before[count], 2),
                "after": round(after, 2),
            }


def judged(campaigns: Sequence[Held]) -> Result:
    """Every figure."""
    gains = {form: [_gain(held, form) for held in campaigns] for form in FORMS}
    lines = []
    for at, held in enumerate(campaigns):
        chosen = {
            kind: min(
                (form for form in FORMS if form.kind == kind),
                key=lambda form: _without(gains[form], at),
            )
            for kind in (BOTH, FACTORS, ADDED)
        }
        lines += [_line(held, cell, mine, chosen) for cell, mine in _cells(held).items()]
    best = min(FORMS, key=lambda form: float(np.mean(gains[form])))
    return Result(lines, best, {held.name: held.too_few for held in campaigns})


def _without(values: Sequence[float], at: int) -> float:
    return float(np.mean([value for place, value in enumerate(values) if place != at]))


def _gain(held: Held, form: Widths) -> float:
    """Mean over cells and numbers of runs of log(error after / error before)."""
    found = []
    for mine in _cells(held).values():
        for count in COUNTS:
            before, after = _errors(mine, count, form)
            found.append(np.log(after / before))
    return float(np.mean(found))


def _cells(held: Held) -> dict[tuple[str, str], list[Configuration]]:
    cells: dict[tuple[str, str], list[Configuration]] = {}
    for each in held.configurations:
        cells.setdefault((each.gpu, each.library), []).append(each)
    return cells


def _line(
    held: Held,
    cell: tuple[str, str],
    mine: Sequence[Configuration],
    chosen: Mapping[str, Widths],
) -> Line:
    found = {
        kind: {count: _errors(mine, count, form) for count in COUNTS}
        for kind, form in chosen.items()
    }
    before = {count: pair[0] for count, pair in found[BOTH].items()}
    shared = _shared(mine, chosen[ADDED])
    sheet = np.concatenate([np.abs(each.sheet_s / each.time_s - 1) for each in mine])
    return Line(
        campaign=held.name,
        gpu=cell[0],
        library=cell[1],
        configurations=len(mine),
        runs=sum(len(each) for each in mine),
        sheet=100 * float(sheet.mean()),
        before=before,
        after={
            kind: {count: pair[1] for count, pair in errors.items()}
            for kind, errors in found.items()
        },
        widths=dict(chosen),
        shared=shared[1] if shared else None,
        shared_before=shared[0] if shared else None,
        worst=_worst(mine, chosen[BOTH]),
    )


def _worst(mine: Sequence[Configuration], form: Widths) -> list[Worst]:
    found = [Worst(each.model, each.n_gpus, len(each), *_errors([each], 1, form)) for each in mine]
    return sorted(found, key=lambda worst: -worst.after)[:WORST]


def _errors(mine: Iterable[Configuration], count: int, form: Widths) -> tuple[float, float]:
    """Mean errors in % before and after, each configuration weighted by its runs."""
    pairs, weights = [], []
    for each in mine:
        found = [_judge(each, rows, form) for rows in draws(len(each), count)]
        pairs.append(np.mean(found, axis=0))
        weights.append(len(each))
    before, after = np.average(pairs, axis=0, weights=weights)
    return 100 * float(before), 100 * float(after)


def draws(rows: int, count: int) -> Iterator[NDArray[Any]]:
    """Positions of the runs that calibrate: each run once, or `DRAWS` draws of several."""
    if count == 1:
        yield from np.arange(rows)[:, None]
        return
    random = np.random.default_rng(SEED)
    for _ in range(DRAWS):
        yield random.choice(rows, count, replace=False)


def _judge(each: Configuration, rows: NDArray[Any], form: Widths) -> tuple[float, float]:
    others = np.setdiff1d(np.arange(len(each)), rows)
    fitted = OffsetFit(form.of()).fit(*each.take(rows))
    columns, time_s = each.take(others)
    plain = columns["prefill"] + columns["decode"]
    return _mean_error(plain, time_s), _mean_error(fitted.predict(columns), time_s)


def _mean_error(predicted_s: Array, time_s: Array) -> float:
    return float(np.abs(predicted_s / time_s - 1).mean())


def _shared(mine: Sequence[Configuration], form: Widths) -> tuple[float, float] | None:
    """Errors before and after of what is added by three runs of every other model in turn."""
    found, weights = [], []
    for giver in mine:
        for rows in list(draws(len(giver), 3))[:1]:
            fitted = OffsetFit(form.of()).fit(*giver.take(rows))
            for taker in mine:
                if taker.group != giver.group:
                    columns, time_s = taker.take(np.arange(len(taker)))
                    plain = columns["prefill"] + columns["decode"]
                    after = _mean_error(fitted.predict(columns), time_s)
                    found.append((_mean_error(plain, time_s), after))
                    weights.append(len(taker))
    if not found:
        return None
    before, after = np.average(found, axis=0, weights=weights)
    return 100 * float(before), 100 * float(after)
