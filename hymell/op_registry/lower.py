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
from hymell.op_registry.plan import start
from hymell.op_registry.primitives import Experts
from hymell.workload import AS_STORED, Precision


def lower(
    region: Region,
    engine: Engine,
    facts: ModelFacts,
    formats: Precision = AS_STORED,
    *,
    skew: float = 0.0,
) -> Lowered:
    """The kernels that ``engine`` launches for one step of ``region``.

    ``formats`` overrides number formats; ``skew`` is the Zipf exponent of expert popularity.
    """
    region, facts = precision.apply(region, facts, formats)
    plan = start(region, facts, assign(region))
    for rule in engine.rules:
        plan = rule(plan)
    lowered = emit(plan.in_order())
    if skew:
        kernels = tuple(
            replace(kernel, primitive=replace(kernel.primitive, skew=skew))
            if isinstance(kernel.primitive, Experts)
            else kernel
            for kernel in lowered.kernels
        )
        lowered = replace(lowered, kernels=kernels)
    return lowered
