"""Element-wise ops, casts, norms and copies between two GEMMs become one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import RowReduce
from hymell.op_registry.registry import functional


def fuse_vertical(plan: Plan, norms_per_kernel: int | None = None) -> Plan:
    """Merge connected memory-bound ops that have no anchor between them.

    Ops are connected when one reads the other's result within the same layer; equal depth (see
    `Plan.depths`) makes the union free of cycles. ``norms_per_kernel`` 1 keeps at most one norm
    per kernel, as hand-written kernels do; None lets a compiler fuse any number.
    """
    depths = plan.depths()
    fusible = {
        group.ops[0] for group in plan.groups if len(group.ops) == 1 and not plan.anchored(group)
    }
    parent = {op: op for op in fusible}

    def find(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    for op in fusible:
        for producer in plan.flow.depends[op]:
            if (
                producer in fusible
                and depths[producer] == depths[op]
                and plan.layer_of[producer] == plan.layer_of[op]
                and plan.ops[producer].part == plan.ops[op].part
            ):
                parent[find(op)] = find(producer)
    components: dict[int, list[int]] = {}
    for op in sorted(fusible):
        components.setdefault(find(op), []).append(op)
    fused: list[Group] = [group for group in plan.groups if group.ops[0] not in fusible]
    by_op = {group.ops[0]: group for group in plan.groups}
    for members in components.values():
        parts = [members] if norms_per_kernel is None else _split_norms(plan, members)
        fused.extend(replace(by_op[part[0]], ops=tuple(part)) for part in parts)
    return plan.with_groups(fused)


def fuse_one_norm(plan: Plan) -> Plan:
    """`fuse_vertical` with at most one norm per kernel."""
    return fuse_vertical(plan, norms_per_kernel=1)


def is_norm_op(plan: Plan, op: int) -> bool:
    """True for a reduction that normalises rows (not softmax, not top-k)."""
    primitive = plan.primitives[op]
    return isinstance(primitive, RowReduce) and primitive.role in (
        "reduce",
        "rms_norm",
        "layer_norm",
        "group_norm",
    )


def _split_norms(plan: Plan, members: list[int]) -> list[list[int]]:
    """Cut a component so that each piece holds at most one norm.

    Ops of one module that holds a reduction are one norm. A piece is a norm with the element-wise
    ops that lead to it; what follows the last norm stays with it.
    """
    inside = set(members)
    reducing = {plan.ops[op].path for op in members if is_norm_op(plan, op)}
    node_of = {
        op: ("module", plan.ops[op].path) if plan.ops[op].path in reducing else ("op", op)
        for op in members
    }
    norms_before: dict[object, int] = {}
    for op in members:
        node = node_of[op]
        before = max(
            (
                norms_before[node_of[p]]
                for p in plan.flow.depends[op]
                if p in inside and p != op and node_of[p] != node
            ),
            default=0,
        )
        level = before + (1 if node[0] == "module" else 0)
        norms_before[node] = max(norms_before.get(node, 0), level)
    level_of = {op: max(norms_before[node_of[op]], 1) for op in members}
    readers: dict[int, list[int]] = {op: [] for op in members}
    for op in members:
        for p in plan.flow.depends[op]:
            if p in inside and p != op:
                readers[p].append(op)
    # A residual add between two norms belongs to the norm that reads it, as in add_rms_norm.
    for op in reversed(members):
        if node_of[op][0] == "op" and readers[op]:
            level_of[op] = max(level_of[op], min(level_of[r] for r in readers[op]))
    pieces: dict[int, list[int]] = {}
    last = max(level_of.values())
    next_takes = _begins_with_norm(plan, plan.layer_of[members[0]])
    for op in members:
        # So does one that ends the layer, where layers begin with a norm that will take it.
        ends = node_of[op][0] == "op" and not readers[op] and norms_before[node_of[op]] >= 1
        residual = ends and next_takes and _is_residual(plan, op)
        pieces.setdefault(last + 1 if residual else level_of[op], []).append(op)
    return [piece for level in sorted(pieces) for piece in _connected(plan, pieces[level])]


def _is_residual(plan: Plan, op: int) -> bool:
    """An addition in the layer's own forward."""
    layer = plan.layer_of[op]
    return (
        layer >= 0
        and plan.ops[op].path == plan.region.layers[layer].path
        and functional(plan.ops[op].name) == "aten.add"
    )


def _begins_with_norm(plan: Plan, layer: int) -> bool:
    """True when a layer normalises what comes in before its first anchor."""
    if layer < 0:
        return False
    span = plan.region.layers[layer]
    behind: set[int] = set()
    for op in range(span.start, span.stop):
        if plan.is_anchor(op) or not behind.isdisjoint(plan.flow.depends[op]):
            behind.add(op)
        elif is_norm_op(plan, op):
            return True
    return False


def _connected(plan: Plan, members: list[int]) -> Iterable[list[int]]:
    """Connected pieces of a list of ops."""
    inside = set(members)
    root = {op: op for op in members}

    def find(op: int) -> int:
        while root[op] != op:
            op = root[op]
        return op

    for op in members:
        for p in plan.flow.depends[op]:
            if p in inside and p != op:
                root[find(op)] = find(p)
    pieces: dict[int, list[int]] = {}
    for op in members:
        pieces.setdefault(find(op), []).append(op)
    return pieces.values()
