"""The registry: who lowers an op, what views and unknown ops cost, and users' own ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hymell
from hymell.graph import ModelFacts, Op, Operand, TensorSpec
from hymell.op_registry import keep_whole, memory_op, registry
from hymell.op_registry.dataflow import Dataflow, analyse
from hymell.op_registry.engines import get_engine
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.lower import lower
from hymell.op_registry.opaque import OPAQUE_MODULES
from hymell.op_registry.primitives import (
    Conv,
    Conv1d,
    Gemm,
    Memory,
    Primitive,
    RowReduce,
    Scan,
    Unknown,
)
from hymell.op_registry.registry import find, functional, is_in_place, lowers, packet
from hymell.op_registry.views import is_free, is_view

FACTS = ModelFacts("m", "m", "M", "bfloat16", 0, 0, 0.0, {})


@pytest.fixture(autouse=True)
def _own_registrations() -> Iterator[None]:
    """What a test registers is gone after it."""
    lowerings, opaque = dict(registry.LOWERINGS), dict(OPAQUE_MODULES)
    yield
    registry.LOWERINGS.clear()
    registry.LOWERINGS.update(lowerings)
    OPAQUE_MODULES.clear()
    OPAQUE_MODULES.update(opaque)


def weight(*shape: int, dtype: str = "bfloat16", name: str = "w") -> Operand:
    return Operand(TensorSpec(shape, dtype), "weight", name=name)


def given(*shape: int, dtype: str = "bfloat16", name: str = "x") -> Operand:
    return Operand(TensorSpec(shape, dtype), "input", name=name)


def result(op: Op, *shape: int) -> Operand:
    return Operand(TensorSpec(shape or op.outputs[0].shape, op.outputs[0].dtype), "op", op.id)


def op(
    number: int, name: str, inputs: tuple[Operand, ...], *outputs: tuple[int, ...], **attrs: Any
) -> Op:
    made = tuple(TensorSpec(shape, "bfloat16") for shape in outputs)
    return Op(number, name, "layer", "Layer", inputs, made, attrs)


def cost(*ops: Op) -> Primitive:
    """The primitive of the last of these ops."""
    flow = analyse(ops, FACTS)
    lowering = find(ops[-1].name)
    assert lowering is not None
    found = lowering(ops[-1], flow)
    assert found is not None
    return found


def test_names() -> None:
    assert packet("aten.add.Tensor") == packet("aten.add.out") == "aten.add"
    assert packet("hymell.scan.mamba2_ssd") == "hymell.scan.mamba2_ssd"
    assert functional("aten.add_.Tensor") == "aten.add"
    assert functional("aten.__and__.Tensor") == "aten.__and__"
    assert is_in_place("aten.copy_.default")
    assert not is_in_place("aten.copy.default")


def test_an_overload_goes_before_its_packet() -> None:
    @lowers("mylib.op")
    def any_overload(op: Op, flow: Dataflow) -> None: ...

    @lowers("mylib.op.special")
    def one_overload(op: Op, flow: Dataflow) -> None: ...

    assert find("mylib.op.default") is any_overload
    assert find("mylib.op.special") is one_overload


def test_the_longest_prefix_of_a_composite_goes_first() -> None:
    @lowers("hymell.scan.mine")
    def mine(op: Op, flow: Dataflow) -> None: ...

    assert find("hymell.scan.mine") is mine
    assert find("hymell.scan.mine.variant") is mine
    assert find("hymell.scan.other") is registry.LOWERINGS["hymell.scan"]
    assert find("hymell.nothing_of_the_kind") is None
    # A prefix is a composite's own: the namespace of a library claims nothing.
    assert find("aten.no_such_op.default") is None


def test_an_in_place_op_has_its_twins_entry_unless_it_has_its_own() -> None:
    @lowers("mylib.scale")
    def scale(op: Op, flow: Dataflow) -> None: ...

    assert find("mylib.scale_.default") is scale

    @lowers("mylib.scale_")
    def scale_in_place(op: Op, flow: Dataflow) -> None: ...

    assert find("mylib.scale_.default") is scale_in_place
    assert find("mylib.scale.default") is scale


@pytest.mark.parametrize("name", ["view", "t", "transpose.int", "expand", "slice.Tensor", "split"])
def test_views_are_free(name: str) -> None:
    assert is_view(f"aten.{name}")
    lowering = find(f"aten.{name}")
    assert lowering is not None
    viewing = op(0, f"aten.{name}", (given(4, 8),), (4, 8))
    assert lowering(viewing, analyse((viewing,), FACTS)) is None


def test_fresh_memory_is_free_and_no_view() -> None:
    assert is_free("aten.empty.memory_format")
    assert not is_view("aten.empty.memory_format")


def test_broadcasting_reads_each_operand_once() -> None:
    added = cost(op(0, "aten.add.Tensor", (given(4, 128), given(128, name="row")), (4, 128)))
    assert added.bytes_read == (4 * 128 + 128) * 2
    assert added.bytes_written == 4 * 128 * 2


def test_an_expanded_view_reads_what_is_stored() -> None:
    expanded = op(0, "aten.expand.default", (given(1, 128),), (64, 128))
    doubled = op(1, "aten.mul.Tensor", (result(expanded),), (64, 128))
    assert cost(expanded, doubled).bytes_read == 128 * 2


def test_a_slice_reads_the_slice() -> None:
    sliced = op(0, "aten.slice.Tensor", (given(64, 128),), (1, 128))
    assert cost(sliced, op(1, "aten.silu.default", (result(sliced),), (1, 128))).bytes_read == 256


def test_the_same_tensor_twice_is_read_once() -> None:
    squared = cost(op(0, "aten.mul.Tensor", (given(4, 8), given(4, 8)), (4, 8)))
    assert squared.bytes_read == 4 * 8 * 2


def test_an_overwritten_tensor_is_not_read() -> None:
    copied = cost(op(0, "aten.copy_.default", (given(4, 8), given(4, 8, name="y")), (4, 8)))
    assert (copied.bytes_read, copied.bytes_written) == (64, 64)


@pytest.mark.parametrize("name", ["aten.clone.default", "aten._to_copy.default"])
def test_a_weight_is_a_weight_behind_views_and_copies(name: str) -> None:
    copied = op(0, name, (weight(16, 8),), (16, 8))
    turned = op(1, "aten.t.default", (result(copied),), (8, 16))
    product = cost(copied, turned, op(2, "aten.mm.default", (given(4, 8), result(turned)), (4, 16)))
    assert isinstance(product, Gemm)
    assert product.b_is_weight
    assert product.weight_bytes == 16 * 8 * 2


def test_a_computed_matrix_is_no_weight() -> None:
    product = cost(op(0, "aten.mm.default", (given(4, 8), given(8, 16, name="y")), (4, 16)))
    assert isinstance(product, Gemm)
    assert product.weight_bytes == 0
    assert product.bytes_read == (4 * 8 + 8 * 16) * 2


@pytest.mark.parametrize(
    ("attrs", "out", "rows", "cols"),
    [
        ({"dim": [-1], "keepdim": True}, (4, 1), 4, 8),
        ({"dim": 0}, (8,), 8, 4),
        ({"dim": [0, 1]}, (), 1, 32),
        ({}, (), 1, 32),
    ],
)
def test_rows_and_columns_of_a_reduction(
    attrs: dict[str, Any], out: tuple[int, ...], rows: int, cols: int
) -> None:
    reduced = cost(op(0, "aten.sum.dim_IntList", (given(4, 8),), out, **attrs))
    assert isinstance(reduced, RowReduce)
    assert (reduced.rows, reduced.cols) == (rows, cols)


def test_a_step_of_a_convolution_shifts_its_state() -> None:
    state = Operand(TensorSpec((8, 96, 4), "bfloat16"), "state", name="conv_states")
    taps, new = weight(96, 4), given(8, 96, 1)
    attrs = {"kernel": 4, "channels": 96}
    name = "hymell.causal_conv1d"
    step = cost(op(0, name, (new, state, taps), (8, 96, 1), mode="recurrent", **attrs))
    assert isinstance(step, Conv1d)
    assert (step.batch, step.length, step.channels, step.width) == (8, 1, 96, 4)
    assert step.step
    assert step.bytes_read == 2 * (8 * 96 + 8 * 96 * 4 + 96 * 4)
    assert step.bytes_written == 2 * (8 * 96 + 8 * 96 * 4)
    assert step.weight_bytes == 2 * 96 * 4
    assert step.flops == 2 * 8 * 96 * 4
    prompt = cost(op(0, name, (given(8, 96, 77), taps), (8, 96, 77), mode="chunk", **attrs))
    assert isinstance(prompt, Conv1d)
    assert (prompt.length, prompt.step) == (77, False)
    assert prompt.flops == 2 * 8 * 77 * 96 * 4


def _convolution(padding: int, taps: int, length: int = 77, **attrs: Any) -> Primitive:
    inputs = (given(8, 96, length), weight(96, 1, taps))
    left = length + 2 * padding - taps + 1
    plain = {"stride": (1,), "dilation": (1,), "transposed": False, "groups": 96} | attrs
    return cost(
        op(0, "aten.convolution.default", inputs, (8, 96, left), padding=(padding,), **plain)
    )


@pytest.mark.parametrize(("padding", "length"), [(0, 74), (3, 77)])
def test_a_depthwise_convolution_of_the_past_is_a_causal_one(padding: int, length: int) -> None:
    found = _convolution(padding, 4)
    assert isinstance(found, Conv1d)
    assert (found.batch, found.length, found.channels, found.width) == (8, length, 96, 4)
    assert found.bytes_read == 2 * (8 * 96 * 77 + 96 * 4)
    assert not found.step
    alone = _convolution(0, 4, length=4)
    assert isinstance(alone, Conv1d)
    assert alone.step


@pytest.mark.parametrize(
    "changed",
    [
        {"padding": 1, "taps": 3},
        {"padding": 0, "taps": 31},
        {"padding": 0, "taps": 4, "stride": (2,)},
        {"padding": 0, "taps": 4, "dilation": (2,)},
        {"padding": 0, "taps": 4, "groups": 1},
        {"padding": 0, "taps": 4, "transposed": True},
    ],
    ids=["both sides", "wide", "strided", "dilated", "mixing", "transposed"],
)
def test_other_convolutions_are_products(changed: dict[str, Any]) -> None:
    assert isinstance(_convolution(**changed), Conv)


@torch.library.custom_op("hymelltest::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    return x * 2


@mystery.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.ops.hymelltest.mystery(self.up(x)))


def launched(module: nn.Module, engine: str = "vllm") -> list[Kernel]:
    graph = hymell.trace(module, args=(torch.zeros(2, 8, 64),))
    (region,) = graph.of_phase("prefill")[-1:]
    return list(lower(region, get_engine(engine), graph.facts).kernels)


@pytest.mark.parametrize("engine", ["eager", "compile", "vllm"])
def test_an_unknown_op_is_listed_with_its_bytes(engine: str) -> None:
    (unknown,) = [k for k in launched(_Net(), engine) if not k.understood]
    assert unknown.name == "hymelltest.mystery.default"
    assert isinstance(unknown.primitive, Unknown)
    rows = unknown.primitive.bytes_read / (128 * 4)
    assert str(rows) == "B*S" or float(rows(2, 8, 0)) == 16


def test_a_report_says_what_it_did_not_understand() -> None:
    report = hymell.predict(_Net(), hymell.Workload(2, 8, 1), args=(torch.zeros(2, 8, 64),))
    assert not report.coverage.complete
    assert report.coverage.understood_share_of_ops < 1
    assert report.coverage.understood_share_of_bytes < 1
    ((name, count, share),) = report.coverage.unknown
    assert (name, count) == ("hymelltest.mystery.default", 1)
    assert 0 < share < 1


def test_a_user_registers_an_op_in_a_few_lines() -> None:
    @hymell.lowers("hymelltest.mystery")
    def lower_mystery(op: Op, flow: Dataflow) -> Memory:
        return memory_op(op, flow, role="mystery")

    kernels = launched(_Net())
    assert all(k.understood for k in kernels)
    (mine,) = [k for k in kernels if k.name == "mystery"]
    assert isinstance(mine.primitive, Memory)


class _Mixer(nn.Module):
    """A user's own token mixer, kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        for token in range(x.shape[1]):
            x = x + (x[:, token : token + 1] @ self.w).cumsum(-1)
        return x


def test_a_module_kept_whole_is_one_op_that_the_user_prices() -> None:
    keep_whole(_Mixer, "my_mixer")
    net = nn.Sequential(nn.Linear(64, 64), _Mixer())
    (unknown,) = [k for k in launched(net) if not k.understood]
    assert unknown.name == "hymell.opaque.my_mixer"
    assert unknown.block == "mixer"

    @hymell.lowers("hymell.opaque.my_mixer")
    def my_mixer(op: Op, flow: Dataflow) -> Scan:
        batch, length, _ = op.outputs[0].shape
        plain = memory_op(op, flow, "my_mixer")
        return Scan(
            "my_mixer",
            batch,
            length,
            heads=1,
            key_dim=64,
            value_dim=64,
            chunk=1,
            bytes_read=plain.bytes_read,
            bytes_written=plain.bytes_written,
            weight_bytes=plain.weight_bytes,
        )

    (mine,) = [k for k in launched(net) if isinstance(k.primitive, Scan)]
    assert mine.understood
    assert mine.name == "my_mixer scan"
    assert mine.primitive.weight_bytes == 64 * 64 * 4


def test_a_name_for_a_kept_module_is_an_identifier() -> None:
    with pytest.raises(ValueError, match="not a name for an op"):
        keep_whole(_Mixer, "my mixer")
