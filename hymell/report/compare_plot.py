"""The picture of a `Comparison`: a waterfall from the baseline's latency to each case's."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hymell.analysis.compare import Comparison, Step

#: Okabe and Ito's colours, which colour-blind people tell apart.
_WHOLE, _MORE, _LESS = "#808080", "#d55e00", "#0072b2"

#: Bars of a waterfall; smaller steps are added up.
_BARS: Final = 8

_BAR_INCHES: Final = 0.42


def figure(found: Comparison, cases: Sequence[str] = ()) -> Figure:
    """One waterfall per case (default: all but the baseline).

    Whole runs are grey; between them stands what is added and what is saved.
    """
    from matplotlib.figure import Figure

    labels = tuple(cases) or found.labels[1:]
    height = (_BARS + 3) * _BAR_INCHES * len(labels)
    made = Figure(figsize=(8, height), layout="constrained")
    axes = made.subplots(len(labels), 1, squeeze=False)[:, 0]
    for place, label in zip(axes, labels, strict=True):
        _waterfall(place, found, label)
    return made


def draw(found: Comparison, format: str) -> bytes:
    """The picture in a format of `sweet_spot_plot.FORMATS`."""
    content = io.BytesIO()
    figure(found).savefig(content, format=format.removeprefix("."), dpi=150)
    return content.getvalue()


def bars(steps: list[Step]) -> list[tuple[str, float]]:
    """(name, added seconds) of the largest steps, the others added up, in order of size."""
    shown, rest = steps[:_BARS], steps[_BARS:]
    found = [(f"{step.phase}: {step.part}", step.added_s) for step in shown]
    others = sum(step.added_s for step in rest)
    return [*found, ("others", others)] if others else found


def _waterfall(axes: Axes, found: Comparison, label: str) -> None:
    start = found.reports[0].latency_s
    end = found.reports[found.labels.index(label)].latency_s
    steps = bars([step for step in found.by_block if step.case == label])
    names = [found.labels[0], *(name for name, _ in steps), label]
    axes.barh(names[0], 1e3 * start, color=_WHOLE)
    levels = [start]
    for name, added in steps:
        at = levels[-1]
        colour = _MORE if added > 0 else _LESS
        axes.barh(name, 1e3 * added, left=1e3 * at, color=colour)
        place = 1e3 * (at + max(added, 0)), name
        text = f"{1e3 * added:+.3g}"
        axes.annotate(text, place, (3, 0), textcoords="offset points", va="center", size="small")
        levels.append(at + added)
    axes.barh(names[-1], 1e3 * end, color=_WHOLE)
    axes.invert_yaxis()
    low, high = 1e3 * min(levels), 1e3 * max(levels)
    # Steps much smaller than the whole would be slivers: the axis then starts near them.
    left = max(low - 2 * (high - low), 0.0)
    axes.set_xlim(left, high + 0.15 * (high - left) or 1.0)
    cut = f" (the axis starts at {left:.4g})" if left else ""
    axes.set_xlabel(f"latency of the whole run, ms{cut}")
    axes.set_title(f"{label} against {found.labels[0]}", loc="left", fontsize="medium")
