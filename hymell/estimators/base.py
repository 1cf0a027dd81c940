"""What an estimator is, and what it prices: a model under an engine on a GPU.

Everything is vectorised: a primitive's sizes are numbers or arrays with one entry per workload,
and so is every result. The data-sheet roofline and the calibrated estimators share this interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level2.shipped import BlockEstimates
from hymell.estimators.level3.energies import Energies
from hymell.estimators.level3.system import System
from hymell.estimators.offsets import Offsets
from hymell.graph import OpGraph, Phase
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.kernels import Lowered
from hymell.op_registry.lower import prepare
from hymell.op_registry.parallel import Rank
from hymell.op_registry.primitives import Primitive, Value
from hymell.workload import SINGLE, Parallel, Precision

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

#: What bounds a kernel; an estimator's regime codes are positions in this tuple. Balanced: neither
#: compute nor memory takes 1.5 times as long as the other.
REGIMES = ("compute", "memory", "launch", "balanced-memory", "balanced-compute")
COMPUTE, MEMORY, LAUNCH, BALANCED_MEMORY, BALANCED_COMPUTE = range(len(REGIMES))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Device seconds of one execution and the regime code (into `REGIMES`), per workload.

    ``in_range``: True where a fitted estimator has seen sizes on every side of these.
    """

    time_s: Value
    regime: Value
    in_range: Value = False


@dataclass(frozen=True, slots=True)
class Origin:
    """What prices a primitive: the estimator's name, and the measurements behind it, if any.

    ``calibration`` names them ("h100-sxm, vllm 0.24.0"; "" for none); ``calibrated`` is True where
    they were taken on the GPU that is priced, False where they are transferred from another.
    """

    estimator: str
    calibration: str = ""
    calibrated: bool = False


#: How `Origin` names the power model of `hymell.estimators.energy`.
DATA_SHEET_POWER = "data sheet"


class Estimator(Protocol):
    """Prices primitives on a GPU; stateless, so that one instance serves every workload.

    ``calibrated`` says that coefficients were fitted on measurements of the GPU it prices.
    """

    @property
    def name(self) -> str:
        """Short name, shown beside each kernel."""

    @property
    def calibrated(self) -> bool:
        """True when fitted on measurements."""

    def time(self, primitive: Primitive, gpu: Gpu) -> KernelTime:
        """Time and regime of a primitive whose sizes are numbers or arrays."""

    def describe(self, gpu: Gpu) -> str:
        """What prices the kernels of this GPU, in a line for a report's assumptions."""

    def origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """What prices this kind of primitive; its sizes need not be known yet."""

    def energy_j(self, primitive: Primitive, gpu: Gpu, time_s: Value) -> Value | None:
        """Joules of a kernel that takes ``time_s`` seconds; None: the data-sheet power model."""

    def energy_origin(self, primitive: Primitive, gpu: Gpu) -> Origin:
        """What gives the energy of this kind of primitive; its sizes need not be known yet."""

    def terms(self, primitive: Primitive, gpu: Gpu) -> tuple[Value, ...] | None:
        """Seconds whose maximum is the time, each polynomial where the primitive's costs are.

        The roll-up sums such a maximum over decode steps exactly. None: the time has no such form
        and the roll-up samples it.
        """


@dataclass(frozen=True, slots=True)
class Deployment:
    """A traced model, the engine that runs it, the GPU it runs on and what prices it.

    ``lowered`` gives the kernels of ``graph.regions[index]`` in the formats of ``precision``, on
    one GPU of ``parallel``. ``system`` is what the engine adds to the kernels, None for its typical
    overheads; ``offsets`` what a user's own runs add to the whole, None without any; ``energies``
    what boards draw over a phase, None for the sum over kernels and gaps; ``blocks`` what corrects
    the sums of level 1 of measured blocks, None: they stand.
    """

    graph: OpGraph
    gpu: Gpu
    engine: Engine
    estimator: Estimator
    lowered: Callable[[int], Lowered]
    precision: Precision = field(default_factory=Precision)
    parallel: Parallel = SINGLE
    system: System | None = None
    offsets: Offsets | None = None
    energies: Energies | None = None
    blocks: BlockEstimates | None = None
    _ranks: dict[int, Rank] = field(default_factory=dict, repr=False, compare=False)

    def rank(self, index: int) -> Rank:
        """What one GPU runs of ``graph.regions[index]``; errors as `lower`."""
        if index not in self._ranks:
            region = self.graph.regions[index]
            made = prepare(region, self.graph.facts, self.precision, self.parallel)
            self._ranks[index] = made
        return self._ranks[index]

    @property
    def encoder_decoder(self) -> bool:
        """True for models that encode the prompt and decode from scratch (T5, Whisper).

        Their decode regions have S = the source length and L = tokens generated so far, from 1;
        other models have S = 1 and L = tokens in the cache.
        """
        return {"encoder", "decoder"} <= set(self.graph.facts.parts)

    @property
    def longest_source(self) -> float:
        """Largest S of the decode regions: 1 where the source has a fixed length (Whisper)."""
        bounds = [region.S.hi for region in self.graph.of_phase("decode")]
        return max((math.inf if hi is None else hi for hi in bounds), default=1)

    def region_index(self, phase: Phase, B: int, S: int, L: int) -> int:
        """Position of the region that holds a workload point; errors as `OpGraph.region`."""
        held = self.graph.region(phase, B, S, L)
        return next(i for i, region in enumerate(self.graph.regions) if region is held)
