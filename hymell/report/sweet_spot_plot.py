"""The picture of a `SweetSpot`: cost per output token over both lengths."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hymell.errors import HymellError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from hymell.analysis.sweet_spot import SweetSpot
    from hymell.analysis.traffic import Request

FORMATS = (".png", ".svg", ".pdf")

_LEVELS = 12
#: Area of the largest traffic dot, in points squared.
_DOT = 120.0


def check_plot(path: Path) -> None:
    """Raise HymellError where no picture could be drawn: another format, or no matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise HymellError(f"a plot is a {', '.join(FORMATS)} file, not {str(path)!r}")
    if find_spec("matplotlib") is None:
        raise HymellError("a plot needs matplotlib; install it with: pip install 'hymell[plots]'")


def draw(found: SweetSpot, format: str, traffic: Sequence[Request] = ()) -> bytes:
    """The picture of `figure` in a format of `FORMATS`; errors as there."""
    out = io.BytesIO()
    figure(found, traffic).savefig(out, format=format.removeprefix("."), dpi=150)
    return out.getvalue()


def figure(found: SweetSpot, traffic: Sequence[Request] = ()) -> Figure:
    """Contours of the cost, the region, the minimum, traffic as dots.

    Pairs of lengths that fit neither GPU nor model stay white. Raises HymellError for a grid with
    fewer than two lengths each way.
    """
    if min(len(found.inputs), len(found.outputs)) < 2:
        raise HymellError("a plot needs at least two inputs and two outputs")
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    energy = found.by == "energy"
    cost = found.grid("energy_per_output_token_j" if energy else "latency_per_output_token_s")
    possible = found.grid("fits") & found.grid("in_context")
    values = np.ma.masked_array(cost if energy else 1e3 * cost, ~possible)
    least = float(values.min())
    inputs, outputs = np.array(found.inputs), np.array(found.outputs)

    made = Figure(figsize=(7, 5), layout="constrained")
    axes = made.add_subplot()
    levels = np.geomspace(least, max(float(values.max()), 1.001 * least), _LEVELS)
    filled = axes.contourf(outputs, inputs, values, levels=levels, cmap="viridis_r", norm="log")
    unit = "J" if energy else "ms"
    bar = made.colorbar(filled, ax=axes, label=f"{found.by} per output token, {unit}")
    bar.set_ticks(list(levels[::2]), labels=[f"{level:.3g}" for level in levels[::2]])
    bar.minorticks_off()
    edge = least * (1 + found.within)
    if least < edge < float(values.max()):
        axes.contour(outputs, inputs, values, levels=[edge], colors="white", linewidths=2)
    best = found.minimum
    margin = f"white line: within {100 * found.within:g}%"
    axes.plot(
        best.output,
        best.input,
        "*",
        color="red",
        markersize=14,
        clip_on=False,
        label=f"minimum; {margin}",
    )
    if traffic:
        weights = np.array([request.weight for request in traffic])
        axes.scatter(
            [request.output for request in traffic],
            [request.input for request in traffic],
            s=_DOT * weights / weights.max(),
            color="black",
            alpha=0.6,
            label="traffic",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="output tokens",
        ylabel="input tokens",
        title=f"{found.model}\n{found.gpu}, {found.engine}, batch {found.batch}",
    )
    for axis, lengths in ((axes.xaxis, outputs), (axes.yaxis, inputs)):
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(list(lengths), labels=[str(length) for length in lengths])
    made.legend(loc="outside lower center", ncols=2)
    return made
