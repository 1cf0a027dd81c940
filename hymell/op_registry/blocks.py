"""Which block of a transformer each op belongs to, found from what the modules contain.

A module whose forward runs attention (or a recurrence) is an attention (or mixer) block with all it
holds, and so are the modules around it as long as they hold nothing but that block. What is left of
a layer is its ffn, called moe when the layer routes experts. Ops before the first layer are embed,
after the last head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hymell.graph import Op, Region
from hymell.op_registry.registry import functional

ATTENTION, MIXER, FFN, MOE, EMBED, HEAD = "attention", "mixer", "ffn", "moe", "embed", "head"
BLOCKS = (EMBED, ATTENTION, MIXER, FFN, MOE, HEAD)

_GEMMS = frozenset(
    """
aten.mm aten.addmm aten.bmm aten.baddbmm aten.linear aten._grouped_mm aten.convolution
aten._scaled_mm aten._scaled_grouped_mm hymell.experts
""".split()
)
_SOFTMAX = frozenset(("aten._softmax", "aten._safe_softmax", "aten.softmax"))
_ATTENTION = ("hymell.attention", "aten._scaled_dot_product", "aten.scaled_dot_product")
_MIXERS = ("hymell.scan", "hymell.causal_conv1d", "hymell.opaque")


def assign(region: Region) -> tuple[str, ...]:
    """The block of every op, by op id."""
    blocks = [""] * len(region.ops)
    for layer in region.layers:
        _scope(region.ops[layer.start : layer.stop], layer.path, blocks)
    if not region.layers:
        _whole_model(region.ops, blocks)
        return tuple(blocks)
    for part in dict.fromkeys(op.part for op in region.ops):
        _outside(region, part, blocks)
    return tuple(blocks)


def _outside(region: Region, part: str, blocks: list[str]) -> None:
    """Embed before the part's first layer, head after its last; what lies between by content."""
    layers = [layer for layer in region.layers if region.ops[layer.start].part == part]
    inside = [(layer.start, layer.stop) for layer in layers if layer.stop > layer.start]
    first = min((start for start, _ in inside), default=len(region.ops))
    last = max((stop for _, stop in inside), default=0)
    loose = [op for op in region.ops if op.part == part and not blocks[op.id]]
    _scope([op for op in loose if first <= op.id < last], None, blocks)
    for op in loose:
        if not blocks[op.id]:
            blocks[op.id] = EMBED if op.id < first or not inside else HEAD


def _whole_model(ops: tuple[Op, ...], blocks: list[str]) -> None:
    """A model without a list of layers.

    Looking tokens up is embed; the last product is the head where it stands on its own in the
    outermost module.
    """
    tables = [op for op in ops if functional(op.name) == "aten.embedding"]
    products = [op for op in ops if functional(op.name) in _GEMMS]
    for op in tables[:1]:
        blocks[op.id] = EMBED
    if tables and len(products) > 1 and "." not in products[-1].path:
        head = products[-1]
        if not any(_within(op.path, head.path) for op in products[:-1]):
            for op in ops:
                if op.id >= head.id or op.path == head.path:
                    blocks[op.id] = HEAD
    _scope([op for op in ops if not blocks[op.id]], "", blocks)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Who reads whom among the ops of one scope."""

    ops: tuple[Op, ...]
    producers: dict[int, tuple[int, ...]]
    readers: dict[int, list[int]]

    @staticmethod
    def of(ops: Iterable[Op]) -> _Walk:
        kept = tuple(ops)
        inside = {op.id for op in kept}
        producers = {
            op.id: tuple(sorted({o.op for o in op.inputs if o.kind == "op" and o.op in inside}))
            for op in kept
        }
        readers: dict[int, list[int]] = {}
        for op in kept:
            for producer in producers[op.id]:
                readers.setdefault(producer, []).append(op.id)
        return _Walk(kept, producers, readers)

    def above(self, op: int) -> set[int]:
        """Everything ``op`` needs."""
        found: set[int] = set()
        todo = [op]
        while todo:
            new = [p for p in self.producers[todo.pop()] if p not in found]
            found.update(new)
            todo += new
        return found

    def products_passed(self, start: int, products: set[int]) -> dict[int, int]:
        """Most products on any path from ``start`` to each op below it, the op included."""
        passed = {start: 0}
        for op in self.ops:
            before = [passed[p] for p in self.producers[op.id] if p in passed]
            if before and op.id != start:
                passed[op.id] = max(before) + (op.id in products)
        return passed

    def until_product(self, start: int, products: set[int]) -> set[int]:
        """Ops below ``start`` up to the next products, those included."""
        found: set[int] = set()
        todo = [start]
        while todo:
            new = [r for r in self.readers.get(todo.pop(), ()) if r not in found]
            found.update(new)
            todo += [r for r in new if r not in products]
        return found


def _scope(ops: Iterable[Op], path: str | None, blocks: list[str]) -> None:
    """Label the ops of one layer (``path``), or of what lies between layers (None)."""
    walk = _Walk.of(ops)
    products = {op.id for op in walk.ops if functional(op.name) in _GEMMS}
    mixing = _mixing(walk.ops, products)
    owners: dict[str, str] = {}
    for number, kind in mixing.items():
        owner = _owner(walk, number, path, products)
        if owner is not None and owners.get(owner) != ATTENTION:
            owners[owner] = kind
    for op in walk.ops:
        owner = _holder(op.path, owners)
        if owner is not None and not blocks[op.id]:
            blocks[op.id] = owners[owner]
    for number, kind in mixing.items():
        _feeding_and_projection(walk, number, products, kind, path, blocks)
    routed = any(op.name == "hymell.experts" for op in walk.ops)
    ffn = MOE if routed else FFN
    for number in products:
        blocks[number] = blocks[number] or ffn
    _spread(walk, path, blocks, ffn)


def _mixing(ops: tuple[Op, ...], products: set[int]) -> dict[int, str]:
    """Ops that mix tokens, with the block they make.

    Attention spelled as softmax between two products of one module counts as well.
    """
    found: dict[int, str] = {}
    for op in ops:
        if op.name.startswith(_ATTENTION):
            found[op.id] = ATTENTION
        elif op.name.startswith(_MIXERS):
            found[op.id] = MIXER
        elif functional(op.name) in _SOFTMAX:
            around = [o.id for o in ops if o.path == op.path and o.id in products]
            if around and min(around) < op.id < max(around):
                found[op.id] = ATTENTION
    return found


def _owner(walk: _Walk, op: int, path: str | None, products: set[int]) -> str | None:
    """The outermost module below ``path`` that holds the mixing op and nothing but its block.

    Such a module has no product more than one step after the mixing op (the projection), and none
    that neither feeds it nor meets its result before that projection (a gate).
    """
    by_id = {o.id: o for o in walk.ops}
    inner = by_id[op].path
    if inner == (path or "") or (path is None and not inner):
        return None
    above = walk.above(op)
    passed = walk.products_passed(op, products)
    below = walk.until_product(op, products)
    owner = inner
    parent = inner.rpartition(".")[0]
    while parent and parent != path and (not path or parent.startswith(path)):
        held = [p for p in products if _within(by_id[p].path, parent)]
        far = any(passed.get(p, 0) > 1 or by_id[p].name == "hymell.experts" for p in held)
        apart = any(
            p not in above and p not in passed and not walk.until_product(p, products) & below
            for p in held
        )
        if far or apart:
            break
        owner, parent = parent, parent.rpartition(".")[0]
    return owner


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(module + ".")


def _holder(path: str, owners: dict[str, str]) -> str | None:
    """The innermost owner around a path."""
    while path:
        if path in owners:
            return path
        path = path.rpartition(".")[0]
    return None


def _feeding_and_projection(
    walk: _Walk, op: int, products: set[int], kind: str, path: str | None, blocks: list[str]
) -> None:
    """Label the products around a mixing op that its own module does not hold.

    The first ones after it project its result; those before it count only where the layer itself
    runs the mixing op, since its module holds them otherwise.
    """
    in_layer = not blocks[op]
    blocks[op] = blocks[op] or kind
    by_id = {o.id: o for o in walk.ops}
    found: set[int] = set()
    todo = [op]
    while todo:
        for reader in walk.readers.get(todo.pop(), ()):
            if reader in found:
                continue
            found.add(reader)
            if reader in products:
                blocks[reader] = blocks[reader] or kind
            elif functional(by_id[reader].name) not in ("aten.add", "aten.native_layer_norm"):
                todo.append(reader)
    if in_layer:
        for number in walk.above(op) & products:
            blocks[number] = blocks[number] or kind


def _spread(walk: _Walk, path: str | None, blocks: list[str], ffn: str) -> None:
    """Give the rest (norms, residual adds, casts) the block of the op they serve.

    An op in a sub-module (a norm) serves what reads it; one in the layer's own forward (a residual
    add) finishes what it reads.
    """
    ops = walk.ops
    stream = _residual_stream(walk)
    served = {op.id: blocks[op.id] for op in ops}
    for op in reversed(ops):
        after = (served[r] for r in walk.readers.get(op.id, ()) if served[r])
        served[op.id] = served[op.id] or next(after, "")
    finished = {op.id: blocks[op.id] for op in ops}
    direct = {op.id: blocks[op.id] for op in ops}
    for op in ops:
        before = [finished[p] for p in walk.producers[op.id] if finished[p]]
        finished[op.id] = finished[op.id] or (before[-1] if before else "")
        nearest = [direct[p] for p in walk.producers[op.id] if direct[p] and p not in stream]
        if op.path != path and not direct[op.id] and nearest:
            direct[op.id] = nearest[-1]
    previous = next((blocks[op.id] for op in ops if blocks[op.id]), ffn)
    leading = [op for op in ops if walk.readers.get(op.id) and not finished[op.id]]
    waiting = {op.id for op in leading}
    for op in ops:
        if blocks[op.id] or op.id in waiting:
            continue
        if op.path == path:
            label = finished[op.id] or served[op.id]
        else:
            # A norm after a block's projection belongs to it; one after a residual add to the next.
            label = direct[op.id] or served[op.id] or finished[op.id]
        label = label or (previous if path is not None else "")
        blocks[op.id] = label
        previous = label or previous
    for op in reversed(leading):
        # What no block feeds (the first norm, a table, 1 + weight) goes with its first reader.
        blocks[op.id] = blocks[op.id] or blocks[walk.readers[op.id][0]]


def _residual_stream(walk: _Walk) -> set[int]:
    """Additions to what came into the scope: the ends of residual branches."""
    stream: set[int] = set()
    for op in walk.ops:
        if functional(op.name) == "aten.add" and any(
            (o.kind == "op" and (o.op in stream or o.op not in walk.producers)) or o.kind == "input"
            for o in op.inputs
        ):
            stream.add(op.id)
    return stream
