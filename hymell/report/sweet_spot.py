"""A `SweetSpot` as the page, the JSON and the CSV that `hymell sweetspot` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View
from hymell.report.summary import assumptions, setting_of

if TYPE_CHECKING:
    from hymell.analysis.length_form import LengthForm
    from hymell.analysis.sweet_spot import Cell, SweetSpot, TrafficCost

_COST = {
    "energy": ("energy_per_output_token_j", "Energy per output token"),
    "latency": ("latency_per_output_token_s", "Latency per output token"),
}
_SHOW: dict[str, Callable[[float], str]] = {"energy": units.joules, "latency": units.seconds}

#: Behind a cost of the grid: the minimum, and the region around it.
_MINIMUM, _REGION = " min", " +"


def sweet_spot_view(found: SweetSpot) -> View:
    """Both grids, the minimum, the best output lengths, the forms, traffic; CSV has the cells."""
    data = found.to_dict()
    return View(_document(found), data, data["cells"])


def _document(found: SweetSpot) -> Document:
    sections: list[Section] = [_headline(found)]
    if found.warnings:
        sections.append(Notes("Warnings", found.warnings))
    first, second = ("energy", "latency") if found.by == "energy" else ("latency", "energy")
    sections += [_grid(found, first), _grid(found, second), _best_outputs(found)]
    if found.traffic is not None:
        sections.append(_traffic(found.traffic))
    sections += [Notes("Length form", tuple(_forms(found)))]
    sections += [Notes("Assumptions", assumptions(found.assumptions))]
    where = setting_of(found.gpu, found.engine, found.dtype, found.parallel)
    return Document(
        f"Sweet spot of {found.model}", tuple(sections), f"{where}; batch {found.batch}"
    )


def _headline(found: SweetSpot) -> Facts:
    best = found.minimum
    region = [cell for cell in found.cells if cell.in_region]
    possible = [cell for cell in found.cells if cell.fits and cell.in_context]
    name, _ = _COST[found.by]
    worst = max(possible, key=lambda cell: float(getattr(cell, name)))
    times = getattr(worst, name) / getattr(best, name)
    inputs, outputs = [c.input for c in region], [c.output for c in region]
    calibrated = "" if found.energy_calibrated else "not all calibrated; "
    return Facts(
        "",
        (
            Fact("Sweet spot", _lengths(best), f"least {found.by} per output token"),
            Fact(
                "Energy per token",
                units.joules(best.energy_per_output_token_j),
                f"{calibrated}J per output token there",
            ),
            Fact(
                "Latency per token",
                units.seconds(best.latency_per_output_token_s),
                "per output token of one sequence there, prefill included",
            ),
            Fact(
                f"Within {100 * found.within:g}%",
                f"{len(region)} of {len(possible)} pairs",
                f"inputs {min(inputs)} to {max(inputs)}, outputs {min(outputs)} to {max(outputs)}",
            ),
            Fact(
                "Dearest",
                f"{units.number(times)} times",
                f"that {found.by} per output token, at {_lengths(worst)}",
            ),
        ),
    )


def _lengths(cell: Cell) -> str:
    return f"input {cell.input}, output {cell.output}"


def _grid(found: SweetSpot, by: str) -> Table:
    name, title = _COST[by]
    columns = (
        Column("input", "Input", units.count, right=True),
        *(Column(str(output), f"out {output}", right=True) for output in found.outputs),
    )
    rows: dict[int, dict[str, Any]] = {}
    for cell in found.cells:
        row = rows.setdefault(cell.input, {"input": cell.input})
        if cell.fits and cell.in_context:
            row[str(cell.output)] = _SHOW[by](getattr(cell, name)) + _mark(found, cell, by)
    note = ""
    if by == found.by:
        note = (
            f"{_MINIMUM.strip()}: the minimum; {_REGION.strip()}: within {100 * found.within:g}% "
            "of it; -: does not fit the GPU or the model"
        )
    return Table(title, columns, tuple(rows.values()), note)


def _mark(found: SweetSpot, cell: Cell, by: str) -> str:
    if by != found.by:
        return ""
    if cell == found.minimum:
        return _MINIMUM
    return _REGION if cell.in_region else ""


def _best_outputs(found: SweetSpot) -> Table:
    columns = (
        Column("input", "Input", units.count, right=True),
        Column("output", "Output", units.count, right=True),
        Column("form_output", "by the form", units.count, right=True),
        Column("energy_per_output_token_j", "Energy", units.joules, right=True),
        Column("latency_per_output_token_s", "Latency", units.seconds, right=True),
    )
    rows = tuple(
        {column.key: getattr(best, column.key) for column in columns} for best in found.best_outputs
    )
    note = "output lengths of the grid, then where the length form has its minimum"
    return Table(f"Output length of least {found.by} for each input", columns, rows, note)


def _traffic(cost: TrafficCost) -> Table:
    columns = (
        Column("to", "Traffic"),
        Column("energy_per_output_token_j", "Energy", units.joules, right=True),
        Column("energy_saved", "saved", units.share, right=True),
        Column("latency_per_output_token_s", "Latency", units.seconds, right=True),
        Column("latency_saved", "saved", units.share, right=True),
    )
    now = {
        "to": "as it is",
        "energy_per_output_token_j": cost.energy_per_output_token_j,
        "latency_per_output_token_s": cost.latency_per_output_token_s,
    }
    moves = (
        {**{c.key: getattr(move, c.key) for c in columns}, "to": f"moved to {move.to}"}
        for move in cost.moves
    )
    out = (
        f"; {units.share(cost.impossible)} do not fit the GPU or the model and are priced as if"
        if cost.impossible
        else ""
    )
    note = (
        f"{units.number(cost.requests)} requests of {cost.pairs} pairs of lengths, on average "
        f"input {units.number(cost.mean_input)}, output {units.number(cost.mean_output)}; per "
        f"output token, as many of them after a move as before; {units.share(cost.in_region)} of "
        f"them are in the region{out}"
    )
    return Table("Traffic", columns, (now, *moves), note)


def _forms(found: SweetSpot) -> Iterator[str]:
    yield "per output token: a + b * input / output + d * (input + output / 2)"
    for by, form in (("energy", found.energy_form), ("latency", found.latency_form)):
        yield f"{by}: {_form(form, _SHOW[by])}"


def _form(form: LengthForm, show: Callable[[float], str]) -> str:
    return (
        f"a {show(form.per_output)} per output token, b {show(form.per_input)} per input token, "
        f"d {show(form.per_context)} per output token and token in the cache; off by "
        f"{units.number(form.mape)}% on average, {units.number(form.max_error)}% at most, of the "
        f"{form.points} pairs"
    )
