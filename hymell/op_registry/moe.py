"""Routed experts kept whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymell.op_registry.primitives import Experts
from hymell.op_registry.registry import lowers

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow


@lowers("hymell.experts")
def experts(op: Op, flow: Dataflow) -> Experts:
    """Hidden states (T, H), indices (T, k), weights (T, k), then the expert weights."""
    activation = op.inputs[0].spec.dtype
    stored = [operand.spec for operand in op.inputs if operand.kind == "weight"]
    matrices = [spec for spec in stored if len(spec.shape) == 3] or stored
    weight_dtype = matrices[0].dtype if matrices else activation
    return Experts(
        tokens=op.attrs["tokens"],
        top_k=op.attrs["top_k"],
        experts=op.attrs["experts"],
        hidden=op.attrs["hidden"],
        intermediate=op.attrs["intermediate"],
        gated=op.attrs["gated"],
        a_dtype=activation,
        b_dtype=weight_dtype,
        out_dtype=op.outputs[0].dtype,
        math=flow.math(activation, weight_dtype),
        bias=any(len(spec.shape) == 2 for spec in stored) and len(matrices) < len(stored),
        ranks=op.attrs.get("ranks", 1),
    )
