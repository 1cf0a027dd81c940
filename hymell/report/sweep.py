"""A `SweepResult` as the page, the JSON and the CSV that `hymell sweep` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hymell.analysis.sweep.points import COSTS, SIZES, WITH_INTERVAL, WORKLOAD
from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View

if TYPE_CHECKING:
    from hymell.analysis.sweep.result import SweepResult

#: Rows of the front that a page shows; JSON has all of them.
MOST_ROWS = 20
#: Points that an HTML page lists.
MOST_POINTS = 1000

_COSTS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("parameters", "Params", units.parameters),
    ("ttft_s", "TTFT", units.seconds),
    ("tpot_s", "TPOT", units.seconds),
    ("energy_per_output_token_j", "Energy/token", units.joules),
    ("memory_bytes", "Memory", units.data),
)
_OTHERS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "latency_s": ("Latency", units.seconds),
    "tokens_per_s": ("Tokens/s", units.number),
    "energy_j": ("Energy", units.joules),
    "active_parameters": ("Active", units.parameters),
}
#: Objectives in words.
WORDS: Final = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "latency_s": "latency",
    "tokens_per_s": "output tokens per second",
    "energy_j": "energy",
    "energy_per_output_token_j": "energy per output token",
    "memory_bytes": "memory",
    "parameters": "parameters",
    "active_parameters": "active parameters",
}


def sweep_view(found: SweepResult) -> View:
    """Headline, the front, what each value changes, what was skipped; CSV has every row."""
    return View(sweep_document(found), found.to_dict(), found.rows())


def sweep_document(found: SweepResult) -> Document:
    """The page of a sweep, without every point."""
    sections: list[Section] = [_headline(found), _front(found)]
    if found.effects:
        sections.append(_effects(found))
    if found.skipped:
        lines = tuple(f"{s.count}: for example, {s.example}" for s in found.skipped)
        sections.append(Notes("Skipped, by reason", lines))
    sections.append(Notes("Assumptions", tuple(_assumptions(found))))
    return Document(f"Sweep of {found.model}", tuple(sections), _setting(found))


def _setting(found: SweepResult) -> str:
    names = ("gpu", "engine", "batch", "prompt", "output")
    return "; ".join(f"{name} {_several(found, name)}" for name in names)


def _several(found: SweepResult, name: str) -> str:
    values = [str(value) for value in np.unique(found.columns[name]).tolist()]
    if len(values) > 6:
        return f"{values[0]} to {values[-1]} ({len(values)} values)"
    return ", ".join(values)


def _headline(found: SweepResult) -> Facts:
    feasible = int(found.columns["feasible"].sum())
    skipped = sum(s.count for s in found.skipped)
    kinds = {
        "grid": "the whole grid",
        "sample": f"a sample of the grid, seed {found.seed}",
        "search": f"a search by TPE, seed {found.seed}",
    }
    asked = "trials" if found.mode == "search" else "architectures"
    items = [
        Fact("Architectures", units.count(found.architectures), kinds[found.mode]),
        Fact(
            "Skipped", units.count(skipped), f"of {units.count(found.asked)} {asked}: no such model"
        ),
        Fact("Points", units.count(found.points), "architecture, GPU, engine and workload"),
        Fact("Feasible", units.count(feasible), _feasible(found)),
    ]
    for objective in found.objectives:
        best = found.columns[objective.column][found.columns["feasible"]]
        if best.size:
            value = best.min() if objective.sign > 0 else best.max()
            word = "Least" if objective.sign > 0 else "Most"
            title, show = _show(objective.column)
            name = title if title.isupper() else title.lower()
            items.append(Fact(f"{word} {name}", show(value), WORDS[objective.column]))
    return Facts("", tuple(items))


def _feasible(found: SweepResult) -> str:
    words = "fit the GPU and the model's context"
    return f"{words}, and {' and '.join(found.constraints)}" if found.constraints else words


def _show(column: str) -> tuple[str, Callable[[Any], str]]:
    known = {name: (title, show) for name, title, show in _COSTS}
    return {**known, **_OTHERS}[column]


def _front(found: SweepResult) -> Table:
    shown = found.front[:MOST_ROWS]
    costs = [Column(name, title, show, right=True) for name, title, show in _COSTS]
    known = {column.key for column in costs}
    costs += [
        Column(o.column, *_show(o.column), right=True)
        for o in found.objectives
        if o.column not in known
    ]
    words = " and ".join(WORDS[o.column] for o in found.objectives)
    note = f"no other feasible point of the same lengths is better in {words}"
    if len(found.front) > len(shown):
        note += f"; {len(found.front) - len(shown)} more rows are in --json"
    rows = tuple(found.row(index) for index in shown)
    if not rows:
        note = "no point is feasible"
    return Table("Pareto front", (*_axes(found), *costs), rows, note)


def _axes(found: SweepResult) -> list[Column]:
    """What tells a point from others: where it runs, the fields that are set."""
    varying = [
        Column(name, name, right=name in WORKLOAD, whole=name not in WORKLOAD)
        for name in ("gpu", "engine", "batch", "prompt", "output")
        if len(np.unique(found.columns[name])) > 1
    ]
    return [*varying, *(Column(field, field, right=True) for field in found.fields)]


def points_table(found: SweepResult) -> Table:
    """The points, those of the front first, with their intervals."""
    first = dict.fromkeys(found.front)
    order = [*first, *(index for index in range(found.points) if index not in first)]
    shown = order[:MOST_POINTS]
    columns: list[Column] = [*_axes(found), Column("feasible", "Feasible")]
    for name in (*SIZES[:1], *COSTS):
        title, show = _show(name)
        columns.append(Column(name, title, show, right=True))
        if name in WITH_INTERVAL:
            ends = ("low", "high")
            columns += [Column(f"{name}_{e}", f"{title} {e}", show, right=True) for e in ends]
    rows = tuple(found.row(index) for index in shown)
    note = (
        "those of the front first; low and high: 90% intervals, - where no measured runs say how "
        "far off such a figure is"
    )
    if len(order) > len(shown):
        note += f"; {len(order) - len(shown):,} more are in --csv and --out"
    return Table("Points", tuple(columns), rows, note)


def _effects(found: SweepResult) -> Table:
    columns = (
        Column("axis", "Field"),
        Column("value", "Value", right=True),
        Column("architectures", "Architectures", units.count, right=True),
        *(Column(name, title, _change, right=True) for name, title, _ in _COSTS),
    )
    rows = []
    for effect in found.effects:
        row = {"axis": effect.axis, "value": effect.value, "architectures": effect.architectures}
        reference = dict.fromkeys((name for name, _, _ in _COSTS), 1.0)
        rows.append({**row, **(reference if effect.is_reference else effect.ratios)})
    note = (
        "mean change against the value marked =, everything else being equal; "
        "- where no such pair was priced"
    )
    return Table("What each value changes", columns, tuple(rows), note)


def _change(ratio: float) -> str:
    if ratio != ratio:
        return "-"
    return "=" if ratio == 1.0 else f"{100 * (ratio - 1):+.1f}%"


def _assumptions(found: SweepResult) -> Iterator[str]:
    yield from found.assumptions
    if not np.isnan(found.columns["tpot_s_low"]).all():
        yield (
            "90% intervals (*_low and *_high in --csv, --json and --out) are from errors on models "
            "left out; kernels of sizes beyond their tables widen those of a report, not these"
        )
    yield "each architecture is traced anew: shapes, FLOPs, bytes and parameters are exact"
    yield (
        "kernels of shapes that nobody measured are priced by the same fitted forms; "
        "`hymell kernels` says which of them are in range"
    )
    yield "what a model answers is no part of this: quality is for you to judge"
