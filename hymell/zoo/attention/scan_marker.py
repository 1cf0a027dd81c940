"""Mark a function as one scan, so that a tracer can keep it whole instead of unrolling its loop.

A scan is a function that walks the sequence and carries a state, for example a linear attention in
chunked form. Run on meta tensors it would show one group of small ops per chunk, so the graph would
grow with the prompt; what an engine launches is one kernel. A marked function behaves as if it were
not marked until a handler is installed::

    @scan(kind="my_recurrence")
    def my_recurrence(q, k, v, decay, state=None, chunk_size=64):
        ...
        return o, state

While a handler is installed, each call becomes ``handler(kind, fn, args, kwargs)``, where ``fn`` is
the unmarked function, and the handler's result is returned in its place. The contract that lets a
handler answer without running ``fn``:

- arguments named ``q``, ``k`` ``(B, H, S, dk)`` and ``v`` ``(B, H, S, dv)``; a scan of another
  layout must be marked under a ``kind`` that the handler knows;
- the result is ``(o, state)``: ``o`` has the shape and dtype of ``v``, ``state`` is
  ``(B, H, dk, dv)`` in fp32.

This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

HANDLER: Handler | None = None
"""What every marked scan calls instead of itself; None (the default) runs the scan."""


def scan(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as a scan of the given kind; the kind is readable as ``fn.scan_kind``."""

    def mark(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if HANDLER is None:
                return fn(*args, **kwargs)
            return cast(R, HANDLER(kind, fn, args, kwargs))

        call.scan_kind = kind  # type: ignore[attr-defined]
        return call

    return mark


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Install ``handler`` for the time of a ``with`` block, then put the previous one back."""
    global HANDLER
    previous, HANDLER = HANDLER, handler
    try:
        yield
    finally:
        HANDLER = previous
