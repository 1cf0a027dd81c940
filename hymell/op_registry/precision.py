"""A region with other number formats than the checkpoint's."""

from __future__ import annotations

from dataclasses import replace

from hymell.dtypes import BITS
from hymell.graph import ModelFacts, Op, Operand, Region, StateSpec, TensorSpec
from hymell.op_registry.registry import functional
from hymell.op_registry.views import is_view
from hymell.workload import Precision

_MATMULS = frozenset(
    """
aten.mm aten.addmm aten.bmm aten.baddbmm aten.linear aten._grouped_mm hymell.experts
""".split()
)

#: Data-sheet row of GEMMs whose weights a user asks for in this format; absent: weight-only.
MATH_OF_WEIGHTS = {
    "float8_e4m3": "fp8",
    "float8_e5m2": "fp8",
    "float8_block128": "fp8",
    "mxfp8": "fp8",
    "int8": "int8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}


def apply(region: Region, facts: ModelFacts, precision: Precision) -> tuple[Region, ModelFacts]:
    """The region and facts with the formats that ``precision`` asks for.

    Weights of linear layers and experts take ``precision.weights``, except the output head, as
    engines leave it; embeddings and norms stay. A 16- or 32-bit ``precision.activations`` replaces
    the model's float format everywhere, quantised weights excepted.
    """
    if precision == Precision() and facts.kv_dtype is None:
        return region, facts
    ops = region.ops
    state = region.state
    if precision.activations and precision.activations != facts.dtype:
        old, new = facts.dtype, precision.activations
        ops = tuple(_recast(op, old, new) for op in ops)
        state = tuple(replace(s, spec=_spec(s.spec, old, new)) for s in state)
        facts = replace(facts, dtype=new)
    if precision.weights:
        ops = _requantise(ops, precision.weights, _last_linear(region))
        row = MATH_OF_WEIGHTS.get(precision.weights)
        facts = replace(facts, quantized_math={precision.weights: row} if row else {})
    kv = precision.kv or facts.kv_dtype
    if kv:
        state = tuple(_cache(entry, kv) for entry in state)
        ops = tuple(_keys(op, kv) for op in ops)
    return replace(region, ops=ops, state=state), facts


def _spec(spec: TensorSpec, old: str, new: str) -> TensorSpec:
    return replace(spec, dtype=new) if spec.dtype == old else spec


def _recast(op: Op, old: str, new: str) -> Op:
    return replace(
        op,
        inputs=tuple(replace(o, spec=_spec(o.spec, old, new)) for o in op.inputs),
        outputs=tuple(_spec(spec, old, new) for spec in op.outputs),
    )


def _requantise(ops: tuple[Op, ...], dtype: str, head: int) -> tuple[Op, ...]:
    """Change the stored format of the weights that matrix products read, through views."""
    chosen: set[tuple[int, int]] = set()
    for op in ops:
        if functional(op.name) not in _MATMULS or op.id == head:
            continue
        for position, operand in enumerate(op.inputs):
            reader, place, seen = op, position, operand
            while seen.kind == "op" and is_view(ops[seen.op].name) and ops[seen.op].inputs:
                reader, place = ops[seen.op], 0
                seen = reader.inputs[0]
            if seen.kind == "weight" and len(seen.spec.shape) >= 2:
                chosen.add((reader.id, place))
    return tuple(
        replace(
            op,
            inputs=tuple(
                _stored(o, dtype) if (op.id, i) in chosen else o for i, o in enumerate(op.inputs)
            ),
        )
        for op in ops
    )


def _stored(operand: Operand, dtype: str) -> Operand:
    return replace(operand, spec=replace(operand.spec, dtype=dtype))


def _last_linear(region: Region) -> int:
    """The output head: the last product outside every layer, -1 where there is none."""
    inside = [(layer.start, layer.stop) for layer in region.layers]
    loose = [
        op.id
        for op in region.ops
        if functional(op.name) in _MATMULS
        and not any(start <= op.id < stop for start, stop in inside)
        and (not inside or op.id >= max(stop for _, stop in inside))
    ]
    return loose[-1] if loose else -1


def _cache(entry: StateSpec, dtype: str) -> StateSpec:
    if entry.kind not in ("kv", "latent"):
        return entry
    return replace(entry, spec=replace(entry.spec, dtype=dtype))


def _keys(op: Op, dtype: str) -> Op:
    """Attention reads keys and values in the cache's format; queries keep theirs."""
    if op.name == "hymell.kv_append":
        outputs = tuple(replace(spec, dtype=dtype) for spec in op.outputs)
        return replace(op, outputs=outputs)
    if op.name != "hymell.attention":
        return op
    inputs = tuple(
        _stored(o, dtype) if position in (1, 2) and BITS[o.spec.dtype] >= 16 else o
        for position, o in enumerate(op.inputs)
    )
    return replace(op, inputs=inputs)
