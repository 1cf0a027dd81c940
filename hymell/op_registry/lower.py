"""From a region of the graph to the kernels an engine launches."""

from __future__ import annotations

from dataclasses import replace

from hymell.graph import ModelFacts, Region
from hymell.op_registry import (  # noqa: F401  (importing registers the lowerings)
    attention,
    matmul,
    moe,
    norm,
    pointwise,
    precision,
    scan,
)
from hymell.op_registry.blocks import assign
from hymell.op_registry.emit import emit
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.kernels import Lowered
from hymell.op_registry.parallel import Rank, rank_of, with_messages
from hymell.op_registry.plan import start
from hymell.op_registry.primitives import Experts
from hymell.workload import AS_STORED, SINGLE, Parallel, Precision


def lower(
    region: Region,
    engine: Engine,
    facts: ModelFacts,
    formats: Precision = AS_STORED,
    *,
    skew: float = 0.0,
    parallel: Parallel = SINGLE,
) -> Lowered:
    """The kernels that ``engine`` launches for one step of ``region``, on one GPU of ``parallel``.

    ``formats`` overrides number formats; ``skew`` is the Zipf exponent of expert popularity.
    Raises HymellError for a model that ``parallel`` cannot split.
    """
    return lower_rank(prepare(region, facts, formats, parallel), engine, skew, parallel)


def prepare(region: Region, facts: ModelFacts, formats: Precision, parallel: Parallel) -> Rank:
    """The region in other formats, and one GPU's part of it; errors as `lower`."""
    return rank_of(*precision.apply(region, facts, formats), parallel)


def lower_rank(rank: Rank, engine: Engine, skew: float, parallel: Parallel) -> Lowered:
    """The kernels of one GPU, its exchanges with the others among them."""
    plan = start(rank.region, rank.facts, assign(rank.region))
    for rule in engine.rules:
        plan = rule(plan)
    lowered = with_messages(emit(plan.in_order()), rank, parallel)
    if skew:
        kernels = tuple(
            replace(kernel, primitive=replace(kernel.primitive, skew=skew))
            if isinstance(kernel.primitive, Experts)
            else kernel
            for kernel in lowered.kernels
        )
        lowered = replace(lowered, kernels=kernels)
    return lowered
