"""A sweep from its axes to its table: what to price, what is known already, what came out."""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell._version import __version__
from hymell.analysis.sweep.axes import Axis, Plain, architecture, numbers
from hymell.analysis.sweep.backends import Backend
from hymell.analysis.sweep.optimize import Point, require_optuna, search
from hymell.analysis.sweep.pareto import Effect, Objective, effects_of, pareto_front
from hymell.analysis.sweep.parquet import Table
from hymell.analysis.sweep.points import (
    Column,
    Outcome,
    Setup,
    Task,
    assumptions_of,
    constraints_of,
    joined,
    table_order,
)
from hymell.analysis.sweep.result import SweepResult, reasons
from hymell.errors import HymellError

#: Called after each architecture with (done, of, points so far).
Report: TypeAlias = Callable[[int, int, int], None]

#: Rows that a sweep may have; they are held in memory to find the front.
MAX_POINTS = 20_000_000
#: Architectures of a grid; more are sampled.
MAX_ARCHITECTURES = 1_000_000

#: Seconds between two parts on disk: what a killed sweep can lose.
_FLUSH_S = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the rows of a sweep depend on.

    ``config`` is the model's; ``sample`` picks so many architectures of the grid, ``trials`` are
    points that a search for ``objectives`` tries, both drawn with ``seed``.
    """

    model: str
    config: Mapping[str, Any]
    axes: tuple[Axis, ...]
    setup: Setup
    objectives: tuple[Objective, ...]
    sample: int | None = None
    trials: int | None = None
    seed: int = 0
    extras: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Architectures of the whole grid."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def drawn(self) -> bool:
        """True where the seed matters."""
        return self.sample is not None or self.trials is not None

    def digest(self) -> str:
        """64 hex digits that tell this sweep from others."""
        content = {
            "hymell": __version__,
            "config": self.config,
            "axes": [(axis.field, [value.text for value in axis.values]) for axis in self.axes],
            "setup": asdict(self.setup),
            "search": [o.column for o in self.objectives] if self.trials else None,
            "sample": self.sample,
            "trials": self.trials,
            "seed": self.seed if self.drawn else None,
            "extras": self.extras,
            "columns": table_order(self.setup.fields),
        }
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, default=repr).encode()
        ).hexdigest()


def check_plan(plan: Plan) -> None:
    """Raise HymellError for a sweep that cannot be run, before any of it is."""
    constraints_of(plan.setup)
    if plan.sample is not None and plan.trials is not None:
        raise HymellError("a sample of the grid and a search exclude each other: give one")
    for name, count in (("sample", plan.sample), ("trials", plan.trials)):
        if count is not None and count < 1:
            raise HymellError(f"{name} must be 1 or more, not {count}")
    if plan.trials is not None:
        require_optuna()
        return
    chosen = plan.size if plan.sample is None else min(plan.sample, plan.size)
    if chosen > MAX_ARCHITECTURES or chosen * plan.setup.rows > MAX_POINTS:
        raise HymellError(
            f"the grid has {chosen:,} architectures and {chosen * plan.setup.rows:,} points, more "
            f"than {MAX_ARCHITECTURES:,} or {MAX_POINTS:,}: draw some of them with --sample N"
        )


def run(
    plan: Plan,
    backend: Backend,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    report: Report | None = None,
) -> SweepResult:
    """Price a sweep, or what is missing of it, and find the front.

    Raises HymellError where nothing could be priced, and for a file that cannot be written; what is
    done is kept then, and also after KeyboardInterrupt, which passes.
    """
    check_plan(plan)
    order = table_order(plan.setup.fields)
    table = None if out is None else Table(out, plan.digest(), order)
    known: dict[int, Outcome] = {}
    finished = False
    if table is not None:
        done = table.open(overwrite=overwrite)
        known, finished = dict(done.outcomes), done.finished
    start = time.perf_counter()
    outcomes = _searched(plan, backend, known) if plan.trials else _of_grid(plan, backend, known)
    total = plan.trials or len(_chosen(plan))
    found = _kept(outcomes, table if not finished else None, known, total, report)
    if table is not None and not finished:
        table.finish()
    columns = joined([o.columns for o in found], order)
    why = reasons([o.reason for o in found if o.reason])
    if not columns:
        if len(found) == 1:
            raise HymellError(f"the architecture cannot be priced: {why[0].example}")
        raise HymellError(
            f"none of the {len(found)} architectures can be priced; {why[0].count} of them "
            f"because: {why[0].example}"
        )
    front = pareto_front(columns, plan.objectives)
    return SweepResult(
        model=plan.model,
        fields=plan.setup.fields,
        columns=columns,
        architectures=len(np.unique(columns["architecture"])),
        asked=total,
        skipped=why,
        objectives=plan.objectives,
        front=tuple(front.tolist()),
        effects=() if plan.trials else _effects(plan, columns),
        constraints=plan.setup.constraints,
        mode="search" if plan.trials else "grid" if plan.sample is None else "sample",
        seed=plan.seed if plan.drawn else None,
        resumed=len(known),
        elapsed_s=time.perf_counter() - start,
        assumptions=assumptions_of(plan.setup),
        out=out,
    )


def _kept(
    outcomes: Iterable[Outcome],
    table: Table | None,
    known: Mapping[int, Outcome],
    total: int,
    report: Report | None,
) -> list[Outcome]:
    """All outcomes; new ones go to the table every few seconds, and whatever happens."""
    found: list[Outcome] = []
    fresh: list[Outcome] = []
    points, flushed = 0, time.monotonic()

    def flush() -> None:
        if table is not None and fresh:
            table.add(fresh)
        fresh.clear()

    try:
        for outcome in outcomes:
            found.append(outcome)
            points += len(outcome.columns["architecture"]) if outcome.columns else 0
            if outcome.number not in known:
                fresh.append(outcome)
            if time.monotonic() - flushed > _FLUSH_S:
                flush()
                flushed = time.monotonic()
            if report is not None:
                report(len(found), total, points)
    finally:
        flush()
    return found


def _chosen(plan: Plan) -> Sequence[int]:
    """Numbers of the architectures of the grid that are priced, in order."""
    if plan.sample is None or plan.sample >= plan.size:
        return range(plan.size)
    return sorted(random.Random(plan.seed).sample(range(plan.size), plan.sample))


def _of_grid(plan: Plan, backend: Backend, known: Mapping[int, Outcome]) -> Iterator[Outcome]:
    """Outcomes of the grid, or of its sample, in order; known ones are not priced again."""
    chosen = _chosen(plan)
    tasks = (
        task_of(plan, number, _choice(plan, index))
        for number, index in enumerate(chosen)
        if number not in known
    )
    fresh = backend(tasks)
    for number in range(len(chosen)):
        yield known[number] if number in known else next(fresh)


def _searched(plan: Plan, backend: Backend, known: Mapping[int, Outcome]) -> Iterator[Outcome]:
    """Outcomes of a search, in order."""
    memory: dict[Point, Outcome] = {}
    asked = 0

    def price(points: Sequence[Point]) -> Iterator[Outcome]:
        nonlocal asked
        numbered = list(enumerate(points, asked))
        asked += len(numbered)
        fresh: dict[Point, Task] = {}
        for number, point in numbered:
            if number not in known and point not in memory and point not in fresh:
                fresh[point] = task_of(plan, number, point[0], point[1])
        memory.update(zip(fresh, backend(fresh.values()), strict=True))
        for number, point in numbered:
            held = known[number] if number in known else memory[point]
            memory.setdefault(point, held)
            yield Outcome(number, held.columns, held.reason)

    return search(
        plan.axes,
        plan.setup,
        plan.objectives,
        constraints_of(plan.setup),
        trials=plan.trials or 0,
        seed=plan.seed,
        price=price,
    )


def task_of(
    plan: Plan,
    number: int,
    choice: Sequence[int],
    only: tuple[int, int, int, int, int] | None = None,
) -> Task:
    """The task of one choice of values; an architecture without a config says why."""
    index = _number(plan, choice)
    try:
        config, values = architecture(plan.config, plan.axes, choice)
    except HymellError as error:
        return Task(number, index, {}, {}, only, str(error))
    return Task(number, index, values, config, only)


def _choice(plan: Plan, index: int) -> tuple[int, ...]:
    """Positions of the values of an architecture; the last axis runs fastest."""
    shape = [len(axis.values) for axis in plan.axes]
    return tuple(int(i) for i in np.unravel_index(index, shape)) if shape else ()


def _number(plan: Plan, choice: Sequence[int]) -> int:
    found = 0
    for axis, position in zip(plan.axes, choice, strict=True):
        found = found * len(axis.values) + position
    return found


def _effects(plan: Plan, columns: Mapping[str, Column]) -> tuple[Effect, ...]:
    shape = [len(axis.values) for axis in plan.axes]
    if not shape:
        return ()
    choices: NDArray[np.intp] = np.stack(np.unravel_index(columns["architecture"], shape), axis=1)
    found: list[Effect] = []
    for position, axis in enumerate(plan.axes):
        reference = _reference(plan.config, axis, columns, choices[:, position])
        texts = [value.text for value in axis.values]
        found += effects_of(columns, choices, position, axis.field, texts, reference)
    return tuple(found)


def _reference(
    config: Mapping[str, Any], axis: Axis, columns: Mapping[str, Column], choices: NDArray[np.intp]
) -> int:
    """The model's own value where the axis has it, else the first that was priced."""
    own: Plain = numbers(config).get(axis.field)
    same = [
        i for i, value in enumerate(axis.values) if value.formula is None and value.plain == own
    ]
    priced = np.unique(choices)
    return same[0] if same and same[0] in priced else int(priced[0])
