"""Cheap element-wise kernels move into the one kernel that reads them."""

from __future__ import annotations

from dataclasses import replace

from hymell.op_registry.dataflow import at_sample
from hymell.op_registry.emit import Readers, boundary
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Memory


def sink_into_reader(plan: Plan) -> Plan:
    """Delay an element-wise kernel whose only reader is a later memory-bound kernel of its layer.

    Sigmoid gates are computed where they are multiplied, not stored in between. Only where that
    reads no more than it saves.
    """
    readers = Readers.of(plan)
    groups = list(plan.groups)
    owner = plan.group_of()
    absorbed: dict[int, int] = {}
    for index, group in enumerate(groups):
        target = _only_reader(plan, group, index, readers, owner)
        if target is None or not _memory_only(plan, group):
            continue
        if not _fusible(plan, groups[target]) or groups[target].layer != group.layer:
            continue
        read, written, _, _ = boundary(plan, group, readers)
        if at_sample(read) <= at_sample(written) * 1.05:
            absorbed[index] = target
    for index, target in absorbed.items():
        while target in absorbed:
            target = absorbed[target]
        ops = tuple(sorted({*groups[index].ops, *groups[target].ops}))
        groups[target] = replace(groups[target], ops=ops)
    return plan.with_groups(g for i, g in enumerate(groups) if i not in absorbed)


def _only_reader(
    plan: Plan,
    group: Group,
    index: int,
    readers: Readers,
    owner: dict[int, int],
) -> int | None:
    """The single other group that reads a group's results."""
    targets: set[int | None] = set()
    for op in group.ops:
        for output in range(len(plan.ops[op].outputs)):
            base = plan.flow.bases[op, output]
            if base[1] != op:
                return None
            targets |= {owner.get(r) for r in readers.beyond(plan, group, op, base)}
    if len(targets) != 1:
        return None
    target = targets.pop()
    return None if target == index else target


def _memory_only(plan: Plan, group: Group) -> bool:
    return group.primitive is None and all(
        isinstance(plan.primitives[op], Memory) and not plan.ops[op].name.startswith("hymell.")
        for op in group.ops
    )


def _fusible(plan: Plan, group: Group) -> bool:
    return not plan.anchored(group)
