"""Time and energy of served runs as a report gives them, before and after runs of one's own.

The estimate is a report's: shipped calibrations and systems of 2024, none fitted to these runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

import hymell
from hymell.analysis.own_fit import Priced, fitted, price_runs
from hymell.analysis.own_runs import OwnRun
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.calibrated import Calibrated, choose, system_for
from hymell.estimators.level3.system import fitted_systems
from hymell.estimators.offset_fit import ENERGY_WIDTH
from hymell.estimators.offsets import Offsets
from hymell.estimators.predict import deploy
from hymell.hardware import Gpu, find_gpu
from hymell.measure.e2e import read_runs
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Precision
from own.judge import COUNTS, draws
from own.rows import JUDGES

SET: Final = "mlenergy_v3"
_KEYS: Final = ("gpu", "engine", "dtype", "model", "zoo", "tp", "ep", "dp")

#: What messages say of a run that is refused.
_REFUSALS: Final = ("faster than the data sheet", "a mean power", "too far apart")

#: Widths of the prior of the factor of energy that compete.
ENERGY_WIDTHS: Final = (0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class EnergyLine:
    """One kind of models on one GPU: mean absolute errors in % by the number of calibrating runs.

    ``width`` is that of the factor of energy, chosen on the lines of the other kind.
    """

    kind: str
    gpu: str
    engine: str
    configurations: int
    runs: int
    width: float
    tpot: Mapping[int, tuple[float, float]]
    energy: Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class EnergyResult:
    """Every line; the best width over all of them; runs left out, by the reason."""

    lines: Sequence[EnergyLine]
    best: float
    left_out: Mapping[str, int]


def judged_energy() -> EnergyResult:
    """Every figure of served runs."""
    cells: dict[tuple[str, str, str], list[Priced]] = {}
    left: dict[str, int] = {}
    rows = read_runs(SET).to_frame()
    for key, mine in rows.groupby(list(_KEYS), sort=True):
        named = dict(zip(_KEYS, key, strict=True))
        try:
            model = _deployed(named)
        except HymellError as error:
            _count(left, str(error), len(mine))
            continue
        priced = _accepted(model, list(_runs(named, mine, model.parallel)), left)
        if priced is None or len(priced.runs) < 3 + JUDGES:
            rows_left = 0 if priced is None else len(priced.runs)
            _count(left, f"in configurations of fewer than {3 + JUDGES} runs", rows_left)
            continue
        facts = model.graph.facts
        kind = "dense" if facts.active_parameters == facts.parameters else "MoE"
        place = (kind, named["gpu"], named["engine"])
        cells.setdefault(place, []).append(priced)
    errors = {
        (place, width): {count: _errors(mine, count, width) for count in COUNTS}
        for place, mine in cells.items()
        for width in ENERGY_WIDTHS
    }

    def gain(width: float, places: Sequence[tuple[str, str, str]]) -> float:
        """Mean over lines and numbers of runs of log(error after / error before) of energy."""
        pairs = [errors[place, width][count][1] for place in places for count in COUNTS]
        return float(np.mean([np.log(after / before) for before, after in pairs]))

    lines = []
    for place, mine in cells.items():
        others = [other for other in cells if other[0] != place[0]]
        width = min(ENERGY_WIDTHS, key=lambda w: gain(w, others))
        found = errors[place, width]
        lines.append(
            EnergyLine(
                *place,
                configurations=len(mine),
                runs=sum(len(each.runs) for each in mine),
                width=width,
                tpot={count: found[count][0] for count in COUNTS},
                energy={count: found[count][1] for count in COUNTS},
            )
        )
    best = min(ENERGY_WIDTHS, key=lambda w: gain(w, list(cells)))
    return EnergyResult(lines, best, left)


def records(result: EnergyResult) -> dict[str, Any]:
    """For the JSON."""
    return {
        "energy_width": {"shipped": ENERGY_WIDTH, "best_over_all_lines": result.best},
        "left_out": dict(result.left_out),
        "records": [
            {
                "set": f"{SET} {line.kind}",
                "gpu": line.gpu,
                "engine": line.engine,
                "quantity": quantity,
                "energy_width": line.width,
                "calibrating_runs": count,
                "configurations": line.configurations,
                "rows": line.runs,
                "before": round(before, 2),
                "after": round(after, 2),
            }
            for line in result.lines
            for quantity, errors in (("tpot", line.tpot), ("energy", line.energy))
            for count, (before, after) in errors.items()
        ],
    }


def _count(left: dict[str, int], why: str, rows: int) -> None:
    if rows:
        left[why] = left.get(why, 0) + rows


def _deployed(named: Mapping[str, Any]) -> Deployment:
    tp, ep, dp = (int(named[name]) for name in ("tp", "ep", "dp"))
    if dp > 1 and not (tp == 1 and ep == dp):
        raise HymellError("attention and experts are spread over GPUs in two ways")
    gpu, engine = find_gpu(named["gpu"]), get_engine(named["engine"])
    if not named["zoo"]:
        raise HymellError("the zoo has no model of this shape")
    return deploy(
        hymell.trace(named["zoo"]),
        gpu=gpu,
        engine=engine,
        precision=Precision.of(named["dtype"]),
        estimator=_unseen(gpu, engine.name),
        parallel=Parallel(tp, ep),
    )


def _unseen(gpu: Gpu, engine: str) -> Calibrated | None:
    """What a report prices with, but for systems that were fitted to these very runs."""
    found = choose(gpu, engine)
    if found is None:
        return None
    older = (gpu.name, "2024") in fitted_systems(engine)
    return replace(found, system=system_for(gpu, engine, "2024") if older else None)


def _runs(named: Mapping[str, Any], rows: pd.DataFrame, parallel: Parallel) -> Iterator[OwnRun]:
    """Whole sequences, as many on each replica; lengths are typical ones of the task."""
    parts = parallel.batch_parts
    for at, row in enumerate(rows.itertuples()):
        yield OwnRun(
            named["zoo"],
            named["gpu"],
            named["engine"],
            prompt=max(round(float(row.prompt)), 1),  # type: ignore[arg-type]
            output=max(round(float(row.output)), 2),  # type: ignore[arg-type]
            batch=max(round(float(row.batch) / parts), 1) * parts,  # type: ignore[arg-type]
            dtype=named["dtype"],
            tp=parallel.tp,
            ep=parallel.ep,
            tpot_s=float(row.tpot_s),  # type: ignore[arg-type]
            energy_per_token_j=float(row.energy_per_token_j),  # type: ignore[arg-type]
            where=str(at),
        )


def _accepted(model: Deployment, runs: list[OwnRun], left: dict[str, int]) -> Priced | None:
    """Runs that hymell would take from a user, priced; None where it takes none."""
    while runs:
        try:
            return price_runs(model, runs)
        except HymellError as error:
            why = next(phrase for phrase in _REFUSALS if phrase in str(error))
            _count(left, f"refused: {why}", 1)
            where = str(error).partition(":")[0]
            runs = [run for run in runs if run.where != where]
    return None


def _errors(
    mine: Sequence[Priced], count: int, width: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(before, after) of TPOT and of energy in %, each configuration weighted by its runs."""
    found = [
        np.mean([_judge(each, rows.tolist(), width) for rows in draws(len(each.runs), count)], 0)
        for each in mine
    ]
    tpot_before, energy_before, tpot, energy = 100 * np.average(
        found, axis=0, weights=[len(each.runs) for each in mine]
    )
    return (float(tpot_before), float(tpot)), (float(energy_before), float(energy))


def _judge(priced: Priced, rows: list[int], width: float) -> list[float]:
    """Errors of TPOT and energy before, then after, of the runs that do not calibrate."""
    others = priced.take([row for row in range(len(priced.runs)) if row not in rows])
    tpot_s = np.array([run.tpot_s for run in others.runs], dtype=np.float64)
    joules = np.array([run.measured_j(0.0) for run in others.runs], dtype=np.float64)
    errors: list[float] = []
    for offsets in (Offsets(), fitted(priced.take(rows), width)):
        found = others.predicted(offsets)
        errors += [
            float(np.abs(found["tpot"] / tpot_s - 1).mean()),
            float(np.abs(found["energy"] / joules - 1).mean()),
        ]
    return errors
