"""Groups of ops become kernels: bytes across the group's boundary, a name, a primitive."""

from __future__ import annotations

from collections.abc import Iterable

from hymell.dims import Size, simplify
from hymell.op_registry.dataflow import Base, at_sample
from hymell.op_registry.kernels import Kernel, LiveTensor, Lowered
from hymell.op_registry.memory_ops import spec_bytes, total
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.pointwise import ACTIVATIONS
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gather,
    Gemm,
    GroupedGemm,
    Memory,
    Primitive,
    RowReduce,
    Scan,
    Unknown,
)
from hymell.op_registry.registry import functional

#: Device launches behind one composite: routing, permutation, two grouped GEMMs, activation, sum.
_EXPERTS_LAUNCHES = 6


def emit(plan: Plan) -> Lowered:
    """Kernels in launch order, and the activations that live between them."""
    readers = outside_readers(plan)
    kernels = tuple(_kernel(plan, group, readers) for group in plan.groups)
    return Lowered(kernels, _live(plan, readers))


def outside_readers(plan: Plan) -> dict[Base, list[int]]:
    """Ids of the live ops that read each memory, layer boundaries included."""
    readers: dict[Base, list[int]] = {}
    live = {op for group in plan.groups for op in group.ops}
    for op in plan.ops:
        if op.id in live:
            for read in plan.flow.reads[op.id]:
                readers.setdefault(read.base, []).append(op.id)
    for layer in plan.region.layers:
        for feed in layer.feeds:
            for (producer, index), _ in feed.producers:
                if producer >= 0:
                    base = plan.flow.bases[producer, index]
                    readers.setdefault(base, []).append(layer.start)
    return readers


def _kernel(plan: Plan, group: Group, readers: dict[Base, list[int]]) -> Kernel:
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
    if isinstance(primitive, Experts):
        return _EXPERTS_LAUNCHES
    if isinstance(primitive, Scan) and primitive.chunk > 1:
        return 5
    return 1


def boundary(
    plan: Plan, group: Group, readers: dict[Base, list[int]]
) -> tuple[Size, Size, Size, Size]:
    """(bytes read, bytes written, weight bytes in what is read, elements written) of a group.

    A tensor seen through several views is read once; a result that nothing outside reads stays in
    registers, unless the group has no other result.
    """
    members = set(group.ops)
    made = {
        plan.flow.bases[op, index] for op in group.ops for index in range(len(plan.ops[op].outputs))
    }
    seen: dict[Base, list[Size]] = {}
    for op in group.ops:
        if plan.ops[op].name in ("hymell.kv_append", "hymell.state_update"):
            continue
        for read in plan.flow.reads[op]:
            outside = read.base not in made or _mutated(plan, read.base, members)
            if outside and read.base not in group.carried:
                sizes = seen.setdefault(read.base, [])
                if spec_bytes(read.spec) not in sizes:
                    sizes.append(spec_bytes(read.spec))
    read_bytes: list[Size] = []
    weight_bytes: list[Size] = []
    for base, sizes in seen.items():
        seen_bytes = total(sizes)
        largest = max(sizes, key=at_sample)
        whole = _stored_bytes(plan, base, largest)
        size = whole if at_sample(whole) < at_sample(seen_bytes) else seen_bytes
        read_bytes.append(size)
        if base[0] == "weight":
            weight_bytes.append(size)
    written: list[Size] = []
    elements: list[Size] = []
    unread: list[tuple[Size, Size]] = []
    for op in group.ops:
        node = plan.ops[op]
        if node.name in ("hymell.kv_append", "hymell.state_update"):
            primitive = plan.primitives[op]
            assert isinstance(primitive, Memory)
            written.append(primitive.bytes_written)
            elements.append(primitive.elements)
            read_bytes.extend(_appended(plan, op, made))
            continue
        for index, spec in enumerate(node.outputs):
            base = plan.flow.bases[op, index]
            read_outside = any(reader not in members for reader in readers.get(base, ()))
            if read_outside or (base[0] != "op" or base[1] != op):
                written.append(spec_bytes(spec))
                elements.append(spec.numel)
            elif not readers.get(base):
                unread.append((spec_bytes(spec), spec.numel))
    if not written:
        written = [size for size, _ in unread]
        elements = [count for _, count in unread]
    return total(read_bytes), total(written), total(weight_bytes), total(elements)


def _mutated(plan: Plan, base: Base, members: set[int]) -> bool:
    """True for memory that the group writes in place but did not make."""
    return base[0] != "op" or base[1] not in members


def _stored_bytes(plan: Plan, base: Base, otherwise: Size) -> Size:
    if base[0] != "op":
        return otherwise
    return spec_bytes(plan.ops[base[1]].outputs[base[2]])


def _appended(plan: Plan, op: int, made: set[Base]) -> Iterable[Size]:
    """New keys and values that come from outside the group (the values, straight from a GEMM)."""
    fresh = [o for o in plan.ops[op].inputs if o.kind != "state"][:2]
    for operand in fresh:
        if plan.flow.resolve(operand) not in made:
            yield spec_bytes(operand.spec)


def _fused(plan: Plan, group: Group, readers: dict[Base, list[int]]) -> Primitive:
    read, written, weights, elements = boundary(plan, group, readers)
    flops = total(
        simplify(p.vector_flops) for op in group.ops if (p := plan.primitives[op]) is not None
    )
    rows = [
        p
        for op in group.ops
        if isinstance(p := plan.primitives[op], RowReduce) and p.role != "reduce"
    ] or [p for op in group.ops if isinstance(p := plan.primitives[op], RowReduce)]
    appends = any(plan.ops[op].name == "hymell.kv_append" for op in group.ops)
    if rows and not appends:
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
        leaves = dict.fromkeys(plan.ops[op].path.rpartition(".")[2] or "gemm" for op in group.ops)
        return "gemm " + "+".join(leaves)
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
    if len(group.ops) == 1 and not group.carried:
        return functional(plan.ops[group.ops[0]].name).rpartition(".")[2].removeprefix("native_")
    return _role(plan, group)


def _role(plan: Plan, group: Group) -> str:
    """What a fused memory-bound kernel is for, from the ops in it."""
    names = [functional(plan.ops[op].name) for op in group.ops]
    held = set(names)
    appends = "hymell.kv_append" in held
    norm = _norm(held)
    words: list[str] = []
    if appends:
        words += ["qk_norm"] if norm else []
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


def _norm(held: set[str]) -> str | None:
    if held & {"aten.native_layer_norm", "aten.layer_norm"}:
        return "layer_norm"
    if held & {"aten.native_group_norm", "aten.native_batch_norm"}:
        return "group_norm"
    if held & {"aten._fused_rms_norm", "aten.rms_norm"}:
        return "rms_norm"
    if held & {"aten.rsqrt", "aten.sqrt", "aten.linalg_vector_norm"} and held & {
        "aten.mean",
        "aten.var",
        "aten.var_mean",
        "aten.sum",
        "aten.linalg_vector_norm",
    }:
        centred = held & {"aten.var", "aten.var_mean"}
        return "layer_norm" if centred else "rms_norm"
    return None


def _live(plan: Plan, readers: dict[Base, list[int]]) -> tuple[LiveTensor, ...]:
    """From the kernel that makes a tensor to the last that reads it."""
    position = {op: index for index, group in enumerate(plan.groups) for op in group.ops}
    live: list[LiveTensor] = []
    for index, group in enumerate(plan.groups):
        members = set(group.ops)
        for op in group.ops:
            if plan.ops[op].name in ("hymell.kv_append", "hymell.state_update"):
                continue
            for output, spec in enumerate(plan.ops[op].outputs):
                base = plan.flow.bases[op, output]
                outside = [
                    position[reader]
                    for reader in readers.get(base, ())
                    if reader in position and reader not in members
                ]
                if base[1] == op and outside:
                    live.append(LiveTensor(spec_bytes(spec), index, max(index, *outside)))
                elif base[1] == op and not readers.get(base):
                    live.append(LiveTensor(spec_bytes(spec), index, index))
    return tuple(live)
