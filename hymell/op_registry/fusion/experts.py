"""How many device launches an engine spends on one layer's routed experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hymell.op_registry.plan import Plan
from hymell.op_registry.primitives import Experts

#: transformers' grouped form: sort, 5 launches for indices and counts, gather of tokens and of
#: weights, product, activation, gating, product, weighting, 3 to undo the order, sum.
AS_WRITTEN = 16

#: The same after a compiler fused what is element-wise.
COMPILED = 10

#: vLLM, SGLang and TensorRT-LLM: 2 to align tokens to blocks, product, activation, product, sum.
FUSED = 6


def launch_experts(launches: int) -> Callable[[Plan], Plan]:
    """A rule that gives every layer's experts this many launches.

    Routed experts stay one entry of the kernel list: their parts share tokens and weights, and
    engines tune them together.
    """

    def rule(plan: Plan) -> Plan:
        return plan.with_groups(
            replace(group, launches=launches)
            if isinstance(plan.primitives[group.ops[0]], Experts)
            else group
            for group in plan.groups
        )

    return rule
