"""Totals of known models against the textbook, and faults users of other tools reported."""

from __future__ import annotations

from functools import cache

import pytest

import hymell
from hymell.graph import OpGraph
from hymell.op_registry.engines import get_engine
from hymell.op_registry.kernels import Lowered
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Experts, at


@cache
def graph(model: str, logits_to_keep: int = 1) -> OpGraph:
    return hymell.trace(model, logits_to_keep=logits_to_keep)


def lowered(model: OpGraph, phase: str, B: int, S: int, L: int, engine: str = "eager") -> Lowered:
    return lower(model.region(phase, B, S, L), get_engine(engine), model.facts)


def total(
    model: OpGraph, phase: str, B: int, S: int, L: int, engine: str = "eager", what: str = "flops"
) -> float:
    kernels = lowered(model, phase, B, S, L, engine).kernels
    return sum(k.repeat * float(getattr(at(k.primitive, B, S, L), what)) for k in kernels)


@pytest.mark.parametrize("engine", ["eager", "vllm"])
@pytest.mark.parametrize(
    ("model", "tflop"),
    [
        # Layers: 2 * S * weights + 4 * S^2 * heads * head_dim per layer, head on every token.
        ("meta-llama/Meta-Llama-3-8B", 32.938),
        ("mistralai/Mixtral-8x7B-v0.1", 54.417),
        ("Qwen/Qwen3-30B-A3B", 15.757),
        ("openai/gpt-oss-20b", 16.424),
        ("deepseek-ai/DeepSeek-V3", 170.974),
    ],
)
def test_prefill_of_2048_tokens(model: str, tflop: float, engine: str) -> None:
    flops = total(graph(model, 0), "prefill", 1, 2048, 0, engine)
    assert flops / 1e12 == pytest.approx(tflop, abs=5e-4)


def test_head_on_last_token_only() -> None:
    flops = total(graph("meta-llama/Meta-Llama-3-8B"), "prefill", 1, 2048, 0)
    assert flops / 1e12 == pytest.approx(30.79, abs=5e-3)


def test_llama_31_8b_counts_attention_and_head() -> None:
    """B1 S1024: linear 1.42937e13 + head 1.07589e12 + attention 5.49756e11."""
    hidden, inner, kv, layers, vocab, tokens = 4096, 14336, 1024, 32, 128256, 1024
    linear = 2 * tokens * layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    head = 2 * tokens * hidden * vocab
    attention = 4 * layers * tokens * tokens * hidden
    flops = total(graph("meta-llama/Llama-3.1-8B", 0), "prefill", 1, tokens, 0, "vllm")
    assert flops == linear + head + attention
    assert flops == pytest.approx(1.59193e13, rel=1e-5)


def test_gqa_is_not_counted_as_multi_head() -> None:
    """QKV costs (heads + 2 kv heads) * head_dim columns, and head_dim need not be hidden/heads."""
    qwen = graph("Qwen/Qwen3-0.6B")
    kernels = lowered(qwen, "prefill", 1, 64, 0, "vllm").kernels
    (qkv,) = [k for k in kernels if k.name == "gemm q_proj+k_proj+v_proj"]
    assert (qkv.primitive.n, qkv.primitive.k) == ((16 + 2 * 8) * 128, 1024)


def test_tied_weights_are_stored_once_and_the_head_is_still_computed() -> None:
    qwen = graph("Qwen/Qwen3-0.6B")
    assert qwen.facts.parameters == 596_049_920
    head = [k for k in lowered(qwen, "decode", 1, 1, 8).kernels if k.name == "gemm lm_head"]
    assert len(head) == 1
    assert head[0].primitive.n == 151_936


def test_causal_and_full_counts_differ_by_the_masked_half() -> None:
    llama = graph("meta-llama/Llama-3.1-8B")
    full = total(llama, "prefill", 1, 1024, 0)
    causal = total(llama, "prefill", 1, 1024, 0, what="flops_causal")
    assert full - causal == 4 * 32 * 4096 * (1024 * 1024 - 1024 * 1025 // 2)


def test_counts_do_not_grow_from_call_to_call() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    first, second = (hymell.trace(config, use_cache=False) for _ in range(2))
    assert first == second


def test_mla_decode_is_absorbed_by_serving_engines_and_expanded_by_eager() -> None:
    deepseek = graph("deepseek-ai/DeepSeek-V3")
    assert total(deepseek, "decode", 1, 1, 4096) / 1e9 == pytest.approx(8477, abs=1)
    per_layer = 2 * 128 * 4097 * (576 + 512)
    kernels = lowered(deepseek, "decode", 1, 1, 4096, "vllm").kernels
    latent = [at(k.primitive, 1, 1, 4096) for k in kernels if k.name == "mla_attention"]
    assert [float(p.flops) for p in latent] == [per_layer, per_layer]
    assert all(p.kv_bytes == 4097 * 576 * 2 for p in latent)


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", 12.88),
        ("Qwen/Qwen3-30B-A3B", 3.35),
        ("deepseek-ai/DeepSeek-V3", 37.55),
    ],
)
def test_active_parameters(model: str, billions: float) -> None:
    assert graph(model).facts.active_parameters / 1e9 == pytest.approx(billions, abs=5e-3)


def test_llama_4_scout_active_parameters_of_its_language_model() -> None:
    scout = graph("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    vision = 862_000_000
    assert (scout.facts.active_parameters - vision) / 1e9 == pytest.approx(17.17, abs=0.2)


def test_stored_parameters_are_all_experts() -> None:
    parameters = graph("deepseek-ai/DeepSeek-V3").facts.parameters
    assert parameters / 1e9 == pytest.approx(671.03, abs=5e-3)


def test_mixtral_reads_nearly_all_experts_at_batch_64() -> None:
    mixtral = graph("mistralai/Mixtral-8x7B-v0.1")
    weights = total(mixtral, "decode", 64, 1, 1024, "vllm", "weight_bytes")
    assert weights / 1e9 == pytest.approx(93, abs=0.5)
    # 27.9 ms of an H100's 3.35 TB/s.
    assert weights / 3.35e12 == pytest.approx(27.9e-3, rel=0.01)


def test_active_experts_follow_uniform_routing() -> None:
    experts = Experts(tokens=5, top_k=2, experts=8, hidden=64, intermediate=128)
    assert float(experts.active_experts) == pytest.approx(8 * (1 - (1 - 2 / 8) ** 5))
    assert experts.tokens_per_expert == 5 * 2 / 8


def test_skewed_routing_touches_fewer_experts() -> None:
    uniform = Experts(tokens=16, top_k=4, experts=64, hidden=64, intermediate=128)
    skewed = Experts(tokens=16, top_k=4, experts=64, hidden=64, intermediate=128, skew=1.0)
    assert 4 <= float(skewed.active_experts) < float(uniform.active_experts)
    assert skewed.flops == uniform.flops


def test_moe_decode_speed_follows_active_weights() -> None:
    """Qwen3.5-35B-A3B at batch 1 reads the weights of about 3 B parameters, not of 35."""
    qwen = graph("Qwen/Qwen3.5-35B-A3B")
    weights = total(qwen, "decode", 1, 1, 1024, "vllm", "weight_bytes")
    assert 2.0e9 < weights / 2 < 4.0e9
    assert qwen.facts.weight_bytes / 2 > 34e9


def test_two_models_of_equal_size_and_different_kv_heads_differ() -> None:
    base = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "vocab_size": 1000,
    }
    few, many = (hymell.trace({**base, "num_key_value_heads": kv}) for kv in (2, 16))
    few_bytes, many_bytes = (
        total(g, "decode", 8, 1, 8192, "vllm", "bytes_read") for g in (few, many)
    )
    assert many_bytes > 2 * few_bytes
