"""Sibling GEMMs that an engine stores as one matrix: QKV, gate-up."""

from __future__ import annotations

from dataclasses import replace

from hymell.dims import Size, simplify
from hymell.op_registry.blocks import ATTENTION, MIXER
from hymell.op_registry.fusion.graph_walk import downstream, readers
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Gemm


def merge_siblings(plan: Plan) -> Plan:
    """One GEMM for weights that multiply the same tensor in the same module.

    In an attention or mixer block every such pair merges (QKV, MLA's two down-projections);
    elsewhere only those whose results meet in one element-wise op (gate and up), so that a router
    stays apart from the experts beside it.
    """
    table = readers(plan)
    families: dict[tuple[object, ...], list[Group]] = {}
    rest: list[Group] = []
    for group in plan.groups:
        key = _family(plan, group)
        if key is None:
            rest.append(group)
        else:
            families.setdefault(key, []).append(group)
    for members in families.values():
        rest.extend(_merge(plan, members, table))
    return plan.with_groups(rest)


def _family(plan: Plan, group: Group) -> tuple[object, ...] | None:
    """What sibling GEMMs have in common, or None for what cannot merge."""
    if len(group.ops) != 1 or group.primitive is not None:
        return None
    primitive = plan.primitives[group.ops[0]]
    if not isinstance(primitive, Gemm) or not primitive.b_is_weight or primitive.batch != 1:
        return None
    op = plan.ops[group.ops[0]]
    activations = [read.base for read in plan.flow.reads[op.id] if read.base[0] != "weight"]
    parent = op.path.rpartition(".")[0]
    formats = (primitive.a_dtype, primitive.b_dtype, primitive.out_dtype, primitive.math)
    return (tuple(activations), parent, group.layer, primitive.m, primitive.k, formats)


def _merge(plan: Plan, members: list[Group], table: dict[int, set[int]]) -> list[Group]:
    if len(members) == 1:
        return members
    if plan.blocks[members[0].ops[0]] in (ATTENTION, MIXER):
        return [_joined(plan, members)]
    meeting: list[Group] = []
    apart: list[Group] = []
    for group in members:
        others = [m for m in members if m is not group]
        mine = _element_wise(plan, group.ops[0], table)
        meets = any(mine & _element_wise(plan, other.ops[0], table) for other in others)
        (meeting if meets else apart).append(group)
    return apart + ([_joined(plan, meeting)] if meeting else [])


def _joined(plan: Plan, members: list[Group]) -> Group:
    ops = tuple(sorted(op for group in members for op in group.ops))
    primitives = [plan.primitives[op] for op in ops]
    n: Size = 0
    for primitive in primitives:
        assert isinstance(primitive, Gemm)
        n = simplify(n + primitive.n)
    first = primitives[0]
    assert isinstance(first, Gemm)
    bias = any(isinstance(p, Gemm) and p.bias for p in primitives)
    return replace(members[0], ops=ops, primitive=replace(first, n=n, bias=bias))


def _element_wise(plan: Plan, gemm: int, table: dict[int, set[int]]) -> set[int]:
    """Ops reached from a GEMM's result without passing another anchor."""
    below = downstream(gemm, table, lambda op: op not in plan.anchors)
    return below - plan.anchors
