"""The kernels each engine launches, against what a profile of that engine shows."""

from __future__ import annotations

from collections import Counter

import pytest

import hymell
from hymell.graph import OpGraph
from hymell.op_registry.engines import ENGINES, get_engine
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Attention, Gemm, Memory, RowReduce, at
from hymell.workload import Precision

LLAMA = "meta-llama/Meta-Llama-3-8B"


@pytest.fixture(scope="module")
def llama() -> OpGraph:
    return hymell.trace(LLAMA)


def kernels(graph: OpGraph, engine: str, phase: str = "decode", **formats: str) -> list[Kernel]:
    region = graph.of_phase(phase)[-1]  # type: ignore[arg-type]
    return list(lower(region, get_engine(engine), graph.facts, Precision(**formats)).kernels)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_llama_layer_of_a_serving_engine(llama: OpGraph, engine: str, phase: str) -> None:
    launched = kernels(llama, engine, phase)
    layer = Counter[str]()
    for kernel in launched:
        if kernel.repeat >= 31:
            layer[kernel.name] += kernel.repeat
    assert layer == {
        "gemm q_proj+k_proj+v_proj": 32,
        "rope_kv_append": 32,
        "attention": 32,
        "gemm o_proj": 32,
        "gemm gate_proj+up_proj": 32,
        "silu_and_mul": 32,
        "gemm down_proj": 32,
        # After attention in each of 32 layers, and before it in all but the first.
        "add_rms_norm": 32 + 31,
    }
    once = [k.name for k in launched if k.repeat == 1]
    assert once == ["embedding", "rms_norm", "add_rms_norm", "gemm lm_head"]


def test_llama_shapes_in_vllm(llama: OpGraph) -> None:
    by_name = {k.name: k.primitive for k in kernels(llama, "vllm", "prefill")}
    tokens = by_name["gemm o_proj"].m
    assert str(tokens) == "B*S"
    shapes = {n: (p.m, p.n, p.k) for n, p in by_name.items() if isinstance(p, Gemm)}
    assert shapes["gemm q_proj+k_proj+v_proj"] == (tokens, 6144, 4096)
    assert shapes["gemm gate_proj+up_proj"] == (tokens, 28672, 4096)
    assert shapes["gemm down_proj"] == (tokens, 4096, 14336)
    attention = by_name["attention"]
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads, attention.qk_dim) == (32, 8, 128)
    norm = by_name["add_rms_norm"]
    assert isinstance(norm, RowReduce)
    assert (norm.rows, norm.cols) == (tokens, 4096)
    # Reads hidden, residual and the weight; writes the sum and the normed sum.
    assert norm.bytes_read == 2 * tokens * 4096 * 2 + 4096 * 2
    assert norm.bytes_written == 2 * tokens * 4096 * 2
    act = by_name["silu_and_mul"]
    assert isinstance(act, Memory)
    assert act.bytes_read == 2 * tokens * 14336 * 2
    assert act.bytes_written == tokens * 14336 * 2


def test_launches_of_rope_and_append(llama: OpGraph) -> None:
    launches = {
        engine: next(k.launches for k in kernels(llama, engine) if k.name == "rope_kv_append")
        for engine in ("vllm", "sglang", "trtllm")
    }
    assert launches == {"vllm": 2, "sglang": 2, "trtllm": 1}


def test_compile_fuses_element_wise_chains_but_keeps_gemms(llama: OpGraph) -> None:
    names = Counter(k.name for k in kernels(llama, "compile") if k.repeat == 32)
    assert names["gemm q_proj"] == names["gemm up_proj"] == 1
    assert names["rms_norm"] == names["add_rms_norm"] == 1
    assert names["silu_and_mul"] == 1
    assert not any(name in names for name in ("pow", "rsqrt", "mean"))


def test_eager_launches_every_op(llama: OpGraph) -> None:
    eager = kernels(llama, "eager")
    names = Counter(k.name for k in eager if k.repeat == 32)
    # Two norms of eight ops in each layer.
    assert names["rsqrt"] == names["pow"] == names["mean"] == 2
    assert sum(k.repeat * k.launches for k in eager) > 3 * sum(
        k.repeat * k.launches for k in kernels(llama, "vllm")
    )


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_fusion_never_loses_or_invents_work(llama: OpGraph, engine: str) -> None:
    """GEMM and attention FLOPs and weight bytes are those of the ops, whatever fuses."""
    reference = kernels(llama, "eager", "prefill")
    fused = kernels(llama, engine, "prefill")
    for what in ("flops", "flops_causal"):
        at_reference, at_fused = (
            sum(k.repeat * _value(getattr(_at(k), what)) for k in ks) for ks in (reference, fused)
        )
        assert at_fused == at_reference
    gemm_weights = [
        sum(
            k.repeat * _value(k.primitive.weight_bytes) for k in ks if isinstance(k.primitive, Gemm)
        )
        for ks in (reference, fused)
    ]
    assert gemm_weights[0] == gemm_weights[1]


def _at(kernel: Kernel) -> object:
    return at(kernel.primitive, 2, 77, 0)


def _value(size: object) -> float:
    return float(size(2, 77, 0)) if callable(size) else float(size)  # type: ignore[arg-type]


def test_fp8_weights_bring_quantise_kernels_and_fp8_math(llama: OpGraph) -> None:
    fp8 = kernels(llama, "vllm", weights="float8_e4m3")
    gemms = {k.name: k.primitive for k in fp8 if isinstance(k.primitive, Gemm)}
    assert gemms["gemm down_proj"].math == "fp8"
    assert gemms["gemm down_proj"].b_dtype == "float8_e4m3"
    assert gemms["gemm lm_head"].math == "bf16"
    quantised = sum(k.repeat for k in fp8 if k.name == "quantize_fp8")
    assert quantised == 4 * 32


@pytest.mark.parametrize("engine", ["vllm", "eager"])
def test_an_append_names_its_attention_and_what_it_only_copies(llama: OpGraph, engine: str) -> None:
    append = next(k.primitive for k in kernels(llama, engine, "prefill") if "append" in k.name)
    assert isinstance(append, Memory)
    assert append.prepares is not None
    attention = append.prepares.kernel
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads, attention.qk_dim) == (32, 8, 128)
    priced = at(append, 2, 77, 0).prepares
    assert priced is not None
    assert priced.rows == 2 * 77
    # vLLM rotates the keys on the way; only values come as they are. Read and written, 2 bytes.
    width = 8 * 128 * (1 if engine == "vllm" else 2)
    assert priced.copied_bytes == 2 * 2 * 2 * 77 * width


def test_each_attention_has_its_own_append() -> None:
    """T5 appends what the encoder left, once, before the attention that reads it."""
    launched = kernels(hymell.trace("google-t5/t5-small"), "vllm", "prefill")
    kinds = []
    for kernel in launched:
        if isinstance(kernel.primitive, Memory) and kernel.primitive.prepares is not None:
            attention = kernel.primitive.prepares.kernel
            assert isinstance(attention, Attention)
            kinds.append((str(kernel.primitive.prepares.rows), attention.causal))
    assert set(kinds) == {("B", True), ("B*S", False)}


def test_a_conversion_names_its_product(llama: OpGraph) -> None:
    fp8 = kernels(llama, "vllm", "prefill", weights="float8_e4m3")
    conversion = next(k.primitive for k in fp8 if k.name == "quantize_fp8")
    assert isinstance(conversion, Memory)
    assert conversion.prepares is not None
    assert isinstance(conversion.prepares.kernel, Gemm)
    assert str(conversion.prepares.rows) == "B*S"


def test_int4_is_weight_only(llama: OpGraph) -> None:
    gemm = next(
        k.primitive for k in kernels(llama, "vllm", weights="int4_g128") if "down" in k.name
    )
    assert isinstance(gemm, Gemm)
    assert (gemm.math, gemm.a_dtype) == ("bf16", "bfloat16")
    assert gemm.weight_bytes == pytest.approx(4096 * 14336 * (4 + 20 / 128) / 8)


def test_fp8_cache_halves_what_attention_reads(llama: OpGraph) -> None:
    full, half = (
        next(k.primitive for k in kernels(llama, "vllm", **f) if k.name == "attention")
        for f in ({}, {"kv": "float8_e4m3"})
    )
    assert isinstance(full, Attention)
    assert isinstance(half, Attention)
    assert _value(full.kv_bytes) == 2 * _value(half.kv_bytes)


def test_moe_layer_of_vllm() -> None:
    launched = kernels(hymell.trace("Qwen/Qwen1.5-MoE-A2.7B"), "vllm")
    moe = [k.name for k in launched if k.block == "moe" and k.repeat == 24]
    assert "fused_moe" in moe
    assert "topk_softmax" in moe
    assert "gemm gate" in moe
    # The shared expert's gate and up merge; the router does not merge with them.
    assert "gemm gate_proj+up_proj" in moe


def test_engine_names() -> None:
    assert get_engine("TensorRT-LLM") is ENGINES["trtllm"]
    with pytest.raises(hymell.HymellError, match="did you mean 'vllm'"):
        get_engine("vlm")
