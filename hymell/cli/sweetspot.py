"""`sweetspot`: at which lengths a model costs least per output token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit, write_file
from hymell.cli.pages import check_plot
from hymell.cli.priced import require_understood
from hymell.cli.progress import progress
from hymell.cli.values import dtype_of, pool_bytes, whole_numbers
from hymell.workload import Parallel

if TYPE_CHECKING:
    from hymell.analysis.traffic import Request

_GRID, _TRAFFIC = "Grid", "Traffic"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweetspot", epilog=_EXAMPLES)(sweetspot)


_EXAMPLES = options.examples(
    "hymell sweetspot meta-llama/Meta-Llama-3-8B --gpu h100-sxm --batch 16",
    "hymell sweetspot Qwen/Qwen3-8B --mix 2000:50:3 --mix 100:400:1",
    "hymell sweetspot Qwen/Qwen3-8B --inputs 256,1024,4096 --outputs 16,64,256 --by latency",
    "hymell sweetspot Qwen/Qwen3-8B --traffic requests.csv --plot sweet-spot.png",
)


def sweetspot(
    model: options.Model,
    gpu: options.Gpu = "h100-sxm",
    engine: options.EngineName = "vllm",
    engine_version: options.EngineVersion = None,
    batch: options.Batch = 1,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="N,N,...",
            help="Prompt lengths; default: 64 to 4096 in powers of 2.",
            show_default=False,
            rich_help_panel=_GRID,
        ),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            "--outputs",
            metavar="N,N,...",
            help="Output lengths; default: 64 to 4096 in powers of 2.",
            show_default=False,
            rich_help_panel=_GRID,
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="energy|latency",
            help="Which cost per output token is to be least.",
            rich_help_panel=_GRID,
        ),
    ] = "energy",
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="PERCENT",
            help="How much more than the minimum the region around it may cost.",
            rich_help_panel=_GRID,
        ),
    ] = 10.0,
    traffic: Annotated[
        Path | None,
        typer.Option(
            "--traffic",
            metavar="FILE",
            help="CSV of requests, input,output[,weight]: what moving them would save.",
            show_default=False,
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="IN:OUT[:WEIGHT]",
            help="The same without a file; repeatable.",
            show_default=False,
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
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
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw a contour plot: .png, .svg or .pdf. Needs pip install "
            r"'hymell\[plots]'.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """At which input and output lengths a model costs least energy per output token.

    After SweetSpot (arXiv 2602.05695): every pair of lengths priced, the minimum, the region around
    it, a closed form of three coefficients, and what traffic would save by moving there.
    """
    destination = Output.of(json, md, csv, file)
    parallel = Parallel(tp, ep, pp, microbatches)
    asked_inputs, asked_outputs = _lengths("inputs", inputs), _lengths("outputs", outputs)
    requests = _requests(traffic, mix or [])
    check_plot(plot)
    from hymell import api
    from hymell.report.sweet_spot import sweet_spot_view

    with progress() as step:
        found = api.sweet_spot(
            model,
            gpu=gpu,
            engine=engine,
            engine_version=engine_version,
            batch=batch,
            inputs=asked_inputs,
            outputs=asked_outputs,
            by=by,
            within=within / 100,
            traffic=requests,
            dtype=dtype_of(dtype),
            kv_dtype=kv_dtype,
            skew=routing_skew,
            kv_pool_bytes=pool_bytes(kv_pool_gb),
            calibration=calibration,
            calibrate_with=calibrate_with,
            calibrated=calibrated,
            tp=parallel.tp,
            ep=parallel.ep,
            pp=parallel.pp,
            microbatches=parallel.microbatches,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
    if strict:
        require_understood(found.model, list(found.not_understood))
    if plot is not None:
        from hymell.report.sweet_spot_plot import draw

        write_file(plot, draw(found, plot.suffix.lower(), requests or ()))
    emit(sweet_spot_view(found), destination)
    return 0


def _lengths(name: str, text: str | None) -> list[int] | None:
    return None if text is None else whole_numbers(name, text, "64,256,1024")


def _requests(file: Path | None, mix: list[str]) -> tuple[Request, ...] | None:
    """Requests of both options together; None without any."""
    if file is None and not mix:
        return None
    from hymell.analysis.traffic import parse_request, read_traffic, traffic_of

    return traffic_of([*(read_traffic(file) if file is not None else []), *map(parse_request, mix)])
