"""`attention`: a module of the user in the place of a model's attention, beside the original."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit, write_file
from hymell.cli.pages import check_plot
from hymell.cli.priced import require_understood
from hymell.cli.progress import progress
from hymell.cli.values import dtype_of, whole_numbers
from hymell.errors import HymellError

_VARIANT = "Variant"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("attention", epilog=_EXAMPLES)(attention)


_EXAMPLES = options.examples(
    "hymell attention my_attention.py:MyAttention --in meta-llama/Meta-Llama-3-8B",
    "hymell attention my_attention.py:MyAttention --in Qwen/Qwen3-8B --arg window=1024 --batch 16",
    "hymell attention my_attention.py:MyAttention --in Qwen/Qwen3-8B --layers 0-34:2 --measure",
    "hymell attention my_attention.py:MyAttention --in Qwen/Qwen3-8B --plot attention.svg",
)


def attention(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:CLASS",
            help="A class of torch.nn.Module. The file is run: name only files that you trust.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--in",
            metavar="MODEL",
            help="Whose attention it replaces: a Hugging Face id, a name from `hymell models`, a "
            "folder or a config.json.",
            show_default=False,
        ),
    ],
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="An argument of the class's constructor; repeatable.",
            show_default=False,
            rich_help_panel=_VARIANT,
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            metavar="all|N,N-N,N-N:STEP",
            help="The layers that get it, counted from 0.",
            rich_help_panel=_VARIANT,
        ),
    ] = "all",
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Run it on a small model on the CPU: shapes, causality, decode against prefill.",
            rich_help_panel=_VARIANT,
        ),
    ] = True,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time one layer of both on the GPU or CPU at hand, beside its prediction.",
            rich_help_panel=_VARIANT,
        ),
    ] = False,
    gpu: options.Gpu = "h100-sxm",
    engine: options.EngineName = "vllm",
    engine_version: options.EngineVersion = None,
    batch: options.Batch = 1,
    contexts: Annotated[
        str | None,
        typer.Option(
            "--contexts",
            metavar="N,N,...",
            help="Context lengths; default: 128 to 1048576 in powers of 2.",
            show_default=False,
            rich_help_panel="Workload",
        ),
    ] = None,
    dtype: options.Dtype = "auto",
    kv_dtype: options.KvDtype = None,
    calibration: options.Calibration = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Also draw time per token over context: .png, .svg or .pdf. "
            r"Needs pip install 'hymell\[plots]'.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """What a model costs with an attention of your own, beside the one that it has.

    The class stands in the place of the model's attention; both are traced, and priced over context
    lengths up to 1M tokens: time, energy, FLOPs, bytes, cache, and where one overtakes the other.
    Exits with status 1, the answer printed, when a check of the class's numbers fails.
    """
    destination = Output.of(json, md, csv, file)
    asked = None if contexts is None else whole_numbers("contexts", contexts, "1024,131072,1048576")
    given = _arguments(argument or [])
    chosen = _layers(layers)
    check_plot(plot)
    from hymell import api
    from hymell.report.attention import attention_view

    with progress() as step:
        found = api.compare_attention(
            target,
            model,
            gpu=gpu,
            engine=engine,
            engine_version=engine_version,
            batch=batch,
            contexts=asked,
            layers=chosen,
            options=given,
            dtype=dtype_of(dtype),
            kv_dtype=kv_dtype,
            calibration=calibration,
            check=check,
            measure=measure,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
    if strict:
        require_understood(f"{found.variant} in {found.model}", list(found.not_understood))
    emit(attention_view(found), destination)
    if plot is not None:
        from hymell.report.attention_plot import draw_attention

        write_file(plot, draw_attention(found, plot.suffix.lower()))
    for check_ in found.failed:
        print(f"hymell: {found.variant}: {check_.name} FAILED: {check_.remark}", file=sys.stderr)
    return 1 if found.failed else 0


def _arguments(pairs: list[str]) -> dict[str, Any]:
    """Python literals where the value is one, else the text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise HymellError(f"--arg {pair}: write it as NAME=VALUE, e.g. --arg window=1024")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = {"true": True, "false": False}.get(value.lower(), value)
    return found


def _layers(text: str) -> list[int] | None:
    if text == "all":
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, dash, last = span.partition("-")
            stop = int(last) if dash else int(first)
            found += range(int(first), stop + 1, int(step or 1))
    except ValueError:
        found = []
    if not found:
        raise HymellError(f"--layers {text}: give all, or layers such as 0,5 or 0-30 or 0-30:2")
    return found
