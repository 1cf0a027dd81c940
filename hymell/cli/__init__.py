"""The command line: thin commands over `hymell.api`, one module each."""

from __future__ import annotations

from hymell.cli.app import main

__all__ = ["main"]
