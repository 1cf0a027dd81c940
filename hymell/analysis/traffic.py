"""What a service is asked: pairs of lengths, and how often each comes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hymell.analysis.csv_lines import csv_lines
from hymell.errors import HymellError
from hymell.workload import Workload

_NAMES = ("input", "output", "weight")


@dataclass(frozen=True, slots=True)
class Request:
    """Requests of ``input`` prompt and ``output`` generated tokens, ``weight`` of them."""

    input: int
    output: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        Workload(1, self.input, self.output)
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise HymellError(f"the weight of a request must be above 0, not {self.weight:g}")


#: A CSV file, or requests as such or as (input, output) or (input, output, weight).
Traffic: TypeAlias = (
    "str | os.PathLike[str] | Iterable[Request | tuple[int, int] | tuple[int, int, float]]"
)


def traffic_of(given: Traffic) -> tuple[Request, ...]:
    """Distinct pairs of lengths with the sum of their weights. Raises HymellError for bad input."""
    if isinstance(given, (str, os.PathLike)):
        return _merged(read_traffic(given))
    return _merged([r if isinstance(r, Request) else Request(*r) for r in given])


def parse_request(text: str) -> Request:
    """``512:128`` or ``512:128:3``, as ``--mix`` takes it."""
    return _request(
        text.split(":"), f"--mix {text}", "IN:OUT or IN:OUT:WEIGHT in numbers, e.g. 512:128:3"
    )


def read_traffic(path: str | os.PathLike[str]) -> list[Request]:
    """Requests of a CSV: input, output and, if there, weight.

    A header with these names may put them in any order, beside other columns; without a header they
    stand in this order. Raises HymellError, naming the line, for what is no request.
    """
    lines = csv_lines(path, "traffic")
    if not lines:
        raise HymellError(f"the traffic {os.fspath(path)!r} holds no requests")
    names = [cell.strip().lower() for cell in lines[0][1]]
    order: list[int] | None = None
    if not _is_number(names[0]):
        missing = [name for name in _NAMES[:2] if name not in names]
        if missing:
            raise HymellError(
                f"the traffic {os.fspath(path)!r} has no column {' or '.join(missing)}; "
                "its header must name input, output and, if there, weight"
            )
        order = [names.index(name) for name in _NAMES if name in names]
        lines = lines[1:]
    requests = []
    for number, cells in lines:
        picked = cells if order is None else [cells[at] for at in order if at < len(cells)]
        where = f"{os.fspath(path)}, line {number}"
        requests.append(_request(picked, where, "numbers: input,output or input,output,weight"))
    if not requests:
        raise HymellError(f"the traffic {os.fspath(path)!r} holds no requests")
    return requests


def _request(cells: Sequence[str], where: str, form: str) -> Request:
    texts = [cell.strip() for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    try:
        if not 2 <= len(texts) <= 3:
            raise ValueError
        prompt, output = int(texts[0]), int(texts[1])
        weight = float(texts[2]) if len(texts) == 3 else 1.0
    except ValueError:
        raise HymellError(f"{where}: give {form}") from None
    try:
        return Request(prompt, output, weight)
    except HymellError as error:
        raise HymellError(f"{where}: {error}") from None


def _merged(requests: Sequence[Request]) -> tuple[Request, ...]:
    if not requests:
        raise HymellError("the traffic holds no requests")
    weights: dict[tuple[int, int], float] = {}
    for request in requests:
        key = (request.input, request.output)
        weights[key] = weights.get(key, 0.0) + request.weight
    return tuple(Request(*lengths, weight) for lengths, weight in weights.items())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
