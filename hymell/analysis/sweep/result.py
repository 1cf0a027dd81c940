"""What a sweep found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hymell.analysis.sweep.pareto import (
    Effect,
    Objective,
    objectives_of,
    pareto_front,
    row_of,
)
from hymell.analysis.sweep.points import Column

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """Architectures left out for one reason: how many, and one of them in words."""

    count: int
    example: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The table of a sweep and what follows from it; see `hymell.sweep`.

    ``columns`` are arrays of one length, one row per point: the values of the axes,
    ``parameters``, ``active_parameters``, gpu, engine, batch, prompt, output, costs with their unit
    in the name, and ``fits``, ``in_context`` and ``feasible`` (both, and every constraint is met).
    ``architectures`` were priced, of ``asked``; the others are in ``skipped``.
    """

    model: str
    fields: tuple[str, ...]
    columns: Mapping[str, Column]
    architectures: int
    asked: int
    skipped: tuple[Skipped, ...]
    objectives: tuple[Objective, ...]
    front: tuple[int, ...]
    effects: tuple[Effect, ...]
    constraints: tuple[str, ...]
    mode: str
    seed: int | None
    resumed: int
    elapsed_s: float
    assumptions: tuple[str, ...] = ()
    out: Path | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def points(self) -> int:
        """Rows of the table."""
        return len(self.columns["architecture"])

    def row(self, index: int) -> dict[str, Any]:
        """A row as a dict of plain values."""
        return row_of(self.columns, index)

    def rows(self) -> list[dict[str, Any]]:
        """Every row as a dict."""
        return [self.row(index) for index in range(self.points)]

    def pareto(self, *objectives: str) -> list[dict[str, Any]]:
        """The rows that no other feasible row beats; without names by the sweep's objectives."""
        asked = objectives_of(objectives) if objectives else self.objectives
        return [self.row(int(index)) for index in pareto_front(self.columns, asked)]

    def least(self, column: str, where: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The feasible row with the least value of a column, among those with the values given.

        Raises ValueError where there is none.
        """
        fit = [
            index
            for index in range(self.points)
            if self.columns["feasible"][index]
            and all(self.columns[name][index] == value for name, value in (where or {}).items())
        ]
        return self.row(min(fit, key=lambda index: float(self.columns[column][index])))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON; the rows of the front, not the whole table."""
        return {
            "schema_version": self.schema_version,
            "model": self.model,
            "mode": self.mode,
            "seed": self.seed,
            "architectures": self.architectures,
            "asked": self.asked,
            "points": self.points,
            "feasible": int(self.columns["feasible"].sum()),
            "constraints": list(self.constraints),
            "objectives": [o.column for o in self.objectives],
            "front": [self.row(index) for index in self.front],
            "effects": [
                {
                    "axis": e.axis,
                    "value": e.value,
                    "is_reference": e.is_reference,
                    "architectures": e.architectures,
                    "points": e.points,
                    "ratios": dict(e.ratios),
                }
                for e in self.effects
            ],
            "assumptions": list(self.assumptions),
            "skipped": [{"count": s.count, "example": s.example} for s in self.skipped],
            "out": None if self.out is None else str(self.out),
        }


def reasons(found: Sequence[str]) -> tuple[Skipped, ...]:
    """Reasons that differ in their numbers alone counted together, the most frequent first."""
    import re

    kinds: dict[str, list[str]] = {}
    for reason in found:
        kinds.setdefault(re.sub(r"\d+(?:\.\d+)?", "#", reason), []).append(reason)
    counted = [Skipped(len(held), held[0]) for held in kinds.values()]
    return tuple(sorted(counted, key=lambda s: -s.count))
