"""Groups of ops become kernels: bytes across the group's boundary, a name, a primitive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from hymell.dims import Size
from hymell.graph import Op, Operand
from hymell.op_registry.dataflow import Base, at_sample
from hymell.op_registry.kernels import Kernel, LiveTensor, Lowered
from hymell.op_registry.memory_ops import numel, spec_bytes, times, total
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.pointwise import ACTIVATIONS
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gather,
    Gemm,
    GroupedGemm,
    Memory,
    Preparation,
    Primitive,
    RowReduce,
    Scan,
    Unknown,
)
from hymell.op_registry.registry import functional

_APPENDS = ("hymell.kv_append", "hymell.state_update")

#: PyTorch's names for ops, where a plainer one is usual.
_PLAIN_WORDS = {"_to_copy": "cast", "clone": "copy", "constant_pad_nd": "pad"}

#: A chunked scan: within chunks, states of chunks, across chunks, outputs (GLA, arXiv 2312.06635,
#: and Mamba-2's SSD kernels take four or five).
_CHUNKED_SCAN_LAUNCHES = 5


def emit(plan: Plan) -> Lowered:
    """Kernels in launch order, and the activations that live between them."""
    readers = Readers.of(plan)
    kernels = tuple(_kernel(plan, group, readers) for group in plan.groups)
    return Lowered(kernels, _live(plan, readers))


@dataclass(frozen=True, slots=True)
class Readers:
    """Ids of the live ops that read each memory.

    ``direct``: ops that name it as an input; ``fed``: ops that read it as the output of the layer
    before theirs (see `hymell.graph.Feed`).
    """

    direct: Mapping[Base, list[int]]
    fed: Mapping[Base, list[int]]

    @staticmethod
    def of(plan: Plan) -> Readers:
        direct: dict[Base, list[int]] = {}
        for op in sorted({op for group in plan.groups for op in group.ops}):
            for read in plan.flow.reads[op]:
                direct.setdefault(read.base, []).append(op)
        fed: dict[Base, list[int]] = {}
        for layer in plan.region.layers:
            for feed in layer.feeds:
                if feed.op < 0:
                    continue
                entry = direct.get(plan.flow.bases[feed.op, feed.index], ())
                inside = [op for op in entry if layer.start <= op < layer.stop]
                for (producer, index), _ in feed.producers:
                    if producer >= 0:
                        fed.setdefault(plan.flow.bases[producer, index], []).extend(inside)
        return Readers(direct, fed)

    def beyond(self, plan: Plan, group: Group, op: int, base: Base) -> list[int]:
        """The ops outside ``group`` that read what its op ``op`` leaves in ``base``."""
        if base in group.given:
            # Other readers in the group's layer; its handed ops ran in the layer before.
            own = set(group.ops) - group.handed
            return [
                reader
                for carried in group.carried
                for reader in self.direct.get(carried, ())
                if plan.layer_of[reader] == group.layer and reader not in own
            ]
        # What was read before an in-place op wrote there is not its result.
        found = [reader for reader in self.direct.get(base, ()) if reader > op]
        found += self.fed.get(base, ())
        return [reader for reader in found if reader not in group.ops]


def _kernel(plan: Plan, group: Group, readers: Readers) -> Kernel:
    main = _main_op(plan, group)
    op = plan.ops[main]
    primitive = group.primitive
    if primitive is None:
        alone = plan.primitives[main]
        assert alone is not None
        if len(group.ops) == 1 and not group.carried:
            primitive = alone
        else:
            primitive = _fused(plan, group, readers)
    if isinstance(primitive, Memory) and _kv_appends(plan, group):
        primitive = replace(primitive, prepares=_preparation(plan, group))
    layer = plan.region.layers[group.layer].module if group.layer >= 0 else ""
    return Kernel(
        name=group.name or _name(plan, group, primitive),
        primitive=primitive,
        block=plan.blocks[main],
        path=op.path,
        layer=layer,
        part=op.part,
        repeat=group.repeat,
        launches=max(group.launches, _launches(primitive)),
        ops=group.ops,
        understood=not plan.unregistered.intersection(group.ops),
    )


def _main_op(plan: Plan, group: Group) -> int:
    """The op that a kernel is known by: its anchor, else its largest reduction, else its last."""
    for op in group.ops:
        if plan.is_anchor(op):
            return op
    reductions = [op for op in group.ops if isinstance(plan.primitives[op], RowReduce)]
    if reductions:
        return max(reductions, key=lambda op: _row_elements(plan.primitives[op]))
    appends = [op for op in group.ops if plan.ops[op].name.startswith("hymell.")]
    return appends[0] if appends else group.ops[-1]


def _row_elements(primitive: Primitive | None) -> float:
    assert isinstance(primitive, RowReduce)
    return at_sample(primitive.rows) * at_sample(primitive.cols)


def _launches(primitive: Primitive) -> int:
    if isinstance(primitive, Scan) and primitive.chunk > 1:
        return _CHUNKED_SCAN_LAUNCHES
    return 1


def boundary(plan: Plan, group: Group, readers: Readers) -> tuple[Size, Size, Size, Size]:
    """(bytes read, bytes written, weight bytes in what is read, elements written) of a group.

    A tensor seen through several views is read once; a result that nothing outside reads stays in
    registers, unless the group has no other result.
    """
    read, weights = _read(plan, group)
    written: list[Size] = []
    elements: list[Size] = []
    unread: list[tuple[Size, Size]] = []
    for op in group.ops:
        node = plan.ops[op]
        if node.name in _APPENDS:
            primitive = plan.primitives[op]
            assert isinstance(primitive, Memory)
            written.append(primitive.bytes_written)
            elements.append(primitive.elements)
            continue
        for index, spec in enumerate(node.outputs):
            base = plan.flow.bases[op, index]
            # Kernels that add and normalise write the sum whether it is read again or not.
            kept = base in group.given or _kept(plan, op, base)
            if kept or readers.beyond(plan, group, op, base):
                written.append(spec_bytes(spec))
                elements.append(numel(spec))
            elif not readers.direct.get(base):
                unread.append((spec_bytes(spec), numel(spec)))
    if not written:
        written = [size for size, _ in unread]
        elements = [count for _, count in unread]
    return read, total(written), weights, total(elements)


def _read(plan: Plan, group: Group) -> tuple[Size, Size]:
    """(bytes, weight bytes in them) that a group reads from outside."""
    made = _made(plan, group)
    members = set(group.ops)
    seen: dict[Base, list[Size]] = {}
    appended: list[Size] = []
    for op in group.ops:
        if plan.ops[op].name in _APPENDS:
            appended += _appended(plan, op, made)
            continue
        for read in plan.flow.reads[op]:
            if read.base in made and not _mutated(read.base, members):
                continue
            # The tail of the layer before reads its own layer's input from memory all the same.
            if read.base in group.carried and op not in group.handed:
                continue
            sizes = seen.setdefault(read.base, [])
            if spec_bytes(read.spec) not in sizes:
                sizes.append(spec_bytes(read.spec))
    read_bytes: list[Size] = []
    weight_bytes: list[Size] = []
    for base, sizes in seen.items():
        size = sizes[0]
        if len(sizes) > 1 or base[0] == "op":
            together = total(sizes)
            whole = _stored_bytes(plan, base, max(sizes, key=at_sample))
            size = whole if at_sample(whole) < at_sample(together) else together
        read_bytes.append(size)
        if base[0] == "weight":
            weight_bytes.append(size)
    return total([*read_bytes, *appended]), total(weight_bytes)


def _made(plan: Plan, group: Group) -> set[Base]:
    """Memories that a group's ops leave their results in."""
    return {
        plan.flow.bases[op, index] for op in group.ops for index in range(len(plan.ops[op].outputs))
    }


def _kept(plan: Plan, op: int, base: Base) -> bool:
    """True for memory that outlives the layer of the op that writes it in place."""
    return base[0] != "op" or plan.layer_of[base[1]] != plan.layer_of[op]


def _mutated(base: Base, members: set[int]) -> bool:
    """True for memory that the group writes in place but did not make."""
    return base[0] != "op" or base[1] not in members


def _stored_bytes(plan: Plan, base: Base, otherwise: Size) -> Size:
    if base[0] != "op":
        return otherwise
    return spec_bytes(plan.ops[base[1]].outputs[base[2]])


def _appended(plan: Plan, op: int, made: set[Base]) -> Iterable[Size]:
    """New keys and values that come from outside the group (the values, straight from a GEMM)."""
    for operand in _fresh(plan, op):
        if plan.flow.resolve(operand) not in made:
            yield spec_bytes(operand.spec)


def _fresh(plan: Plan, op: int) -> list[Operand]:
    """The new keys and values of an append."""
    return [operand for operand in plan.ops[op].inputs if operand.kind != "state"][:2]


def _kv_appends(plan: Plan, group: Group) -> list[int]:
    return [op for op in group.ops if plan.ops[op].name == "hymell.kv_append"]


def _preparation(plan: Plan, group: Group) -> Preparation:
    """What a kernel that appends to the KV cache does for the attention after it."""
    appends = _kv_appends(plan, group)
    made = _made(plan, group)
    copied = total(size for op in appends for size in _appended(plan, op, made))
    new = _fresh(plan, appends[0])[0].spec.shape
    # (batch, heads, tokens, width), or (batch, tokens, width) of keys without heads.
    rows = times(new[0], new[2]) if len(new) == 4 else reduce(times, new[:-1])
    # What is read and written; one output: keys of an index, which attention does not read.
    indexed = len(plan.ops[appends[0]].outputs) < 2
    return Preparation(None if indexed else _attention_after(plan, group), rows, times(copied, 2))


def _attention_after(plan: Plan, group: Group) -> Attention | None:
    """The next attention of the same layer."""
    for other in plan.groups[plan.groups.index(group) + 1 :]:
        primitive = other.primitive or plan.primitives[other.ops[0]]
        if other.layer == group.layer and isinstance(primitive, Attention):
            return primitive
    return None


def _fused(plan: Plan, group: Group, readers: Readers) -> Primitive:
    read, written, weights, elements = boundary(plan, group, readers)
    flops = total(p.vector_flops for op in group.ops if (p := plan.primitives[op]) is not None)
    rows = [
        p
        for op in group.ops
        if isinstance(p := plan.primitives[op], RowReduce) and p.role != "reduce"
    ] or [p for op in group.ops if isinstance(p := plan.primitives[op], RowReduce)]
    if rows and not _kv_appends(plan, group):
        main = max(rows, key=_row_elements)
        return RowReduce(
            role=_role(plan, group),
            rows=main.rows,
            cols=main.cols,
            bytes_read=read,
            bytes_written=written,
            weight_bytes=weights,
            vector_flops=flops,
        )
    return Memory(_role(plan, group), elements, read, written, weights, flops)


def _name(plan: Plan, group: Group, primitive: Primitive) -> str:
    if isinstance(primitive, Gemm | GroupedGemm):
        products = [op for op in group.ops if op in plan.anchors]
        return "gemm " + "+".join(dict.fromkeys(_leaf(plan, plan.ops[op]) for op in products))
    if isinstance(primitive, Attention):
        return "mla_attention" if primitive.latent else "attention"
    if isinstance(primitive, Experts):
        return "fused_moe"
    if isinstance(primitive, Scan):
        return f"{primitive.variant} scan"
    if isinstance(primitive, Unknown):
        return primitive.name
    if isinstance(primitive, Gather):
        return "embedding" if primitive.from_weight else "gather"
    anchors = [op for op in group.ops if op in plan.anchors]
    if len(anchors) == 1 or (len(group.ops) == 1 and not group.carried):
        op = anchors[0] if anchors else group.ops[0]
        short = functional(plan.ops[op].name).rpartition(".")[2].removeprefix("native_")
        return _PLAIN_WORDS.get(short, short)
    return _role(plan, group)


def _leaf(plan: Plan, op: Op) -> str:
    """The module that a product belongs to, by its weight where it uses another module's."""
    for position in range(len(op.inputs)):
        weight = plan.flow.weight_operand(op, position)
        holder, _, attribute = (weight.name if weight else "").rpartition(".")
        if holder.startswith(f"{op.path}."):
            return holder.rpartition(".")[2]
        if holder == op.path and attribute not in ("weight", "bias"):
            return attribute
    return op.path.rpartition(".")[2] or "gemm"


def _role(plan: Plan, group: Group) -> str:
    """What a fused memory-bound kernel is for, from the ops in it."""
    names = [functional(plan.ops[op].name) for op in group.ops]
    held = set(names)
    norm = _norm(plan, group, held)
    if "hymell.kv_append" in held:
        words = ["qk_norm"] if norm else []
        words += ["rope"] if held & {"aten.neg", "aten.cat", "aten.stack"} else []
        return "_".join([*words, "kv_append"])
    if "aten.topk" in held:
        return "topk_softmax" if "aten._softmax" in held else "topk"
    if "aten._softmax" in held:
        return "softmax"
    if norm:
        paths = {plan.ops[op].path for op in group.ops if _is_reduction(plan, op)}
        adds = any(
            name == "aten.add" and plan.ops[op].path not in paths
            for name, op in zip(names, group.ops, strict=True)
        )
        return f"add_{norm}" if adds or group.carried else norm
    return _element_wise(names)


def _element_wise(names: list[str]) -> str:
    """The role of a kernel without a reduction."""
    held = set(names)
    if "aten.tanh" in held and "aten.mul" in held:
        # x (1 + tanh(...)) is the tanh form of GELU; tanh(x / c) c bounds logits.
        return "gelu" if "aten.add" in held else "softcap"
    active = [name for name in names if name in ACTIVATIONS]
    if active:
        short = active[0].rpartition(".")[2]
        return f"{short}_and_mul" if "aten.mul" in held else short
    if "hymell.state_update" in held:
        return "state_update"
    if held <= {"aten.cat", "aten.clone", "aten._to_copy", "aten.copy", "aten.stack"}:
        return "copy"
    if held == {"aten.add"}:
        return "add"
    if "aten.neg" in held and "aten.cat" in held:
        return "rope"
    return "pointwise"


def _is_reduction(plan: Plan, op: int) -> bool:
    return isinstance(plan.primitives[op], RowReduce)


def _norm(plan: Plan, group: Group, held: set[str]) -> str | None:
    if held & {"aten.native_layer_norm", "aten.layer_norm"}:
        return "layer_norm"
    if held & {"aten.native_group_norm", "aten.native_batch_norm"}:
        return "group_norm"
    if held & {"aten._fused_rms_norm", "aten.rms_norm"}:
        return "rms_norm"
    if not held & {"aten.rsqrt", "aten.sqrt", "aten.linalg_vector_norm"}:
        return None
    if held & {"aten.var", "aten.var_mean"}:
        return "layer_norm"
    if not held & {"aten.mean", "aten.sum", "aten.linalg_vector_norm"}:
        return None
    # A norm written out takes a second mean where it subtracts the first.
    means = [op for op in group.ops if functional(plan.ops[op].name) == "aten.mean"]
    centred = len(means) > len({plan.ops[op].path for op in means}) and "aten.sub" in held
    return "layer_norm" if centred else "rms_norm"


def _live(plan: Plan, readers: Readers) -> tuple[LiveTensor, ...]:
    """From the kernel that makes a tensor to the last that reads it."""
    position = {op: index for index, group in enumerate(plan.groups) for op in group.ops}
    live: list[LiveTensor] = []
    for index, group in enumerate(plan.groups):
        for op in group.ops:
            if plan.ops[op].name in _APPENDS:
                continue
            for output, spec in enumerate(plan.ops[op].outputs):
                base = plan.flow.bases[op, output]
                if base[1] != op:
                    continue
                outside = [position[r] for r in readers.beyond(plan, group, op, base)]
                if outside or not readers.direct.get(base):
                    live.append(LiveTensor(spec_bytes(spec), index, max([index, *outside])))
    return tuple(live)
