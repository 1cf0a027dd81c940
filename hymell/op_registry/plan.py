"""A region on its way to kernels: ops gathered in groups that fusion rules merge.

Lowering starts with one group per op (what eager PyTorch launches); an engine's rules are pure
functions from one `Plan` to the next; `hymell.op_registry.emit` turns the groups into kernels.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hymell.graph import ModelFacts, Op, Region
from hymell.op_registry import registry
from hymell.op_registry.dataflow import Base, Dataflow, analyse
from hymell.op_registry.memory_ops import bytes_in, bytes_out
from hymell.op_registry.primitives import Gather, Memory, Primitive, RowReduce, Unknown

#: Composites that an engine fuses into their neighbours instead of launching alone.
_APPENDS = ("hymell.kv_append", "hymell.state_update")


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that become one kernel.

    A kernel that reaches over a layer boundary holds ops ``handed`` of the layer before: they left
    in memory ``given`` what the group's own ops read as ``carried`` (one tensor, two names where
    the layers are repeats of one).
    ``primitive`` and ``name`` are set where a rule decided them, ``launches`` where one entry
    stands for several device launches. ``after``: an op that the kernel is launched after, where
    its own ops do not say so.
    """

    ops: tuple[int, ...]
    layer: int
    repeat: int
    carried: frozenset[Base] = frozenset()
    given: frozenset[Base] = frozenset()
    handed: frozenset[int] = frozenset()
    primitive: Primitive | None = None
    name: str = ""
    launches: int = 1
    after: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """The state that fusion rules transform.

    ``primitives``: each op's own primitive, None for one that costs nothing; ``anchors``: ops that
    stay kernels of their own, while the others fuse with their neighbours; ``layer_of``:
    index of the layer each op belongs to, -1 outside layers; ``blocks``: each op's block;
    ``tables``: ops whose results are known before the step begins.
    """

    region: Region
    facts: ModelFacts
    flow: Dataflow
    primitives: tuple[Primitive | None, ...]
    unregistered: frozenset[int]
    anchors: frozenset[int]
    layer_of: tuple[int, ...]
    blocks: tuple[str, ...]
    groups: tuple[Group, ...]
    tables: frozenset[int] = field(default_factory=frozenset)

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.region.ops

    def is_anchor(self, op: int) -> bool:
        """True for an op that stays a kernel of its own."""
        return op in self.anchors

    def anchored(self, group: Group) -> bool:
        """True for a group that holds an anchor or whose kernel a rule decided."""
        return group.primitive is not None or not self.anchors.isdisjoint(group.ops)

    def with_groups(self, groups: Iterable[Group]) -> Plan:
        """The same plan with other groups, in the order of the model's code."""
        return replace(self, groups=tuple(sorted(groups, key=_key)))

    def in_order(self) -> Plan:
        """The same plan with its groups in launch order: each after those it needs.

        Raises ValueError when groups need each other, which a wrong rule would cause.
        """
        return replace(self, groups=_in_order(self))

    def group_of(self) -> dict[int, int]:
        """Index of the group that each op is in."""
        return {op: index for index, group in enumerate(self.groups) for op in group.ops}

    def depths(self) -> list[int]:
        """Most anchors on any path from the step's inputs to each op, itself included.

        Two connected ops of equal depth have no anchor between them, so they can share a kernel.
        """
        depths = [0] * len(self.ops)
        for op in self.ops:
            before = max((depths[p] for p in self.flow.depends[op.id] if p != op.id), default=0)
            depths[op.id] = before + (op.id in self.anchors)
        return depths


def _in_order(plan: Plan) -> tuple[Group, ...]:
    """Every group after those it needs; otherwise as the model's code has them.

    What a group takes over from the previous layer does not order it within its own, and is there
    for its own layer only.
    """
    groups, flow = plan.groups, plan.flow
    makers: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        for op in group.ops:
            makers.setdefault(op, []).append(index)
    needs: list[set[int]] = []
    for index, group in enumerate(groups):
        own = [op for op in group.ops if op not in group.handed]
        producers = {p for op in own for p in flow.depends[op] if p not in group.ops}
        if group.after >= 0:
            producers.add(group.after)
        needs.append(
            {
                i
                for p in producers
                for i in makers.get(p, ())
                if i != index and (p not in groups[i].handed or groups[i].layer == group.layer)
            }
        )
    # A group that stands for a split op (absorbed value half) is needed by nobody before it runs.
    late = {index for index, group in enumerate(groups) if group.after >= 0}
    waiting = [len(n - late) if index not in late else len(n) for index, n in enumerate(needs)]
    users: dict[int, list[int]] = {}
    for index, need in enumerate(needs):
        for other in need - late if index not in late else need:
            users.setdefault(other, []).append(index)
    ready = [(_key(groups[i]), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[Group] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(groups[index])
        for user in users.get(index, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (_key(groups[user]), user))
    if len(order) < len(groups):
        raise ValueError("fusion made kernels that wait for each other")
    return tuple(order)


def _key(group: Group) -> int:
    own = group.ops if not group.handed else [op for op in group.ops if op not in group.handed]
    return max(own[0], group.after)


def _is_anchor(op: Op, primitive: Primitive | None) -> bool:
    if primitive is None:
        return False
    if isinstance(primitive, Gather):
        return primitive.from_weight
    if op.name.startswith("hymell."):
        return op.name not in _APPENDS
    return not isinstance(primitive, Memory | RowReduce)


def start(region: Region, facts: ModelFacts, blocks: tuple[str, ...]) -> Plan:
    """One group per op that launches something."""
    flow = analyse(region.ops, facts)
    primitives: list[Primitive | None] = []
    unregistered: set[int] = set()
    for op in region.ops:
        lowering = registry.find(op.name)
        if lowering is None:
            read, weights = bytes_in(op, flow)
            primitives.append(Unknown(op.name, read, bytes_out(op), weights))
            unregistered.add(op.id)
        else:
            primitives.append(lowering(op, flow))
    layer_of = [-1] * len(region.ops)
    for index, layer in enumerate(region.layers):
        for op_id in range(layer.start, layer.stop):
            layer_of[op_id] = index
    groups = tuple(
        Group((op.id,), layer_of[op.id], op.repeat)
        for op in region.ops
        if primitives[op.id] is not None
    )
    return Plan(
        region,
        facts,
        flow,
        tuple(primitives),
        frozenset(unregistered),
        frozenset(op.id for op in region.ops if _is_anchor(op, primitives[op.id])),
        tuple(layer_of),
        blocks,
        groups,
    )
