"""What a failed command says, and the exit status it leaves.

0 fine, 1 does not fit or fails a check, 2 bad input, 3 not understood under --strict, 70 a bug in
hymell, 130 interrupted, 141 the reader of stdout went away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from dataclasses import dataclass

from hymell.errors import HymellError

BUG = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

#: What a disk says that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputClosedError(Exception):
    """Whoever reads stdout stopped reading."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One sentence for the user, a remark for people only, and the exit status."""

    kind: str
    message: str
    exit_code: int
    hint: str = ""


def failure_of(error: Exception) -> Failure:
    """The failure that an exception means."""
    if isinstance(error, HymellError):
        return Failure(type(error).__name__, _sentence(error), error.exit_code)
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" {str(error.filename)!r}" if error.filename else ""
        return Failure(
            "HymellError", f"cannot write{where}: {error.strerror}; free some space, then again", 2
        )
    # typer's usage errors: the class has moved between typer's releases, its methods have not.
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        return Failure("UsageError", str(format_message()), 2, _usage_hint(error))
    debug = "" if os.environ.get("HYMELL_DEBUG") else " (HYMELL_DEBUG=1 shows the traceback)"
    sentence = (
        f"hymell met a bug, {type(error).__name__}: {_sentence(error)}; "
        f"please report it with the command you ran and the traceback{debug}"
    )
    return Failure("InternalError", sentence, BUG)


def show(failure: Failure, *, as_json: bool) -> None:
    """JSON on stdout for programs, a line on stderr for people."""
    if as_json:
        from hymell.cli.output import write_stdout
        from hymell.report.json_ import error_to_json

        # A stdout that takes nothing leaves stderr.
        with contextlib.suppress(HymellError):
            write_stdout(error_to_json(failure.kind, failure.message, failure.exit_code))
            return
    print(f"hymell: {failure.message}", file=sys.stderr)
    if failure.hint:
        print(f"hymell: {failure.hint}", file=sys.stderr)


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "hymell")
    return f"see `{command} --help`"


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or "no message"
