"""Norms, softmax and other reductions over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymell.dims import Size
from hymell.op_registry.memory_ops import numel, reduced, row_op, times
from hymell.op_registry.primitives import RowReduce
from hymell.op_registry.registry import functional, lowers

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow


def _last_dim(op: Op, flow: Dataflow, role: str, cost: int) -> RowReduce:
    source = op.inputs[0].spec
    rows, cols = reduced(op)
    axes = op.attrs.get("normalized_shape")
    if axes:
        rows, cols = 1, 1
        split = len(source.shape) - len(axes)
        for position, size in enumerate(source.shape):
            if position < split:
                rows = times(rows, size)
            else:
                cols = times(cols, size)
    return row_op(op, flow, role, rows, cols, cost)


@lowers("aten.native_layer_norm", "aten.layer_norm")
def layer_norm(op: Op, flow: Dataflow) -> RowReduce:
    return _last_dim(op, flow, "layer_norm", 8)


@lowers("aten._fused_rms_norm", "aten.rms_norm")
def rms_norm(op: Op, flow: Dataflow) -> RowReduce:
    return _last_dim(op, flow, "rms_norm", 5)


@lowers("aten.native_group_norm", "aten.native_batch_norm", "aten.cudnn_batch_norm")
def group_norm(op: Op, flow: Dataflow) -> RowReduce:
    source = op.inputs[0].spec
    rows = source.shape[0]
    cols: Size = 1
    for size in source.shape[1:]:
        cols = times(cols, size)
    return row_op(op, flow, "group_norm", rows, cols, 8)


@lowers(
    "aten._softmax",
    "aten._log_softmax",
    "aten.softmax",
    "aten.log_softmax",
    "aten._safe_softmax",
    "aten.logsumexp",
)
def softmax(op: Op, flow: Dataflow) -> RowReduce:
    return _last_dim(op, flow, "softmax", 5)


@lowers("aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue", "aten.median")
def topk(op: Op, flow: Dataflow) -> RowReduce:
    source = op.inputs[0].spec
    cols = source.shape[op.attrs.get("dim", -1)] if source.shape else 1
    rows: Size = 1
    axis = op.attrs.get("dim", -1) % max(len(source.shape), 1)
    for position, size in enumerate(source.shape):
        if position != axis:
            rows = times(rows, size)
    return row_op(op, flow, "topk", rows, cols, 10)


_REDUCTIONS = """
sum mean var var_mean std std_mean amax amin max min argmax argmin prod any all nansum count_nonzero
linalg_vector_norm norm cumsum cumprod cummax cummin logcumsumexp aminmax histc bincount unique2
_unique2 renorm _is_all_true _is_any_true
"""


@lowers(*(f"aten.{name}" for name in _REDUCTIONS.split()))
def reduction(op: Op, flow: Dataflow) -> RowReduce:
    if len(op.inputs) > 1 and functional(op.name) in ("aten.max", "aten.min"):
        return row_op(op, flow, "reduce", numel(op.outputs[0]), 1, 1)
    rows, cols = reduced(op)
    return row_op(op, flow, "reduce", rows, cols, 1)
