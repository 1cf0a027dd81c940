"""What prepares queries, keys and gates (RoPE, QK norms, decays) becomes one kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hymell.op_registry.fusion.graph_walk import launching_readers
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Attention, RowReduce, Scan


def merge_rope_append(plan: Plan, launches: int = 1) -> Plan:
    """Merge the element-wise kernels that feed one attention with its KV append.

    ``launches`` is how many device launches the engine uses for the merged work (vLLM rotates and
    appends in two).
    """
    owner = plan.group_of()
    depths = plan.depths()
    merged: dict[int, set[int]] = {}
    for group in plan.groups:
        if not _is_attention(plan, group):
            continue
        feeding: set[int] = set()
        for producer in {p for op in group.ops for p in plan.flow.depends[op]}:
            index = owner.get(producer)
            if index is None or plan.anchored(plan.groups[index]):
                continue
            if plan.groups[index] is not group:
                feeding.add(index)
        same = [i for i in feeding if plan.groups[i].layer == group.layer]
        by_depth: dict[int, set[int]] = {}
        for index in same:
            by_depth.setdefault(depths[plan.groups[index].ops[0]], set()).add(index)
        for members in by_depth.values():
            if len(members) > 1:
                merged[min(members)] = members
    taken = {index for members in merged.values() for index in members}
    groups = [group for index, group in enumerate(plan.groups) if index not in taken]
    groups += [_joined([plan.groups[i] for i in sorted(members)]) for members in merged.values()]
    return plan.with_groups(
        replace(group, launches=launches) if _rotates_and_appends(plan, group) else group
        for group in groups
    )


def merge_gates(plan: Plan) -> Plan:
    """Merge the small element-wise kernels that prepare the gates of one scan.

    Decay, step size and write strength are functions of a few values per head; engines compute
    them in one kernel (vLLM's fused gating of the gated delta rule). Only kernels that nothing else
    reads, so that they can wait until the scan.
    """
    owner = plan.group_of()
    table = launching_readers(plan)
    merged: dict[int, list[int]] = {}
    for index, group in enumerate(plan.groups):
        if plan.anchored(group) or any(_reduces_or_keeps(plan, op) for op in group.ops):
            continue
        targets = {owner[r] for op in group.ops for r in table.get(op, ()) if r in owner} - {index}
        if len(targets) != 1:
            continue
        (target,) = targets
        scan = isinstance(plan.primitives[plan.groups[target].ops[0]], Scan)
        if scan and plan.groups[target].layer == group.layer:
            merged.setdefault(target, []).append(index)
    taken = {index for members in merged.values() for index in members}
    groups = [group for index, group in enumerate(plan.groups) if index not in taken]
    groups += [_joined([plan.groups[i] for i in members]) for members in merged.values()]
    return plan.with_groups(groups)


def _reduces_or_keeps(plan: Plan, op: int) -> bool:
    return isinstance(plan.primitives[op], RowReduce) or plan.ops[op].name.startswith("hymell.")


def _is_attention(plan: Plan, group: Group) -> bool:
    if isinstance(group.primitive, Attention):
        return True
    return len(group.ops) == 1 and isinstance(plan.primitives[group.ops[0]], Attention)


def _joined(members: list[Group]) -> Group:
    ops = tuple(sorted(op for group in members for op in group.ops))
    return replace(members[0], ops=ops)


def _rotates_and_appends(plan: Plan, group: Group) -> bool:
    names = {plan.ops[op].name for op in group.ops}
    return "hymell.kv_append" in names and len(names) > 1


#: vLLM and SGLang: a rotary kernel, then reshape-and-cache.
rope_then_append = partial(merge_rope_append, launches=2)
