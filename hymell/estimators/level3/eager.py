"""PyTorch eager in float32 without tensor cores: whole passes over a prompt, on any GPU.

    GPU seconds = gemm * products with weights + bmm * the two products of attention
                + memory * (tensors read and written + 8 passes over the scores)
                + low_power * all products, on boards of 75 W or less

each at the data-sheet rate. Attention is written out, as transformers did until SDPA: a product
writes the scores, they are scaled, masked and put through a softmax, and a product reads them, one
kernel each, for every pair of tokens, masked or not. Products on AMD, where float32 has matrix
units, have multipliers of their own. Where tables of single operators of a GPU exist, ``slowness``,
the median of measured over data-sheet seconds of its large products, multiplies its products and
the coefficients of `OPERATORS` take the place of those of `SHEET`. A step lasts as long as the GPU
or, if that is longer, as its launches take the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment
from hymell.hardware import Gpu
from hymell.op_registry.primitives import Attention, Gemm, at

Columns = Mapping[str, NDArray[np.float64]]

#: Reads and writes of every score: by the first product 1, by scale, mask and softmax 2 each, by
#: the second product 1; where the three in the middle are one kernel, 2 of theirs.
PASSES: Final[Mapping[str, float]] = {"eager": 8.0, "compile": 4.0}

#: Boards without a power plug of their own cannot hold their clocks in float32 products.
LOW_POWER_W: Final = 75.0

SHEET, OPERATORS = "sheet", "operators"

_SCORE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class EagerTerm:
    """A multiplier: what is believed of it before any run is seen, and what it multiplies."""

    prior: float
    width: float
    meaning: str


#: Kernels reach 70-90% of a rate; products with 64 inner or outer columns half of it.
TERMS: Final[Mapping[str, EagerTerm]] = {
    "gemm": EagerTerm(1.2, 0.3, "x seconds of products with weights"),
    "bmm": EagerTerm(2.0, 1.0, "x seconds of the two products of attention"),
    "matrix_gemm": EagerTerm(1.5, 0.3, "the same through float32 matrix units (AMD)"),
    "matrix_bmm": EagerTerm(3.0, 1.0, "the same through float32 matrix units (AMD)"),
    "memory": EagerTerm(1.2, 0.2, "x seconds of tensors and scores read and written"),
    "low_power": EagerTerm(0.8, 0.5, "x seconds of all products, more, on boards of 75 W or less"),
}

#: Products of attention weigh twice where all products share one value.
_BMM: Final = 2.0


@dataclass(frozen=True, slots=True)
class EagerForm:
    """Which multipliers there are.

    ``one``: one multiplier for both kinds of products, which are 64 wide in attention and count
    twice; ``units``: matrix units apart; ``low``: boards of little power apart.
    """

    one: bool = False
    units: bool = True
    low: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds at data-sheet rates of passes over prompts, one entry per run.

    ``matrix``: products run in matrix units; ``low``: the board has 75 W or less; ``slowness`` 1
    where no table of single operators was read.
    """

    gemm_s: Array
    bmm_s: Array
    memory_s: Array
    launches: Array
    matrix: NDArray[np.bool_]
    low: NDArray[np.bool_]
    slowness: Array

    def columns(self, form: EagerForm) -> dict[str, Array]:
        """What each multiplier of a form multiplies."""
        matrix = self.matrix if form.units else np.zeros_like(self.matrix)
        gemm_s, bmm_s = self.gemm_s * self.slowness, self.bmm_s * self.slowness
        found = {"memory": self.memory_s}
        if form.one:
            both = gemm_s + _BMM * bmm_s
            found |= {"gemm": both * ~matrix, "matrix_gemm": both * matrix}
        else:
            found |= {"gemm": gemm_s * ~matrix, "matrix_gemm": gemm_s * matrix}
            found |= {"bmm": bmm_s * ~matrix, "matrix_bmm": bmm_s * matrix}
        if form.low:
            found["low_power"] = (gemm_s + _BMM * bmm_s) * self.low
        return found


def pass_work(model: Deployment, B: Array, prompt: Array, slowness: float = 1.0) -> Work:
    """The work of passes over ``B`` prompts of ``prompt`` tokens, attention written out.

    Raises HymellError for an engine that does not write attention out, and for a workload that no
    traced region holds.
    """
    passes = PASSES.get(model.engine.name)
    if passes is None:
        raise HymellError(f"attention under {model.engine.name} is one kernel, never written out")
    sums = np.array([_sums(model, b, n, passes) for b, n in zip(B, prompt, strict=True)])
    gemm_s, bmm_s, memory_s, launches = sums.reshape(-1, 4).T
    ones = np.ones(len(B))
    return Work(
        gemm_s,
        bmm_s,
        memory_s,
        launches,
        matrix=ones * has_matrix_units(model.gpu) > 0,
        low=ones * is_low_power(model.gpu) > 0,
        slowness=ones * slowness,
    )


def has_matrix_units(gpu: Gpu) -> bool:
    """Whether plain float32 products run in matrix units: AMD's CDNA."""
    return gpu.vendor == "AMD"


def is_low_power(gpu: Gpu) -> bool:
    """Whether the board has no more power than its slot gives."""
    return gpu.tdp_w <= LOW_POWER_W


def _sums(model: Deployment, B: float, prompt: float, passes: float) -> tuple[float, ...]:
    peak, bandwidth = model.gpu.peak("fp32"), model.gpu.memory_bandwidth_bytes_per_s
    gemm_s = bmm_s = memory_s = launches = 0.0
    index = model.region_index("prefill", int(B), int(prompt), 0)
    for kernel in model.lowered(index).kernels:
        made = at(kernel.primitive, B, prompt, 0.0)
        count = kernel.repeat
        moved_s = float(made.bytes_read + made.bytes_written) / bandwidth
        if isinstance(made, Attention):
            scores = float(made.batch * made.heads * made.q_len * made.kv_len)
            bmm_s += count * float(made.flops) / peak
            memory_s += count * passes * scores * _SCORE_BYTES / bandwidth
            launches += count * (passes / 2 + 1)
        elif isinstance(made, Gemm):
            gemm_s += count * max(float(made.flops) / peak, moved_s)
            launches += count * kernel.launches
        else:
            memory_s += count * moved_s
            launches += count * kernel.launches
    return gemm_s, bmm_s, memory_s, launches


@dataclass
class EagerFit:
    """Multipliers of an `EagerForm`, fitted as scikit-learn's estimators are.

    Minimised is the sum over runs of rho((predicted / measured - 1) / 10%), runs of a group
    weighing together as much as those of any other, plus ((value - prior) / width)^2 per
    multiplier; rho is soft-L1. ``prior`` replaces the means of `TERMS`, ``width`` scales widths.
    """

    form: EagerForm = EagerForm()
    prior: Mapping[str, float] = field(default_factory=dict)
    width: float = 1.0
    multipliers_: dict[str, float] = field(default_factory=dict, init=False)

    def fit(self, work: Work, time_s: Array, group: NDArray[np.str_]) -> EagerFit:
        """Fit to runs of ``time_s`` seconds on the GPUs ``group``; returns itself.

        Raises HymellError without runs and for a time that is no positive number.
        """
        if not len(time_s) or not (np.isfinite(time_s) & (time_s > 0)).all():
            raise HymellError("eager is fitted to measured runs, each of more than 0 seconds")
        from scipy.optimize import lsq_linear  # type: ignore[import-untyped]

        columns = work.columns(self.form)
        names = list(columns)
        design = np.stack([columns[name] for name in names], 1) / time_s[:, None]
        prior = np.array([self.prior.get(name, TERMS[name].prior) for name in names])
        width = np.array([TERMS[name].width * self.width for name in names])
        _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
        even = np.sqrt(len(time_s) / len(counts) / counts[place])
        weight = np.ones(len(time_s))
        found = prior
        for _ in range(_ROUNDS):
            scale = weight * even / _NOISE
            rows = np.vstack([design * width * scale[:, None], np.eye(len(names))])
            aims = np.concatenate([scale, prior / width])
            found = lsq_linear(rows, aims, bounds=(0, np.inf), method="bvls").x * width
            error = (design @ found - 1) / _NOISE
            weight = (1 + error**2) ** -0.25
        self.multipliers_ = dict(zip(names, found.tolist(), strict=True))
        return self

    def predict(self, work: Work, host_s_per_launch: float = 0.0) -> Array:
        """Seconds of runs: the GPU's, or the host's where its launches take longer."""
        columns = work.columns(self.form)
        gpu_s = sum(self.multipliers_[name] * columns[name] for name in columns)
        return np.maximum(gpu_s, host_s_per_launch * work.launches)


_NOISE: Final = 0.10
_ROUNDS: Final = 6
