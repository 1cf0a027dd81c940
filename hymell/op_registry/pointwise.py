"""Element-wise arithmetic, casts, copies, fills, gathers: bytes in, bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hymell.op_registry.memory_ops import elements_out, gather_op, memory_op, numel, spec_bytes
from hymell.op_registry.primitives import Gather, Memory
from hymell.op_registry.registry import functional, lowers
from hymell.op_registry.views import FREE, VIEWS

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow

#: Activation functions, and about how many operations one element takes.
ACTIVATIONS = {
    "aten.silu": 6,
    "aten.gelu": 12,
    "aten.relu": 1,
    "aten.sigmoid": 5,
    "aten.tanh": 8,
    "aten.mish": 12,
    "aten.hardswish": 5,
    "aten.hardsigmoid": 4,
    "aten.hardtanh": 2,
    "aten.relu6": 2,
    "aten.elu": 6,
    "aten.celu": 6,
    "aten.selu": 6,
    "aten.leaky_relu": 2,
    "aten.softplus": 8,
    "aten.log_sigmoid_forward": 8,
    "aten.log_sigmoid": 8,
    "aten.glu": 7,
    "aten.erf": 8,
    "aten.threshold": 2,
    "aten.prelu": 2,
    "aten._prelu_kernel": 2,
    "aten.softsign": 4,
}

_ARITHMETIC = """
add sub mul div rsub neg abs pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
sin cos tan asin acos atan atan2 sinh cosh ceil floor round trunc frac sign sgn clamp clamp_min
clamp_max maximum minimum fmax fmin remainder fmod floor_divide lerp addcmul addcdiv where eq ne lt
le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
bitwise_xor bitwise_left_shift bitwise_right_shift isnan isinf isfinite isposinf isneginf
masked_fill nan_to_num erfc erfinv logit xlogy polar complex hypot heaviside logaddexp logaddexp2
__and__ __or__ __xor__ __lshift__ __rshift__ sinc deg2rad rad2deg special_expit float_power
true_divide angle bernoulli native_dropout_backward
"""

_COPIES = """
clone contiguous _to_copy to copy cat stack constant_pad_nd pad repeat repeat_interleave roll flip
tril triu tile index_copy index_fill masked_scatter slice_scatter select_scatter diagonal_scatter
as_strided_scatter pixel_shuffle pixel_unshuffle im2col col2im upsample_nearest2d
upsample_bilinear2d upsample_bicubic2d upsample_nearest1d upsample_linear1d reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
channel_shuffle diag_embed diag real_copy unfold_copy view_copy expand_copy split_copy
avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d max_pool1d
max_pool2d max_pool2d_with_indices grid_sampler_2d grid_sampler
"""

_FILLS = """
arange zeros ones full zeros_like ones_like full_like fill zero new_zeros new_ones new_full
scalar_tensor eye linspace logspace rand randn rand_like randn_like randint normal uniform
tril_indices triu_indices random exponential _efficientzerotensor one_hot range
"""

_SCATTERS = (
    "scatter scatter_add scatter_reduce index_add index_put _index_put_impl index_reduce put"
)


@lowers(*(f"aten.{name}" for name in _ARITHMETIC.split()))
def arithmetic(op: Op, flow: Dataflow) -> Memory:
    return memory_op(op, flow, functional(op.name).removeprefix("aten."))


@lowers(*ACTIVATIONS)
def activation(op: Op, flow: Dataflow) -> Memory:
    name = functional(op.name)
    return memory_op(op, flow, name.removeprefix("aten."), ACTIVATIONS[name])


@lowers(*(f"aten.{name}" for name in _COPIES.split()))
def copy(op: Op, flow: Dataflow) -> Memory | None:
    if functional(op.name) == "aten._to_copy" and not op.inputs:
        return None
    return memory_op(op, flow, "copy", flops_per_element=0)


@lowers(*(f"aten.{name}" for name in _FILLS.split()))
def fill(op: Op, flow: Dataflow) -> Memory:
    elements = elements_out(op)
    written = memory_op(op, flow, "fill", flops_per_element=0)
    return Memory("fill", elements, 0, written.bytes_written)


@lowers("aten.embedding", "aten.index_select", "aten._embedding_bag")
def embedding(op: Op, flow: Dataflow) -> Gather:
    return gather_op(op, flow, 0, op.inputs[0].spec.shape[-1])


@lowers("aten.gather", "aten.take", "aten.take_along_dim", "aten.index", "aten.masked_select")
def pick(op: Op, flow: Dataflow) -> Memory:
    """Each output element read from somewhere in the table, and the indices."""
    moved = memory_op(op, flow, "gather", flops_per_element=0)
    return Memory("gather", moved.elements, moved.bytes_written, moved.bytes_written)


@lowers(*(f"aten.{name}" for name in _SCATTERS.split()))
def scatter(op: Op, flow: Dataflow) -> Memory:
    """The scattered elements are read and written; the rest of the target stays in place."""
    values = op.inputs[-1].spec
    return Memory("scatter", numel(values), spec_bytes(values), spec_bytes(values))


@lowers(*VIEWS, *FREE)
def nothing(op: Op, flow: Dataflow) -> None:
    """A view, an uninitialised tensor or a size query launches no kernel."""
