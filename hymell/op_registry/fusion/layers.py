"""The residual add that ends a layer fuses with the norm that begins the next one."""

from __future__ import annotations

from dataclasses import replace

from hymell.op_registry.dataflow import Base
from hymell.op_registry.fusion.vertical import is_norm_op
from hymell.op_registry.plan import Group, Plan


def fuse_across_layers(plan: Plan) -> Plan:
    """Merge tail and head kernels over layer boundaries, with the right repeat counts.

    A repeated layer is recorded once; its `Feed`s say which op produced its input in each of its
    occurrences. A head kernel that reads a tail kernel's result in c of its r occurrences becomes
    c merged kernels and r - c of its own; the tail keeps what no head took. Where several heads of
    a layer read the same tail (two norms side by side), the first takes it.
    """
    owner = plan.group_of()
    tails = _tails(plan)
    left = {index: plan.groups[index].repeat for index in tails}
    taken_by: dict[tuple[int, int], int] = {}
    result: list[Group] = []
    heads: set[int] = set()
    for index, group in enumerate(plan.groups):
        if not _fusible(plan, group) or not _begins_layer(plan, group):
            continue
        alone = group.repeat
        for base, origin, count in _entries(plan, group):
            tail = owner.get(origin[1])
            if tail not in left or tail == index or tail in heads:
                continue
            if _normalises(plan, group) and _normalises(plan, plan.groups[tail]):
                continue
            before = taken_by.get((tail, group.layer), 0)
            taken = min(count - before, left[tail], alone)
            if taken <= 0:
                continue
            taken_by[tail, group.layer] = before + taken
            left[tail] -= taken
            alone -= taken
            joined = tuple(sorted({*group.ops, *plan.groups[tail].ops}))
            result.append(
                replace(
                    group,
                    ops=joined,
                    repeat=taken,
                    carried=group.carried | {base},
                    given=group.given | {origin},
                    handed=frozenset(plan.groups[tail].ops),
                )
            )
        if alone != group.repeat:
            heads.add(index)
            if alone:
                result.append(replace(group, repeat=alone))
    for index, group in enumerate(plan.groups):
        if index in heads:
            continue
        remaining = left.get(index, group.repeat)
        if remaining:
            result.append(replace(group, repeat=remaining))
    return plan.with_groups(result)


def _fusible(plan: Plan, group: Group) -> bool:
    return not plan.anchored(group)


def _normalises(plan: Plan, group: Group) -> bool:
    return any(is_norm_op(plan, op) for op in group.ops)


def _begins_layer(plan: Plan, group: Group) -> bool:
    """True when the group reads nothing that its own layer made."""
    members = set(group.ops)
    return group.layer < 0 or not any(
        plan.layer_of[producer] == group.layer
        for op in group.ops
        for producer in plan.flow.depends[op]
        if producer not in members
        and producer not in plan.tables
        and plan.primitives[producer] is not None
    )


def _tails(plan: Plan) -> list[int]:
    """Groups whose results no op of their own layer reads."""
    owner = plan.group_of()
    read_inside: set[int] = set()
    for op in plan.ops:
        for producer in plan.flow.depends[op.id]:
            if (
                plan.layer_of[op.id] == plan.layer_of[producer]
                and owner.get(op.id, -1) != owner.get(producer, -2)
                and plan.primitives[op.id] is not None
            ):
                read_inside.add(producer)
    return [
        index
        for index, group in enumerate(plan.groups)
        if group.layer >= 0
        and _fusible(plan, group)
        and not any(plan.ops[op].name.startswith("hymell.") for op in group.ops)
        and not any(op in read_inside for op in group.ops)
    ]


def _entries(plan: Plan, group: Group) -> list[tuple[Base, Base, int]]:
    """(memory read, memory its producer wrote, how often) over layer boundaries."""
    entries: list[tuple[Base, Base, int]] = []
    bases = dict.fromkeys(read.base for op in group.ops for read in plan.flow.reads[op])
    for base in bases:
        if base[0] != "op" or (plan.layer_of[base[1]] == group.layer and group.layer >= 0):
            continue
        feeds = plan.region.layers[group.layer].feeds if group.layer >= 0 else ()
        matched = False
        for feed in feeds:
            if feed.op < 0 or plan.flow.bases[feed.op, feed.index] != base:
                continue
            matched = True
            for (op, index), count in feed.producers:
                if op >= 0:
                    entries.append((base, plan.flow.bases[op, index], count))
        if not matched and plan.layer_of[base[1]] >= 0:
            entries.append((base, base, group.repeat))
    return entries
