"""Attention written as product, softmax, product becomes the fused kernel an engine has."""

from __future__ import annotations

from hymell.dims import B as BATCH
from hymell.dims import Dim, Size, evaluate
from hymell.dtypes import math_format
from hymell.op_registry.fusion.graph_walk import downstream, readers, upstream
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Attention, Gemm, RowReduce


def recognise_attention(plan: Plan) -> Plan:
    """Merge (query x key) -> element-wise -> softmax -> element-wise -> (weights x value).

    Neither product may involve a parameter. Scores, masks and probabilities then stay on chip.
    """
    table = readers(plan)
    owner = plan.group_of()
    taken: set[int] = set()
    found: list[Group] = []
    for op in plan.ops:
        primitive = plan.primitives[op.id]
        if not isinstance(primitive, RowReduce) or primitive.role != "softmax":
            continue
        above = upstream(plan, op.id, lambda p: not plan.is_anchor(p))
        below = downstream(op.id, table, lambda p: not plan.is_anchor(p))
        scores = [
            p for p in above if _product(plan, p) and plan.layer_of[p] == plan.layer_of[op.id]
        ]
        mixes = [p for p in below if _product(plan, p) and plan.layer_of[p] == plan.layer_of[op.id]]
        if len(scores) != 1 or len(mixes) != 1:
            continue
        first, last = scores[0], mixes[0]
        after_first = downstream(first, table, lambda p: not plan.is_anchor(p))
        before_last = upstream(plan, last, lambda p: not plan.is_anchor(p))
        inside = {first, last, op.id} | {
            p for p in (above & after_first) | (below & before_last) if p in owner
        }
        attention = _attention(plan, first, last, op.id)
        if attention is None or inside & taken:
            continue
        taken |= inside
        found.append(
            Group(tuple(sorted(inside)), plan.layer_of[op.id], op.repeat, primitive=attention)
        )
    rest = [g for g in plan.groups if not taken & set(g.ops)]
    return plan.with_groups([*rest, *found])


def _product(plan: Plan, op: int) -> bool:
    primitive = plan.primitives[op]
    return isinstance(primitive, Gemm) and not primitive.b_is_weight


def _attention(plan: Plan, first: int, last: int, softmax: int) -> Attention | None:
    scores, mix = plan.primitives[first], plan.primitives[last]
    assert isinstance(scores, Gemm)
    assert isinstance(mix, Gemm)
    batch: Size = BATCH if _varies_with_batch(scores.batch) else plan.region.B.lo
    heads = _ratio(scores.batch, batch)
    rows = scores.m
    if heads is None:
        # Multi-query attention stacks its heads along the rows of one product per sequence.
        return None
    layer = plan.layer_of[softmax]
    appends = [
        op for op in plan.ops if op.name == "hymell.kv_append" and plan.layer_of[op.id] == layer
    ]
    cached = appends[0].outputs[0].shape if appends else ()
    kv_heads = cached[1] if len(cached) == 4 and isinstance(cached[1], int) else heads
    # Scores that the model's code computes in float32 are accumulated so by a fused kernel anyway.
    upcast = bool(appends) and scores.a_dtype == "float32"
    dtype = plan.facts.dtype if upcast else scores.a_dtype
    return Attention(
        batch=batch,
        q_len=rows,
        kv_len=scores.n,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        qk_dim=scores.k,
        v_dim=mix.n,
        causal=bool(appends),
        dtype=dtype,
        kv_dtype=appends[0].outputs[0].dtype if appends else scores.b_dtype,
        math=math_format(dtype),
    )


def _varies_with_batch(size: Size) -> bool:
    return isinstance(size, Dim) and size.degree("B") > 0


def _ratio(size: Size, batch: Size) -> int | None:
    """Heads in a product batched over sequences and heads."""
    per = evaluate(size, B=1) / evaluate(batch, B=1)
    return int(per) if per >= 1 and per == int(per) else None
