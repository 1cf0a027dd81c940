"""Options that commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymell.cli import complete

_RUN, _NUMBERS, _SOURCE, _OUTPUT = "Workload", "Money and carbon", "Model source", "Output"
_GPUS = "Several GPUs"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face id, a name from `hymell models`, a folder or a config.json.",
        show_default=False,
        autocompletion=complete.models,
    ),
]
Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        help="GPU name (see `hymell gpus`) or a data-sheet JSON file.",
        autocompletion=complete.gpus,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What runs the model: vllm, sglang, trtllm, compile, eager.",
        autocompletion=complete.engines,
    ),
]
EngineVersion = Annotated[
    str | None,
    typer.Option(
        "--engine-version",
        help="Engine version whose measured overheads are used, e.g. 0.11.1, or the year of runs "
        "that state none; default: the newest.",
        show_default=False,
    ),
]
Batch = Annotated[
    int, typer.Option("--batch", help="Sequences that run together.", rich_help_panel=_RUN)
]
Prompt = Annotated[
    int, typer.Option("--prompt", help="Prompt tokens per sequence.", rich_help_panel=_RUN)
]
OutputTokens = Annotated[
    int, typer.Option("--output", help="Generated tokens per sequence.", rich_help_panel=_RUN)
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="bf16, fp16, fp32, or a weight format: fp8, int8, int4, nvfp4, mxfp4. "
        "auto keeps the checkpoint's.",
        rich_help_panel=_RUN,
    ),
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        help="Format of the KV cache; default: the activations'.",
        rich_help_panel=_RUN,
    ),
]
Skew = Annotated[
    float,
    typer.Option(
        "--routing-skew",
        help="How unevenly a MoE uses its experts: Zipf exponent, 0 is uniform.",
        rich_help_panel=_RUN,
    ),
]
KvPool = Annotated[
    float | None,
    typer.Option(
        "--kv-pool-gb",
        help="KV pool that the engine reported per GPU, in GB (1e9 bytes); default: estimated.",
        rich_help_panel=_RUN,
    ),
]
Calibration = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="auto|none|FILE",
        help="What prices kernels: auto (fitted for this engine on this GPU or its nearest "
        "relative), none (data sheet alone), or a file of `hymell calibrate`.",
        rich_help_panel=_RUN,
    ),
]
CalibrateWith = Annotated[
    Path | None,
    typer.Option(
        "--calibrate-with",
        metavar="FILE",
        help="CSV of your own measured runs: what they say of this configuration offsets the "
        "estimate.",
        show_default=False,
        rich_help_panel=_RUN,
    ),
]
Calibrated = Annotated[
    str | None,
    typer.Option(
        "--calibrated",
        metavar="NAME",
        autocompletion=complete.runs,
        help="The same with runs that `hymell runs add` keeps.",
        show_default=False,
        rich_help_panel=_RUN,
    ),
]
Tp = Annotated[
    int,
    typer.Option("--tp", help="GPUs that share every layer (tensor).", rich_help_panel=_GPUS),
]
Ep = Annotated[
    int,
    typer.Option(
        "--ep",
        help="Groups of GPUs that share a MoE's experts: a divisor of --tp, or with --tp 1 the "
        "GPUs that each take a part of the batch.",
        rich_help_panel=_GPUS,
    ),
]
Pp = Annotated[
    int,
    typer.Option("--pp", help="Stages of consecutive layers (pipeline).", rich_help_panel=_GPUS),
]
Microbatches = Annotated[
    int,
    typer.Option(
        "--microbatches",
        help="Equal parts of the batch that follow each other through the stages.",
        rich_help_panel=_GPUS,
    ),
]
Price = Annotated[
    float | None,
    typer.Option("--price-per-hour", help="What one GPU costs per hour.", rich_help_panel=_NUMBERS),
]
Carbon = Annotated[
    float | None,
    typer.Option(
        "--gco2-per-kwh",
        help="Carbon intensity of the electricity, grams of CO2 per kWh.",
        rich_help_panel=_NUMBERS,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", help="Branch, tag or commit on the hub.", rich_help_panel=_SOURCE),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run model code from the repository. Without it none ever runs.",
        rich_help_panel=_SOURCE,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Trace anew and keep nothing on disk.", rich_help_panel=_SOURCE
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with status 3 when any op is not understood.",
        rich_help_panel=_OUTPUT,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write one HTML page with pictures that needs no network.",
        rich_help_panel=_OUTPUT,
    ),
]
ChromeTrace = Annotated[
    Path | None,
    typer.Option(
        "--chrome-trace",
        metavar="FILE",
        help="Also write the predicted timeline of one prefill and one decode step, for Perfetto.",
        rich_help_panel=_OUTPUT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, errors too.", rich_help_panel=_OUTPUT)
]
Md = Annotated[bool, typer.Option("--md", help="Print Markdown.", rich_help_panel=_OUTPUT)]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, SI units.", rich_help_panel=_OUTPUT)]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output-file",
        metavar="FILE",
        help="Write to FILE instead of stdout, whole or not at all; .json, .md and .csv choose "
        "the format.",
        rich_help_panel=_OUTPUT,
    ),
]


def examples(*commands: str) -> str:
    """The closing lines of a help text, one command a line."""
    return "\n\n".join(("Examples:", *commands))
