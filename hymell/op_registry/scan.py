"""Recurrences kept whole: state-space models, delta rules, linear attention, short convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymell.dims import whole
from hymell.dtypes import math_format
from hymell.op_registry.memory_ops import bytes_in, bytes_out, spec_bytes, total
from hymell.op_registry.primitives import Conv1d, Scan
from hymell.op_registry.registry import lowers

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow


@lowers("hymell.scan")
def scan(op: Op, flow: Dataflow) -> Scan:
    """Attributes ``heads``, ``key_dim``, ``value_dim``, ``chunk``, ``mode``; tensors give the rest.

    The first output is (batch, length, ...), (batch, channels, length) when channels come first,
    or (batch, heads, length, value_dim) when heads do.
    """
    read, weights = bytes_in(op, flow)
    activation = op.inputs[0].spec
    shape = op.outputs[0].shape
    channels_first = len(shape) == 3 and shape[1] == op.attrs["heads"] * op.attrs["value_dim"]
    heads_first = len(shape) == 4 and (shape[1], shape[3]) == (
        op.attrs["heads"],
        op.attrs["value_dim"],
    )
    length = shape[2] if channels_first or heads_first else shape[1]
    return Scan(
        variant=op.name.removeprefix("hymell.scan."),
        batch=shape[0],
        length=1 if op.attrs.get("mode") == "recurrent" else length,
        heads=op.attrs["heads"],
        key_dim=op.attrs["key_dim"],
        value_dim=op.attrs["value_dim"],
        chunk=op.attrs.get("chunk") or 1,
        bytes_read=read,
        bytes_written=bytes_out(op),
        dtype=activation.dtype,
        math=math_format(activation.dtype),
        weight_bytes=weights,
    )


@lowers("hymell.causal_conv1d")
def causal_conv1d(op: Op, flow: Dataflow) -> Conv1d:
    """Input (batch, channels, length), or (batch, channels) for one token; attribute ``kernel``.

    A step shifts the new token into its state: the state is written as well.
    """
    read, weights = bytes_in(op, flow)
    source = op.inputs[0].spec
    step = op.attrs["mode"] == "recurrent"
    states = [o.spec for o in op.inputs if flow.resolve(o)[0] == "state"] if step else []
    return Conv1d(
        batch=source.shape[0],
        length=source.shape[2] if len(source.shape) > 2 else 1,
        channels=whole(source.shape[1]),
        width=op.attrs["kernel"],
        bytes_read=read,
        bytes_written=total([bytes_out(op), *(spec_bytes(state) for state in states)]),
        step=step,
        dtype=source.dtype,
        weight_bytes=weights,
    )
