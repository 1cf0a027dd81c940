"""A `Comparison` as the page, the JSON and the CSV that `hymell compare` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from hymell.analysis.compare import QUANTITIES, Comparison, Difference, Step
from hymell.report import units
from hymell.report.document import Column, Document, Notes, Section, Table, View
from hymell.report.summary import QUANTITY_NAMES, assumptions, near

#: Figures of the page: title and unit of each of `analysis.compare.QUANTITIES`.
TITLES: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "ttft_s": ("TTFT", units.seconds),
    "tpot_s": ("TPOT", units.seconds),
    "latency_s": ("Latency", units.seconds),
    "tokens_per_s": ("Tokens/s", units.number),
    "energy_j": ("Energy", units.joules),
    "energy_per_output_token_j": ("Energy per token", units.joules),
    "power_w": ("Mean power", units.watts),
    "memory_bytes": ("Memory", units.memory),
    "cost_per_million_output_tokens": ("Cost per million tokens", units.number),
    "gco2_per_million_output_tokens": ("CO2 per million tokens", units.grams),
}

#: Columns of the first table; the rest stands in the differences.
_HEADLINE: Final = ("ttft_s", "tpot_s", "latency_s", "energy_per_output_token_j", "memory_bytes")

#: Steps shown per case; the others are added up.
_STEPS: Final = 8


def compare_view(found: Comparison) -> View:
    """Cases, differences with verdicts, and where they come from; CSV has the differences."""
    return View(_document(found), found.to_dict(), [asdict(each) for each in found.differences])


def _document(found: Comparison) -> Document:
    sections: list[Section] = [_cases(found)]
    warnings = [
        text if text.startswith(f"{label} ") else f"{label}: {text}"
        for label, report in zip(found.labels, found.reports, strict=True)
        for text in report.warnings
    ]
    if warnings:
        sections.append(Notes("Warnings", tuple(warnings)))
    accuracies = tuple(_accuracies(found))
    if accuracies:
        sections.append(Notes("Accuracy", accuracies))
    for label in found.labels[1:]:
        sections.append(_differences(found, label))
        sections.append(_origin(found, label, "by block", found.by_block))
        sections.append(_origin(found, label, "by kind of kernel", found.by_kernel))
    sections.append(Notes("Assumptions", tuple(_assumptions(found))))
    workload = ", ".join(f"{key} {value}" for key, value in found.reports[0].workload.items())
    return Document(" against ".join(reversed(_two(found))), tuple(sections), workload)


def _two(found: Comparison) -> tuple[str, str]:
    rest = found.labels[1:]
    return found.labels[0], rest[0] if len(rest) == 1 else f"{len(rest)} others"


def _cases(found: Comparison) -> Table:
    rows = [
        {
            "label": label,
            "fits": "yes" if report.memory.fits else "NO",
            **{name: QUANTITIES[name](report) for name in _HEADLINE},
        }
        for label, report in zip(found.labels, found.reports, strict=True)
    ]
    columns = (
        Column("label", "Case", whole=True),
        *(Column(name, *TITLES[name], right=True) for name in _HEADLINE),
        Column("fits", "Fits"),
    )
    return Table("", columns, tuple(rows), f"{found.labels[0]} is the baseline")


def _differences(found: Comparison, label: str) -> Table:
    rows = [_difference(each) for each in found.differences if each.case == label]
    columns = (
        Column("figure", "Figure"),
        Column("baseline", found.labels[0], right=True),
        Column("value", label, right=True),
        Column("ratio", "Ratio", right=True),
        Column("interval", "90% interval", right=True),
        Column("verdict", "Verdict"),
    )
    note = (
        "a difference is one whose ratio's 90% interval leaves out 1; undecided: no measured runs "
        "say how far off such a figure is"
    )
    return Table(f"{label} against {found.labels[0]}", columns, tuple(rows), note)


def _difference(each: Difference) -> dict[str, Any]:
    title, show = TITLES[each.quantity]
    interval = None
    if each.low is not None and each.high is not None and each.low < each.high:
        interval = f"{units.number(each.low)}-{units.number(each.high)}"
    return {
        "figure": title,
        "baseline": show(each.baseline),
        "value": show(each.value),
        "ratio": f"{each.ratio:.3f}" if 0.1 <= each.ratio < 100 else units.number(each.ratio),
        "interval": interval,
        "verdict": each.verdict,
    }


def _origin(found: Comparison, label: str, how: str, steps: tuple[Step, ...]) -> Table:
    mine = [step for step in steps if step.case == label]
    shown, rest = mine[:_STEPS], mine[_STEPS:]
    rows = [_step(step) for step in shown]
    if rest:
        rows.append(
            {
                "phase": "both",
                "part": f"{len(rest)} others",
                "added_s": sum(step.added_s for step in rest),
                "added_j": sum(step.added_j for step in rest),
            }
        )
    rows.append(
        {
            "phase": "both",
            "part": "all",
            "added_s": sum(step.added_s for step in mine),
            "added_j": sum(step.added_j for step in mine),
        }
    )
    columns = (
        Column("phase", "Phase"),
        Column("part", "Part"),
        Column("baseline_s", found.labels[0], units.seconds, right=True),
        Column("time_s", label, units.seconds, right=True),
        Column("added_s", "added time", _signed(units.seconds), right=True),
        Column("added_j", "added energy", _signed(units.joules), right=True),
    )
    return Table(f"Where {label} differs, {how}", columns, tuple(rows))


def _step(step: Step) -> dict[str, Any]:
    return asdict(step) | {"added_s": step.added_s, "added_j": step.added_j}


def _signed(show: Callable[[float], str]) -> Callable[[float], str]:
    def text(value: float) -> str:
        return f"{'-' if value < 0 else '+'}{show(abs(value))}"

    return text


def _accuracies(found: Comparison) -> Iterator[str]:
    """How near the estimators were: what holds for all cases once, the rest by case."""
    lines = [
        [f"{QUANTITY_NAMES[name]}: {near(each)}" for name, each in report.accuracy.items()]
        for report in found.reports
    ]
    shared = [line for line in lines[0] if all(line in others for others in lines[1:])]
    yield from shared
    for label, own in zip(found.labels, lines, strict=True):
        yield from (f"{label}, {line}" for line in own if line not in shared)


def _assumptions(found: Comparison) -> Iterator[str]:
    """Those that all cases share once, the others by case."""
    first = found.reports[0].assumptions
    shared = {
        key: value
        for key, value in first.items()
        if all(report.assumptions.get(key) == value for report in found.reports)
    }
    yield from assumptions(shared)
    for label, report in zip(found.labels, found.reports, strict=True):
        own = {key: value for key, value in report.assumptions.items() if key not in shared}
        yield from (f"{label}: {line}" for line in assumptions(own))
