"""What prepares queries and keys (RoPE, QK norms) and the KV append become one kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Attention


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
            if index is None or plan.is_anchor(plan.groups[index].ops[0]):
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
