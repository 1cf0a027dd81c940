"""Several costs side by side: how much apart, whether that is more than the error, and why.

The first case is the baseline. Of two figures with intervals that hold in 90% of cases, the ratio's
interval is built in logarithms from both, as if their errors had nothing in common: the distances
to the ends add as squares. Cases of one GPU and engine share some of their error, so this is on the
careful side. A ratio counts as a difference when its interval leaves out 1; a figure without an
interval is taken as it is where it is exact (memory), and is undecided where it is an estimate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from hymell.cost_report import CostReport, PhaseCost
from hymell.errors import HymellError

SCHEMA_VERSION: Final = 1

Interval = tuple[float, float]

#: What the engine adds to kernels: gaps, host, work per step, idle power.
OUTSIDE: Final = "outside kernels"

#: Verdicts of a `Difference`.
LESS, MORE, SAME, UNDECIDED = "less", "more", "no difference", "undecided"

_Get = Callable[[CostReport], float | None]


def _per_million(report: CostReport) -> float | None:
    return None if report.cost is None else report.cost["per_million_output_tokens"]


def _carbon(report: CostReport) -> float | None:
    return None if report.gco2 is None else report.gco2["per_million_output_tokens"]


#: Figures that are compared, in order, by the names that ``--fail-if`` takes.
QUANTITIES: Final[Mapping[str, _Get]] = {
    "ttft_s": lambda r: r.ttft_s,
    "tpot_s": lambda r: r.tpot_s,
    "latency_s": lambda r: r.latency_s,
    "tokens_per_s": lambda r: r.tokens_per_s,
    "energy_j": lambda r: r.energy_j,
    "energy_per_output_token_j": lambda r: r.energy_per_output_token_j,
    "power_w": lambda r: r.power_w,
    "memory_bytes": lambda r: r.memory.total_bytes,
    "cost_per_million_output_tokens": _per_million,
    "gco2_per_million_output_tokens": _carbon,
}

#: Sums of sizes: nothing is estimated.
_EXACT: Final = frozenset({"memory_bytes"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one case beside the baseline's; ``low`` and ``high`` bound the ratio, if known.

    ``verdict`` is one of "less", "more", "no difference" and "undecided".
    """

    case: str
    quantity: str
    baseline: float
    value: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one part of a phase takes more (or less) in a case than in the baseline, whole run.

    ``part`` is a block or a kind of kernel, `OUTSIDE` what passes outside kernels. Steps of a case
    add up to the difference of the latencies and of the energies.
    """

    case: str
    phase: str
    part: str
    baseline_s: float
    time_s: float
    baseline_j: float
    energy_j: float

    @property
    def added_s(self) -> float:
        """Seconds that the case takes more."""
        return self.time_s - self.baseline_s

    @property
    def added_j(self) -> float:
        """Joules that the case takes more."""
        return self.energy_j - self.baseline_j


@dataclass(frozen=True, slots=True)
class Broken:
    """A condition of ``--fail-if`` that a case meets, in words."""

    case: str
    condition: str
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cases side by side; the first of ``labels`` is the baseline of everything else."""

    labels: tuple[str, ...]
    reports: tuple[CostReport, ...]
    differences: tuple[Difference, ...]
    by_block: tuple[Step, ...]
    by_kernel: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, ready for JSON; kernels are left to the reports."""
        cases = [
            {"label": label}
            | {k: v for k, v in report.to_dict().items() if k not in ("kernels", "blocks")}
            for label, report in zip(self.labels, self.reports, strict=True)
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "baseline": self.labels[0],
            "cases": cases,
            "differences": [asdict(found) for found in self.differences],
            "by_block": [asdict(step) for step in self.by_block],
            "by_kernel": [asdict(step) for step in self.by_kernel],
        }


def compare_reports(cases: Mapping[str, CostReport]) -> Comparison:
    """Reports by label, the first being the baseline.

    Raises HymellError for fewer than two, and for reports of different workloads.
    """
    if len(cases) < 2:
        raise HymellError(
            "there is nothing to compare: give two models, or several GPUs, engines or formats"
        )
    labels, reports = tuple(cases), tuple(cases.values())
    if any(report.workload != reports[0].workload for report in reports):
        raise HymellError("only reports of one workload can be compared")
    first = reports[0]
    others = list(zip(labels[1:], reports[1:], strict=True))
    return Comparison(
        labels=labels,
        reports=reports,
        differences=tuple(
            found
            for label, report in others
            for name in QUANTITIES
            if (found := _difference(label, name, first, report)) is not None
        ),
        by_block=tuple(s for label, r in others for s in _steps(label, first, r, _blocks)),
        by_kernel=tuple(s for label, r in others for s in _steps(label, first, r, _kinds)),
    )


def _difference(
    label: str, name: str, baseline: CostReport, report: CostReport
) -> Difference | None:
    before, after = QUANTITIES[name](baseline), QUANTITIES[name](report)
    if before is None or after is None or before <= 0 or after <= 0:
        return None
    ratio = after / before
    bounds = _ratio_bounds(_bounds(baseline, name, before), _bounds(report, name, after), ratio)
    low, high = bounds if bounds is not None else (None, None)
    return Difference(label, name, before, after, ratio, low, high, _verdict(bounds))


def _bounds(report: CostReport, name: str, value: float) -> Interval | None:
    """Distances in logarithms from a figure down and up to the ends of its interval."""
    if name in _EXACT:
        return 0.0, 0.0
    held = report.intervals.get(name)
    if held is None:
        return None
    low, high = held
    return math.log(value / low), math.log(high / value)


def _ratio_bounds(before: Interval | None, after: Interval | None, ratio: float) -> Interval | None:
    if before is None or after is None:
        return None
    down, up = math.hypot(after[0], before[1]), math.hypot(after[1], before[0])
    return ratio * math.exp(-down), ratio * math.exp(up)


def _verdict(bounds: Interval | None) -> str:
    if bounds is None:
        return UNDECIDED
    low, high = bounds
    if high < 1:
        return LESS
    return MORE if low > 1 else SAME


_Parts = Callable[[CostReport], dict[tuple[str, str], tuple[float, float]]]


def _blocks(report: CostReport) -> dict[tuple[str, str], tuple[float, float]]:
    found: dict[tuple[str, str], tuple[float, float]] = {}
    several = len({block.part for block in report.blocks}) > 1
    for block in report.blocks:
        name = f"{block.part} {block.block}" if several and block.part else block.block
        _add(found, (block.phase, name), block.time_s, block.energy_j)
    return found


def _kinds(report: CostReport) -> dict[tuple[str, str], tuple[float, float]]:
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for kernel in report.kernels:
        _add(found, (kernel.phase, kernel.primitive), kernel.time_s, kernel.energy_j)
    return found


def _add(
    found: dict[tuple[str, str], tuple[float, float]],
    key: tuple[str, str],
    time_s: float,
    energy_j: float,
) -> None:
    before = found.get(key, (0.0, 0.0))
    found[key] = before[0] + time_s, before[1] + energy_j


def _steps(label: str, baseline: CostReport, report: CostReport, parts: _Parts) -> list[Step]:
    before, after = _whole(baseline, parts), _whole(report, parts)
    steps = [
        Step(label, *key, *_pair(before, after, key, 0), *_pair(before, after, key, 1))
        for key in dict.fromkeys((*before, *after))
    ]
    return sorted(steps, key=lambda step: -abs(step.added_s))


def _pair(
    before: Mapping[tuple[str, str], tuple[float, float]],
    after: Mapping[tuple[str, str], tuple[float, float]],
    key: tuple[str, str],
    place: int,
) -> tuple[float, float]:
    return before.get(key, (0.0, 0.0))[place], after.get(key, (0.0, 0.0))[place]


def _whole(report: CostReport, parts: _Parts) -> dict[tuple[str, str], tuple[float, float]]:
    """Parts of a report, with what is outside of them, so that they add up to the phases."""
    found = parts(report)
    for phase in ("prefill", "decode"):
        whole: PhaseCost = getattr(report, phase)
        inside = [spent for (when, _), spent in found.items() if when == phase]
        rest_s = whole.time_s - sum(spent[0] for spent in inside)
        rest_j = whole.energy_j - sum(spent[1] for spent in inside)
        if inside or whole.time_s:
            found[phase, OUTSIDE] = rest_s, rest_j
    return found


_CONDITION: Final = re.compile(
    r"\s*(?P<name>\w+)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?:(?P<factor>[0-9.eE+-]+)\s*\*\s*(?P<scaled>baseline)|(?P<plain>baseline)"
    r"(?:\s*\*\s*(?P<after>[0-9.eE+-]+))?|(?P<number>[0-9.eE+-]+))\s*"
)

_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """``tpot_s > 1.05 * baseline`` or ``ttft_s > 0.2``: when a comparison counts as failed."""

    text: str
    quantity: str
    sign: str
    factor: float
    against_baseline: bool

    @staticmethod
    def parse(text: str) -> Condition:
        """Raises HymellError for anything but FIGURE, a sign and a number or N * baseline."""
        found = _CONDITION.fullmatch(text)
        name = found["name"] if found else ""
        if found is None or name not in QUANTITIES:
            raise HymellError(
                f"cannot read the condition {text!r}; write a figure, >, >=, < or <=, and a number "
                "or N * baseline, as in 'tpot_s > 1.05 * baseline'; figures: "
                + ", ".join(QUANTITIES)
            )
        relative = found["scaled"] is not None or found["plain"] is not None
        number = found["factor"] or found["after"] or found["number"] or "1"
        try:
            factor = float(number)
        except ValueError:
            raise HymellError(f"{number!r} in the condition {text!r} is no number") from None
        return Condition(text.strip(), name, found["sign"], factor, relative)


def broken(found: Comparison, conditions: Sequence[Condition]) -> list[Broken]:
    """Every case but the baseline against every condition; which are met.

    Raises HymellError for a figure that a report does not have.
    """
    return [
        Broken(label, condition.text, message)
        for label, report in zip(found.labels[1:], found.reports[1:], strict=True)
        for condition in conditions
        if (message := _met(condition, found, label, report))
    ]


def _met(condition: Condition, found: Comparison, label: str, report: CostReport) -> str:
    value = _figure(condition, label, report)
    limit, words = condition.factor, f"{condition.factor:g}"
    if condition.against_baseline:
        base = _figure(condition, found.labels[0], found.reports[0])
        limit *= base
        words = f"{condition.factor:g} x {base:.4g} of {found.labels[0]}"
    if not _SIGNS[condition.sign](value, limit):
        return ""
    return f"{label}: {condition.quantity} is {value:.4g}, {condition.sign} {words}"


def _figure(condition: Condition, label: str, report: CostReport) -> float:
    value = QUANTITIES[condition.quantity](report)
    if value is None:
        raise HymellError(
            f"{label} has no {condition.quantity} (a price, a carbon intensity, or an output of "
            f"more than one token is missing), which {condition.text!r} asks for"
        )
    return value
