"""`report`, `kernels`, `blocks`: one workload of one model priced, three ways to look at it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit
from hymell.cli.pages import check_pages, write_pages
from hymell.cli.progress import progress
from hymell.cli.values import dtype_of, pool_bytes
from hymell.errors import NotUnderstoodError
from hymell.workload import Parallel, Workload

if TYPE_CHECKING:
    from hymell.cost_report import CostReport
    from hymell.report.document import View


def register(app: typer.Typer) -> None:
    """Add the three commands; they share every option."""
    _add(
        app,
        "report",
        _report_view,
        "What a model's inference costs: latency, energy, memory, money.\n\n"
        "Exits with status 1, the report printed, when the workload does not fit the GPU.",
        options.examples(
            "hymell report meta-llama/Meta-Llama-3-8B",
            "hymell report Qwen/Qwen3-30B-A3B --gpu h200 --batch 64 --prompt 2048 --output 512",
            "hymell report ./my-model --engine sglang --price-per-hour 2.5 --gco2-per-kwh 300",
            "hymell report meta-llama/Meta-Llama-3-70B --tp 4 --price-per-hour 2.5",
            "hymell report mistralai/Mistral-7B-v0.1 --json -o report.json",
            "hymell report Qwen/Qwen3-8B --html report.html --chrome-trace timeline.json",
        ),
        fails_unless_fits=True,
    )
    _add(
        app,
        "kernels",
        _kernels_view,
        "The kernels that the engine launches, in order, with their sizes as formulas.",
        options.examples(
            "hymell kernels meta-llama/Meta-Llama-3-8B --engine vllm",
            "hymell kernels openai/gpt-oss-20b --batch 32 --csv",
        ),
    )
    _add(
        app,
        "blocks",
        _blocks_view,
        "What embed, attention (or mixer), ffn (or moe) and head cost, per phase.",
        options.examples(
            "hymell blocks meta-llama/Meta-Llama-3-8B --prompt 8192",
            "hymell blocks Qwen/Qwen3-30B-A3B --md -o blocks.md",
        ),
    )


def _add(
    app: typer.Typer,
    name: str,
    view: Callable[[CostReport], View],
    text: str,
    epilog: str,
    *,
    fails_unless_fits: bool = False,
) -> None:
    @app.command(name, help=text, epilog=epilog)
    def command(
        model: options.Model,
        gpu: options.Gpu = "h100-sxm",
        engine: options.EngineName = "vllm",
        engine_version: options.EngineVersion = None,
        batch: options.Batch = 1,
        prompt: options.Prompt = 1024,
        output: options.OutputTokens = 128,
        dtype: options.Dtype = "auto",
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
        revision: options.Revision = None,
        trust_remote_code: options.TrustRemoteCode = False,
        no_cache: options.NoCache = False,
        strict: options.Strict = False,
        html: options.Html = None,
        chrome_trace: options.ChromeTrace = None,
        json: options.Json = False,
        md: options.Md = False,
        csv: options.Csv = False,
        file: options.OutputFile = None,
    ) -> int:
        destination = Output.of(json, md, csv, file)
        workload = Workload(batch, prompt, output)
        parallel = Parallel(tp, ep, pp, microbatches)
        check_pages(html, chrome_trace)
        how: dict[str, Any] = {
            "gpu": gpu,
            "engine": engine,
            "engine_version": engine_version,
            "dtype": dtype_of(dtype),
            "kv_dtype": kv_dtype,
            "skew": routing_skew,
            "price_per_hour": price_per_hour,
            "gco2_per_kwh": gco2_per_kwh,
            "kv_pool_bytes": pool_bytes(kv_pool_gb),
            "calibration": calibration,
            "calibrate_with": calibrate_with,
            "calibrated": calibrated,
            "tp": parallel.tp,
            "ep": parallel.ep,
            "pp": parallel.pp,
            "microbatches": parallel.microbatches,
        }
        from hymell import api

        with progress() as step:
            source: dict[str, Any] = {
                "revision": revision,
                "trust_remote_code": trust_remote_code,
                "use_cache": not no_cache,
                "progress": step,
            }
            if html is None and chrome_trace is None:
                report = api.predict(model, workload, **how, **source)
            else:
                graph = api.trace(model, **source)
                report = api.predict(graph, workload, **how)
                write_pages(graph, report, workload, html, chrome_trace, how)
        if strict:
            require_understood(report.model, [op for op, _, _ in report.coverage.unknown])
        emit(view(report), destination)
        if fails_unless_fits and not report.memory.fits:
            print(f"hymell: {_does_not_fit(report)}", file=sys.stderr)
            return 1
        return 0


def require_understood(model: str, unknown: list[str]) -> None:
    """Raise NotUnderstoodError naming the ops, when there are any."""
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        raise NotUnderstoodError(
            f"{model}: not understood: {names}; register a lowering for each "
            "(hymell.op_registry.lowers) or leave out --strict"
        )


def _does_not_fit(report: CostReport) -> str:
    from hymell.report.units import memory

    need = memory(report.memory.total_bytes)
    room = memory(report.memory.usable_bytes)
    would = "; ".join(report.memory.advice) or "a larger GPU or several would"
    gpus = report.parallel["gpus"]
    where = report.gpu if gpus == 1 else f"{gpus} x {report.gpu}"
    per = "" if gpus == 1 else " per GPU"
    return f"does not fit on {where}: needs {need}, {room} usable{per}; {would}"


def _report_view(report: CostReport) -> View:
    from hymell.report.summary import report_view

    return report_view(report)


def _kernels_view(report: CostReport) -> View:
    from hymell.report.listings import kernels_view

    return kernels_view(report)


def _blocks_view(report: CostReport) -> View:
    from hymell.report.listings import blocks_view

    return blocks_view(report)
