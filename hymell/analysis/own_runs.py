"""A user's own measured runs: read from a CSV, every cell checked, one row per run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hymell import zoo
from hymell.analysis.csv_lines import csv_lines
from hymell.errors import HymellError
from hymell.hardware import find_gpu, gpu_names
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Precision, Workload

#: What every row must state.
REQUIRED: Final = ("model", "gpu", "engine", "prompt", "output", "batch")
#: Columns of times -> (field, seconds per unit). A row needs one of them.
TIMES: Final[Mapping[str, tuple[str, float]]] = {
    f"{name}_{unit}": (f"{name}_s", scale)
    for name in ("ttft", "tpot", "latency")
    for unit, scale in (("s", 1.0), ("ms", 1e-3))
}
#: What a row may state of energy: one of them.
ENERGY: Final = ("energy_j", "energy_per_token_j", "power_w")
#: What else a row may state; without it the checkpoint's format, and one GPU.
OPTIONAL: Final = ("dtype", "tp", "ep")

#: What a run is called by.
_NAMES: Final = ("model", "gpu", "engine", "dtype")

#: Parts of a run that were measured one by one add up to the whole within this share.
TOLERANCE: Final = 0.1

#: More rows than this are no few runs of one's own.
MAX_ROWS: Final = 1000


class Configuration(NamedTuple):
    """What offsets belong to, in the words of the runs."""

    model: str
    gpu: str
    engine: str
    dtype: str
    tp: int
    ep: int

    def __str__(self) -> str:
        spread = [f"{name} {n}" for name, n in (("tp", self.tp), ("ep", self.ep)) if n > 1]
        format_ = [] if self.dtype == "auto" else [self.dtype]
        return ", ".join((self.model, self.gpu, self.engine, *format_, *spread))


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One measured run: a configuration, a workload, and what it took.

    Times are seconds, those not measured None. ``energy_j`` is of the whole run on all GPUs,
    ``energy_per_token_j`` per output token, ``power_w`` the mean over the run, summed over the
    GPUs; at most one is given. ``where`` says where the row stands, for messages. Raises
    HymellError for values that make no sense.
    """

    model: str
    gpu: str
    engine: str
    prompt: int
    output: int
    batch: int
    dtype: str = "auto"
    tp: int = 1
    ep: int = 1
    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None
    energy_j: float | None = None
    energy_per_token_j: float | None = None
    power_w: float | None = None
    where: str = "a run"

    def __post_init__(self) -> None:
        try:
            self._check()
        except HymellError as error:
            raise HymellError(f"{self.where}: {error}") from None

    def _check(self) -> None:
        for name in _NAMES:
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise HymellError(f"{name} must be a name, not {getattr(self, name)!r}")
        Workload(self.batch, self.prompt, self.output)
        self.parallel.check_batch(self.batch)
        Precision.of(self.dtype)
        for name in ("ttft_s", "tpot_s", "latency_s", *ENERGY):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise HymellError(f"{name} must be above 0, not {value:g}")
        if self.ttft_s is None and self.tpot_s is None and self.latency_s is None:
            raise HymellError("no time was measured; give ttft, tpot or latency")
        given = [name for name in ENERGY if getattr(self, name) is not None]
        if len(given) > 1:
            raise HymellError(f"give one of {' and '.join(given)}")
        self._check_times()
        if self.energy_j is not None and self.whole_s is None:
            raise HymellError("energy_j is that of a whole run; give its latency as well")

    def _check_times(self) -> None:
        ttft_s, tpot_s, latency_s = self.ttft_s, self.tpot_s, self.latency_s
        if self.output == 1 and tpot_s is not None:
            raise HymellError("a run of one output token has no time per token after the first")
        if latency_s is None:
            return
        if ttft_s is not None and ttft_s > latency_s:
            raise HymellError(
                f"TTFT {ttft_s:g} s is longer than the whole latency {latency_s:g} s; "
                "are both in the unit of their column?"
            )
        decode_s = 0.0 if tpot_s is None else (self.output - 1) * tpot_s
        if decode_s > (1 + TOLERANCE) * latency_s:
            raise HymellError(
                f"{self.output - 1} tokens of {tpot_s:g} s take {decode_s:g} s, longer than the "
                f"whole latency {latency_s:g} s"
            )
        if ttft_s is None or tpot_s is None:
            return
        whole_s = ttft_s + decode_s
        if abs(whole_s / latency_s - 1) > TOLERANCE:
            raise HymellError(
                f"latency {latency_s:g} s is not TTFT + {self.output - 1} x TPOT = {whole_s:g} s, "
                f"within {TOLERANCE:.0%}; leave out the one that was measured otherwise"
            )

    @property
    def parallel(self) -> Parallel:
        """How the model was spread over GPUs."""
        return Parallel(self.tp, self.ep)

    @property
    def whole_s(self) -> float | None:
        """Seconds of the whole run, None where they do not follow from what was measured."""
        if self.latency_s is not None:
            return self.latency_s
        if self.ttft_s is not None and self.output == 1:
            return self.ttft_s
        if self.ttft_s is not None and self.tpot_s is not None:
            return self.ttft_s + (self.output - 1) * self.tpot_s
        return None

    def measured_j(self, latency_s: float) -> float | None:
        """Measured energy of the run in J, that of a power over ``latency_s``; None without."""
        if self.energy_j is not None:
            return self.energy_j
        if self.energy_per_token_j is not None:
            return self.energy_per_token_j * self.batch * self.output
        return None if self.power_w is None else self.power_w * latency_s

    @property
    def configuration(self) -> Configuration:
        """What offsets belong to."""
        return Configuration(self.model, self.gpu, self.engine, self.dtype, self.tp, self.ep)

    def to_dict(self) -> dict[str, Any]:
        """What was given, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def model_key(name: str) -> str:
    """One spelling of a model's name: that of the zoo for all ids of one config."""
    known = zoo.find(name)
    return known.name if known is not None else name.strip().rstrip("/").casefold()


def read_runs(path: str | os.PathLike[str]) -> tuple[OwnRun, ...]:
    """The runs of a CSV with a header; units stand in the names of the columns.

    Raises HymellError with one sentence that names the file and the line: for columns that are
    missing, unknown or stand twice, for cells that are no numbers, for values that make no sense.
    """
    name = os.fspath(path)
    lines = csv_lines(path, "runs")
    if not lines:
        raise HymellError(f"the runs {name!r} are empty; the first line names the columns")
    header = _header([cell.strip().lower() for cell in lines[0][1]], name)
    if len(lines) == 1:
        raise HymellError(f"the runs {name!r} hold no run below their header")
    if len(lines) > MAX_ROWS + 1:
        raise HymellError(
            f"the runs {name!r} hold {len(lines) - 1:,} rows; give the {MAX_ROWS:,} that matter"
        )
    return tuple(_run(header, cells, f"{name}, line {number}") for number, cells in lines[1:])


def _header(names: Sequence[str], file: str) -> Sequence[str]:
    allowed = (*REQUIRED, *TIMES, *ENERGY, *OPTIONAL)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        separator = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), "")
        if separator:
            raise HymellError(
                f"{file}, line 1: cells are separated by {separator!r}; separate them by commas, "
                "with points in decimal numbers"
            )
        shown = ", ".join(repr(name) for name in unknown)
        raise HymellError(
            f"{file}, line 1: unknown column {shown}; the columns are {', '.join(allowed)}"
        )
    fields = [TIMES[name][0] if name in TIMES else name for name in names]
    twice = [names[at] for at, field in enumerate(fields) if field in fields[:at]]
    if twice:
        raise HymellError(f"{file}, line 1: {twice[0]} stands twice; keep one column of it")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise HymellError(f"{file}, line 1: no column {', '.join(missing)}")
    if not set(TIMES) & set(names):
        raise HymellError(f"{file}, line 1: no column of a time; give one of {', '.join(TIMES)}")
    return names


def _run(header: Sequence[str], cells: Sequence[str], where: str) -> OwnRun:
    if len(cells) > len(header):
        raise HymellError(f"{where}: {len(cells)} cells under {len(header)} columns")
    texts = dict(zip(header, (cell.strip() for cell in cells), strict=False))
    missing = [name for name in REQUIRED if not texts.get(name)]
    if missing:
        raise HymellError(f"{where}: {', '.join(missing)} is empty")
    found: dict[str, Any] = {"where": where}
    for name, text in texts.items():
        if not text:
            continue
        if name in TIMES:
            field, scale = TIMES[name]
            found[field] = _number(name, text, where) * scale
        elif name in ENERGY:
            found[name] = _number(name, text, where)
        elif name in ("prompt", "output", "batch", "tp", "ep"):
            found[name] = _whole(name, text, where)
        else:
            found[name] = text
    return known_run(found)


def known_run(found: Mapping[str, Any]) -> OwnRun:
    """A run whose GPU and engine have hymell's names, a data sheet of one's own its whole path.

    Raises HymellError for unknown ones.
    """
    try:
        gpu, engine = find_gpu(found["gpu"]).name, get_engine(found["engine"]).name
    except HymellError as error:
        raise HymellError(f"{found['where']}: {error}") from None
    if gpu not in gpu_names():
        gpu = str(Path(found["gpu"]).resolve())
    return OwnRun(**{**found, "gpu": gpu, "engine": engine})


def _number(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise HymellError(f"{where}: {name} is {text!r}, not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise HymellError(f"{where}: {name} must be above 0, not {text}")
    return value


def _whole(name: str, text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise HymellError(f"{where}: {name} is {text!r}, not a whole number") from None
