"""From kernels to phases: one prefill step, and the exact sum of all decode steps.

A step lasts as long as its kernels and the gaps between them, or as long as the host needs to
launch them, whichever is longer, plus the engine's work per step; where a system was fitted
(`level3`), its coefficients take the place of gaps and work per step. Prefill is the step at
(B, S = prompt, L = 0). Decode is the sum over the output - 1 steps at L = prompt ..
prompt + output - 2 (S = 1), every one at its own length: L is cut at the borders of the graph's
regions and where an attention window fills, and summed in closed form in between (see `sums`).
For an encoder-decoder model decode runs at S = prompt (1 where the source has a fixed length) and
L = 1 .. output - 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from hymell.errors import HymellError
from hymell.estimators.base import LAUNCH, Array, Deployment, KernelTime, Mask
from hymell.estimators.energy import PowerModel, busy_terms
from hymell.estimators.level2.pricing import factors
from hymell.estimators.level2.shipped import BlockEntry
from hymell.estimators.level3.energy_counts import energy_counts
from hymell.estimators.level3.groups import all_heads, group_of
from hymell.estimators.level3.system import System
from hymell.estimators.offsets import Offsets
from hymell.estimators.pipeline import over_stages
from hymell.estimators.sums import Samples, sum_over_steps
from hymell.graph import Phase, Range, Region
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    GroupedGemm,
    Primitive,
    Scan,
    Value,
    at,
    depends_on,
)
from hymell.workload import MAX_TOKENS

#: Pieces into which an estimator's time, or experts reached, is cut where no closed form sums it.
SMOOTH_PIECES = 12


@dataclass(frozen=True, slots=True)
class Steps:
    """Runs of steps, one per workload: all L from ``first`` to ``last`` at fixed B and S."""

    B: Array
    S: Array
    first: Array
    last: Array

    @property
    def count(self) -> Array:
        """Number of steps."""
        return self.last - self.first + 1

    def of(self, rows: Mask) -> Steps:
        """The workloads of a boolean mask."""
        return Steps(self.B[rows], self.S[rows], self.first[rows], self.last[rows])


@dataclass(frozen=True, slots=True)
class KernelSums:
    """One kernel over a run of steps, its repeats together, per workload.

    ``matrix_s`` to ``activation_bytes`` are those of `level3.energy_counts`. ``time_s`` is device
    time, ``energy_j`` what the board draws in it.
    """

    flops: Value
    flops_causal: Value
    bytes: Value
    weight_bytes: Value
    matrix_s: Value
    padded_s: Value
    cache_bytes: Value
    activation_bytes: Value
    time_s: Value
    energy_j: Value


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """A phase per workload: arrays that the sums of its regions are added into.

    ``kernel_s`` and ``kernel_j`` are what its kernels take, ``time_s`` also counts gaps, host and
    per-step work.
    """

    steps: Array
    flops: Array
    flops_causal: Array
    bytes: Array
    weight_bytes: Array
    matrix_s: Array
    padded_s: Array
    cache_bytes: Array
    activation_bytes: Array
    kernel_s: Array
    kernel_j: Array
    time_s: Array
    launches: Array

    @staticmethod
    def zeros(rows: int) -> PhaseTotals:
        """Nothing yet, for this many workloads."""
        return PhaseTotals(*(np.zeros(rows) for _ in fields(PhaseTotals)))


@dataclass(frozen=True, slots=True)
class KernelDetail:
    """A kernel's sums in the region ``region`` of the graph, and what holds at its middle step.

    ``corrected``: what prices the block that it is in, None where level 1 alone does.
    """

    region: int
    kernel: Kernel
    steps: Array
    sums: KernelSums
    regime: Array
    in_range: Mask
    corrected: BlockEntry | None = None


def prefill_totals(
    model: Deployment, B: Array, prompt: Array, details: list[KernelDetail] | None = None
) -> PhaseTotals:
    """Cost of the prefill step of each workload; ``details`` receives every kernel.

    Raises HymellError when the graph has no prefill region for one of them.
    """
    zero = np.zeros_like(B)
    return _phase(model, "prefill", Steps(B, prompt, zero, zero), details)


def decode_totals(
    model: Deployment,
    B: Array,
    prompt: Array,
    output: Array,
    details: list[KernelDetail] | None = None,
) -> PhaseTotals:
    """Cost of all decode steps of each workload together; zeros for a model that has none.

    Raises HymellError when the graph has no decode region for one of the steps.
    """
    if "decode" not in model.graph.phases():
        return PhaseTotals.zeros(len(B))
    return _phase(model, "decode", decode_steps(model, B, prompt, output), details)


def decode_steps(model: Deployment, B: Array, prompt: Array, output: Array) -> Steps:
    """The decode steps of each workload; output 1 has none (``last`` before ``first``)."""
    if model.encoder_decoder:
        source = np.minimum(prompt, model.longest_source)
        return Steps(B, source, np.ones_like(B), output - 1)
    return Steps(B, np.ones_like(B), prompt, prompt + output - 2)


def kernel_sums(kernel: Kernel, model: Deployment, steps: Steps) -> KernelSums:
    """Exact cost of a kernel over runs of steps inside one region.

    A kernel whose sizes do not depend on L is evaluated once. Where the time has no closed form
    (an estimator without `terms`, experts reached by a number of tokens that grows with L), or
    the energy is a fitted one, the range is sampled in `SMOOTH_PIECES` pieces of equal ratio, each
    summed as a parabola.
    """
    primitive = kernel.primitive
    example = at(primitive)
    exact = (
        _has_closed_form(primitive)
        and model.estimator.terms(example, model.gpu) is not None
        and model.estimator.energy_j(example, model.gpu, 1.0) is None
    )
    power = PowerModel.of(model.gpu)

    def cost(L: Array) -> Samples:
        return _samples(at(primitive, steps.B, steps.S, L), model, power, exact)

    if depends_on(primitive, "L"):
        breaks = _breaks(primitive, steps)
        if not exact:
            breaks += _ratio_breaks(steps)
        sums, maxima = sum_over_steps(cost, steps.first, steps.last, breaks)
    else:
        once, count = cost(steps.first), steps.count
        sums = [value * count for value in once.sums]
        maxima = [_largest(group) * count for group in once.maxima]
    time_s, energy_j = maxima
    if exact:
        energy_j = power.energy_j(time_s, energy_j)
    return KernelSums(*(kernel.repeat * value for value in (*sums, time_s, energy_j)))


def _samples(primitive: Primitive, model: Deployment, power: PowerModel, exact: bool) -> Samples:
    """Costs of one step; the two maxima are its time and its energy, or where ``exact`` its busy
    time, whose sum is exact and gives the energy.
    """
    sums = (
        primitive.flops,
        primitive.flops_causal,
        primitive.bytes_read + primitive.bytes_written,
        primitive.weight_bytes,
        *energy_counts(primitive, model.gpu),
    )
    terms = model.estimator.terms(primitive, model.gpu)
    if exact and terms is not None:
        return Samples(sums, (terms, busy_terms(primitive, model.gpu)))
    time_s = model.estimator.time(primitive, model.gpu).time_s
    energy_j = model.estimator.energy_j(primitive, model.gpu, time_s)
    if energy_j is None:
        # Full dynamic power for longer than the kernel lasts would exceed the TDP.
        busy_s = np.minimum(_largest(busy_terms(primitive, model.gpu)), time_s)
        energy_j = power.energy_j(time_s, busy_s)
    return Samples(sums, ((time_s,), (energy_j,)))


def _largest(terms: tuple[Value, ...]) -> Value:
    largest = terms[0]
    for term in terms[1:]:
        largest = np.maximum(largest, term)
    return largest


def _has_closed_form(primitive: Primitive) -> bool:
    """False where bytes are exponential in L: experts reached by tokens that grow with L."""
    return not (isinstance(primitive, Experts | GroupedGemm) and depends_on(primitive, "L"))


def _breaks(primitive: Primitive, steps: Steps) -> list[Array]:
    """L at which a window fills or a chunk is complete: a new polynomial begins there."""
    pairs: list[tuple[Value, Value]] = []
    if isinstance(primitive, Attention) and primitive.window is not None:
        # Where `attention_pairs` and `Attention.kv_read` change form.
        window, queries, keys = primitive.window, primitive.q_len, primitive.kv_len
        if primitive.causal:
            pairs = [(keys, window), (keys, window + queries - 1), (keys, window + queries)]
        else:
            pairs = [(keys, 2 * window + 1), (keys, 2 * window + queries)]
    elif isinstance(primitive, Scan):
        pairs = [(primitive.length, primitive.chunk)]
    return [_reached(size, limit, steps) for size, limit in pairs]


def decode_breaks(model: Deployment, B: Array) -> list[float]:
    """L at which the cost of a decode step may bend: borders of regions, windows that fill.

    For S = 1 and the batches of ``B``; without order, some perhaps far beyond any L in use.
    """
    steps = Steps(B, np.ones_like(B), np.zeros_like(B), np.full_like(B, MAX_TOKENS))
    found = []
    for index, region in enumerate(model.graph.regions):
        if region.phase != "decode":
            continue
        found += [float(region.L.lo)]
        for kernel in model.lowered(index).kernels:
            for broken in _breaks(kernel.primitive, steps):
                found += [float(L) for L in np.unique(broken)]
    return found


def _reached(size: Value, limit: Value, steps: Steps) -> Array:
    """First whole L at which a size that is linear in L reaches a limit; past the end if never."""
    distance = limit - size

    def value(L: Array) -> Array:
        found = distance(steps.B, steps.S, L) if callable(distance) else distance
        return np.broadcast_to(np.asarray(found, dtype=np.float64), L.shape)

    origin = value(np.zeros_like(steps.first))
    slope = origin - value(np.ones_like(steps.first))
    grows = slope > 0
    return np.where(grows, np.ceil(origin / np.where(grows, slope, 1)), steps.last + 1)


def _ratio_breaks(steps: Steps) -> list[Array]:
    ratio = (steps.last + 2) / (steps.first + 1)
    shares = np.arange(1, SMOOTH_PIECES) / SMOOTH_PIECES
    return [np.floor((steps.first + 1) * ratio**share) for share in shares]


def _phase(
    model: Deployment, phase: Phase, steps: Steps, details: list[KernelDetail] | None
) -> PhaseTotals:
    totals = PhaseTotals.zeros(len(steps.B))
    for index, rows, part in split_by_region(model, phase, steps):
        _add_region(model, phase, index, rows, part, totals, details)
    totals = over_stages(model, totals)
    if model.offsets is None:
        return totals
    if details is not None:
        details[:] = [_offset_kernel(model, model.offsets, phase, detail) for detail in details]
    return offset_totals(model, model.offsets, phase, totals, steps.B)


def offset_totals(
    model: Deployment, offsets: Offsets, phase: Phase, totals: PhaseTotals, B: Array
) -> PhaseTotals:
    """A phase as long as a user's own runs say; idle power for the difference."""
    factor = offsets.factor(phase)
    outside_s = offsets.outside_s(totals.steps, B / model.parallel.batch_parts)
    idle_w = PowerModel.of(model.gpu).idle_w
    return replace(
        totals,
        time_s=factor * totals.time_s + outside_s,
        kernel_s=factor * totals.kernel_s,
        kernel_j=totals.kernel_j + idle_w * (factor - 1) * totals.kernel_s,
    )


def _offset_kernel(
    model: Deployment, offsets: Offsets, phase: Phase, detail: KernelDetail
) -> KernelDetail:
    """A kernel's part of `offset_totals`, and of the factor of energy."""
    power = PowerModel.of(model.gpu)
    alone_s = detail.sums.time_s
    time_s = offsets.factor(phase) * alone_s
    joules = detail.sums.energy_j + power.idle_w * (time_s - alone_s)
    energy_j = offsets.energy_j(joules, time_s, power.tdp_w)
    return replace(detail, sums=replace(detail.sums, time_s=time_s, energy_j=energy_j))


def split_by_region(
    model: Deployment, phase: Phase, steps: Steps
) -> Iterator[tuple[int, Mask, Steps]]:
    """Cut runs of steps at the borders of a phase's regions: (region index, mask, steps).

    Where regions overlap, the one recorded first holds the step, as in `OpGraph.region`. Raises
    HymellError for a step that no region holds.
    """
    regions = [(i, r) for i, r in enumerate(model.graph.regions) if r.phase == phase]
    if not regions:
        raise HymellError(f"{model.graph.facts.name} has no {phase} phase")
    borders = {r.L.lo for _, r in regions} | {r.L.hi + 1 for _, r in regions if r.L.hi is not None}
    for low, high in pairwise([-np.inf, *sorted(borders), np.inf]):
        first = np.maximum(steps.first, low)
        last = np.minimum(steps.last, high - 1)
        left = first <= last
        for index, region in regions:
            covers = region.L.lo <= low and (region.L.hi is None or high - 1 <= region.L.hi)
            if not covers or not left.any():
                continue
            rows = left & _inside(region, steps)
            if rows.any():
                left = left & ~rows
                yield index, rows, Steps(steps.B[rows], steps.S[rows], first[rows], last[rows])
        if left.any():
            row = int(np.argmax(left))
            raise HymellError(
                f"{model.graph.facts.name}: no traced {phase} region holds "
                f"B={steps.B[row]:.0f}, S={steps.S[row]:.0f}, L={first[row]:.0f}"
            )


def _inside(region: Region, steps: Steps) -> Mask:
    return _within(region.B, steps.B) & _within(region.S, steps.S)


def _within(bounds: Range, values: Array) -> Mask:
    return (values >= bounds.lo) & (values <= (np.inf if bounds.hi is None else bounds.hi))


def _add_region(
    model: Deployment,
    phase: Phase,
    index: int,
    rows: Mask,
    steps: Steps,
    totals: PhaseTotals,
    details: list[KernelDetail] | None,
) -> None:
    kernels = model.lowered(index).kernels
    launches = sum(kernel.repeat * kernel.launches for kernel in kernels)
    gaps_s = launches * _gap_s(model)
    kernel_s: Array = np.zeros(len(steps.B))
    for kernel, (entry, alone) in zip(
        kernels, in_blocks(kernels, model, phase, steps), strict=True
    ):
        sums = in_system(kernel, model, phase, steps, alone)
        totals.flops[rows] += sums.flops
        totals.flops_causal[rows] += sums.flops_causal
        totals.bytes[rows] += sums.bytes
        totals.weight_bytes[rows] += sums.weight_bytes
        totals.matrix_s[rows] += sums.matrix_s
        totals.padded_s[rows] += sums.padded_s
        totals.cache_bytes[rows] += sums.cache_bytes
        totals.activation_bytes[rows] += sums.activation_bytes
        totals.kernel_j[rows] += sums.energy_j
        kernel_s += sums.time_s
        if details is not None:
            priced = _middle(kernel, model, steps, sums)
            details.append(
                KernelDetail(
                    index,
                    kernel,
                    steps.count,
                    sums,
                    priced.regime,
                    np.asarray(priced.in_range),
                    entry,
                )
            )
    device_s = kernel_s + gaps_s * steps.count
    host_s = host_step_s(model, phase, launches)
    if model.system is None:
        step_s: Value = model.engine.overheads.step_s
        stalls_s = _stalls(kernels, model, steps, device_s, gaps_s, host_s)
    else:
        once_s, sequence_s = outside_s(model.system, model, kernels, phase)
        step_s = once_s + sequence_s * steps.B
        # Of many steps the sum: a system is fitted to engines whose decode waits for no launch.
        stalls_s = np.maximum(host_s * steps.count - device_s, 0)
    totals.steps[rows] += steps.count
    totals.kernel_s[rows] += kernel_s
    totals.time_s[rows] += device_s + step_s * steps.count + stalls_s
    totals.launches[rows] += launches * steps.count


def host_step_s(model: Deployment, phase: Phase, launches: float) -> float:
    """Seconds that the host takes to launch the kernels of one step; 0 where a graph replays."""
    overheads, system = model.engine.overheads, model.system
    if system is not None and f"{phase}_launch_s" in system.coefficients:
        return launches * system.value(f"{phase}_launch_s")
    if phase == "decode" and overheads.cuda_graphs_in_decode:
        return 0.0
    return launches * overheads.host_s_per_launch


def in_blocks(
    kernels: Sequence[Kernel], model: Deployment, phase: Phase, steps: Steps
) -> Iterator[tuple[BlockEntry | None, KernelSums]]:
    """The sums of each kernel, as long as they take within their block where it was measured.

    A factor is that of the mean step. Idle power for the difference, at most the TDP over all.
    """
    found = [kernel_sums(kernel, model, steps) for kernel in kernels]
    if model.blocks is None:
        yield from ((None, sums) for sums in found)
        return
    middle = steps.B, steps.S, (steps.first + steps.last) / 2
    per_step = [sums.time_s / steps.count for sums in found]
    by_kernel = factors(model.blocks, kernels, per_step, phase, middle)
    power = PowerModel.of(model.gpu)
    for place, sums in enumerate(found):
        if place not in by_kernel:
            yield None, sums
            continue
        entry, factor = by_kernel[place]
        time_s = factor * sums.time_s
        energy_j = sums.energy_j + power.idle_w * (time_s - sums.time_s)
        energy_j = np.minimum(energy_j, power.tdp_w * time_s)
        yield entry, replace(sums, time_s=time_s, energy_j=energy_j)


def _gap_s(model: Deployment) -> float:
    """Gap after a launch; a system has the gaps in its multipliers."""
    return model.engine.overheads.gap_s if model.system is None else 0.0


def in_system(
    kernel: Kernel, model: Deployment, phase: Phase, steps: Steps, sums: KernelSums
) -> KernelSums:
    """The sums of a kernel as long as it takes within the system; idle power for the difference."""
    if model.system is None:
        return sums
    time_s = system_s(kernel, model, phase, steps, sums.time_s)
    idle_w = PowerModel.of(model.gpu).idle_w
    return replace(sums, time_s=time_s, energy_j=sums.energy_j + idle_w * (time_s - sums.time_s))


def system_s(
    kernel: Kernel, model: Deployment, phase: Phase, steps: Steps, alone_s: Value
) -> Value:
    """Seconds of a kernel that takes ``alone_s`` by itself, by the system's multipliers of a phase.

    ``alone_s`` where there is no system.
    """
    if model.system is None:
        return alone_s
    value, group = model.system.value, group_of(kernel.primitive)
    if group == "comm":
        return value("comm") * alone_s
    if phase == "prefill":
        return value("prefill") * alone_s
    if group == "attention":
        extra_s = mha_extra_s(kernel, model, steps, alone_s) if value("gqa") else 0.0
        return value("attention") * alone_s + value("gqa") * extra_s
    return value("experts" if group == "experts" else "dense") * alone_s


def mha_extra_s(kernel: Kernel, model: Deployment, steps: Steps, time_s: Value) -> Array:
    """Seconds that an attention would take more with all heads of its own, 0 of other kernels."""
    whole = all_heads(kernel.primitive)
    if whole is None:
        return np.zeros(len(steps.B))
    longer = kernel_sums(replace(kernel, primitive=whole), model, steps).time_s
    extra_s: Array = np.maximum(longer - time_s, 0.0)
    return extra_s


def outside_s(
    system: System, model: Deployment, kernels: Sequence[Kernel], phase: Phase
) -> tuple[float, float]:
    """Seconds outside kernels that a system adds to a step, and those to each sequence of it."""
    groups = [(group_of(kernel.primitive), kernel.repeat) for kernel in kernels]
    once_s = system.value("step_s")
    once_s += system.value("message_s") * sum(n for group, n in groups if group == "comm")
    if phase == "decode":
        once_s += system.value("routed_s") * sum(n for group, n in groups if group == "experts")
    sequence_s = system.value("sequence_s")
    sequence_s += system.value("logit_s") * (model.graph.facts.vocab_size or 0)
    return once_s, sequence_s


def _middle(kernel: Kernel, model: Deployment, steps: Steps, sums: KernelSums) -> KernelTime:
    """The middle step priced; its regime is launch where the gap after the kernel outlasts it."""
    middle = at(kernel.primitive, steps.B, steps.S, (steps.first + steps.last) / 2)
    priced = model.estimator.time(middle, model.gpu)
    executions = kernel.repeat * steps.count
    gaps_s = executions * kernel.launches * _gap_s(model)
    return replace(priced, regime=np.where(sums.time_s < gaps_s, LAUNCH, priced.regime))


def _stalls(
    kernels: Sequence[Kernel],
    model: Deployment,
    steps: Steps,
    device_s: Array,
    gaps_s: float,
    host_s: float,
) -> Array:
    """Device seconds lost to a host that launches more slowly than the device works.

    The sum over steps of max(0, host - device), where ``device_s`` is the device's time over all
    steps, ``gaps_s`` the gaps and ``host_s`` the host's time of one. Device time does not fall as
    L grows, so the steps bound by the host come first; bisection over L finds where they end.
    """
    growing = [kernel for kernel in kernels if depends_on(kernel.primitive, "L")]
    if not growing or host_s == 0:
        return np.maximum(host_s * steps.count - device_s, 0)
    constant = [kernel for kernel in kernels if not depends_on(kernel.primitive, "L")]
    constant_s = gaps_s + _step_s(constant, model, steps, steps.first)
    stalls_s: Array = np.zeros(len(steps.B))
    bound = constant_s + _step_s(growing, model, steps, steps.first) < host_s
    if not bound.any():
        return stalls_s
    held, constant_s = steps.of(bound), constant_s[bound]

    def waits(L: Array) -> Mask:
        return constant_s + _step_s(growing, model, held, L) < host_s

    ends = waits(held.last)
    low, high = np.where(ends, held.last, held.first), held.last
    while (low < high).any():
        middle = np.ceil((low + high) / 2)
        slow = waits(middle)
        low, high = np.where(slow, middle, low), np.where(slow, high, middle - 1)
    waiting = Steps(held.B, held.S, held.first, low)
    grown_s = sum(kernel_sums(kernel, model, waiting).time_s for kernel in growing)
    stalls_s[bound] = np.maximum((host_s - constant_s) * waiting.count - grown_s, 0)
    return stalls_s


def _step_s(kernels: Sequence[Kernel], model: Deployment, steps: Steps, L: Array) -> Array:
    """Device time of some kernels in the step at ``L``."""
    total: Array = np.zeros(len(steps.B))
    for kernel in kernels:
        primitive = at(kernel.primitive, steps.B, steps.S, L)
        total += kernel.repeat * model.estimator.time(primitive, model.gpu).time_s
    return total
