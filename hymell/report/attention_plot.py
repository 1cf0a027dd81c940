"""The picture of an `AttentionComparison`: time per token over context, both attentions."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from hymell.errors import HymellError

if TYPE_CHECKING:
    from hymell.analysis.attention_variant import AttentionComparison

#: Blue and orange of Okabe and Ito's palette, told apart by colour-blind readers.
_COLOURS = {"original": "#0072B2", "variant": "#D55E00"}
_MARKERS = {"original": "o", "variant": "s"}
_PANELS = (
    ("prefill time", "prefill, per token of the prompt"),
    ("decode time", "decode, per step"),
)


def draw_attention(found: AttentionComparison, format: str) -> bytes:
    """Time per token in prefill and in decode, and the crossovers, as .png, .svg or .pdf.

    Raises HymellError for a single context length.
    """
    if len(found.rows) < 2:
        raise HymellError("a plot needs at least two context lengths")
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    contexts = [row.context for row in found.rows]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    names = {"original": "the model's own", "variant": found.variant}
    for axes, (measure, title) in zip(panels, _PANELS, strict=True):
        for side, name in names.items():
            costs = [getattr(row, side) for row in found.rows]
            times = (
                [cost.ttft_s / n for cost, n in zip(costs, contexts, strict=True)]
                if measure == "prefill time"
                else [cost.tpot_s for cost in costs]
            )
            axes.plot(
                contexts,
                [1e3 * time for time in times],
                color=_COLOURS[side],
                marker=_MARKERS[side],
                markersize=4,
                label=name,
            )
        for crossover in found.crossovers:
            if crossover.measure == measure and crossover.context is not None:
                axes.axvline(crossover.context, color="0.5", linestyle="--", linewidth=1)
                axes.annotate(
                    f"{crossover.context:,}",
                    (crossover.context, 0.98),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    ha="right",
                    va="top",
                    fontsize=8,
                )
        axes.set(xscale="log", yscale="log", title=title, xlabel="context, tokens", ylabel="ms")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
        axes.xaxis.set_major_formatter(lambda value, _: _tokens(value))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(
        f"{found.model}: {found.gpu}, {found.engine}, batch {found.batch}", fontsize="medium"
    )
    out = io.BytesIO()
    figure.savefig(out, format=format.removeprefix("."), dpi=150)
    return out.getvalue()


def _tokens(value: float) -> str:
    for size, unit in ((2**20, "M"), (2**10, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
