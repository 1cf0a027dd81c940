"""Blocks: found from what modules contain, right for every family, nothing left out."""

from __future__ import annotations

import re

import pytest
import torch
from family_regions import ALL, facts, phases, region
from torch import Tensor, nn
from torch.nn import functional

from hymell.graph import Phase
from hymell.op_registry.blocks import BLOCKS, assign
from hymell.op_registry.engines import get_engine
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Conv, Experts, Gemm, GroupedGemm, Scan
from hymell.op_registry.registry import functional as packet
from hymell.tracer.concrete import trace_module

FAMILIES = sorted(ALL)
_HEAVY = (Gemm, GroupedGemm, Conv, Experts, Scan)


def blocks_by_module(name: str, phase: Phase = "prefill") -> dict[str, set[str]]:
    """Blocks of the modules that hold a product, a mixing op or a norm, by path in the model."""
    traced = region(name, phase)
    found: dict[str, set[str]] = {}
    for op, block in zip(traced.ops, assign(traced), strict=True):
        short = packet(op.name)
        matters = short in ("aten.mm", "aten.addmm", "aten.bmm", "aten.convolution")
        if matters or op.name.startswith("hymell.") or "norm" in op.path.rpartition(".")[2].lower():
            found.setdefault(op.path, set()).add(block)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_every_op_has_one_of_six_blocks(name: str) -> None:
    for phase in phases(name):
        traced = region(name, phase)
        blocks = assign(traced)
        assert len(blocks) == len(traced.ops)
        assert set(blocks) <= set(BLOCKS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_module_lies_in_one_block(name: str) -> None:
    for phase in phases(name):
        split = {path: found for path, found in blocks_by_module(name, phase).items() if path}
        assert all(len(found) == 1 for found in split.values()), split


@pytest.mark.parametrize("engine", ["eager", "vllm"])
@pytest.mark.parametrize("name", FAMILIES)
def test_shares_sum_to_the_whole(name: str, engine: str) -> None:
    for phase in phases(name):
        launched = lower(region(name, phase), get_engine(engine), facts(name)).kernels
        flops = dict.fromkeys(BLOCKS, 0.0)
        for kernel in launched:
            flops[kernel.block] += kernel.repeat * float(kernel.primitive.flops)
        total = sum(k.repeat * float(k.primitive.flops) for k in launched)
        assert sum(flops.values()) == total


#: Where modules of every family belong; paths without the model's prefix and layer numbers.
EXPECTED = {
    "llama": {
        "input_layernorm": "attention",
        "self_attn.q_proj": "attention",
        "self_attn.o_proj": "attention",
        "post_attention_layernorm": "ffn",
        "mlp.gate_proj": "ffn",
        "mlp.down_proj": "ffn",
        "lm_head": "head",
        "model.norm": "head",
    },
    "gemma2": {
        "post_attention_layernorm": "attention",
        "pre_feedforward_layernorm": "ffn",
        "post_feedforward_layernorm": "ffn",
    },
    "olmo2": {"post_attention_layernorm": "attention", "post_feedforward_layernorm": "ffn"},
    "bert": {
        "attention.self.query": "attention",
        "attention.output.dense": "attention",
        "attention.output.LayerNorm": "attention",
        "intermediate.dense": "ffn",
        "output.LayerNorm": "ffn",
        "cls.predictions.decoder": "head",
        "bert.embeddings.LayerNorm": "embed",
    },
    "t5": {
        "layer.0.layer_norm": "attention",
        "encoder.block.0.layer.1.layer_norm": "ffn",
        "decoder.block.0.layer.1.layer_norm": "attention",
        "decoder.block.0.layer.2.layer_norm": "ffn",
        "DenseReluDense.wi": "ffn",
    },
    "whisper": {
        "conv1": "embed",
        "encoder_attn.k_proj": "attention",
        "encoder_attn_layer_norm": "attention",
        "fc1": "ffn",
        "proj_out": "head",
    },
    "deepseek_v3": {
        "self_attn.q_a_proj": "attention",
        "self_attn.kv_a_layernorm": "attention",
        "self_attn.kv_b_proj": "attention",
        "mlp.gate": "moe",
        "mlp.experts": "moe",
        "mlp.shared_experts.down_proj": "moe",
    },
    "qwen2_moe": {"mlp.shared_expert_gate": "moe", "mlp.shared_expert.up_proj": "moe"},
    "granitemoehybrid": {"shared_mlp.input_linear": "moe", "mamba.in_proj": "mixer"},
    "dbrx": {"norm_attn_norm.attn.Wqkv": "attention", "ffn.router.layer": "moe"},
    "mamba": {"mixer.in_proj": "mixer", "mixer.out_proj": "mixer", "norm": "mixer"},
    "recurrent_gemma": {
        "temporal_block.linear_y": "mixer",
        "temporal_block.conv_1d": "mixer",
        "temporal_block.rg_lru": "mixer",
        "temporal_block.linear_out": "mixer",
        "temporal_block.q_proj": "attention",
        "mlp_block.down_proj": "ffn",
    },
    "xlstm": {"mlstm_layer.q": "mixer", "mlstm_layer.out_proj": "mixer", "ffn.proj_down": "ffn"},
    "lfm2": {"conv.in_proj": "mixer", "conv.out_proj": "mixer", "feed_forward.w1": "ffn"},
    "falcon_h1": {
        "mamba.in_proj": "mixer",
        "self_attn.q_proj": "attention",
        "feed_forward.up_proj": "ffn",
    },
    "zamba2": {
        "mamba.in_proj": "mixer",
        "mamba_decoder.mamba.out_proj": "mixer",
        "shared_transformer.self_attn.o_proj": "attention",
        "shared_transformer.feed_forward.down_proj": "ffn",
    },
    "jamba": {"mamba.x_proj": "mixer", "self_attn.q_proj": "attention"},
    "nemotron_h": {"mixer.in_proj": "mixer", "mixer.q_proj": "attention", "mixer.gate": "moe"},
    "kimi_linear": {"self_attn.forget_gate.f_b_proj": "mixer", "self_attn.kv_b_proj": "attention"},
    "rwkv": {"attention.output": "mixer", "feed_forward.receptance": "ffn"},
    "gptj": {"attn.q_proj": "attention", "mlp.fc_in": "ffn"},
    "llava": {"patch_embedding": "embed", "layer_norm2": "ffn", "self_attn.out_proj": "attention"},
    "clip": {"mlp.fc1": "ffn", "self_attn.k_proj": "attention"},
    "vit": {"attention.o_proj": "attention", "mlp.fc2": "ffn", "classifier": "head"},
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_modules_belong_where_they_work(name: str) -> None:
    found = blocks_by_module(name)
    for module, block in EXPECTED[name].items():
        pattern = re.compile(rf"(^|\.\d+\.|\.){re.escape(module)}$")
        matches = {path: b for path, b in found.items() if pattern.search(path)}
        inside = {p: b for p, b in matches.items() if re.search(r"\.\d+\.", p)} or matches
        assert inside, (name, module, sorted(found))
        if module in ("norm", "output.LayerNorm"):
            inside = {p: b for p, b in inside.items() if re.search(rf"\.\d+\.{module}$", p)}
        assert all(b == {block} for b in inside.values()), (module, inside)


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class _Model(nn.Module):
    """No list of layers: everything is an attribute of the outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.norm = nn.LayerNorm(64)
        self.attention = _Attention(64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attention(self.norm(x))
        x = x + self.down(functional.gelu(self.up(x)))
        return self.head(x)


def test_a_plain_module_without_layers() -> None:
    traced = trace_module(_Model(), (torch.zeros(2, 8, dtype=torch.long),))
    by_path: dict[str, set[str]] = {}
    for op, block in zip(traced.ops, assign(traced), strict=True):
        if op.path:
            by_path.setdefault(op.path, set()).add(block)
    assert by_path == {
        "embed": {"embed"},
        "norm": {"attention"},
        "attention": {"attention"},
        "attention.qkv": {"attention"},
        "attention.out": {"attention"},
        "up": {"ffn"},
        "down": {"ffn"},
        "head": {"head"},
    }


def test_attention_in_the_forward_of_the_layer_itself() -> None:
    """Products before it and the first after it are attention, the MLP beside it is not."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (nn.Linear(64, 64) for _ in range(4))
            self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                w(x).unflatten(-1, (4, 16)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.wo(mixed)
            return x + self.down(torch.relu(self.up(x)))

    traced = trace_module(nn.Sequential(Layer(), Layer()), (torch.zeros(2, 8, 64),))
    blocks = {
        op.path.rpartition(".")[2]: block
        for op, block in zip(traced.ops, assign(traced), strict=True)
        if packet(op.name) == "aten.addmm"
    }
    assert {name for name, block in blocks.items() if block == "attention"} == {
        "wq",
        "wk",
        "wv",
        "wo",
    }
    assert {name for name, block in blocks.items() if block == "ffn"} == {"up", "down"}
