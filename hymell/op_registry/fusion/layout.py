"""Copies, scales and biases that disappear into the kernel beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hymell.op_registry.dataflow import at_sample
from hymell.op_registry.fusion.graph_walk import launching_readers
from hymell.op_registry.memory_ops import numel
from hymell.op_registry.plan import Plan
from hymell.op_registry.primitives import Attention, Gemm, Primitive
from hymell.op_registry.registry import functional, is_in_place

_COPIES = frozenset(("aten.clone", "aten.contiguous"))
_CASTS = frozenset(("aten._to_copy",))
_SCALES = frozenset(("aten.mul", "aten.div"))


def add_bias(plan: Plan) -> Plan:
    """A bias vector that is added to a GEMM's result and nothing else is its epilogue."""
    owner = plan.group_of()
    table = launching_readers(plan)
    moves: dict[int, int] = {}
    for group in plan.groups:
        op = group.ops[0]
        source = _only_source(plan, op)
        if len(group.ops) > 1 or source is None or functional(plan.ops[op].name) != "aten.add":
            continue
        weights = [r.spec for r in plan.flow.reads[op] if r.base[0] == "weight"]
        biased = isinstance(plan.primitives[source], Gemm) and table.get(source) == {op}
        if biased and len(weights) == 1 and len(weights[0].shape) == 1:
            moves[op] = owner[source]
    return _moved(plan, moves, lambda p: replace(p, bias=True) if isinstance(p, Gemm) else p)


def write_in_layout(plan: Plan) -> Plan:
    """A copy of a kernel's result goes: the kernel writes it in the layout its reader wants."""
    owner = plan.group_of()
    moves: dict[int, int] = {}
    for group in plan.groups:
        op = group.ops[0]
        source = _only_source(plan, op)
        if len(group.ops) > 1 or source not in owner or not _is(plan, op, _COPIES):
            continue
        target = plan.groups[owner[source]]
        if target.layer == group.layer and plan.anchored(target):
            moves[op] = owner[source]
    return _moved(plan, moves)


def read_as_it_lies(plan: Plan) -> Plan:
    """Copies, casts and constant factors between a kernel (or the cache) and attention go.

    Attention takes strided tensors in the cache's format and scales the scores itself.
    """
    owner = plan.group_of()
    table = launching_readers(plan)
    moves: dict[int, int] = {}
    for group in reversed(plan.groups):
        op = group.ops[0]
        if len(group.ops) > 1 or not _prepares(plan, op):
            continue
        targets = {moves.get(r, owner.get(r, -1)) for r in table.get(op, ())}
        target = targets.pop() if len(targets) == 1 else -1
        if target < 0 or plan.groups[target].layer != group.layer:
            continue
        decided = plan.groups[target].primitive or plan.primitives[plan.groups[target].ops[0]]
        if isinstance(decided, Attention):
            moves[op] = target
    return _moved(plan, moves)


def _is(plan: Plan, op: int, names: frozenset[str]) -> bool:
    name = plan.ops[op].name
    return functional(name) in names and not is_in_place(name)


def _only_source(plan: Plan, op: int) -> int | None:
    """The op that made all that ``op`` reads besides weights, None where there are several."""
    sources = {read.base for read in plan.flow.reads[op] if read.base[0] != "weight"}
    if len(sources) != 1:
        return None
    base = sources.pop()
    return base[1] if base[0] == "op" else None


def _prepares(plan: Plan, op: int) -> bool:
    """True for a copy, a cast or a constant factor on what a kernel or the cache holds."""
    source = _only_source(plan, op)
    if source is None or not _is(plan, op, _COPIES | _CASTS | _SCALES):
        return False
    if any(r.base[0] == "weight" and at_sample(numel(r.spec)) > 1 for r in plan.flow.reads[op]):
        return False
    return (
        plan.is_anchor(source)
        or plan.ops[source].name == "hymell.kv_append"
        or _prepares(plan, source)
    )


def _moved(
    plan: Plan,
    moves: Mapping[int, int],
    change: Callable[[Primitive], Primitive] = lambda primitive: primitive,
) -> Plan:
    """The plan with each op of ``moves`` in the group it goes to, whose kernel stays its own."""
    taken: dict[int, list[int]] = {}
    for op, target in moves.items():
        while plan.groups[target].ops[0] in moves:
            target = moves[plan.groups[target].ops[0]]
        taken.setdefault(target, []).append(op)
    groups = []
    for index, group in enumerate(plan.groups):
        if index in taken:
            primitive = group.primitive or plan.primitives[group.ops[0]]
            assert primitive is not None
            ops = tuple(sorted({*group.ops, *taken[index]}))
            groups.append(replace(group, ops=ops, primitive=change(primitive)))
        elif group.ops[0] not in moves:
            groups.append(group)
    return plan.with_groups(groups)
