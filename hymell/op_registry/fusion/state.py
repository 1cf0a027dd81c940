"""Recurrent and convolution states that a kernel updates in place."""

from __future__ import annotations

from dataclasses import replace

from hymell.op_registry.plan import Plan
from hymell.op_registry.primitives import Scan


def update_in_place(plan: Plan) -> Plan:
    """Drop the copy of a new state into the cache where the kernel that made it writes it there.

    Scans and causal convolutions of serving engines take the cache slot as an argument.
    """
    kept = []
    for group in plan.groups:
        updates = [op for op in group.ops if plan.ops[op].name == "hymell.state_update"]
        rest = tuple(op for op in group.ops if op not in updates or not _from_kernel(plan, op))
        if rest:
            kept.append(group if rest == group.ops else replace(group, ops=rest))
    return plan.with_groups(kept)


def _from_kernel(plan: Plan, update: int) -> bool:
    return any(
        isinstance(plan.primitives[producer], Scan)
        or plan.ops[producer].name == "hymell.causal_conv1d"
        for producer in plan.flow.depends[update]
    )
