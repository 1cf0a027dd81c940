"""What is found out about a module by running it: checks of its numbers, and times of its block."""

from __future__ import annotations

from dataclasses import dataclass

from hymell.graph import OpGraph


@dataclass(frozen=True, slots=True)
class Check:
    """One property that was tested on a small model on the CPU.

    ``deviation`` is the largest error relative to the largest output, None where none is measured;
    ``remark`` says how it was tested, or what went wrong.
    """

    name: str
    passed: bool
    remark: str
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """One attention layer, run by PyTorch as it is written, and the ops that it ran.

    ``side`` is "original" or "variant", ``phase`` "prefill" (``context`` tokens at once) or
    "decode" (one token with ``context`` tokens before it). ``measured_s`` is the median of
    ``runs``. ``graph`` holds one prefill region of these sizes, whatever the phase.
    """

    side: str
    phase: str
    context: int
    measured_s: float
    runs: int
    graph: OpGraph


@dataclass(frozen=True, slots=True)
class BlockTime:
    """A `TimedBlock` beside its prediction, None where there is no data sheet of the device."""

    side: str
    phase: str
    context: int
    measured_s: float
    predicted_s: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of both blocks on one device, and what stands behind the predictions.

    ``basis`` names the data sheet, or says that there is none; ``remark`` where and why the
    lengths end.
    """

    device: str
    dtype: str
    batch: int
    basis: str
    remark: str
    times: tuple[BlockTime, ...]
