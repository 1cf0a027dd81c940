"""`serve`: what requests wait for and get from a server under load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit
from hymell.cli.priced import require_understood
from hymell.cli.progress import progress
from hymell.cli.values import dtype_of, pool_bytes
from hymell.errors import HymellError
from hymell.workload import Parallel

_LOAD, _SERVER = "Load", "Server"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", epilog=_EXAMPLES)(serve)


_EXAMPLES = options.examples(
    "hymell serve meta-llama/Meta-Llama-3-8B --gpu h100-sxm --rate 8 --requests 500",
    "hymell serve Qwen/Qwen3-32B --tp 2 --rate 2 --prompt 2048 --output 512 --max-num-seqs 128",
    "hymell serve meta-llama/Meta-Llama-3-8B --arrivals requests.csv --csv -o served.csv",
)


def serve(
    model: options.Model,
    gpu: options.Gpu = "h100-sxm",
    engine: options.EngineName = "vllm",
    engine_version: options.EngineVersion = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="R",
            help="Requests per second, on average (Poisson).",
            show_default="1",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            metavar="N",
            help="How many come.",
            show_default="256",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            "--prompt",
            help="Prompt tokens of each.",
            show_default="1024",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    output: Annotated[
        int | None,
        typer.Option(
            "--output",
            help="Generated tokens of each.",
            show_default="128",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Of the arrivals: the same seed, the same arrivals.",
            show_default="0",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    arrivals: Annotated[
        Path | None,
        typer.Option(
            "--arrivals",
            metavar="FILE",
            help="CSV of requests instead: arrival_s,prompt,output.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int,
        typer.Option("--max-num-seqs", help="Requests that run together.", rich_help_panel=_SERVER),
    ] = 256,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens",
            help="Tokens of a step: decode and chunks of prompts together.",
            rich_help_panel=_SERVER,
        ),
    ] = 2048,
    dtype: options.Dtype = "auto",
    kv_dtype: options.KvDtype = None,
    routing_skew: options.Skew = 0.0,
    kv_pool_gb: options.KvPool = None,
    calibration: options.Calibration = "auto",
    tp: options.Tp = 1,
    ep: options.Ep = 1,
    exchanges: Annotated[
        float,
        typer.Option(
            "--exchanges",
            metavar="X",
            help="Messages between GPUs take X times their estimate: 2.3 as measured on two RTX "
            "PRO 6000 over PCIe.",
            rich_help_panel="Several GPUs",
        ),
    ] = 1.0,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """How long requests wait for their first token and for each further one, under load.

    A simulation of continuous batching by vLLM's rules, every step priced from the model's kernels.
    CSV has one record per request.
    """
    destination = Output.of(json, md, csv, file)
    parallel = Parallel(tp, ep)
    asked = {
        "rate": rate,
        "requests": requests,
        "prompt": prompt,
        "output": output,
        "seed": seed,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if arrivals is not None and given:
        names = ", ".join(f"--{name}" for name in given)
        raise HymellError(f"--arrivals says when requests come and how long: leave out {names}")
    from hymell import api
    from hymell.report.serving import serving_view

    with progress() as step:
        found = api.serve(
            model,
            gpu=gpu,
            engine=engine,
            engine_version=engine_version,
            arrivals=arrivals,
            **given,  # type: ignore[arg-type]
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            dtype=dtype_of(dtype),
            kv_dtype=kv_dtype,
            skew=routing_skew,
            kv_pool_bytes=pool_bytes(kv_pool_gb),
            calibration=calibration,
            tp=parallel.tp,
            ep=parallel.ep,
            exchanges=exchanges,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
    if strict:
        require_understood(found.model, list(found.not_understood))
    emit(serving_view(found), destination)
    return 0
