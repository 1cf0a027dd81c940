"""The errors a user can meet: one clear sentence each, and the exit status it maps to."""

from __future__ import annotations

from typing import Final

#: What reading a JSON file can raise that is damaged, or is another program's.
DAMAGED: Final = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)


class HymellError(Exception):
    """Bad input or something unsupported; the message names the thing and the remedy.

    The CLI prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


class TraceError(HymellError):
    """The model could not be traced; the message says which step failed and why."""


class UnsupportedError(HymellError):
    """A known thing that hymell does not support yet, said by name."""


class NotUnderstoodError(HymellError):
    """``--strict`` met operators that nothing prices."""

    exit_code = 3
