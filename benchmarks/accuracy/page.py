"""docs/accuracy.md: the records in words and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accuracy.curves import MATRIX, MATRIX_LIBRARY, SAMPLES, samples, source_of
from accuracy.goals import Line
from accuracy.records import PAPER, REPEATABILITY, TABLE, Record, means
from hymell.measure.judging import Effort

#: Estimators that have columns of their own; any other is a baseline after HYMELL's own forms.
_OURS = ("roofline", "analytical", "corrected")


@dataclass(frozen=True, slots=True)
class Results:
    """Everything a run found.

    ``plots``: op to (path from the page, what is drawn); ``unjudged``: tables, as `records.about`
    has them, of which nothing can be held out.
    """

    judged: Sequence[Record]
    repeats: Sequence[Record]
    paper: Sequence[Record]
    curve: Sequence[Record]
    transfer: Sequence[Record]
    plots: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unjudged: Sequence[Record] = ()

    def records(self) -> list[Record]:
        """What accuracy.json lists."""
        return [*self.judged, *self.repeats, *self.paper, *self.curve, *self.transfer]


def page(found: Results, lines: Iterable[Line], effort: Effort, seeds: int, asked: str) -> str:
    """The page; ``asked`` says what the run was asked for, ``seeds`` how many a random hold-out."""
    parts = [
        *_intro(effort, seeds, asked),
        "",
        "## Goals",
        "",
        *_goals(lines),
        "",
        *_ops(found),
        *_unjudged(found.unjudged),
        *_curve(found.curve),
        *_transfer(found.transfer),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _intro(effort: Effort, seeds: int, asked: str) -> list[str]:
    text = f"""# Accuracy of the level-1 estimators

Written by `make accuracy`; every figure is also in [accuracy.json](accuracy.json).
This run: {asked}. With `--kept` it shows the hold-outs that earlier runs judged, and
fits no others.
Some forms were developed with some of these tables in view: [docs/estimators](estimators) says
which.

Errors are % of the measured value, on rows that were held out of the fit: whole shapes (all m of a
fifth of the weights' shapes, whole head or expert configurations, whole widths), and whole ranges
(a band of m, the longest lengths, the largest sizes).

- **held out**: a random hold-out is made {_times(seeds)} at most, with seeds from 0; other kinds
  leave out one width, parity or model after the other. A line shows the mean over them and, in
  brackets, how many; rows are summed, max is the largest. accuracy.json lists each
- **roofline**: data-sheet time + 3 us
- **paper's form**: HYMELL's own regimes (arXiv 2608.06723), five for GEMM and three for row
  kernels, fitted on the same rows
- **analytical**: the fitted physical form; **corrected**: with its bounded residual, where that
  earned its place; median to bias are of the latter
- **repeats**: half the range of the measurements of one shape, mean over the shapes that were
  measured more than once. Errors are those of their mean, which is steadier

Fits see at most {effort.rows:,} rows, drawn with a fixed seed; corrections are
{len(effort.seeds)} nets of {effort.epochs} epochs.

Two estimators in accuracy.json are none of ours: `{REPEATABILITY}` (split `repeats`; a distance
has no sign, so its bias is null), and `{PAPER}`, what the paper says of its own H100 data. Those
are not public: all but its MAPE is null, and nothing here is measured on the same rows."""
    return text.splitlines()


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _goals(lines: Iterable[Line]) -> Iterator[str]:
    yield "MAPE of the corrected estimator, where the goal has brackets that of the analytical form"
    yield "in brackets. A goal that names no library or hold-out has a line for each."
    yield ""
    yield "| goal of | GPU | measured | format | held out | rows | goal | here | met |"
    yield "|---|---|---|---|---|--:|--:|--:|---|"
    for line in lines:
        goal = line.goal
        both = goal.analytical is not None
        here = line.why
        if line.corrected is not None:
            here = f"{line.corrected:.2f}"
            here += f" ({line.analytical:.2f})" if both and line.analytical is not None else ""
        yield _row(
            goal.what,
            goal.gpu,
            line.library or "/".join(goal.libraries),
            line.dtype,
            line.held_out or ", ".join(goal.kinds),
            f"{line.rows:,}" if line.rows else "",
            f"{goal.most:g}" + (f" ({goal.analytical:g})" if both else ""),
            here,
            line.met,
        )
    yield ""
    yield "How fast kernels are priced, the other goal of level 1, is in [speed.md](speed.md)."


def _ops(found: Results) -> Iterator[str]:
    """A section per op: picture, the paper's figure, one line per table and kind of hold-out."""
    noise = {tuple(each[key] for key in TABLE): each["mape"] for each in found.repeats}
    said = {each["op"]: each["mape"] for each in found.paper}
    by_op: dict[str, dict[tuple[Any, ...], dict[str, Record]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for each in means(found.judged):
        key = (*(each[name] for name in TABLE), each["split"])
        by_op[each["op"]][key][each["estimator"]] = each
    for op, groups in by_op.items():
        yield from (f"## {op}", "")
        if op in said:
            yield from (f"HYMELL reports {said[op]:g} for its own H100 data.", "")
        if op in found.plots:
            path, what = found.plots[op]
            yield from (f"![{op}, predicted over measured by size]({path})", "", what, "")
        yield (
            "| GPU | measured | format | held out | rows | roofline | paper's form | analytical |"
            " **corrected** | median | P90 | max | bias | repeats |"
        )
        yield "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        for key, by in groups.items():
            yield _errors(by, noise.get(key[:-1]))
        yield ""


def _unjudged(found: Sequence[Record]) -> Iterator[str]:
    if not found:
        return
    yield from ("## Not judged", "")
    yield "Fitted, but of too few shapes and ranges to hold any out and fit the rest:"
    yield ""
    for each in found:
        yield f"- {each['op']} {each['dtype']}, {each['gpu']}, {_measured(each)}"
    yield ""


def _measured(each: Record) -> str:
    return f"{each['library']} {each['set'].partition(' ')[2]}"


def _errors(by: Mapping[str, Record], noise: float | None) -> str:
    best = by["corrected"]
    baselines = [each["mape"] for name, each in by.items() if name not in _OURS]
    parts = best["parts"]
    return _row(
        best["gpu"],
        _measured(best),
        best["dtype"],
        f"{best['split']} ({parts})" if parts > 1 else best["split"],
        f"{best['rows']:,}",
        f"{by['roofline']['mape']:.1f}",
        f"{baselines[0]:.1f}" if baselines else "",
        f"{by['analytical']['mape']:.1f}",
        f"**{best['mape']:.1f}**",
        *(f"{best[name]:.1f}" for name in ("median", "p90", "max", "bias")),
        "" if noise is None else f"{noise:.1f}",
    )


def _curve(curve: Sequence[Record]) -> Iterator[str]:
    if not curve:
        return
    yield from ("## Learning curve", "")
    first = curve[0]
    yield f"{first['gpu']}, {first['library']}, whole shapes held out, fitted on a few of the other"
    yield "rows, MAPE: analytical / corrected, means over the seeds."
    yield ""
    yield _row("op", "format", *(f"{count:,} rows" for count in SAMPLES))
    yield "|---|---|" + "--:|" * len(SAMPLES)
    cells: dict[tuple[str, str], dict[tuple[int, str], float]] = defaultdict(dict)
    for each in means(curve):
        at = (samples(each["split"]), each["estimator"])
        cells[each["op"], each["dtype"]][at] = each["mape"]
    for (op, dtype), by in cells.items():
        yield _row(
            op,
            dtype,
            *(_both(by.get((n, "analytical")), by.get((n, "corrected"))) for n in SAMPLES),
        )
    yield ""


def _transfer(transfer: Sequence[Record]) -> Iterator[str]:
    yield from ("## Transfer between GPUs", "")
    if not transfer:
        yield f"Not measured: this run found no shipped {MATRIX_LIBRARY} calibration of one of"
        yield f"{', '.join(MATRIX)} for a table of another (`make calibrations` fits them)."
        return
    yield f"Shipped {MATRIX_LIBRARY} calibrations, coefficients scaled as their data-sheet priors,"
    yield "judged on all rows of another GPU, MAPE: analytical / corrected. Rows: fitted on;"
    yield "columns: judged."
    yield ""
    tables: dict[tuple[str, str], dict[tuple[str, str, str], float]] = defaultdict(dict)
    for each in transfer:
        at = (source_of(each["split"]), each["gpu"], each["estimator"])
        tables[each["op"], each["dtype"]][at] = each["mape"]
    for (op, dtype), by in tables.items():
        yield from (f"### {op} {dtype}", "", _row("", *MATRIX), "|---|" + "--:|" * len(MATRIX))
        for source in MATRIX:
            pairs = ((source, target) for target in MATRIX)
            yield _row(
                source,
                *(_both(by.get((*p, "analytical")), by.get((*p, "corrected"))) for p in pairs),
            )
        yield ""


def _both(analytical: float | None, corrected: float | None) -> str:
    if analytical is None or corrected is None:
        return ""
    return f"{analytical:.1f} / {corrected:.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
