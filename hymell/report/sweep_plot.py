"""The picture of a `SweepResult`: every feasible point by two objectives, and the front."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.report.sweep import WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hymell.analysis.sweep.result import SweepResult

#: Colours and signs that stay apart for the colour-blind (Okabe and Ito), on light and dark.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#999999")
_SIGNS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MOST_PANELS = 4
#: Points drawn of each panel; more would hide each other.
_MOST_POINTS = 20_000

_UNITS = {
    "ttft_s": (1e3, "ms"),
    "tpot_s": (1e3, "ms"),
    "latency_s": (1.0, "s"),
    "tokens_per_s": (1.0, "1/s"),
    "energy_j": (1.0, "J"),
    "energy_per_output_token_j": (1e3, "mJ"),
    "memory_bytes": (1e-9, "GB"),
    "parameters": (1e-9, "billions"),
    "active_parameters": (1e-9, "billions"),
}


def draw_sweep(found: SweepResult, format: str) -> bytes:
    """The picture of `figure` in a format of `sweet_spot_plot.FORMATS`; errors as there."""
    out = io.BytesIO()
    figure(found).savefig(out, format=format.removeprefix("."), dpi=130)
    return out.getvalue()


def figure(found: SweepResult) -> Figure:
    """Points by the first two objectives, and their front.

    A panel for each prompt and output length (the first four); colours tell the values of the first
    field, signs the GPUs. Raises HymellError for a sweep with one objective or no feasible point.
    """
    if len(found.objectives) < 2:
        raise HymellError("a plot needs two objectives, e.g. --pareto tpot,energy_per_token")
    feasible = np.flatnonzero(found.columns["feasible"])
    if not feasible.size:
        raise HymellError("there is nothing to plot: no point of the sweep is feasible")
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ink = rcParams["text.color"]
    lengths = np.stack([found.columns["prompt"], found.columns["output"]], axis=1)
    pairs = np.unique(lengths[feasible], axis=0)[:_MOST_PANELS]
    colour = found.fields[0] if found.fields else "engine"
    columns = 1 if len(pairs) == 1 else 2
    rows = -(-len(pairs) // columns)
    made = Figure(figsize=(1 + 5.5 * columns, 0.8 + 4.2 * rows), layout="constrained")
    panels = made.subplots(rows, columns, squeeze=False).reshape(-1)
    values, gpus = _kinds(found, colour), _kinds(found, "gpu")
    for panel, pair in zip(panels, pairs, strict=False):
        here = feasible[(lengths[feasible] == pair).all(axis=1)]
        _panel(panel, found, here, pair, colour, values, gpus, ink)
    for panel in panels[len(pairs) :]:
        panel.set_visible(False)
    handles = [
        Line2D([], [], ls="", marker="o", color=_at(_COLOURS, i), label=f"{colour} {value}")
        for i, value in enumerate(values)
    ]
    if len(gpus) > 1:
        handles += [
            Line2D([], [], ls="", marker=_at(_SIGNS, i), color="grey", label=str(gpu))
            for i, gpu in enumerate(gpus)
        ]
    handles.append(Line2D([], [], color=ink, lw=1, label="Pareto front"))
    made.suptitle(f"{found.model}: {found.points:,} points")
    made.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    return made


def _kinds(found: SweepResult, name: str) -> list[Any]:
    return sorted(set(found.columns[name].tolist()), key=lambda v: (v is None, str(type(v)), v))


def _at(cycle: tuple[str, ...], position: int) -> str:
    return cycle[position % len(cycle)]


def _panel(
    panel: Any,
    found: SweepResult,
    rows: NDArray[np.intp],
    pair: NDArray[np.intp],
    colour: str,
    values: list[Any],
    gpus: list[Any],
    ink: str,
) -> None:
    from matplotlib.ticker import LogFormatter

    across, up = found.objectives[:2]
    x, y = _scaled(found, across.column), _scaled(found, up.column)
    drawn = rows[:: max(1, len(rows) // _MOST_POINTS)]
    for i, value in enumerate(values):
        for j, gpu in enumerate(gpus):
            same = (found.columns[colour][drawn] == value) & (found.columns["gpu"][drawn] == gpu)
            at = drawn[np.asarray(same, dtype=bool)]
            panel.plot(
                x[at], y[at], _at(_SIGNS, j), color=_at(_COLOURS, i), ms=5, alpha=0.75, mew=0
            )
    front = [row for row in found.front if row in set(rows.tolist())]
    order = sorted(front, key=lambda row: float(x[row]))
    panel.plot(x[order], y[order], color=ink, lw=1, drawstyle="steps-post", zorder=0)
    label = [f"{WORDS[o.column]}, {_UNITS[o.column][1]}" for o in (across, up)]
    panel.set(xscale="log", yscale="log", xlabel=label[0], ylabel=label[1])
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    panel.set_title(f"prompt {pair[0]}, output {pair[1]}", fontsize=10)
    panel.grid(alpha=0.3, which="both", lw=0.4)


def _scaled(found: SweepResult, column: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = _UNITS[column][0] * found.columns[column].astype(float)
    return values
