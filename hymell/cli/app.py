"""The ``hymell`` command: its sub-commands, and how it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from hymell._version import __version__
from hymell.cli import (
    attention,
    compare,
    doctor,
    lists,
    measured,
    ops,
    priced,
    runs,
    serve,
    sweep,
    sweetspot,
)
from hymell.cli.failures import (
    BROKEN_PIPE,
    BUG,
    INTERRUPTED,
    OutputClosedError,
    failure_of,
    show,
)
from hymell.cli.options import examples

app = typer.Typer(
    name="hymell",
    help="What a model's inference costs on a GPU, before anyone rents the GPU.",
    epilog=examples(
        "hymell report meta-llama/Meta-Llama-3-8B --gpu h100-sxm --batch 1 --prompt 1024",
        "hymell kernels Qwen/Qwen3-8B --engine sglang",
        "hymell gpus",
    ),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hymell {__version__}")
        raise typer.Exit


@app.callback()
def _hymell(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


priced.register(app)
ops.register(app)
compare.register(app)
sweetspot.register(app)
serve.register(app)
attention.register(app)
sweep.register(app)
lists.register(app)
measured.register(app)
doctor.register(app)
runs.register(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit status.

    Errors that a user can meet end in one sentence, under ``--json`` as JSON on stdout; a bug in
    hymell asks for a report, its traceback shown when HYMELL_DEBUG is set.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # The arrays here are small: one BLAS thread per core costs more CPU than it could save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.stderr is None:  # closed at the start: nobody reads what is said there
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        return _run(arguments)
    except OutputClosedError:
        # What is still buffered has no reader; Python would complain about it on its way out.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run(arguments: list[str]) -> int:
    try:
        command = typer.main.get_command(app)
        status = command.main(args=arguments, prog_name="hymell", standalone_mode=False)
        if status == INTERRUPTED:  # typer has caught the KeyboardInterrupt
            raise KeyboardInterrupt
        return int(status or 0)
    except OutputClosedError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        print("hymell: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        failure = failure_of(error)
        if failure.exit_code == BUG and os.environ.get("HYMELL_DEBUG"):
            traceback.print_exc()
        show(failure, as_json=_asks_json(arguments))
        return failure.exit_code


def _asks_json(arguments: list[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options
