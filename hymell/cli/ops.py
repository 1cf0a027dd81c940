"""`ops`: what was traced."""

from __future__ import annotations

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit
from hymell.cli.priced import require_understood
from hymell.cli.progress import progress
from hymell.workload import Precision, Workload


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ops", epilog=_EXAMPLES)(ops)


_EXAMPLES = options.examples(
    "hymell ops openai-community/gpt2",
    "hymell ops ./config.json --batch 4 --prompt 512 --csv -o ops.csv",
)


def ops(
    model: options.Model,
    batch: options.Batch = 1,
    prompt: options.Prompt = 1024,
    dtype: options.Dtype = "auto",
    kv_dtype: options.KvDtype = None,
    routing_skew: options.Skew = 0.0,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """The traced ops of each phase, with shapes as formulas and what each costs eager PyTorch."""
    destination = Output.of(json, md, csv, file)
    workload = Workload(batch, prompt)
    precision = Precision.of(dtype, kv_dtype)
    from hymell import api
    from hymell.report.ops import NOT_REGISTERED, ops_view

    with progress() as step:
        graph = api.trace(
            model,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
        view = ops_view(graph, workload, precision, skew=routing_skew)
    if strict:
        unknown = [row["op"] for row in view.records if row["primitive"] == NOT_REGISTERED]
        require_understood(graph.facts.name, unknown)
    emit(view, destination)
    return 0
