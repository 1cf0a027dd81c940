"""Where a phase's cost goes: per kernel, per block, and how much of it is understood."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from hymell.cost_report import BlockCost, Coverage, KernelCost
from hymell.estimators.base import REGIMES, Array, Deployment
from hymell.estimators.pipeline import overlap
from hymell.estimators.rollup import KernelDetail
from hymell.graph import Phase
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import Unknown, sizes


@dataclass(frozen=True, slots=True)
class _Entry:
    detail: KernelDetail
    cost: KernelCost


def kernel_costs(
    phase: str, details: Sequence[KernelDetail], model: Deployment, whole_j: float | None = None
) -> Iterator[KernelCost]:
    """One `KernelCost` per kernel of a phase of one workload, in launch order.

    ``whole_j``: joules of all kernels on all GPUs, which they share (`shared_j`); None: each one's
    are those that its own power gives.

    Decode steps in several regions run the same kernels with other sizes: their costs are added,
    and the sizes and regime are those of the region with most steps.
    """
    merged: dict[tuple[object, ...], _Entry] = {}
    seen: dict[tuple[object, ...], int] = {}
    for detail, joules in zip(details, _joules(details, model, whole_j), strict=True):
        kernel = detail.kernel
        place = (kernel.name, kernel.block, kernel.part, kernel.layer, kernel.path)
        # A layer may launch two kernels that agree in all of these.
        nth = seen.setdefault((detail.region, *place), 0)
        seen[detail.region, *place] = nth + 1
        entry = _Entry(detail, _kernel_cost(phase, detail, model, joules))
        before = merged.get((*place, nth))
        merged[*place, nth] = entry if before is None else _add(before, entry)
    costs = [entry.cost for entry in merged.values()]
    whole = sum(cost.time_s for cost in costs)
    for cost in costs:
        yield replace(cost, share_of_time=_share(cost.time_s, whole))


def _joules(
    details: Sequence[KernelDetail], model: Deployment, whole_j: float | None
) -> list[float]:
    """Joules of each kernel on all GPUs of its stage."""
    gpus, tdp_w = model.parallel.per_stage, model.gpu.tdp_w
    own_j = gpus * np.array([_number(detail.sums.energy_j) for detail in details])
    if whole_j is None:
        return [float(joules) for joules in own_j]
    most_j = gpus * tdp_w * np.array([_number(detail.sums.time_s) for detail in details])
    return [float(joules) for joules in shared_j(own_j, most_j, whole_j)]


def shared_j(own_j: Array, most_j: Array, whole_j: float) -> Array:
    """Joules shared among kernels in proportion to ``own_j``, none more than ``most_j``.

    They add up to ``whole_j``, or to less where all of them are at their most.
    """
    draws = own_j > 0
    ratio = np.full(len(own_j), np.inf)
    ratio[draws] = most_j[draws] / own_j[draws]
    order = np.argsort(ratio, kind="stable")[: int(draws.sum())]
    # With the first n of these at their most, the others share what is left by one factor.
    full_j = np.concatenate([[0.0], np.cumsum(most_j[order])[:-1]])
    open_j = np.cumsum(own_j[order][::-1])[::-1]
    factor = (whole_j - full_j) / open_j
    found = np.flatnonzero(factor <= ratio[order])
    shared: Array = np.where(draws, most_j, 0.0)
    return np.minimum(factor[found[0]] * own_j, shared) if len(found) else shared


def _kernel_cost(phase: str, detail: KernelDetail, model: Deployment, joules: float) -> KernelCost:
    kernel, sums = detail.kernel, detail.sums
    energy = model.estimator.energy_origin(kernel.primitive, model.gpu)
    origin = model.estimator.origin(kernel.primitive, model.gpu)
    return KernelCost(
        phase=phase,
        name=kernel.name,
        primitive=kernel.primitive.kind,
        block=kernel.block,
        part=kernel.part,
        layer=kernel.layer,
        path=kernel.path,
        repeat=kernel.repeat,
        launches=int(kernel.repeat * kernel.launches * detail.steps[0]),
        sizes={name: str(value) for name, value in sizes(kernel.primitive).items()},
        flops=_number(sums.flops),
        flops_causal=_number(sums.flops_causal),
        bytes=_number(sums.bytes),
        weight_bytes=_number(sums.weight_bytes),
        time_s=_number(sums.time_s) * overlap(model),
        energy_j=joules,
        share_of_time=0.0,
        regime=REGIMES[int(_number(detail.regime))],
        estimator=origin.estimator,
        understood=kernel.understood,
        calibration=origin.calibration,
        calibrated=origin.calibrated,
        in_range=bool(_number(detail.in_range)),
        energy_estimator=energy.estimator,
        energy_calibration=energy.calibration,
        energy_calibrated=energy.calibrated,
    )


def _add(a: _Entry, b: _Entry) -> _Entry:
    larger = a if a.detail.steps[0] >= b.detail.steps[0] else b
    cost = replace(
        larger.cost,
        launches=a.cost.launches + b.cost.launches,
        flops=a.cost.flops + b.cost.flops,
        flops_causal=a.cost.flops_causal + b.cost.flops_causal,
        bytes=a.cost.bytes + b.cost.bytes,
        weight_bytes=a.cost.weight_bytes + b.cost.weight_bytes,
        time_s=a.cost.time_s + b.cost.time_s,
        energy_j=a.cost.energy_j + b.cost.energy_j,
    )
    return _Entry(larger.detail, cost)


#: How a `BlockCost` names what its time comes from.
SUM_OF_LEVEL_1, LEVEL_2 = "sum of level 1", "level 2"


def corrected_blocks(
    details: Mapping[Phase, Iterable[KernelDetail]],
) -> frozenset[tuple[str, str, str]]:
    """(phase, part, block) of the blocks that a block correction prices."""
    return frozenset(
        (phase, detail.kernel.part, detail.kernel.block)
        for phase, found in details.items()
        for detail in found
        if detail.corrected is not None
    )


def block_costs(
    kernels: Iterable[KernelCost], corrected: Container[tuple[str, str, str]] = frozenset()
) -> tuple[BlockCost, ...]:
    """Kernels added up per phase, part and block; the shares of a phase sum to 1.

    ``corrected``: (phase, part, block) of those that level 2 prices.
    Times are those of the kernels; gaps, host and per-step work belong to no block
    (`PhaseCost.overhead_s`).
    """
    blocks: list[BlockCost] = []
    for phase, group in groupby(kernels, key=lambda kernel: kernel.phase):
        members = list(group)
        time_s, flops = sum(k.time_s for k in members), sum(k.flops for k in members)
        for part, block in dict.fromkeys((k.part, k.block) for k in members):
            own = [k for k in members if (k.part, k.block) == (part, block)]
            blocks.append(
                BlockCost(
                    phase=phase,
                    block=block,
                    part=part,
                    flops=sum(k.flops for k in own),
                    bytes=sum(k.bytes for k in own),
                    time_s=sum(k.time_s for k in own),
                    energy_j=sum(k.energy_j for k in own),
                    share_of_time=_share(sum(k.time_s for k in own), time_s),
                    share_of_flops=_share(sum(k.flops for k in own), flops),
                    estimator=LEVEL_2 if (phase, part, block) in corrected else SUM_OF_LEVEL_1,
                )
            )
    return tuple(blocks)


def coverage(lowered: Iterable[Kernel], costs: Sequence[KernelCost]) -> Coverage:
    """How much is understood, over both phases; ops are counted with their repeats.

    The FLOPs of an op that nobody registered are not known and count as none; its bytes are.
    """
    kernels = list(lowered)
    ops = sum(max(len(k.ops), 1) * k.repeat for k in kernels)
    known = sum(max(len(k.ops), 1) * k.repeat for k in kernels if k.understood)
    flops, moved = sum(c.flops for c in costs), sum(c.bytes for c in costs)
    unknown: dict[str, tuple[int, float]] = {}
    for cost in costs:
        if not cost.understood:
            name = cost.sizes["name"] if cost.primitive == Unknown.kind else cost.name
            times, size = unknown.get(name, (0, 0.0))
            unknown[name] = (times + cost.repeat, size + cost.bytes)
    return Coverage(
        understood_share_of_ops=_share(known, ops),
        understood_share_of_flops=_share(sum(c.flops for c in costs if c.understood), flops),
        understood_share_of_bytes=_share(sum(c.bytes for c in costs if c.understood), moved),
        calibrated_share_of_time=_share(
            sum(c.time_s for c in costs if c.calibrated), sum(c.time_s for c in costs)
        ),
        calibrated_share_of_energy=calibrated_share_of_energy(costs),
        unknown=tuple((n, times, _share(size, moved)) for n, (times, size) in unknown.items()),
    )


def calibrated_share_of_energy(costs: Iterable[KernelCost]) -> float:
    """Share of the kernels' energy whose power was fitted on measurements of this GPU."""
    found = [(cost.energy_j, cost.energy_calibrated) for cost in costs]
    return _share(sum(joules for joules, own in found if own), sum(joules for joules, _ in found))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _number(value: object) -> float:
    """The one entry of an array of one workload, or a number."""
    return float(np.ravel(value)[0])  # type: ignore[call-overload]


def beyond_measured(kernels: Iterable[KernelCost]) -> dict[str, float]:
    """By phase, and as "energy" over both, the share of kernel time beyond measured sizes.

    Kernels that no measurement prices do not count.
    """
    spent: dict[str, list[float]] = {}
    for kernel in kernels:
        outside = 0.0 if kernel.in_range or not kernel.calibration else kernel.time_s
        for name in (kernel.phase, "energy"):
            whole = spent.setdefault(name, [0.0, 0.0])
            whole[0] += outside
            whole[1] += kernel.time_s
    return {name: _share(part, whole) for name, (part, whole) in spent.items()}
