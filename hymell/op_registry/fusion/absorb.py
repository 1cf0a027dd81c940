"""Multi-head latent attention in decode: attend over the latent cache without expanding it."""

from __future__ import annotations

from dataclasses import replace

from hymell.dims import simplify
from hymell.dtypes import math_format
from hymell.op_registry.dataflow import at_sample
from hymell.op_registry.fusion.graph_walk import downstream, readers, upstream
from hymell.op_registry.plan import Group, Plan
from hymell.op_registry.primitives import Attention, Gemm


def absorb_latent(plan: Plan) -> Plan:
    """Replace the per-step expansion of a cached latent by the absorbed form.

    The pattern: in decode, a weight GEMM whose rows grow with L and whose result becomes the keys
    and values of an attention. With latent rank r, H heads, n = H (nope + dv): the query is
    multiplied by the key half of the weight (H products of k = nope, n = r), attention runs over
    one shared head of width r + rope with values of width r, and its output is multiplied by the
    value half (k = r, n = dv). DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    if plan.region.phase != "decode":
        return plan
    groups = list(plan.groups)
    table = readers(plan)
    for op in plan.ops:
        attention = plan.primitives[op.id]
        if not isinstance(attention, Attention):
            continue
        above = upstream(plan, op.id, lambda p: not plan.is_anchor(p))
        expansions = [p for p in above if _expands(plan, p, attention)]
        if len(expansions) != 1:
            continue
        absorbed = _absorbed(plan, op.id, attention, expansions[0])
        if absorbed is None:
            continue
        gone = _between(plan, expansions[0], above, table)
        groups = [g for g in groups if not ({op.id, *gone} & set(g.ops))] + absorbed
    return plan.with_groups(groups)


def _between(plan: Plan, expansion: int, above: set[int], table: dict[int, set[int]]) -> set[int]:
    """What stands between the latent cache and the attention, the expansion included."""
    below = {
        p
        for append in plan.flow.depends[expansion]
        if _append(plan, append)
        for p in downstream(append, table, lambda q: not plan.is_anchor(q) or q == expansion)
    }
    return {p for p in below & above if not _append(plan, p)}


def _append(plan: Plan, op: int) -> bool:
    return plan.ops[op].name == "hymell.kv_append"


def _expands(plan: Plan, op: int, attention: Attention) -> bool:
    """True for a weight GEMM over every cached token instead of the new ones."""
    primitive = plan.primitives[op]
    if not isinstance(primitive, Gemm) or not primitive.b_is_weight:
        return False
    new = simplify(attention.batch * attention.q_len)
    return at_sample(primitive.m) > at_sample(new)


def _absorbed(plan: Plan, op: int, attention: Attention, expansion: int) -> list[Group] | None:
    gemm = plan.primitives[expansion]
    assert isinstance(gemm, Gemm)
    nope, remainder = divmod(gemm.n, attention.heads)
    nope -= attention.v_dim
    rope = attention.qk_dim - nope
    if remainder or nope <= 0 or rope < 0 or not isinstance(gemm.k, int):
        return None
    rank = gemm.k
    rows = simplify(attention.batch * attention.q_len)
    layer, repeat = plan.layer_of[op], plan.ops[op].repeat
    # Engines keep the two halves unquantised (vLLM: dequantised when the weights are loaded).
    shared = replace(
        gemm,
        m=rows,
        batch=attention.heads,
        bias=False,
        b_dtype=gemm.a_dtype,
        math=math_format(gemm.a_dtype),
    )
    leaf = plan.ops[expansion].path.rpartition(".")[2]
    latent = replace(attention, kv_heads=1, qk_dim=rank + rope, v_dim=rank, latent=True)
    return [
        Group(
            (expansion,),
            layer,
            repeat,
            primitive=replace(shared, n=rank, k=nope),
            name=f"bmm {leaf} (absorb query)",
        ),
        Group((op,), layer, repeat, primitive=latent),
        Group(
            (expansion,),
            layer,
            repeat,
            primitive=replace(shared, n=attention.v_dim, k=rank),
            name=f"bmm {leaf} (absorb value)",
            after=op,
        ),
    ]
