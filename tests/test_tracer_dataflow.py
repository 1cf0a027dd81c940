"""Dataflow, composites, state and what a trace leaves behind."""

from __future__ import annotations

import pytest
import torch
from families import ATTENTION, FAMILIES, MIXTURE, PARTS, SCANS
from torch import nn
from torch.nn import functional

from hymell.errors import TraceError
from hymell.graph import Op, Region
from hymell.tracer.build import build_model
from hymell.tracer.concrete import (
    count_parameters,
    parameter_table,
    trace_module,
    trace_once,
)


def only(region: Region, name: str) -> Op:
    (op,) = [op for op in region.ops if op.name == name]
    return op


def test_every_operand_comes_from_an_earlier_op_of_the_same_shape() -> None:
    region = trace_once(build_model(FAMILIES["llama"]()), "prefill", 2, 16, 0)
    assert [op.id for op in region.ops] == list(range(len(region.ops)))
    for op in region.ops:
        for operand in op.inputs:
            assert operand.kind != "constant", (op.name, op.path)
            if operand.kind == "op":
                assert operand.op < op.id
                assert region.ops[operand.op].outputs[operand.index] == operand.spec


def test_attention_composite_of_grouped_query_attention() -> None:
    region = trace_once(build_model(FAMILIES["llama"]()), "prefill", 2, 16, 0)
    attention = only(region, "hymell.attention")
    assert [operand.spec.shape for operand in attention.inputs] == [
        (2, 4, 16, 16),
        (2, 2, 16, 16),
        (2, 2, 16, 16),
    ]
    assert attention.outputs[0].shape == (2, 16, 4, 16)
    assert attention.attrs == {
        "causal": True,
        "window": None,
        "chunk": None,
        "softcap": None,
        "sink": False,
        "scale": 0.25,
    }
    assert attention.path == "model.layers.0.self_attn"


def test_attention_reads_what_was_appended_and_decode_reads_state() -> None:
    region = trace_once(build_model(FAMILIES["llama"]()), "decode", 2, 1, 30)
    append = only(region, "hymell.kv_append")
    attention = only(region, "hymell.attention")
    assert [operand.kind for operand in append.inputs] == ["op", "op", "state", "state"]
    assert append.inputs[2].spec.shape == (2, 2, 30, 16)
    assert append.outputs[0].shape == (2, 2, 31, 16)
    assert [operand.op for operand in attention.inputs[1:]] == [append.id, append.id]
    assert [(s.kind, s.spec.shape, s.repeat) for s in region.state] == [
        ("kv", (2, 2, 30, 16), 4),
        ("kv", (2, 2, 30, 16), 4),
    ]
    assert not [
        op for op in region.ops if op.outputs[0].shape == (2, 2, 31, 16) and op is not append
    ]


def test_windows_sinks_softcaps_and_chunks_are_attributes() -> None:
    def attrs(name: str) -> list[dict[str, object]]:
        region = trace_once(build_model(FAMILIES[name]()), "prefill", 1, 16, 0)
        return [dict(op.attrs) for op in region.ops if op.name == "hymell.attention"]

    assert {a["window"] for a in attrs("gemma2")} == {32, None}
    assert {a["softcap"] for a in attrs("gemma2")} == {50.0}
    assert {(a["window"], a["sink"]) for a in attrs("gpt_oss")} == {(32, True), (None, True)}
    assert {a["chunk"] for a in attrs("llama4_text")} >= {32}
    bert = trace_once(build_model(PARTS["bert"]()), "prefill", 1, 16, 0)
    assert only(bert, "hymell.attention").attrs["causal"] is False


def test_window_clips_the_cache() -> None:
    region = trace_once(build_model(FAMILIES["mistral"]()), "decode", 1, 1, 100)
    assert [(s.spec.shape, s.window) for s in region.state] == [((1, 2, 31, 16), 32)] * 2
    assert only(region, "hymell.attention").inputs[1].spec.shape == (1, 2, 32, 16)


def test_latent_cache_of_mla() -> None:
    region = trace_once(build_model(FAMILIES["deepseek_v3"]()), "decode", 1, 1, 20)
    assert {(s.kind, s.spec.shape) for s in region.state} == {
        ("latent", (1, 1, 20, 32)),
        ("latent", (1, 1, 20, 8)),
    }


@pytest.mark.parametrize("name", [name for name in MIXTURE if name != "gpt_oss"])
def test_experts_are_one_op(name: str) -> None:
    config = MIXTURE[name]()
    region = trace_once(build_model(config), "prefill", 2, 16, 0)
    experts = [op for op in region.ops if op.name == "hymell.experts"]
    assert experts
    for op in experts:
        assert op.attrs["tokens"] == 32
        assert op.attrs["gated"] is True
        assert op.inputs[0].spec.shape == (32, 64)
        assert op.inputs[1].spec.shape == (32, op.attrs["top_k"])
        weights = [operand for operand in op.inputs if operand.kind == "weight"]
        per_expert = 3 * op.attrs["hidden"] * op.attrs["intermediate"]
        assert sum(w.spec.numel for w in weights) == op.attrs["experts"] * per_expert


def test_experts_with_biases_and_sinks_of_gpt_oss() -> None:
    region = trace_once(build_model(MIXTURE["gpt_oss"]()), "decode", 1, 1, 8)
    experts = next(op for op in region.ops if op.name == "hymell.experts")
    assert [operand.name.rsplit(".", 1)[-1] for operand in experts.inputs[3:]] == [
        "gate_up_proj",
        "down_proj",
        "gate_up_proj_bias",
        "down_proj_bias",
    ]
    attention = next(op for op in region.ops if op.name == "hymell.attention")
    assert attention.inputs[3].name.endswith("sinks")


@pytest.mark.parametrize("name", list(SCANS))
def test_graph_does_not_grow_with_the_prompt(name: str) -> None:
    model = build_model(SCANS[name]())
    short, long = (trace_once(model, "prefill", 1, S, 0) for S in (64, 1024))
    assert [op.name for op in short.ops] == [op.name for op in long.ops]
    mixers = ("hymell.scan.", "hymell.causal_conv1d")
    assert any(op.name.startswith(mixers) for op in short.ops)


@pytest.mark.parametrize("name", list(SCANS))
def test_recurrent_state_does_not_grow_with_the_cache(name: str) -> None:
    model = build_model(SCANS[name]())
    few, many = (trace_once(model, "decode", 1, 1, L) for L in (8, 512))

    def recurrent(region: Region) -> list[tuple[object, ...]]:
        kept = [s for s in region.state if s.kind in ("recurrent", "conv")]
        return [(s.kind, s.spec, s.repeat) for s in kept]

    assert recurrent(few)
    assert recurrent(few) == recurrent(many)


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "gemma2", "gpt2", "mixtral", "deepseek_v3", "jamba", "qwen3_next"]
)
def test_stretched_cache_equals_a_filled_one(name: str) -> None:
    model = build_model(FAMILIES[name]())
    stretched = trace_once(model, "decode", 2, 1, 45)
    filled = trace_once(model, "prefill", 2, 45, 0)
    assert [(s.kind, s.spec, s.repeat) for s in stretched.state] == [
        (s.kind, s.spec, s.repeat) for s in filled.state
    ]


def test_logits_of_all_tokens_on_request() -> None:
    model = build_model(FAMILIES["llama"]())
    last = trace_once(model, "prefill", 2, 16, 0).ops[-1]
    every = trace_once(model, "prefill", 2, 16, 0, logits_to_keep=0).ops[-1]
    assert last.outputs[0].shape == (2, 1, 256)
    assert every.outputs[0].shape == (2, 16, 256)


def test_a_model_is_left_as_it_was_found() -> None:
    from transformers.cache_utils import DynamicLayer
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = build_model(FAMILIES["recurrent_gemma"]())
    model.train()
    update = DynamicLayer.update
    before = [dict(vars(module)) for module in model.modules()]
    trace_once(model, "decode", 1, 1, 8)
    assert [dict(vars(module)) for module in model.modules()] == before
    assert model.training
    assert DynamicLayer.update is update
    assert "hymell" not in ALL_ATTENTION_FUNCTIONS.valid_keys()


def test_a_failing_forward_also_leaves_all_as_it_was() -> None:
    from transformers.cache_utils import DynamicLayer

    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x * torch.randn_like(x)).sum() > 0:
                return x
            return -x

    update = DynamicLayer.update
    with pytest.raises(TraceError, match=r"^Breaks could not be traced: .*item"):
        trace_module(Breaks(), (torch.zeros(2, 3),))
    assert DynamicLayer.update is update


def test_tied_weights_count_once() -> None:
    model = build_model(FAMILIES["gpt2"]())
    table = parameter_table(model)
    names = [name for name, _, _ in table]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
    assert count_parameters(model) == sum(torch.Size(shape).numel() for _, shape, _ in table)
    region = trace_once(model, "prefill", 1, 8, 0)
    head = region.ops[-2]
    view = region.ops[head.inputs[1].op]
    assert view.inputs[0].name == "transformer.wte.weight"


def test_small_integer_values_answer_control_flow() -> None:
    class Counts(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(ids.shape[1], device=ids.device)
            length = int((positions.max() + 1).item())
            return functional.one_hot(ids[:, :length], 4).float()

    region = trace_module(Counts(), (torch.zeros(2, 5, dtype=torch.long),))
    assert region.ops[-1].outputs[0].shape == (2, 5, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_plain_modules_keep_attention_whole_and_stay_untouched() -> None:
    module = Plain()
    weights = dict(module.named_parameters())
    region = trace_module(module, (torch.zeros(2, 5, 32),))
    attention = only(region, "hymell.attention")
    assert attention.repeat == 3
    assert attention.attrs["causal"] is True
    assert attention.outputs[0].shape == (2, 4, 5, 8)
    assert (region.B.lo, region.S.lo) == (2, 5)
    assert all(weights[name] is parameter for name, parameter in module.named_parameters())
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())


def test_opaque_modules_are_one_op() -> None:
    region = trace_module(Plain(), (torch.zeros(2, 5, 32),), opaque_modules={Block: "block"})
    (op,) = region.ops
    assert (op.name, op.repeat) == ("hymell.opaque.block", 3)
    assert op.outputs[0].shape == (2, 5, 32)
    assert [operand.kind for operand in op.inputs] == ["input", *["weight"] * 4]


@pytest.mark.parametrize("name", list(ATTENTION))
def test_flops_of_matmuls_and_attention_equal_flop_counter(name: str) -> None:
    """Where torch's counter understands every op, the recorded shapes give the same FLOPs."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build_model(ATTENTION[name]())
    region = trace_once(model, "prefill", 2, 16, 0, logits_to_keep=0)
    counter = FlopCounterMode(display=False)
    ids = torch.empty(2, 16, dtype=torch.long, device="meta")
    with torch.no_grad(), counter:
        model(input_ids=ids, use_cache=True)
    assert sum(flops(op) * op.repeat for op in region.ops) == counter.get_total_flops()


def flops(op: Op) -> int:
    """Multiply-adds, twice: matmuls by their shapes, attention as two batched products."""
    shapes = [operand.spec.shape for operand in op.inputs]
    if op.name == "aten.mm.default":
        return 2 * shapes[0][0] * shapes[0][1] * shapes[1][1]
    if op.name == "aten.addmm.default":
        return 2 * shapes[1][0] * shapes[1][1] * shapes[2][1]
    if op.name == "aten.bmm.default":
        return 2 * shapes[0][0] * shapes[0][1] * shapes[0][2] * shapes[1][2]
    if op.name == "aten.baddbmm.default":
        return 2 * shapes[1][0] * shapes[1][1] * shapes[1][2] * shapes[2][2]
    if op.name == "hymell.attention":
        batch, heads, queries, width = shapes[0]
        return 2 * batch * heads * queries * shapes[1][2] * (width + shapes[2][3])
    return 0
