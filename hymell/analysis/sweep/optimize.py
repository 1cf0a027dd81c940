"""A search in place of the grid: optuna proposes points, and learns from what they cost.

Several objectives at once by TPE with a seed. Points are proposed in batches of one size whatever
the number of workers, so that a seed gives the same search on any backend, and a search that was
interrupted proposes the same points again until it reaches the ones it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

from hymell.analysis.sweep.axes import Axis
from hymell.analysis.sweep.expressions import Expression
from hymell.analysis.sweep.pareto import Objective, row_of
from hymell.analysis.sweep.points import Outcome, Setup, with_units
from hymell.errors import HymellError

#: A point by positions: the values of the axes, then (gpu, engine, batch, prompt, output).
Point: TypeAlias = tuple[tuple[int, ...], tuple[int, int, int, int, int]]
#: Prices points, numbered in their order.
Price: TypeAlias = Callable[[Sequence[Point]], Iterator[Outcome]]

#: Points that are proposed before any of them is known.
BATCH = 8


def require_optuna() -> None:
    """Raise HymellError where optuna is not installed."""
    if find_spec("optuna") is None:
        raise HymellError("--optimize needs optuna; install it with: pip install 'hymell[sweep]'")


def search(
    axes: Sequence[Axis],
    setup: Setup,
    objectives: Sequence[Objective],
    constraints: Sequence[Expression],
    *,
    trials: int,
    seed: int,
    price: Price,
) -> Iterator[Outcome]:
    """Outcomes of ``trials`` points in the order of the search."""
    import optuna
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lists = (setup.gpus, setup.engines, setup.batches, setup.prompts, setup.outputs)
    ranges: list[tuple[str, int]] = [(axis.field, len(axis.values)) for axis in axes]
    names = ("gpu", "engine", "batch", "prompt", "output")
    ranges += [(f"{name} of the sweep", len(v)) for name, v in zip(names, lists, strict=True)]
    study = optuna.create_study(
        directions=[o.direction for o in objectives],
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    asked = 0
    while asked < trials:
        batch = [study.ask() for _ in range(min(BATCH, trials - asked))]
        asked += len(batch)
        points = [_point(trial, ranges, len(axes)) for trial in batch]
        for trial, outcome in zip(batch, price(points), strict=True):
            if outcome.reason:
                study.tell(trial, state=TrialState.FAIL)
            else:
                row = row_of(outcome.columns, 0)
                for name, missed in _violations(row, constraints):
                    trial.set_constraint(name, missed)
                study.tell(trial, [float(row[o.column]) for o in objectives])
            yield outcome


def _point(trial: Any, ranges: Sequence[tuple[str, int]], axes: int) -> Point:
    chosen = [trial.suggest_int(name, 0, count - 1) for name, count in ranges]
    gpu, engine, batch, prompt, output = chosen[axes:]
    return tuple(chosen[:axes]), (gpu, engine, batch, prompt, output)


def _violations(
    row: Mapping[str, Any], constraints: Sequence[Expression]
) -> Iterator[tuple[str, float]]:
    """How far a point is from what it has to meet; a misfit is one such violation."""
    names = with_units(row)
    yield "fits", 0.0 if row["fits"] and row["in_context"] else 1.0
    for constraint in constraints:
        yield constraint.text, constraint.violation(names)
