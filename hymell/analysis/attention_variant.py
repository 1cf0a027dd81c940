"""A model with another attention beside itself, over context lengths: both from traced graphs.

The blocks around the attention are the same on both sides. What the attention alone takes is the
sum of the kernels whose module lies in the exchanged attention; gaps between kernels and the
engine's work per step are in the figures of the whole model only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hymell.attention_findings import Check, Measurement
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment, Estimator
from hymell.estimators.memory import cache_bytes
from hymell.estimators.predict import deploy, predict_graph, price
from hymell.graph import OpGraph
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.workload import MAX_TOKENS, Precision, Workload

SCHEMA_VERSION = 1

#: Default context lengths: powers of two up to 1M tokens.
CONTEXTS = tuple(2**n for n in range(7, 21))
#: The most context lengths that are priced; a longer list is taken for a mistake.
MAX_CONTEXTS = 1000

#: Differences below this share are no difference: corrections of estimators waver by as much.
MARGIN = 0.005
#: Lengths between the shortest and the longest context at which a crossover is looked for.
_GRID = 193
#: Lengths at which a crossover's place is looked at in one go.
_CUTS = 32

#: Share of a time above which it is worth a warning that nothing measured stands behind it.
_MOSTLY = 0.1

_ATTENTION = re.compile(r"(^|\.)self_attn(\.|$)")

#: What is compared, by name: title, and the field of a `Cost`.
MEASURES: Mapping[str, str] = {
    "prefill time": "ttft_s",
    "prefill energy": "prefill_energy_j",
    "prefill FLOPs": "prefill_flops",
    "decode time": "tpot_s",
    "decode energy": "decode_energy_j",
    "decode bytes": "decode_bytes",
    "cache": "cache_bytes",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one side costs at one context length, for the whole batch.

    Of the whole model: ``ttft_s`` and ``prefill_energy_j`` of a prompt of this length, ``tpot_s``
    and ``decode_energy_j`` of one decode step with this many tokens before it, ``cache_bytes`` and
    ``memory_bytes`` then, ``fits`` the GPU. ``prefill_flops`` and ``decode_flops`` skip masked
    work. The fields ``attention_*`` are those of the attention modules of all layers.
    """

    ttft_s: float
    prefill_energy_j: float
    prefill_flops: float
    prefill_bytes: float
    tpot_s: float
    decode_energy_j: float
    decode_flops: float
    decode_bytes: float
    attention_prefill_s: float
    attention_prefill_energy_j: float
    attention_prefill_flops: float
    attention_prefill_bytes: float
    attention_decode_s: float
    attention_decode_energy_j: float
    attention_decode_flops: float
    attention_decode_bytes: float
    cache_bytes: float
    memory_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Both sides at one context length."""

    context: int
    original: Cost
    variant: Cost


@dataclass(frozen=True, slots=True)
class Crossover:
    """From ``context`` tokens on, ``cheaper`` ("variant" or "original") is so by ``measure``.

    Below the first of a measure the other one is, or the two differ by less than `MARGIN`.
    ``context`` None: it is over all lengths that were looked at; ``cheaper`` "neither": the two
    differ nowhere by more than `MARGIN`.
    """

    measure: str
    context: int | None
    cheaper: str


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A kernel of the attention modules at the longest context, its repeats together.

    ``estimator`` priced it; ``calibration`` names the measurements behind that, "" for none (a data
    sheet, or a form at its data-sheet priors). ``in_range``: they surround its sizes.
    """

    side: str
    phase: str
    name: str
    time_s: float
    estimator: str
    calibration: str
    in_range: bool
    understood: bool


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What one sequence keeps in all layers: bytes per token at the longest context, and fixed.

    ``fixed_bytes`` is what does not grow there: a recurrent state, or windows that are full.
    """

    bytes_per_token: float
    fixed_bytes: float


@dataclass(frozen=True, slots=True)
class AttentionComparison:
    """A model with the attention of a class beside itself; see `hymell.compare_attention`."""

    model: str
    variant: str
    layers: tuple[int, ...]
    gpu: str
    engine: str
    dtype: str
    batch: int
    parameters: Mapping[str, int]
    understood_share_of_ops: float
    not_understood: tuple[str, ...]
    rows: tuple[Row, ...]
    crossovers: tuple[Crossover, ...]
    cache: Mapping[str, CacheSize]
    kernels: tuple[AttentionKernel, ...]
    assumptions: Mapping[str, Any]
    checks: tuple[Check, ...] = ()
    measurement: Measurement | None = None
    warnings: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, ready for JSON."""
        return asdict(self)

    def with_findings(
        self, checks: tuple[Check, ...], measurement: Measurement | None
    ) -> AttentionComparison:
        """The same with what running the module showed."""
        return replace(self, checks=checks, measurement=measurement)


def compare_graphs(
    original: OpGraph,
    variant: OpGraph,
    *,
    name: str,
    layers: Sequence[int],
    gpu: Gpu,
    engine: Engine,
    batch: int = 1,
    contexts: Sequence[int] = CONTEXTS,
    precision: Precision | None = None,
    estimator: Estimator | None = None,
) -> AttentionComparison:
    """Both graphs priced over context lengths; ``name`` is the class whose attention the variant
    has in ``layers``.

    Raises HymellError for lengths that make no sense and for a model that does not decode.
    """
    lengths = check_contexts(contexts)
    for graph in (original, variant):
        if "decode" not in graph.phases():
            raise HymellError(f"{graph.facts.name} does not decode: there is nothing to compare")
    sides = {
        side: _Side(graph, gpu, engine, batch, precision, estimator)
        for side, graph in (("original", original), ("variant", variant))
    }
    reports = {side: [model.report(length) for length in lengths] for side, model in sides.items()}
    rows = tuple(
        Row(length, _cost(a), _cost(b))
        for length, a, b in zip(lengths, reports["original"], reports["variant"], strict=True)
    )
    first, last = reports["variant"][0], reports["variant"][-1]
    kernels = tuple(kernel for side, made in reports.items() for kernel in _kernels(side, made[-1]))
    return AttentionComparison(
        model=original.facts.name,
        variant=name,
        layers=tuple(layers),
        gpu=last.gpu,
        engine=last.engine,
        dtype=last.dtype,
        batch=batch,
        parameters={
            "original": original.facts.parameters,
            "variant": variant.facts.parameters,
        },
        understood_share_of_ops=min(r.coverage.understood_share_of_ops for r in (first, last)),
        not_understood=tuple(
            dict.fromkeys(op for report in (first, last) for op, _, _ in report.coverage.unknown)
        ),
        rows=rows,
        crossovers=tuple(
            sorted(
                find_crossovers(sides["original"], sides["variant"], lengths),
                key=lambda crossover: list(MEASURES).index(crossover.measure),
            )
        ),
        cache={side: model.cache_size(lengths[-1]) for side, model in sides.items()},
        kernels=kernels,
        assumptions={
            key: text
            for key, text in last.assumptions.items()
            if key not in ("prompt", "output", "cost")
        },
        warnings=tuple(
            dict.fromkeys(
                (
                    *_longer(original, lengths),
                    *_not_about_length(last.warnings),
                    *_unmeasured(kernels, estimator is not None),
                )
            )
        ),
    )


def check_contexts(contexts: Iterable[int]) -> tuple[int, ...]:
    """Distinct lengths in order. Raises HymellError for none, too many, or impossible ones."""
    found = sorted(set(contexts))
    if not found:
        raise HymellError("contexts: give at least one length")
    if len(found) > MAX_CONTEXTS:
        raise HymellError(f"{len(found):,} context lengths: give {MAX_CONTEXTS:,} at most")
    for length in (found[0], found[-1]):
        if isinstance(length, bool) or not isinstance(length, int) or not 2 <= length < MAX_TOKENS:
            raise HymellError(
                f"contexts: {length} is no context length; give whole numbers from 2 tokens on"
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Side:
    """One graph on the GPU, priced at any lengths."""

    graph: OpGraph
    gpu: Gpu
    engine: Engine
    batch: int
    precision: Precision | None
    estimator: Estimator | None

    @property
    def model(self) -> Deployment:
        return deploy(
            self.graph,
            gpu=self.gpu,
            engine=self.engine,
            precision=self.precision,
            estimator=self.estimator,
        )

    def measures(self, model: Deployment, lengths: Array) -> dict[str, Array]:
        """The fields of `Cost` that `MEASURES` names, an array each."""
        priced = price(
            self.graph,
            self.batch,
            lengths,
            2,
            gpu=self.gpu,
            engine=self.engine,
            precision=self.precision,
            estimator=self.estimator,
        )
        cache = [cache_bytes(model, self.batch, int(n), 2)[0] for n in lengths]
        return {
            "ttft_s": priced["ttft_s"],
            "prefill_energy_j": priced["prefill_energy_j"],
            "prefill_flops": priced["prefill_flops_causal"],
            "tpot_s": priced["tpot_s"],
            "decode_energy_j": priced["decode_energy_j"],
            "decode_bytes": priced["decode_bytes"],
            "cache_bytes": np.array(cache),
        }

    def report(self, length: int) -> CostReport:
        """A prompt of this length and one decode step after it."""
        return predict_graph(
            self.graph,
            Workload(self.batch, length, 2),
            gpu=self.gpu,
            engine=self.engine,
            precision=self.precision,
            estimator=self.estimator,
        )

    def cache_size(self, longest: int) -> CacheSize:
        model = self.model
        held, before = (cache_bytes(model, 1, n, 2)[0] for n in (longest, longest - 1))
        growth = held - before
        return CacheSize(growth, held - growth * (longest + 1))


def _cost(report: CostReport) -> Cost:
    figures: dict[str, float] = {}
    for phase, whole in (("prefill", report.prefill), ("decode", report.decode)):
        own = [k for k in report.kernels if k.phase == phase and _ATTENTION.search(k.path)]
        figures |= {
            f"{phase}_energy_j": whole.energy_j,
            f"{phase}_flops": whole.flops_causal,
            f"{phase}_bytes": whole.bytes,
            f"attention_{phase}_s": sum(k.time_s for k in own),
            f"attention_{phase}_energy_j": sum(k.energy_j for k in own),
            f"attention_{phase}_flops": sum(k.flops_causal for k in own),
            f"attention_{phase}_bytes": sum(k.bytes for k in own),
        }
    return Cost(
        ttft_s=report.ttft_s,
        tpot_s=report.decode.time_s,
        cache_bytes=report.memory.kv_cache_bytes,
        memory_bytes=report.memory.total_bytes,
        fits=report.memory.fits,
        **figures,
    )


def find_crossovers(original: _Side, variant: _Side, lengths: Sequence[int]) -> Iterator[Crossover]:
    """Every length between the shortest and the longest at which the cheaper side changes.

    A side is cheaper where the other costs more by `MARGIN`; between two such stretches lies the
    crossover, at the shortest length where the new side is not dearer any more. Where the two are
    alike at first, it lies where they begin not to be.
    """
    first, last = lengths[0], lengths[-1]
    grid = np.unique(np.round(np.geomspace(first, last, _GRID)))
    models = original.model, variant.model

    def ratios(at: Array) -> dict[str, Array]:
        a, b = original.measures(models[0], at), variant.measures(models[1], at)
        return {
            title: np.log(np.maximum(b[key], 1e-30) / np.maximum(a[key], 1e-30))
            for title, key in MEASURES.items()
        }

    coarse = ratios(grid)
    changes: list[_Change] = []
    for title in MEASURES:
        signs = np.where(np.abs(coarse[title]) < np.log1p(MARGIN), 0, np.sign(coarse[title]))
        decided = [i for i in range(len(grid)) if signs[i]]
        own = [
            _Change(title, float(signs[j]), 0.0, int(grid[i]), int(grid[j]))
            for i, j in pairwise(decided)
            if signs[i] != signs[j]
        ]
        if decided and decided[0] > 0:
            i = decided[0]
            least = float(np.log1p(MARGIN))
            own.insert(0, _Change(title, float(signs[i]), least, int(grid[i - 1]), int(grid[i])))
        if not own:
            yield Crossover(title, None, _cheaper(signs[0]) if decided else "neither")
        changes += own
    while any(change.open for change in changes):
        points = np.unique(np.concatenate([change.inside() for change in changes]))
        values = ratios(points)
        changes = [change.narrowed(points, values[change.measure]) for change in changes]
    yield from (Crossover(c.measure, c.high, _cheaper(c.sign)) for c in changes)


@dataclass(frozen=True, slots=True)
class _Change:
    """The order by ``measure`` changes after ``low``, by ``high`` at the latest.

    It has once the logarithm of variant to original, times ``sign``, is ``least`` or more.
    """

    measure: str
    sign: float
    least: float
    low: int
    high: int

    @property
    def open(self) -> bool:
        return self.high - self.low > 1

    def inside(self) -> Array:
        """Up to `_CUTS` lengths between the two."""
        found = np.unique(np.linspace(self.low, self.high, _CUTS + 2).round())
        return found[(found > self.low) & (found < self.high)]

    def narrowed(self, points: Array, ratio: Array) -> _Change:
        """With what is known at ``points``: up to the first of them at which it has turned."""
        within = (points > self.low) & (points < self.high)
        turned = within & (ratio * self.sign >= self.least)
        high = int(points[turned][0]) if turned.any() else self.high
        before = points[within & (points < high)]
        return replace(self, high=high, low=int(before[-1]) if len(before) else self.low)


def _cheaper(sign: float) -> str:
    return "original" if sign > 0 else "variant"


def _kernels(side: str, report: CostReport) -> Iterator[AttentionKernel]:
    for kernel in report.kernels:
        if _ATTENTION.search(kernel.path):
            yield AttentionKernel(
                side,
                kernel.phase,
                kernel.name,
                kernel.time_s,
                kernel.estimator,
                kernel.calibration,
                kernel.in_range,
                kernel.understood,
            )


def _unmeasured(kernels: Iterable[AttentionKernel], fitted: bool) -> Iterator[str]:
    """Where fitted estimators are in use and hardly any of the variant's time rests on them."""
    for phase in ("prefill", "decode"):
        own = [k for k in kernels if (k.side, k.phase) == ("variant", phase)]
        whole = sum(kernel.time_s for kernel in own)
        without = [kernel for kernel in own if not kernel.calibration]
        share = sum(kernel.time_s for kernel in without) / whole if whole else 0.0
        if fitted and share > _MOSTLY:
            worst = max(without, key=lambda kernel: kernel.time_s)
            yield (
                f"{share:.0%} of the variant's attention time in {phase} at the longest context "
                f"rests on no measurement ({worst.name}: {worst.estimator})"
            )


def _longer(graph: OpGraph, lengths: Sequence[int]) -> Iterator[str]:
    most = graph.facts.max_context
    if most is not None and lengths[-1] > most:
        yield (
            f"{graph.facts.name} was made for {most} tokens; longer contexts are priced all the "
            "same"
        )


def _not_about_length(warnings: Iterable[str]) -> Iterator[str]:
    return (text for text in warnings if "was made for" not in text)
