"""What measurements are on this machine, and what the filters left of them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from hymell.measure import e2e, readers
from hymell.measure.location import locate
from hymell.measure.table import Tally

__all__ = ["locate", "summary"]


def summary(root: Path | None = None) -> list[Tally]:
    """Rows read, dropped by reason and kept, per source, GPU, library, version, op and dtype.

    Reads everything below ``root`` (default: `locate`), which takes up to a minute. Raises
    HymellError where there is no folder of measurements or a file in it is damaged.
    """
    folder = locate() if root is None else root
    return sorted(
        chain(readers.tallies(folder), e2e.tallies(folder)),
        key=lambda t: (t.source, t.gpu, t.library, t.version, t.op, t.dtype),
    )
