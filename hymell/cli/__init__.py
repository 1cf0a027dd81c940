"""The command line: thin commands over `hymell.api`, one module each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit status.

    The commands are imported within, so that Ctrl-C during their import ends like any other.
    """
    try:
        from hymell.cli.app import main as run
    except KeyboardInterrupt:
        print("hymell: interrupted", file=sys.stderr)
        return 130
    return run(argv)
