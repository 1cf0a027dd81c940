"""Recurrent and convolution states that a kernel updates in place."""

from __future__ import annotations

from dataclasses import replace

from hymell.op_registry.plan import Plan
from hymell.op_registry.primitives import Scan
from hymell.op_registry.registry import functional

_UPDATES = ("hymell.state_update", "aten.copy")


def update_in_place(plan: Plan) -> Plan:
    """Drop the copy of a new state into the cache where a scan or convolution writes it there.

    Kernels of serving engines take the cache slot as an argument: a scan leaves its last state in
    it, a causal convolution the last tokens of its input.
    """
    convolved = {
        read.base
        for op in plan.ops
        if op.name == "hymell.causal_conv1d"
        for read in plan.flow.reads[op.id]
        if read.base[0] == "op"
    }
    gone = {
        op.id
        for op in plan.ops
        if functional(op.name) in _UPDATES
        and (_of_scan(plan, op.id) or _of_convolution(plan, op.id, convolved))
    }
    kept = []
    for group in plan.groups:
        rest = tuple(op for op in group.ops if op not in gone)
        if rest:
            kept.append(group if rest == group.ops else replace(group, ops=rest))
    return plan.with_groups(kept)


def _of_scan(plan: Plan, update: int) -> bool:
    """True when everything that is copied comes from a kernel that keeps a state."""
    sources = [read.base for read in plan.flow.reads[update] if read.base[0] == "op"]
    return bool(sources) and all(
        isinstance(plan.primitives[base[1]], Scan)
        or plan.ops[base[1]].name == "hymell.causal_conv1d"
        for base in sources
    )


def _of_convolution(plan: Plan, update: int, convolved: set[tuple[str, int, int, str]]) -> bool:
    """True for what a convolution reads as well, or is made for it."""
    op = plan.ops[update]
    if op.name != "hymell.state_update":
        return False
    read = {read.base for read in plan.flow.reads[update]}
    made = {plan.flow.bases[update, index] for index in range(len(op.outputs))}
    return bool((read | made) & convolved)
