"""Files beside an answer: the HTML page of a report, and its timeline."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymell.cli.output import check_target, write_file
from hymell.errors import HymellError
from hymell.workload import Workload

if TYPE_CHECKING:
    from hymell.cost_report import CostReport
    from hymell.graph import OpGraph

#: What `hymell.predict` takes and the pictures do not need.
_MONEY = ("price_per_hour", "gco2_per_kwh")


def check_pages(html: Path | None, chrome_trace: Path | None) -> None:
    """Raise HymellError for a file that cannot be made, before any work is done."""
    if html is not None:
        from hymell.report.html import check_html

        check_target(html)
        check_html()
    if chrome_trace is not None:
        check_target(chrome_trace)


def check_plot(plot: Path | None) -> None:
    """Raise HymellError for a picture that cannot be made, before any work is done."""
    if plot is not None:
        from hymell.report import sweet_spot_plot

        check_target(plot)
        sweet_spot_plot.check_plot(plot)


def write_pages(
    graph: OpGraph,
    report: CostReport,
    workload: Workload,
    html: Path | None,
    chrome_trace: Path | None,
    how: dict[str, Any],
) -> None:
    """Write what was asked for; ``how`` are the arguments of `hymell.predict` behind the report."""
    from hymell import api

    if html is not None:
        from hymell.hardware import find_gpu
        from hymell.report.html_report import report_page

        curve = api.over_context(graph, workload, **_without(how, *_MONEY, "kv_pool_bytes"))
        spot = None
        if report.decode.steps:
            spot = _sweet_spot(graph, workload, _without(how, *_MONEY))
        page = report_page(report, find_gpu(str(how["gpu"])), curve, spot, command_line())
        write_page(html, page)
    if chrome_trace is not None:
        from hymell.report.chrome_trace import to_chrome_trace

        step = api.predict(graph, replace(workload, output=min(workload.output, 2)), **how)
        write_page(chrome_trace, to_chrome_trace(step))


def _sweet_spot(graph: OpGraph, workload: Workload, how: dict[str, Any]) -> Any:
    """The sweet spot, None where no pair of lengths fits."""
    from hymell import api

    try:
        return api.sweet_spot(graph, batch=workload.batch, **how)
    except HymellError:
        return None


def _without(how: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in how.items() if name not in names}


def write_page(path: Path, text: str) -> None:
    """Write a file whole, or fail in one sentence; says so on stderr."""
    write_file(path, text)
    print(f"hymell: wrote {path}", file=sys.stderr)


def command_line() -> str:
    """What the user typed, as a shell would read it."""
    return shlex.join(["hymell", *sys.argv[1:]])
