"""90% intervals of times and energy: factors on a prediction, measured on models left out.

``hymell/hardware/intervals.json``, written by `benchmarks/intervals.py`, holds for each way of
pricing (`RUNGS`, from the nearest to the farthest), engine, GPU, phase and kind of model the bounds
of measured / predicted (`conformal`). A report takes those of the way in which it is priced; out of
the ranges that were measured, those of the rungs up to one whose ranges hold it too.
Bounds of a rung hold those of the rungs before it, so that nothing transferred or out of range is
ever narrower than at home. An engine without measured runs has no interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import hymell.hardware
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.conformal import LEVEL, hull

SCHEMA_VERSION: Final = 1

FILE: Final = Path(hymell.hardware.__file__).parent / "intervals.json"

OWN, TRANSFERRED = "own system", "system transferred"
LEVEL1, LEVEL1_TRANSFERRED = "level 1", "level 1 transferred"
SHEET = "data sheet"

#: How a run can be priced, the nearest first.
RUNGS: Final = (OWN, TRANSFERRED, LEVEL1, LEVEL1_TRANSFERRED, SHEET)

#: Those that a fitted system takes part in.
SYSTEMS: Final = (OWN, TRANSFERRED)


@dataclass(frozen=True, slots=True)
class Judged:
    """Mean absolute error in % on models left out, and on how many runs and models."""

    mape: float
    rows: int
    models: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Bounds of log(measured / predicted) of one way of pricing, and the runs behind them.

    ``gpu`` "" pools all GPUs. ``basis`` is the engine version of a system, for energy the source of
    the runs of fitted energies, "" where nothing was fitted to whole models.
    ``load`` is "static" for batches that start together, "served" for a server's. ``kind`` is
    "dense" or "moe". ``judged``: by GPUs, "one" or "several". Ranges are those of the runs, both
    ends included; ``tokens`` are prompt and output of a sequence, ``formats`` those of weights.
    """

    rung: str
    engine: str
    gpu: str
    basis: str
    load: str
    phase: str
    kind: str
    low: float
    high: float
    rows: int
    models: int
    sets: tuple[str, ...]
    judged: Mapping[str, Judged]
    batch: tuple[float, float]
    tokens: tuple[float, float]
    gpus: tuple[int, int]
    formats: tuple[str, ...]
    beyond: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["judged"] = {
            name: {"mape": j.mape, "rows": j.rows, "models": j.models}
            for name, j in self.judged.items()
        }
        return plain


@dataclass(frozen=True, slots=True)
class Bounds:
    """Factors on a prediction, from its own rung outwards.

    ``entries`` are those measured, the first that of the rung that prices, or of the nearest one
    beyond it. ``factors`` belong to them: each holds all before it.
    """

    entries: tuple[Entry, ...]
    factors: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Book:
    """All entries, and the search among them."""

    entries: tuple[Entry, ...] = ()

    def find(
        self, rung: str, engine: str, gpu: str, phase: str, kind: str, basis: str = ""
    ) -> Entry | None:
        """The entry of a rung and basis: this GPU's first, then all GPUs'; static batches first."""
        return self._first(rung, engine, gpu, phase, kind, lambda found: found == basis)

    def _first(
        self,
        rung: str,
        engine: str,
        gpu: str,
        phase: str,
        kind: str,
        fits: Callable[[str], bool],
    ) -> Entry | None:
        fitting = [
            entry
            for entry in self.entries
            if (entry.rung, entry.engine, entry.phase, entry.kind) == (rung, engine, phase, kind)
            and entry.gpu in (gpu, "")
            and fits(entry.basis)
        ]
        first = min(
            fitting, key=lambda e: (e.gpu != gpu, e.load != "static", -e.rows), default=None
        )
        # A system is its own GPU's.
        return None if first is not None and rung == OWN and first.gpu != gpu else first

    def bounds(
        self,
        rung: str,
        engine: str,
        gpu: str,
        phase: str,
        kind: str,
        *,
        basis: str = "",
        home: str = "",
    ) -> Bounds | None:
        """Bounds of what is priced by ``rung``, None where neither it nor any beyond was measured.

        ``basis`` and ``home`` are those of what was fitted to whole models, "" where nothing was.
        The same with another basis comes after its own.
        """
        place = RUNGS.index(rung)
        nearer: list[Entry] = []
        entries: list[Entry] = []
        factors: list[tuple[float, float]] = []
        for step, name in enumerate(RUNGS):
            where = home if name == OWN else gpu
            of_system = name in SYSTEMS
            found = [self.find(name, engine, where, phase, kind, basis if of_system else "")]
            if of_system and basis:
                other = self._first(name, engine, where, phase, kind, lambda b: b != basis)
                found.append(other)
            for entry in found:
                if entry is None:
                    continue
                nearer.append(entry)
                if step >= place:
                    low, high = hull((each.low, each.high) for each in nearer)
                    entries.append(entry)
                    factors.append((math.exp(low), math.exp(high)))
        return Bounds(tuple(entries), tuple(factors)) if entries else None

    def measured(self, engine: str, phase: str) -> bool:
        """Whether there is any run of a phase under an engine."""
        return any(entry.engine == engine and entry.phase == phase for entry in self.entries)


@cache
def shipped_book() -> Book:
    """The shipped entries; none where there is no file. Raises HymellError for a damaged one."""
    return load(FILE) if FILE.is_file() else Book()


def load(file: Path) -> Book:
    """Entries from a file. Raises HymellError for one that is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION or content["level"] != LEVEL:
            raise ValueError(f"schema_version {content['schema_version']}")
        return Book(tuple(_entry(raw) for raw in content["entries"]))
    except DAMAGED as error:
        raise HymellError(
            f"{file} holds no intervals of this version ({type(error).__name__}: {error}); "
            "write it anew with benchmarks/intervals.py --ship"
        ) from None


def _entry(raw: Mapping[str, Any]) -> Entry:
    values = dict(raw)
    values["judged"] = {name: Judged(**judged) for name, judged in raw["judged"].items()}
    for name in ("sets", "batch", "tokens", "gpus", "formats"):
        values[name] = tuple(raw[name])
    entry = Entry(**values)
    if entry.rung not in RUNGS or not entry.low <= 0 <= entry.high:
        raise ValueError(f"entry {entry.rung}, {entry.engine}, {entry.gpu or 'all GPUs'}")
    ranges = (entry.batch, entry.tokens, entry.gpus)
    numbers = [entry.low, entry.high, entry.beyond, *(end for ends in ranges for end in ends)]
    numbers += [judged.mape for judged in entry.judged.values()]
    ordered = all(low <= high for low, high in ranges)
    if not entry.judged or not ordered or not all(map(math.isfinite, numbers)):
        raise ValueError(f"entry {entry.rung}, {entry.engine} has ranges or errors that cannot be")
    return entry


def save(entries: Sequence[Entry], file: Path) -> None:
    """Write entries, one a line."""
    lines = ",\n".join(f"  {json.dumps(entry.to_dict())}" for entry in entries)
    head = f'{{"schema_version": {SCHEMA_VERSION}, "level": {LEVEL}, "entries": [\n'
    file.write_text(f"{head}{lines}\n]}}\n", encoding="utf-8")
