"""What one of several GPUs runs: its part of a region, and the messages that tie it to the others.

A GPU of `Parallel.tp` runs the same ops on smaller tensors (`sharding`), so that its kernels follow
from its region as those of a smaller model would. After products split by rows, and after routed
experts, partial results are added up (all-reduce); logits are collected (all-gather). Where each
GPU has its own part of the batch (`Parallel.ep` beside tp 1), tokens travel to their experts and
back (all-to-all). Stages of a pipeline hand the residual stream on (send and receive).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hymell.dims import B, Dim, L, S, Size, simplify
from hymell.errors import HymellError
from hymell.graph import ModelFacts, Op, Region, StateSpec, TensorSpec
from hymell.op_registry.blocks import MOE, assign
from hymell.op_registry.kernels import Kernel, LiveTensor, Lowered
from hymell.op_registry.memory_ops import numel, spec_bytes, times
from hymell.op_registry.parts import Split, scaled
from hymell.op_registry.plan import Plan, start
from hymell.op_registry.primitives import Collective, Gemm
from hymell.op_registry.registry import functional
from hymell.op_registry.sharding import residual_stream, split
from hymell.workload import SINGLE, Parallel

_EXPERTS = "hymell.experts"

#: A statistic of a norm over split rows is exchanged in fp32.
_STATISTIC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Message:
    """An exchange after the kernel of ``op`` (before it: ``ahead``); ``size`` in bytes.

    ``times`` replaces the kernel's repeats where it is not 0.
    """

    op: int
    collective: str
    size: Size
    n_gpus: int
    dtype: str
    ahead: bool = False
    times: int = 0


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU of a deployment: its region, its messages, its part of each weight by name.

    ``facts`` are those of the whole model; ``whole`` names products that every GPU runs in full.
    """

    region: Region
    facts: ModelFacts
    messages: tuple[Message, ...] = ()
    weights: Mapping[str, Fraction] = field(default_factory=dict)
    whole: tuple[str, ...] = ()


def rank_of(region: Region, facts: ModelFacts, parallel: Parallel) -> Rank:
    """What each GPU of one stage runs of a region; the stages' GPUs run it one after another.

    Raises HymellError, with the name, for what cannot be split.
    """
    if parallel == SINGLE:
        return Rank(region, facts)
    _check(region, facts, parallel)
    plan = start(region, facts, assign(region))
    found = split(plan, parallel.tp) if parallel.tp > 1 else Split()
    for op in region.ops:
        if op.name == _EXPERTS:
            _split_experts(op, facts, parallel, found)
    ops = tuple(_part_of_op(op, plan, found, parallel) for op in region.ops)
    state = tuple(_part_of_state(entry, region, found, parallel) for entry in region.state)
    messages = tuple(_messages(plan, found, ops, parallel))
    whole = dict.fromkeys(
        _leaf(op.path)
        for op in region.ops
        if _is_product(plan, op) and all(found.of(op, p) == 1 for p in range(len(op.inputs)))
    )
    return Rank(replace(region, ops=ops, state=state), facts, messages, found.weights, tuple(whole))


def _leaf(path: str) -> str:
    """The last part of a module's path that is no index, and what follows it."""
    parts = path.split(".")
    named = max((i for i, part in enumerate(parts) if not part.isdigit()), default=0)
    return ".".join(parts[named:])


def layer_count(region: Region) -> int:
    """Layers of a region, repeats counted."""
    return sum(len(layer.paths) for layer in region.layers)


def _check(region: Region, facts: ModelFacts, parallel: Parallel) -> None:
    if parallel.ep > 1 and not any(op.name == _EXPERTS for op in region.ops):
        raise HymellError(
            f"{facts.name} has no routed experts that hymell could spread; leave out --ep"
        )
    if parallel.pp > 1:
        if {"encoder", "decoder"} <= set(facts.parts):
            raise HymellError(
                f"{facts.name} has an encoder and a decoder, not one chain of layers; "
                "leave out --pp"
            )
        if parallel.pp > layer_count(region):
            raise HymellError(
                f"{facts.name} has {layer_count(region)} layers, too few for "
                f"{parallel.pp} stages; choose a smaller --pp"
            )


def _split_experts(op: Op, facts: ModelFacts, parallel: Parallel, found: Split) -> None:
    """Note what one GPU holds of the experts' weights."""
    experts, width = op.attrs["experts"], op.attrs["intermediate"]
    for count, by, what in (
        (experts, parallel.ep, "experts"),
        (width, parallel.experts_width, "columns of an expert"),
    ):
        if count % by:
            raise HymellError(
                f"{facts.name}: its {count} {what} ({op.path}) do not divide by {by}; "
                "choose another --tp or --ep"
            )
    for operand in op.inputs:
        if operand.kind == "weight":
            # The bias of the last product is added once, by every GPU that holds the expert.
            bias = len(operand.spec.shape) == 2 and operand.spec.shape[1] == op.attrs["hidden"]
            by = parallel.ep * (1 if bias else parallel.experts_width)
            found.weights[operand.name] = Fraction(1, by)


def _part_of_op(op: Op, plan: Plan, found: Split, parallel: Parallel) -> Op:
    """The op on one GPU."""
    axes = _product_axes(op, plan, found)
    inputs = tuple(
        replace(
            operand,
            spec=_in_parts(
                scaled(operand.spec, found.of(op, place), found.heads, axes.get(place)),
                parallel.batch_parts,
            ),
        )
        for place, operand in enumerate(op.inputs)
    )
    outputs = tuple(
        _in_parts(
            scaled(spec, found.out(op, index), found.heads, -1 if axes else None),
            parallel.batch_parts,
        )
        for index, spec in enumerate(op.outputs)
    )
    return replace(op, inputs=inputs, outputs=outputs, attrs=_part_of_attrs(op, found, parallel))


def _is_product(plan: Plan, op: Op) -> bool:
    """True for a product of a weight."""
    primitive = plan.primitives[op.id]
    return isinstance(primitive, Gemm) and primitive.b_is_weight


def _product_axes(op: Op, plan: Plan, found: Split) -> dict[int, int]:
    """The axis of each operand of a product of a weight that is split."""
    if not _is_product(plan, op):
        return {}
    rows = op.id in found.partial
    turned = functional(op.name) == "aten.linear"
    axes: dict[int, int] = {}
    for place, operand in enumerate(op.inputs):
        matrix = plan.flow.weight_operand(op, place) is not None and len(operand.spec.shape) > 1
        # (rows, columns), or (columns, rows) where the product turns its weight around.
        axes[place] = -2 if matrix and rows != turned else -1
    return axes


def _in_parts(spec: TensorSpec, parts: int) -> TensorSpec:
    """A tensor of one of ``parts`` equal parts of the batch."""
    if parts == 1:
        return spec
    return replace(spec, shape=tuple(_of_batch(size, parts) for size in spec.shape))


def _of_batch(size: Size, parts: int) -> Size:
    if not isinstance(size, Dim) or not size.degree("B"):
        return size
    part: Size = size(B * Fraction(1, parts), S, L)
    return part


def _part_of_attrs(op: Op, found: Split, parallel: Parallel) -> Mapping[str, Any]:
    """Counts that an op states beside its shapes."""
    attrs = dict(op.attrs)
    if op.name == _EXPERTS:
        attrs["intermediate"] //= parallel.experts_width
        attrs["ranks"] = parallel.ep
        # All of a micro-batch: what other GPUs send is among it.
        attrs["tokens"] = _of_batch(attrs["tokens"], parallel.microbatches)
        return attrs
    held = found.out(op, 0)
    for name in ("heads", "channels", "state_elements"):
        if held != 1 and name in attrs and op.name.startswith("hymell."):
            attrs[name] = int(attrs[name] * held)
    return attrs


def _part_of_state(entry: StateSpec, region: Region, found: Split, parallel: Parallel) -> StateSpec:
    """The cache that one GPU keeps, all its micro-batches together."""
    held = {
        found.of(op, place)
        for op in region.ops
        for place, operand in enumerate(op.inputs)
        if operand.kind == "state" and operand.spec == entry.spec
    }
    spec = scaled(entry.spec, max(held, default=Fraction(1)), found.heads)
    return replace(entry, spec=_in_parts(spec, parallel.replicas))


def _messages(
    plan: Plan, found: Split, ops: tuple[Op, ...], parallel: Parallel
) -> Iterator[Message]:
    """Every exchange of a step, in the order of the ops."""
    tp = parallel.tp
    for group in _sums(plan, found, parallel):
        out = ops[group[-1]].outputs[0]
        yield Message(group[-1], "all_reduce", spec_bytes(out), tp, out.dtype)
    for number in sorted(found.statistics):
        rows = numel(ops[number].outputs[-1])
        yield Message(number, "all_reduce", times(rows, _STATISTIC_BYTES), tp, "float32")
    for number in sorted(found.gathered):
        out = ops[number].outputs[0]
        yield Message(number, "all_gather", times(spec_bytes(out), tp), tp, out.dtype)
    if parallel.replicas > 1:
        for op in ops:
            if op.name == _EXPERTS:
                yield from _journeys(op, parallel)
    if parallel.pp > 1:
        last = plan.region.layers[-1]
        stream = [n for n in residual_stream(plan) if last.start <= n < last.stop]
        end = max(stream, default=last.stop - 1)
        out = ops[end].outputs[0]
        yield Message(end, "send_recv", spec_bytes(out), 2, out.dtype, times=parallel.pp - 1)


def _sums(plan: Plan, found: Split, parallel: Parallel) -> Iterator[tuple[int, ...]]:
    """Ops whose partial results are added up together: routed and shared experts of a layer are."""
    together: dict[tuple[int, int], list[int]] = {}
    partial = set(found.partial)
    if parallel.tp > 1:
        partial |= {op.id for op in plan.ops if op.name == _EXPERTS}
    for number in sorted(partial):
        moe = plan.blocks[number] == MOE
        together.setdefault((plan.layer_of[number], -1 if moe else number), []).append(number)
    yield from (tuple(group) for group in together.values())


def _journeys(op: Op, parallel: Parallel) -> Iterator[Message]:
    """Tokens to their experts and back; one that chose several experts of a GPU travels once."""
    ep, chosen = parallel.ep, op.attrs["top_k"]
    reached = ep * (1 - Fraction(ep - 1, ep) ** chosen)
    for operand, ahead in ((op.inputs[0].spec, True), (op.outputs[0], False)):
        size = simplify(spec_bytes(operand) * reached)
        yield Message(op.id, "all_to_all", size, ep, operand.dtype, ahead)


def with_messages(lowered: Lowered, rank: Rank, parallel: Parallel) -> Lowered:
    """The kernels with the exchanges between them, each as often as the micro-batches need it."""
    if parallel == SINGLE:
        return lowered
    place = {op: i for i, kernel in enumerate(lowered.kernels) for op in kernel.ops}
    before: dict[int, list[Kernel]] = {}
    after: dict[int, list[Kernel]] = {}
    for message in rank.messages:
        index = place[message.op]
        host = lowered.kernels[index]
        (before if message.ahead else after).setdefault(index, []).append(_exchange(message, host))
    kernels: list[Kernel] = []
    moved: list[int] = []
    for index, kernel in enumerate(lowered.kernels):
        kernels += before.get(index, ())
        moved.append(len(kernels))
        kernels += [kernel, *after.get(index, ())]
    live = tuple(LiveTensor(t.bytes, moved[t.born], moved[t.dies]) for t in lowered.live)
    if parallel.microbatches > 1:
        kernels = [replace(k, repeat=k.repeat * parallel.microbatches) for k in kernels]
    return Lowered(tuple(kernels), live)


def _exchange(message: Message, host: Kernel) -> Kernel:
    return Kernel(
        name=message.collective,
        primitive=Collective(message.collective, message.size, message.n_gpus, message.dtype),
        block=host.block,
        path=host.path,
        layer=host.layer,
        part=host.part,
        repeat=message.times or host.repeat,
    )
