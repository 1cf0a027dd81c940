"""`doctor`: whether this machine has what hymell needs, and what it has beyond that."""

from __future__ import annotations

import typer

from hymell.cli import options
from hymell.cli.output import Output, emit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=options.examples("hymell doctor", "hymell doctor --json"))(doctor)


def doctor(
    json: options.Json = False,
    md: options.Md = False,
    csv: options.Csv = False,
    file: options.OutputFile = None,
) -> int:
    """Versions, cache, GPUs, calibrations and measurements found on this machine.

    Exits with status 1 when something needs mending.
    """
    destination = Output.of(json, md, csv, file)
    from hymell.analysis.machine import inspect
    from hymell.report.machine import machine_view

    found = inspect()
    emit(machine_view(found), destination)
    return 1 if found.problems else 0
