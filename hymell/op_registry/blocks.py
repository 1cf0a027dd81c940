"""Which block of a transformer each op belongs to, found from what the modules contain.

A module whose own forward runs attention (or a scan) is an attention (or mixer) block with all it
holds; the GEMM that first takes its output is its projection. What is left of a layer is its ffn,
called moe when the layer routes experts. Ops before the first layer are embed, after the last head.
"""

from __future__ import annotations

from collections.abc import Iterable

from hymell.graph import Op, Region
from hymell.op_registry.registry import functional

ATTENTION, MIXER, FFN, MOE, EMBED, HEAD = "attention", "mixer", "ffn", "moe", "embed", "head"
BLOCKS = (EMBED, ATTENTION, MIXER, FFN, MOE, HEAD)

_GEMMS = frozenset(
    """
aten.mm aten.addmm aten.bmm aten.baddbmm aten.linear aten._grouped_mm aten.convolution
aten._scaled_mm hymell.experts
""".split()
)


def assign(region: Region) -> tuple[str, ...]:
    """The block of every op, by op id."""
    blocks = [""] * len(region.ops)
    for layer in region.layers:
        _layer(region.ops[layer.start : layer.stop], layer.path, blocks)
    loose = [op for op in region.ops if not blocks[op.id]]
    if not region.layers:
        _layer(loose, "", blocks)
        return tuple(blocks)
    for part in dict.fromkeys(op.part for op in region.ops):
        _outside(region, part, blocks)
    return tuple(blocks)


def _outside(region: Region, part: str, blocks: list[str]) -> None:
    """Embed before the part's first layer, head after its last; between layers, what precedes."""
    layers = [layer for layer in region.layers if region.ops[layer.start].part == part]
    inside = [(layer.start, layer.stop) for layer in layers if layer.stop > layer.start]
    first = min((start for start, _ in inside), default=len(region.ops))
    last = max((stop for _, stop in inside), default=0)
    loose = [op for op in region.ops if op.part == part and not blocks[op.id]]
    between = [op for op in loose if first <= op.id < last]
    _layer(between, None, blocks)
    for op in loose:
        if not blocks[op.id]:
            blocks[op.id] = EMBED if op.id < first or not inside else HEAD


def _layer(ops: Iterable[Op], path: str | None, blocks: list[str]) -> None:
    ops = list(ops)
    owners = _owners(ops)
    routed = any(op.name == "hymell.experts" for op in ops)
    ffn = MOE if routed else FFN
    for op in ops:
        owner = _owner_of(op.path, owners)
        # A layer whose own forward holds the attention owns only what feeds it, not its MLP.
        if owner is not None and owner != path:
            blocks[op.id] = owners[owner]
    labelled = {op.id: op for op in ops}
    for anchor in ops:
        if _composite(anchor):
            _projection(anchor, ops, blocks, owners.get(anchor.path, ATTENTION), path in owners)
    for op in ops:
        if not blocks[op.id] and functional(op.name) in _GEMMS:
            blocks[op.id] = ffn
    _spread(ops, labelled, path, blocks, ffn)


def _composite(op: Op) -> str | None:
    if op.name == "hymell.attention" or functional(op.name).startswith("aten._scaled_dot_product"):
        return ATTENTION
    if op.name.startswith("hymell.scan"):
        return MIXER
    return None


def _owners(ops: list[Op]) -> dict[str, str]:
    """Modules that run attention or a scan in their own forward, with the block they make.

    Attention spelled as softmax between two products counts as well.
    """
    owners: dict[str, str] = {}
    for op in ops:
        kind = _composite(op)
        if kind is None and functional(op.name) in ("aten._softmax", "aten._safe_softmax"):
            products = [o for o in ops if o.path == op.path and functional(o.name) in _GEMMS]
            before = any(o.id < op.id for o in products)
            kind = ATTENTION if before and any(o.id > op.id for o in products) else None
        if kind is not None and owners.get(op.path) != ATTENTION:
            owners[op.path] = kind
    return owners


def _owner_of(path: str, owners: dict[str, str]) -> str | None:
    while path:
        if path in owners:
            return path
        path = path.rpartition(".")[0]
    return "" if "" in owners and not path else None


def _projection(
    anchor: Op, ops: list[Op], blocks: list[str], block: str, inside_layer: bool
) -> None:
    """Label the GEMM that first takes the anchor's output; upstream GEMMs if the layer owns it."""
    blocks[anchor.id] = blocks[anchor.id] or block
    reached = {anchor.id}
    for op in ops:
        if op.id <= anchor.id or not any(o.kind == "op" and o.op in reached for o in op.inputs):
            continue
        if functional(op.name) in _GEMMS:
            blocks[op.id] = blocks[op.id] or block
        elif functional(op.name) not in ("aten.add", "aten.native_layer_norm"):
            reached.add(op.id)
    if not inside_layer:
        return
    needed = {anchor.id}
    for op in reversed(ops):
        if op.id in needed:
            needed |= {o.op for o in op.inputs if o.kind == "op"}
            if functional(op.name) in _GEMMS:
                blocks[op.id] = blocks[op.id] or block


def _spread(
    ops: list[Op], inside: dict[int, Op], path: str | None, blocks: list[str], ffn: str
) -> None:
    """Give the rest (norms, residual adds, casts) the block of the op they serve.

    An op in a sub-module (a norm) serves what reads it; one in the layer's own forward (a residual
    add) finishes what it reads.
    """
    todo = [op for op in ops if not blocks[op.id]]
    producers = {
        op.id: sorted({o.op for o in op.inputs if o.kind == "op" and o.op in inside}) for op in ops
    }
    readers: dict[int, list[int]] = {}
    for op in ops:
        for producer in producers[op.id]:
            readers.setdefault(producer, []).append(op.id)
    served = {op.id: blocks[op.id] for op in ops}
    for op in reversed(ops):
        after = [served[r] for r in readers.get(op.id, ()) if served[r]]
        served[op.id] = served[op.id] or (after[0] if after else "")
    finished = {op.id: blocks[op.id] for op in ops}
    for op in ops:
        before = [finished[p] for p in producers[op.id] if finished[p]]
        finished[op.id] = finished[op.id] or (before[-1] if before else "")
    direct = {op.id: blocks[op.id] for op in ops}
    for op in ops:
        before = [direct[p] for p in producers[op.id] if direct[p]]
        if op.path != path and not direct[op.id] and before:
            direct[op.id] = before[-1]
    previous = next((blocks[op.id] for op in ops if blocks[op.id]), ffn)
    for op in todo:
        if op.path == path:
            label = finished[op.id] or served[op.id]
        else:
            # A norm after a block's projection belongs to it; one after a residual add to the next.
            label = direct[op.id] or served[op.id] or finished[op.id]
        label = label or (previous if path is not None else "")
        blocks[op.id] = label
        previous = label or previous
