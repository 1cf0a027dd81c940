"""What an engine is: fusion rules plus an overhead model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hymell.op_registry.plan import Plan


@dataclass(frozen=True, slots=True)
class Overheads:
    """Host and launch costs of an engine; seconds on a current server CPU, uncalibrated.

    ``host_s_per_launch``: CPU time to issue one kernel; a step lasts at least launches x this
    unless it replays a CUDA graph. ``gap_s``: idle device time between dependent kernels.
    ``step_s``: scheduling, sampling and output handling once per step.
    """

    host_s_per_launch: float
    gap_s: float
    step_s: float
    cuda_graphs_in_decode: bool


@dataclass(frozen=True, slots=True)
class Engine:
    """A named list of fusion rules, applied in order, and its overheads.

    ``memory_fraction`` is the share of GPU memory the engine claims for weights, activations and
    KV pool (vLLM's gpu_memory_utilization and its likes); ``windowed_cache``: sliding layers keep
    only their window.
    """

    name: str
    title: str
    rules: tuple[Callable[[Plan], Plan], ...]
    overheads: Overheads
    memory_fraction: float
    windowed_cache: bool = True
    notes: tuple[str, ...] = ()
