"""What a reader hands over: files that it knows by their place, and how to open one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hymell.errors import HymellError
from hymell.hardware import find_gpu

#: Folders that may stand between the data folder and a layout: the clone's, and two of its own.
_MOST_FOLDERS_ABOVE = 4

#: Words of a GPU's name that hymell's names leave out.
_BRANDS = frozenset({"nvidia", "tesla", "geforce"})


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one op as read, in tidy columns and units, before any filter.

    ``frame`` has the sizes and labels of the op, ``dtype``, ``kernel``, ``time_s``, and where there
    is any ``power_w`` (watts) and ``drop`` (a reason of `filters.REASONS`, or "" to keep).
    """

    op: str
    frame: pd.DataFrame


Load = Callable[[Path], Iterable[Part]]


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """One file of measurements, known from its path alone; ``load`` opens it.

    ``gpu`` is a name of hymell.hardware, or the upstream's in the same spelling where it has no
    such board. ``ops`` are those it may hold.
    """

    path: Path
    source: str
    gpu: str
    library: str
    version: str
    ops: frozenset[str]
    load: Load


def find_folders(root: Path, tail: str) -> Iterator[Path]:
    """The folders ``tail`` at or up to four levels below ``root``, in order of their path.

    So one reader serves the shared data folder, a folder of clones and a clone itself.
    """
    for above in range(_MOST_FOLDERS_ABOVE + 1):
        yield from sorted(path for path in root.glob("*/" * above + tail) if path.is_dir())


def gpu_name(upstream: str) -> str:
    """hymell's name of a GPU, or upstream's own in the same spelling where hymell has none."""
    try:
        return find_gpu(upstream).name
    except HymellError:
        words = upstream.lower().replace("_", " ").replace("-", " ").split()
        return "-".join(word for word in words if word not in _BRANDS)


def read_csv(path: Path) -> pd.DataFrame:
    """The rows of a CSV file. Raises HymellError where it is none, as a Git LFS pointer is not."""
    try:
        return pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise HymellError(f"{path} is not a readable CSV file ({error}); fetch it again") from error
