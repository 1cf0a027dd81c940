"""Matrix products."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

from hymell.dims import Size, simplify, whole
from hymell.op_registry.dataflow import at_sample
from hymell.op_registry.memory_ops import bytes_in, bytes_out, numel, spec_bytes, times
from hymell.op_registry.primitives import Conv, Conv1d, Gemm, GroupedGemm
from hymell.op_registry.registry import lowers

if TYPE_CHECKING:
    from hymell.graph import Op, TensorSpec
    from hymell.op_registry.dataflow import Dataflow

#: Most taps that kernels for causal convolutions take (Dao-AILab/causal-conv1d: 2 to 4).
_MOST_TAPS = 4


def product(
    op: Op,
    flow: Dataflow,
    a: int,
    b: int,
    m: Size,
    n: Size,
    k: Size,
    *,
    batch: Size = 1,
    bias: bool = False,
) -> Gemm:
    """The GEMM of operands at positions ``a`` and ``b``; a weight on the left is turned around."""
    weight = flow.weight(op, b)
    activation = op.inputs[a].spec.dtype
    if weight is None and (left := flow.weight(op, a)) is not None:
        weight, m, n = left, n, m
        activation = op.inputs[b].spec.dtype
    stored = weight.dtype if weight is not None else op.inputs[b].spec.dtype
    if weight is not None:
        batch, m = _once_per_weight(weight, batch, m, n, k)
    return Gemm(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_dtype=activation,
        b_dtype=stored,
        out_dtype=op.outputs[0].dtype,
        math=flow.math(activation, stored),
        b_is_weight=weight is not None,
        bias=bias,
    )


def _once_per_weight(
    weight: TensorSpec, batch: Size, m: Size, n: Size, k: Size
) -> tuple[Size, Size]:
    """A weight that is expanded over the batch is read once: its copies' rows are one product's."""
    held = numel(weight)
    if batch == 1 or not all(isinstance(size, int) for size in (held, n, k)):
        return batch, m
    distinct, remainder = divmod(whole(held), whole(n) * whole(k))
    if remainder or distinct < 1 or at_sample(distinct) >= at_sample(batch):
        return batch, m
    return distinct, simplify(times(batch, m) * Fraction(1, distinct))


@lowers("aten.mm", "aten._scaled_mm")
def mm(op: Op, flow: Dataflow) -> Gemm:
    """(m, k) @ (k, n)."""
    (m, k), (_, n) = op.inputs[0].spec.shape, op.inputs[1].spec.shape
    return product(op, flow, 0, 1, m, n, k)


@lowers("aten.addmm", "aten._addmm_activation")
def addmm(op: Op, flow: Dataflow) -> Gemm:
    """bias + (m, k) @ (k, n)."""
    (m, k), (_, n) = op.inputs[1].spec.shape, op.inputs[2].spec.shape
    return product(op, flow, 1, 2, m, n, k, bias=True)


@lowers("aten.bmm")
def bmm(op: Op, flow: Dataflow) -> Gemm:
    """(batch, m, k) @ (batch, k, n)."""
    (batch, m, k), (_, _, n) = op.inputs[0].spec.shape, op.inputs[1].spec.shape
    return product(op, flow, 0, 1, m, n, k, batch=batch)


@lowers("aten.baddbmm")
def baddbmm(op: Op, flow: Dataflow) -> Gemm:
    """input + (batch, m, k) @ (batch, k, n)."""
    (batch, m, k), (_, _, n) = op.inputs[1].spec.shape, op.inputs[2].spec.shape
    return product(op, flow, 1, 2, m, n, k, batch=batch)


@lowers("aten.linear")
def linear(op: Op, flow: Dataflow) -> Gemm:
    """(..., k) @ (n, k)^T + bias."""
    *rows, k = op.inputs[0].spec.shape
    n = op.inputs[1].spec.shape[0]
    m: Size = 1
    for size in rows:
        m = simplify(m * size)
    return product(op, flow, 0, 1, m, n, k, bias=len(op.inputs) > 2)


@lowers("aten.mv", "aten.addmv")
def mv(op: Op, flow: Dataflow) -> Gemm:
    """(m, k) @ (k)."""
    first = len(op.inputs) - 2
    m, k = op.inputs[first].spec.shape
    return product(op, flow, first, first + 1, m, 1, k)


@lowers("aten.dot", "aten.vdot")
def dot(op: Op, flow: Dataflow) -> Gemm:
    """(k) . (k)."""
    return product(op, flow, 0, 1, 1, 1, op.inputs[0].spec.shape[0])


@lowers("aten._grouped_mm", "aten._scaled_grouped_mm")
def grouped_mm(op: Op, flow: Dataflow) -> GroupedGemm:
    """(m, k) rows sorted by group @ (groups, k, n)."""
    m, k = op.inputs[0].spec.shape[-2:]
    groups, _, n = op.inputs[1].spec.shape
    weight = flow.weight(op, 1) or op.inputs[1].spec
    activation = op.inputs[0].spec.dtype
    return GroupedGemm(
        m=m,
        n=n,
        k=k,
        groups=whole(groups),
        a_dtype=activation,
        b_dtype=weight.dtype,
        out_dtype=op.outputs[0].dtype,
        math=flow.math(activation, weight.dtype),
    )


@lowers("aten.convolution", "aten._convolution", "aten.conv1d", "aten.conv2d", "aten.conv3d")
def convolution(op: Op, flow: Dataflow) -> Conv | Conv1d:
    """Input (batch, channels, ...), weight (out, in / groups, taps...); transposed: (in, out, ...).

    A forward convolution is one product per output position, a transposed one per input position.
    A short causal one, which recurrent models have before their scan, is a kernel of its own.
    """
    source, kernel = op.inputs[0].spec, op.inputs[1].spec
    if _causal(op):
        return _causal_conv1d(op, flow)
    taps = prod(whole(size) for size in kernel.shape[2:])
    transposed = bool(op.attrs.get("transposed", False))
    positions = (source if transposed else op.outputs[0]).shape
    m: Size = positions[0]
    for size in positions[2:]:
        m = simplify(m * size)
    out_channels, in_channels = kernel.shape[0], kernel.shape[1]
    return Conv(
        m=m,
        n=out_channels,
        k=simplify(in_channels * taps),
        groups=int(op.attrs.get("groups", 1)),
        input_bytes=spec_bytes(source),
        dtype=op.outputs[0].dtype,
        math=flow.math(source.dtype, kernel.dtype),
    )


def _causal(op: Op) -> bool:
    """True for channels on their own, with one step per token and only the past padded.

    Either the input was padded before (``padding`` 0), or by all taps but one, the surplus outputs
    at the end being dropped after.
    """
    kernel, attrs = op.inputs[1].spec.shape, op.attrs
    if len(kernel) != 3 or kernel[1] != 1 or bool(attrs.get("transposed", False)):
        return False
    taps = whole(kernel[2])
    plain = all(set(_numbers(attrs.get(name, 1))) == {1} for name in ("stride", "dilation"))
    (padding,) = set(_numbers(attrs.get("padding", 0)))
    alone = int(attrs.get("groups", 1)) == kernel[0]
    return plain and alone and taps <= _MOST_TAPS and padding in (0, taps - 1)


def _numbers(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, int | str) else tuple(value)


def _causal_conv1d(op: Op, flow: Dataflow) -> Conv1d:
    read, weights = bytes_in(op, flow)
    source, kernel, result = op.inputs[0].spec, op.inputs[1].spec, op.outputs[0]
    padded = any(_numbers(op.attrs.get("padding", 0)))
    length = (source if padded else result).shape[2]
    return Conv1d(
        batch=source.shape[0],
        length=length,
        channels=whole(source.shape[1]),
        width=whole(kernel.shape[2]),
        bytes_read=read,
        bytes_written=bytes_out(op),
        step=isinstance(length, int) and length == 1,
        dtype=result.dtype,
        weight_bytes=weights,
    )
