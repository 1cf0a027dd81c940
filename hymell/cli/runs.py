"""`runs add`, `runs list`, `runs remove`: own measured runs kept under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hymell.cli import complete, options
from hymell.cli.output import Output, emit
from hymell.cli.progress import progress


def register(app: typer.Typer) -> None:
    """Add the commands."""
    runs = typer.Typer(help="Your own measured runs, kept under a name to calibrate reports with.")
    runs.command(
        "add",
        epilog=options.examples(
            "hymell runs add mine runs.csv",
            "hymell report Qwen/Qwen3-8B --gpu h100-sxm --calibrated mine",
        ),
    )(add)
    runs.command("list", epilog=options.examples("hymell runs list", "hymell runs list --json"))(
        list_
    )
    runs.command("remove", epilog=options.examples("hymell runs remove mine"))(remove)
    app.add_typer(runs, name="runs")


def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What to call the runs.", show_default=False)
    ],
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="CSV of runs, one a line (docs/own_runs.md).", show_default=False
        ),
    ],
    engine_version: options.EngineVersion = None,
    calibration: options.Calibration = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    no_cache: options.NoCache = False,
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Check runs, show what they say beside the estimates, and keep them.

    Runs that cannot be are refused by their line: faster than the data sheet allows, more power
    than the boards may draw, times that contradict each other. A name that has runs is refused.
    """
    destination = Output.of(json, md, csv, file)
    from hymell import api
    from hymell.report.own_runs import runs_view

    with progress() as step:
        saved = api.save_runs(
            name,
            runs,
            engine_version=engine_version,
            calibration=calibration,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=not no_cache,
            progress=step,
        )
    emit(runs_view([saved]), destination)
    return 0


def list_(
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """The runs that are kept: configurations, offsets, errors (HYMELL_RUNS_DIR moves them)."""
    destination = Output.of(json, md, csv, file)
    from hymell.analysis.own_store import load, saved_names
    from hymell.report.own_runs import runs_view

    emit(runs_view([load(name) for name in saved_names()]), destination)
    return 0


def remove(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="What the runs are called.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ],
) -> int:
    """Forget the runs of a name."""
    from hymell.analysis import own_store

    own_store.remove(name)
    typer.echo(f"removed {name}")
    return 0
