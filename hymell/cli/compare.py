"""`compare`: models, GPUs, engines or formats side by side on one workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hymell.cli import complete, options
from hymell.cli.output import Output, emit, write_file
from hymell.cli.pages import check_pages, check_plot, command_line, write_page
from hymell.cli.priced import require_understood
from hymell.cli.progress import progress
from hymell.cli.values import dtype_of, listed, pool_bytes
from hymell.workload import Parallel, Workload

_TEXT = (
    "What A and B cost on the same workload, and where the difference comes from.\n\n"
    "The first case is the baseline. Several GPUs, engines or formats, each as a comma list, "
    "compare one model with itself; with several models every combination is priced. MODEL may be "
    "MODEL@REVISION. Exits with status 1 when a condition of --fail-if is met."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "compare",
        help=_TEXT,
        epilog=options.examples(
            "hymell compare Qwen/Qwen3-8B meta-llama/Meta-Llama-3-8B --batch 8",
            "hymell compare meta-llama/Meta-Llama-3-8B --gpu h100-sxm,l40s --engine vllm,trtllm",
            "hymell compare Qwen/Qwen3-8B Qwen/Qwen3-8B-FP8 --plot where.svg",
            "hymell compare org/model@v1 org/model@v2 --fail-if 'tpot_s > 1.05 * baseline'",
        ),
    )(compare)


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Hugging Face ids, names from `hymell models`, folders or config.json files; "
            "NAME@REVISION for a branch, tag or commit.",
            show_default=False,
            autocompletion=complete.models,
        ),
    ],
    gpu: Annotated[
        str, typer.Option("--gpu", help="GPU names or data-sheet files, separated by commas.")
    ] = "h100-sxm",
    engine: Annotated[str, typer.Option("--engine", help="Engines, separated by commas.")] = "vllm",
    engine_version: options.EngineVersion = None,
    batch: options.Batch = 1,
    prompt: options.Prompt = 1024,
    output: options.OutputTokens = 128,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="Formats as `hymell report` takes them, separated by commas.",
            rich_help_panel="Workload",
        ),
    ] = "auto",
    kv_dtype: options.KvDtype = None,
    routing_skew: options.Skew = 0.0,
    kv_pool_gb: options.KvPool = None,
    calibration: options.Calibration = "auto",
    calibrate_with: options.CalibrateWith = None,
    calibrated: options.Calibrated = None,
    tp: options.Tp = 1,
    ep: options.Ep = 1,
    pp: options.Pp = 1,
    microbatches: options.Microbatches = 1,
    price_per_hour: options.Price = None,
    gco2_per_kwh: options.Carbon = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with status 1 where a case meets it, e.g. 'tpot_s > 1.05 * baseline'; "
            "repeatable.",
            rich_help_panel="Output",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw a waterfall of the latency (.png, .svg, .pdf).",
            rich_help_panel="Output",
        ),
    ] = None,
    html: options.Html = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    destination = Output.of(json, md, csv, file)
    workload = Workload(batch, prompt, output)
    parallel = Parallel(tp, ep, pp, microbatches)
    from hymell import api
    from hymell.analysis.compare import Condition, broken
    from hymell.report.compare import compare_view

    conditions = [Condition.parse(text) for text in fail_if or ()]
    check_plot(plot)
    check_pages(html, None)
    with progress() as step:
        found = api.compare(
            models,
            workload,
            gpus=listed(gpu),
            engines=listed(engine),
            dtypes=[dtype_of(name) for name in listed(dtype)],
            engine_version=engine_version,
            kv_dtype=kv_dtype,
            skew=routing_skew,
            price_per_hour=price_per_hour,
            gco2_per_kwh=gco2_per_kwh,
            kv_pool_bytes=pool_bytes(kv_pool_gb),
            calibration=calibration,
            calibrate_with=calibrate_with,
            calibrated=calibrated,
            tp=parallel.tp,
            ep=parallel.ep,
            pp=parallel.pp,
            microbatches=parallel.microbatches,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
    if strict:
        for report in found.reports:
            require_understood(report.model, [op for op, _, _ in report.coverage.unknown])
    met = broken(found, conditions)
    emit(compare_view(found), destination)
    if plot is not None:
        from hymell.report.compare_plot import draw

        write_file(plot, draw(found, plot.suffix.lower()))
    if html is not None:
        from hymell.report.html_report import compare_page

        write_page(html, compare_page(found, command_line()))
    for each in met:
        print(f"hymell: {each.message}", file=sys.stderr)
    return 1 if met else 0
