"""Pages to send around: a `CostReport` with pictures and every kernel, a `Comparison`, a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from hymell.report import compare_plot, figures, sweep_plot, sweet_spot_plot
from hymell.report.compare import compare_view
from hymell.report.document import Column, Document, Table
from hymell.report.html import Picture, check_html, to_page
from hymell.report.listings import KERNEL_COLUMNS, kernel_row
from hymell.report.summary import report_document
from hymell.report.svg import page_style, to_svg
from hymell.report.sweep import WORDS, points_table, sweep_document

if TYPE_CHECKING:
    from hymell.analysis.compare import Comparison
    from hymell.analysis.context_curve import ContextCurve
    from hymell.analysis.sweep.result import SweepResult
    from hymell.analysis.sweet_spot import SweetSpot
    from hymell.cost_report import CostReport
    from hymell.hardware import Gpu
    from hymell.report.svg import Figure


def report_page(
    report: CostReport,
    gpu: Gpu,
    curve: ContextCurve | None = None,
    spot: SweetSpot | None = None,
    command: str = "",
) -> str:
    """The HTML of `report.html`. ``gpu`` is the report's; ``curve`` and ``spot`` are of its model.

    Raises HymellError where a package that pages need is missing.
    """
    check_html()
    document = report_document(report)
    kernels = Table(
        "Kernels",
        (Column("phase", "Phase"), *KERNEL_COLUMNS),
        tuple({"phase": k.phase, **kernel_row(k)} for k in report.kernels),
        "decode sums all its steps; identical layers are one row",
    )
    sections = (*document.sections, kernels)
    whole = Document(document.title, sections, document.subtitle)
    return to_page(whole, list(_pictures(report, gpu, curve, spot)), command)


def _pictures(
    report: CostReport, gpu: Gpu, curve: ContextCurve | None, spot: SweetSpot | None
) -> Iterator[Picture]:
    yield drawn(
        "Time and energy by block",
        "blocks",
        lambda: figures.where_it_goes(report),
        "Stacked bars: the share of each block in time and energy of each phase.",
    )
    yield drawn(
        "Roofline",
        "roofline",
        lambda: figures.roofline(report, gpu),
        f"Kernels by arithmetic intensity and achieved FLOP/s under the roofs of {gpu.name}; "
        "filled in prefill, open in decode, larger where more time goes.",
        after="Top kernels",
    )
    if curve is not None and len(curve.prompts) > 1:
        yield drawn(
            "Over the context",
            "context",
            lambda: figures.over_context(report, curve),
            "Time and energy per output token over prompt length, all else as above"
            + ("; bands are 90% intervals." if report.intervals else "."),
            after="Top kernels",
        )
    if spot is not None:
        best = spot.minimum
        yield drawn(
            "Sweet spot",
            "spot",
            lambda: sweet_spot_plot.figure(spot),
            f"Energy per output token over input and output length; least, "
            f"{best.energy_per_output_token_j:.3g} J, at input {best.input} and output "
            f"{best.output}.",
            after="Top kernels",
        )


def compare_page(found: Comparison, command: str = "") -> str:
    """The HTML of a comparison: its tables, and a waterfall behind each case's differences.

    Raises HymellError where a package that pages need is missing.
    """
    check_html()
    pictures = [
        drawn(
            f"From {found.labels[0]} to {label}",
            f"waterfall-{place}",
            partial(compare_plot.figure, found, (label,)),
            f"Waterfall of the latency of the whole run, by block: from {found.labels[0]} to "
            f"{label}, what is added in orange, what is saved in blue.",
            after=f"{label} against {found.labels[0]}",
        )
        for place, label in enumerate(found.labels[1:])
    ]
    return to_page(compare_view(found).document, pictures, command)


def sweep_page(found: SweepResult, command: str = "") -> str:
    """The HTML of a sweep: its tables, the front as a picture, the points with their intervals.

    Without a second objective, or without a feasible point, there is no picture. Raises HymellError
    where a package that pages need is missing.
    """
    check_html()
    document = sweep_document(found)
    pictures = []
    if len(found.objectives) > 1 and found.front:
        across, up = (WORDS[objective.column] for objective in found.objectives[:2])
        pictures.append(
            drawn(
                "Points and their front",
                "front",
                partial(sweep_plot.figure, found),
                f"Every feasible point by {across} and {up}; the line is the Pareto front. Colours "
                f"tell the values of {found.fields[0] if found.fields else 'the engine'}, signs "
                "the GPUs.",
            )
        )
    whole = Document(document.title, (*document.sections, points_table(found)), document.subtitle)
    return to_page(whole, pictures, command)


def drawn(
    title: str, name: str, make: Callable[[], Figure], words: str, after: str = ""
) -> Picture:
    """A figure made in the page's style; ``name`` is unique in the page."""
    with page_style():
        return Picture(title, to_svg(make(), name), words, after)
