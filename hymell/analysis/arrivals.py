"""Requests of a server: when each comes, how long its prompt and its answer are."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hymell.analysis.csv_lines import csv_lines
from hymell.errors import HymellError
from hymell.workload import Workload

_NAMES = ("arrival_s", "prompt", "output")

#: More requests than this are taken for a mistake.
MAX_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of ``prompt`` tokens for ``output`` tokens that comes at ``arrival_s``."""

    arrival_s: float
    prompt: int
    output: int

    def __post_init__(self) -> None:
        Workload(1, self.prompt, self.output)
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise HymellError(f"an arrival must be at 0 s or later, not {self.arrival_s:g}")


#: A CSV file, or requests as such or as (arrival_s, prompt, output).
Arrivals: TypeAlias = "str | os.PathLike[str] | Iterable[Arrival | tuple[float, int, int]]"


def arrivals_of(given: Arrivals) -> tuple[Arrival, ...]:
    """Requests in order of arrival. Raises HymellError for bad input and for none."""
    if isinstance(given, (str, os.PathLike)):
        found = read_arrivals(given)
    else:
        found = [a if isinstance(a, Arrival) else Arrival(*a) for a in given]
    if not found:
        raise HymellError("there are no requests to serve: give at least one")
    return tuple(sorted(found, key=lambda a: a.arrival_s))


def poisson(rate: float, requests: int, prompt: int, output: int, seed: int) -> tuple[Arrival, ...]:
    """``requests`` of equal lengths whose gaps are exponential, ``rate`` per second on average.

    The same seed gives the same arrivals. Raises HymellError for a rate or a count that is none.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise HymellError(f"the rate must be above 0 requests per second, not {rate:g}")
    if not 1 <= requests <= MAX_REQUESTS:
        raise HymellError(f"give 1 to {MAX_REQUESTS:,} requests, not {requests}")
    if seed < 0:
        raise HymellError(f"the seed must be 0 or more, not {seed}")
    gaps = np.random.default_rng(seed).exponential(1 / rate, requests)
    return tuple(Arrival(float(t), prompt, output) for t in np.cumsum(gaps) - gaps[0])


def read_arrivals(path: str | os.PathLike[str]) -> list[Arrival]:
    """Requests of a CSV with a header that names arrival_s, prompt and output.

    Raises HymellError, naming the line, for what is no request.
    """
    name = os.fspath(path)
    lines = csv_lines(path, "arrivals")
    header = [cell.strip().lower() for cell in lines[0][1]] if lines else []
    missing = [column for column in _NAMES if column not in header]
    if missing:
        raise HymellError(
            f"the arrivals {name!r} have no column {', '.join(missing)}; "
            f"the header must name {', '.join(_NAMES)}"
        )
    order = [header.index(column) for column in _NAMES]
    return [_arrival(cells, order, f"{name}, line {number}") for number, cells in lines[1:]]


def _arrival(cells: Sequence[str], order: Sequence[int], where: str) -> Arrival:
    try:
        when, prompt, output = (cells[at] for at in order)
        numbers = float(when), int(prompt), int(output)
    except (ValueError, IndexError):
        raise HymellError(f"{where}: give numbers: arrival_s, prompt, output") from None
    try:
        return Arrival(*numbers)
    except HymellError as error:
        raise HymellError(f"{where}: {error}") from None
