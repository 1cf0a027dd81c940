"""Of many points the ones that nothing beats, and what each value of an axis changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hymell.analysis.sweep.points import COSTS, SIZES, UNITS, WORKLOAD, Column
from hymell.errors import HymellError

#: Short names of objectives.
_SHORT: Final[Mapping[str, str]] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "latency": "latency_s",
    "throughput": "tokens_per_s",
    "energy": "energy_j",
    "energy_per_token": "energy_per_output_token_j",
    "energy_per_output_token": "energy_per_output_token_j",
    "memory": "memory_bytes",
    "params": "parameters",
}
#: Objectives of which more is better.
_MOST: Final = frozenset({"tokens_per_s"})


@dataclass(frozen=True, slots=True)
class Objective:
    """A column and the way to go: ``sign`` 1 where less is better, -1 where more is."""

    column: str
    sign: int

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Which way optuna has to go."""
        return "minimize" if self.sign > 0 else "maximize"


def objectives_of(names: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives by column or short name (tpot, energy_per_token, ...).

    Raises HymellError for none and for an unknown one.
    """
    found = []
    for name in names:
        column = _SHORT.get(name, name)
        column = UNITS[column][0] if column in UNITS else column
        if column not in (*COSTS, *SIZES):
            known = ", ".join(sorted({*_SHORT, *COSTS, *SIZES}))
            raise HymellError(f"{name!r} is no objective; choose among {known}")
        found.append(Objective(column, -1 if column in _MOST else 1))
    if not found:
        raise HymellError("no objective was given; name at least one, e.g. tpot,energy_per_token")
    return tuple(dict.fromkeys(found))


def pareto_front(
    columns: Mapping[str, Column], objectives: Sequence[Objective]
) -> NDArray[np.intp]:
    """Rows that no other feasible row beats, for each prompt and output length on their own.

    A row is beaten by one that is no worse in every objective and better in one. In order of
    prompt, output and the objectives; of equal rows the first.
    """
    rows = np.flatnonzero(columns["feasible"])
    if not rows.size:
        return rows
    costs = np.stack([o.sign * columns[o.column][rows].astype(float) for o in objectives], axis=1)
    lengths = np.stack([columns[name][rows] for name in WORKLOAD if name != "batch"], axis=1)
    _, group = np.unique(lengths, axis=0, return_inverse=True)
    order = np.lexsort((*costs.T[::-1], group))
    return rows[order[_unbeaten(costs[order], group[order])]]


def _unbeaten(costs: NDArray[np.float64], group: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Of rows in lexical order of group and costs, which no other row of their group beats.

    A later row never beats an earlier one; of equal rows the first stays.
    """
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    kept = np.zeros(len(costs), dtype=bool)
    kept[starts] = True
    if costs.shape[1] == 1:
        return kept
    if costs.shape[1] == 2:
        # The second cost has to fall below all before it; ranks that fall from group to group let
        # one running minimum serve all of them.
        _, rank = np.unique(costs[:, 1], return_inverse=True)
        falling = rank - group * (int(rank.max()) + 1)
        least = np.minimum.accumulate(falling)
        kept[1:] |= falling[1:] < least[:-1]
        return kept
    for start, stop in pairwise([*starts.tolist(), len(costs)]):
        left = np.arange(start, stop)
        kept[start:stop] = False
        while left.size:
            best, left = left[0], left[1:]
            kept[best] = True
            left = left[(costs[left] < costs[best]).any(axis=1)]
    return kept


@dataclass(frozen=True, slots=True)
class Effect:
    """What a value of an axis does: means over the points that it shares with the reference value.

    ``ratios`` are geometric means of value / reference by column; ``points`` counts the pairs.
    """

    axis: str
    value: str
    is_reference: bool
    architectures: int
    points: int
    ratios: Mapping[str, float]


def effects_of(
    columns: Mapping[str, Column],
    choices: NDArray[np.intp],
    axis: int,
    field: str,
    texts: Sequence[str],
    reference: int,
) -> tuple[Effect, ...]:
    """The effect of each value of one axis, all other choices and the workload being equal.

    ``choices`` has the positions of the values per row and axis; ``reference`` is the position of
    the value that the others are compared with.
    """
    others = np.delete(choices, axis, axis=1)
    places = [
        np.unique(columns[name], return_inverse=True)[1] for name in ("gpu", "engine", *WORKLOAD)
    ]
    _, key = np.unique(np.column_stack([others, *places]), axis=0, return_inverse=True)
    here = choices[:, axis] == reference
    base = np.full(int(key.max()) + 1, -1)
    base[key[here]] = np.flatnonzero(here)
    found = []
    for position, text in enumerate(texts):
        rows = np.flatnonzero(choices[:, axis] == position)
        pairs = rows[base[key[rows]] >= 0]
        ratios = {
            name: _mean_ratio(columns[name][pairs], columns[name][base[key[pairs]]])
            for name in _COMPARED
            if len(pairs)
        }
        architectures = len(np.unique(columns["architecture"][rows]))
        found.append(Effect(field, text, position == reference, architectures, len(pairs), ratios))
    return tuple(found)


#: What effects compare.
_COMPARED: Final = ("parameters", "ttft_s", "tpot_s", "energy_per_output_token_j", "memory_bytes")


def _mean_ratio(values: Column, references: Column) -> float:
    with np.errstate(all="ignore"):
        logs = np.log(values.astype(float) / references.astype(float))
    # Without decode steps there is no time per output token to compare.
    logs = logs[np.isfinite(logs)]
    return float(np.exp(logs.mean())) if len(logs) else float("nan")


def row_of(columns: Mapping[str, Column], index: int) -> dict[str, Any]:
    """A row as plain Python values, None for what is not a number: an interval nobody measured."""
    found = {}
    for name, values in columns.items():
        value = values[index]
        plain = value.item() if isinstance(value, np.generic) else value
        found[name] = None if isinstance(plain, float) and math.isnan(plain) else plain
    return found
