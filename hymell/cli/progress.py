"""A spinner on stderr for work that takes over a second; nothing when stderr is no terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

_DELAY_S = 1.0


@contextmanager
def progress() -> Iterator[Callable[[str], None] | None]:
    """A callback that takes the name of the current step, or None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    spinner = _Spinner()
    try:
        yield spinner.step
    finally:
        spinner.stop()


class _Spinner:
    """Shows the latest step once work has gone on for a second."""

    def __init__(self) -> None:
        self._step = "working"
        self._stopped = False
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(_DELAY_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def step(self, name: str) -> None:
        with self._lock:
            self._step = name
            if self._status is not None:
                self._status.update(_plain(name))

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._status is not None:
                self._status.stop()

    def _show(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._stopped:
                self._status = Console(stderr=True).status(_plain(self._step))
                self._status.start()


def _plain(text: str) -> Text:
    """Text in which rich finds no markup."""
    from rich.text import Text

    return Text(text)
