"""`sweep`: many architectures, GPUs and workloads priced, and which of them nothing beats."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit, write_file
from hymell.cli.pages import check_pages, check_plot, command_line, write_page
from hymell.cli.values import dtype_of, listed, whole_numbers
from hymell.errors import HymellError

if TYPE_CHECKING:
    from hymell.analysis.sweep.run import Report

_GRID, _SEARCH, _WHERE, _OUT = "Grid", "Sample and search", "Where it runs", "Output"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", epilog=_EXAMPLES)(sweep)


_EXAMPLES = options.examples(
    "hymell sweep meta-llama/Meta-Llama-3-8B --set num_attention_heads=16,32,64 "
    "--set num_key_value_heads=1,8,hq --gpu h100-sxm,l40s --batch 1,8,64",
    "hymell sweep Qwen/Qwen3-8B --set num_hidden_layers=16..48+8 --set hidden_size=2048,4096 "
    "--sample 8 --workers 2 --out sweep.parquet",
    "hymell sweep Qwen/Qwen3-8B --set num_hidden_layers=16..48+4 --set intermediate_size="
    "8192..16384+1024 --optimize tpot,energy_per_token --constraint 'params_b < 9' --trials 200",
)


def sweep(
    model: options.Model,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=V,V,...",
            help="Values of a field of the config; repeatable. A range: 16..64+16, 8..64*2. A "
            "formula: hq (query heads), num_attention_heads/4.",
            show_default=False,
            rich_help_panel=_GRID,
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option("--gpu", metavar="GPU,...", help="GPUs by name.", rich_help_panel=_GRID),
    ] = "h100-sxm",
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="ENGINE,...", help="Engines.", rich_help_panel=_GRID),
    ] = "vllm",
    batch: Annotated[
        str, typer.Option("--batch", metavar="N,...", help="Batches.", rich_help_panel=_GRID)
    ] = "1",
    prompt: Annotated[
        str,
        typer.Option("--prompt", metavar="N,...", help="Prompt lengths.", rich_help_panel=_GRID),
    ] = "1024",
    output: Annotated[
        str,
        typer.Option("--output", metavar="N,...", help="Output lengths.", rich_help_panel=_GRID),
    ] = "128",
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            help="Price so many architectures of the grid, drawn with --seed.",
            show_default=False,
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    optimize: Annotated[
        str | None,
        typer.Option(
            "--optimize",
            metavar="OBJECTIVE,...",
            help="Search (optuna, TPE) instead of pricing the grid: tpot, ttft, latency, "
            "throughput, energy, energy_per_token, memory, params.",
            show_default=False,
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", help="Points of the search.", rich_help_panel=_SEARCH)
    ] = 100,
    seed: Annotated[
        int,
        typer.Option("--seed", help="Seed of the sample or the search.", rich_help_panel=_SEARCH),
    ] = 0,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            "--constraint",
            metavar="CONDITION",
            help="What a point has to meet, e.g. 'params_b < 9 and tpot_ms <= 20'; repeatable.",
            show_default=False,
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    pareto: Annotated[
        str,
        typer.Option(
            "--pareto",
            metavar="OBJECTIVE,...",
            help="Objectives of the front of a grid or a sample.",
            rich_help_panel=_SEARCH,
        ),
    ] = "tpot,energy_per_token",
    workers: Annotated[
        int,
        typer.Option("--workers", help="Processes of this machine.", rich_help_panel=_WHERE),
    ] = 1,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", metavar="local|ray", help="ray: a cluster.", rich_help_panel=_WHERE
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="The Ray cluster; without it one is started here.",
            show_default=False,
            rich_help_panel=_WHERE,
        ),
    ] = None,
    dtype: options.Dtype = "auto",
    kv_dtype: options.KvDtype = None,
    routing_skew: options.Skew = 0.0,
    calibration: options.Calibration = "auto",
    tp: options.Tp = 1,
    ep: options.Ep = 1,
    revision: options.Revision = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.parquet",
            help="Stream every row to a Parquet file. The same command goes on where an "
            "interrupted one stopped.",
            show_default=False,
            rich_help_panel=_OUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start --out anew.", rich_help_panel=_OUT)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw the points and the front: .png, .svg or .pdf. Needs pip install "
            r"'hymell\[plots]'.",
            show_default=False,
            rich_help_panel=_OUT,
        ),
    ] = None,
    html: options.Html = None,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Price many architectures of a model; which of them does nothing beat?

    Every combination of the values is traced anew, without weights, and priced on every GPU,
    engine, batch and length. Combinations that are no model are skipped and counted.
    """
    destination = Output.of(json, md, csv, file)
    from hymell.analysis.sweep.axes import parse_set

    values = parse_set(set_ or [])
    check_plot(plot)
    check_pages(html, None)
    if plot is not None and len(_names("pareto", pareto if optimize is None else optimize)) < 2:
        raise HymellError("a plot needs two objectives, e.g. --pareto tpot,energy_per_token")
    if out is not None and out.suffix != ".parquet":
        raise HymellError(f"a table is a .parquet file, not {str(out)!r}; --csv prints CSV")
    from hymell import api
    from hymell.report.sweep import sweep_view

    with _bar() as bar, _resumable(out):
        found = api.sweep(
            model,
            values,
            gpu=_names("gpu", gpu),
            engine=_names("engine", engine),
            batch=_numbers("batch", batch),
            prompt=_numbers("prompt", prompt),
            output=_numbers("output", output),
            sample=sample,
            optimize=None if optimize is None else _names("optimize", optimize),
            trials=trials,
            seed=seed,
            constraints=tuple(constraint or ()),
            pareto=_names("pareto", pareto),
            workers=workers,
            backend=backend,
            address=address,
            out=out,
            overwrite=overwrite,
            dtype=dtype_of(dtype),
            kv_dtype=kv_dtype,
            skew=routing_skew,
            calibration=calibration,
            tp=tp,
            ep=ep,
            revision=revision,
            report=bar,
        )
    emit(sweep_view(found), destination)
    if plot is not None:
        from hymell.report.sweep_plot import draw_sweep

        write_file(plot, draw_sweep(found, plot.suffix.lower()))
    if html is not None:
        from hymell.report.html_report import sweep_page

        write_page(html, sweep_page(found, command_line()))
    if out is not None:
        kept = f", {found.resumed} of its architectures from before" if found.resumed else ""
        print(f"hymell: {found.points} rows in {out}{kept}", file=sys.stderr)
    return 0


@contextmanager
def _resumable(out: Path | None) -> Iterator[None]:
    """After Ctrl-C say what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            kept = f"what is done is kept in {out}.parts: run the same command again to go on"
        else:
            kept = "nothing is kept without --out FILE.parquet"
        print(f"hymell: {kept}", file=sys.stderr)
        raise


@contextmanager
def _bar() -> Iterator[Report | None]:
    """A progress bar on stderr with points per second; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    start = time.monotonic()
    with Progress(
        TextColumn("architectures"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task("", total=None, rate="")

        def report(done: int, total: int, points: int) -> None:
            rate = points / max(time.monotonic() - start, 1e-9)
            shown.update(task, completed=done, total=total, rate=f"{rate:,.0f} points/s")

        yield report


def _names(option: str, text: str) -> list[str]:
    found = listed(text)
    if not found:
        raise HymellError(f"--{option} is empty; give at least one value")
    return found


def _numbers(option: str, text: str) -> list[int]:
    _names(option, text)  # Refuses an empty list.
    return whole_numbers(option, text, "1,8,64")
