"""Random valid configs of six families: a finite price, and more work never costs less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hymell
from hymell.estimators.predict import price
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine

FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def dense(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """A config whose heads divide; sizes from tiny to odd."""
    head_dim = draw(st.sampled_from([8, 16, 40]))
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    return {
        "model_type": model_type,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.integers(1, 40)) * 8,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": draw(st.integers(1, 5)),
        "vocab_size": draw(st.integers(8, 300)),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": 4096,
    }


@st.composite
def windowed(draw: st.DrawFn) -> dict[str, Any]:
    config = draw(dense("mistral"))
    return {**config, "sliding_window": draw(st.sampled_from([4, 33, 256]))}


@st.composite
def routed(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(2, 12))
    return {
        **draw(dense("qwen3_moe")),
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.integers(1, 16)) * 8,
    }


@st.composite
def latent(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 6))
    groups = draw(st.sampled_from([1, 2, 4]))
    return {
        "model_type": "deepseek_v3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": draw(st.integers(1, 4)),
        "first_k_dense_replace": 1,
        "n_routed_experts": 4 * groups,
        "num_experts_per_tok": 2,
        "n_group": groups,
        "topk_group": 1,
        "q_lora_rank": draw(st.sampled_from([None, 24])),
        "kv_lora_rank": draw(st.sampled_from([16, 40])),
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
    }


@st.composite
def recurrent(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "model_type": "mamba",
        "hidden_size": draw(st.integers(1, 8)) * 16,
        "state_size": draw(st.sampled_from([4, 16])),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "conv_kernel": draw(st.sampled_from([2, 4])),
        "vocab_size": 100,
    }


FAMILIES: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "llama": dense("llama"),
    "qwen3": dense("qwen3"),
    "mistral": windowed(),
    "qwen3_moe": routed(),
    "deepseek_v3": latent(),
    "mamba": recurrent(),
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_configs(family: str) -> None:
    @FEW
    @given(
        config=FAMILIES[family],
        engine=st.sampled_from(["vllm", "sglang", "trtllm", "compile"]),
        gpu=st.sampled_from(["h100-sxm", "l4", "v100-sxm-32gb", "mi300x", "cpu"]),
        batch=st.integers(1, 300),
        prompt=st.integers(4, 5000),
        output=st.integers(1, 700),
    )
    def check(
        config: dict[str, Any], engine: str, gpu: str, batch: int, prompt: int, output: int
    ) -> None:
        graph = hymell.trace(config)
        workload = hymell.Workload(batch, prompt, output)
        report = hymell.predict(graph, workload, gpu=gpu, engine=engine)
        assert _all_finite(report.to_dict())
        assert report.ttft_s > 0
        assert report.energy_j > 0
        assert report.coverage.complete
        assert 0 < report.power_w <= find_gpu(gpu).tdp_w * (1 + 1e-9)
        _grows(graph, engine, gpu, batch, prompt, output)

    check()


def _grows(graph: OpGraph, engine: str, gpu: str, batch: int, prompt: int, output: int) -> None:
    steps = np.arange(12)
    for changed in range(3):
        point = [np.full(12, float(v)) for v in (batch, prompt, output)]
        point[changed] = point[changed] + steps * max(1, int(point[changed][0]) // 5)
        costs = price(graph, *point, gpu=find_gpu(gpu), engine=get_engine(engine))
        for name in ("ttft_s", "latency_s", "energy_j", "prefill_flops", "decode_bytes"):
            rises = np.diff(costs[name])
            assert (rises >= -1e-9 * costs[name][1:]).all(), (name, changed, costs[name])


def _all_finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(_all_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(_all_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)
