"""Attention kept whole, and the KV append before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hymell.dims import Size, simplify, whole
from hymell.dtypes import math_format
from hymell.op_registry.memory_ops import numel, spec_bytes, total
from hymell.op_registry.primitives import Attention, Memory
from hymell.op_registry.registry import lowers

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow


@lowers(
    "hymell.attention",
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
)
def attention(op: Op, flow: Dataflow) -> Attention:
    """Query (B, H, q, dqk), key (B, Hkv, kv, dqk), value (B, Hkv, kv, dv); with 3 dims one head."""
    query, key, value = (op.inputs[i].spec for i in range(3))
    *leading, q_len, qk_dim = query.shape
    batch, heads = leading if len(leading) == 2 else (_product(leading), 1)
    window = op.attrs.get("window") or op.attrs.get("chunk")
    return Attention(
        batch=batch,
        q_len=q_len,
        kv_len=key.shape[-2],
        heads=whole(heads),
        kv_heads=whole(key.shape[1]) if len(leading) == 2 else 1,
        qk_dim=whole(qk_dim),
        v_dim=whole(value.shape[-1]),
        causal=bool(op.attrs.get("causal", op.attrs.get("is_causal", False))),
        window=window,
        dtype=query.dtype,
        kv_dtype=key.dtype,
        math=math_format(query.dtype),
    )


def _product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = simplify(result * size)
    return result


@lowers("hymell.kv_append")
def kv_append(op: Op, flow: Dataflow) -> Memory:
    """New keys and values (the first two operands) written into the cache in place."""
    new = [operand.spec for operand in op.inputs if operand.kind != "state"][:2]
    moved = total(spec_bytes(spec) for spec in new)
    return Memory("kv_append", total(numel(spec) for spec in new), moved, moved)


@lowers("hymell.state_update")
def state_update(op: Op, flow: Dataflow) -> Memory:
    """A state of constant size overwritten; a prompt leaves its last few tokens in it."""
    state = op.outputs[0]
    moved = spec_bytes(state)
    return Memory("state_update", numel(state), moved, moved)
