"""What holds for the lowering of every model family, by every engine, in both phases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest
from families import SCANS
from family_regions import ALL, facts, phases, region

from hymell.graph import Phase, Region
from hymell.op_registry.blocks import BLOCKS
from hymell.op_registry.dataflow import analyse
from hymell.op_registry.engines import ENGINES, get_engine
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import (
    Attention,
    Conv,
    Conv1d,
    Experts,
    Gemm,
    GroupedGemm,
    Memory,
    RowReduce,
    Scan,
)
from hymell.op_registry.registry import find, functional

FAMILIES = sorted(ALL)
SERVING = ("vllm", "trtllm")
#: SGLang has the rules of vLLM.
RULES = ("eager", "compile", *SERVING)
#: Families with multi-head latent attention, which serving engines absorb in decode.
LATENT = {"deepseek_v2", "deepseek_v3", "kimi_linear"}


@cache
def kernels(name: str, phase: Phase, engine: str, memo: bool = True) -> tuple[Kernel, ...]:
    return lower(region(name, phase, memo=memo), get_engine(engine), facts(name)).kernels


def cases(name: str) -> Iterable[tuple[Phase, str]]:
    return [(phase, engine) for phase in phases(name) for engine in RULES]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_op_is_understood_and_every_cost_is_a_number(name: str) -> None:
    for phase, engine in cases(name):
        for kernel in kernels(name, phase, engine):
            assert kernel.understood, (phase, engine, kernel.name)
            assert kernel.block in BLOCKS
            primitive = kernel.primitive
            costs = {
                what: float(getattr(primitive, what))
                for what in (
                    "flops",
                    "flops_causal",
                    "vector_flops",
                    "bytes_read",
                    "bytes_written",
                    "weight_bytes",
                )
            }
            assert all(math.isfinite(c) and c >= 0 for c in costs.values()), (engine, kernel)
            assert costs["flops_causal"] <= costs["flops"]
            assert costs["weight_bytes"] <= costs["bytes_read"]
            assert costs["bytes_written"] > 0, (phase, engine, kernel)


@pytest.mark.parametrize("name", FAMILIES)
def test_fusion_keeps_flops_and_weights(name: str) -> None:
    """Exact but for MLA, whose absorbed decode is another algorithm with the same weights."""
    for phase in phases(name):
        reference = kernels(name, phase, "eager")
        for engine in RULES:
            fused = kernels(name, phase, engine)
            assert matrices(fused) == matrices(reference), (phase, engine)
            if name in LATENT and phase == "decode" and engine in SERVING:
                assert flops(fused) < flops(reference)
            else:
                assert flops(fused) == flops(reference), (phase, engine)


def flops(launched: Iterable[Kernel]) -> float:
    return sum(k.repeat * float(k.primitive.flops) for k in launched)


def matrices(launched: Iterable[Kernel]) -> float:
    """Bytes of weight matrices that GEMMs read (biases apart: a merged GEMM has one for all)."""
    total = 0.0
    for kernel in launched:
        p = kernel.primitive
        if isinstance(p, Gemm) and p.b_is_weight:
            total += kernel.repeat * p.batch * p.n * p.k * 2
        elif isinstance(p, (Experts, GroupedGemm, Conv)):
            total += kernel.repeat * float(p.weight_bytes)
    return total


def unrolled(name: str) -> Iterable[Phase]:
    """Phases in which all layers are traced: decode only where it has rules of its own."""
    return [p for p in phases(name) if p == "prefill" or name in {*SCANS, *LATENT}]


@pytest.mark.parametrize("name", FAMILIES)
def test_repeated_layers_lower_to_what_all_layers_lower_to(name: str) -> None:
    for phase in unrolled(name):
        for engine in ("compile", "vllm", "trtllm"):
            once, each = (
                counted(kernels(name, phase, engine, memo=memo)) for memo in (True, False)
            )
            assert once == each, (phase, engine)


def counted(launched: Iterable[Kernel]) -> Counter[tuple[str, str, str, str, int]]:
    kinds: Counter[tuple[str, str, str, str, int]] = Counter()
    for k in launched:
        kinds[k.name, repr(k.primitive), k.block, k.part, k.launches] += k.repeat
    return kinds


@pytest.mark.parametrize("name", FAMILIES)
def test_products_read_the_weights_of_the_linear_layers(name: str) -> None:
    """Each weight that a product uses is read once per use, by its stored size."""
    for phase in phases(name):
        traced = region(name, phase)
        assert gemm_weights(kernels(name, phase, "eager")) == used_weights(traced, name)


def gemm_weights(launched: Iterable[Kernel]) -> float:
    return sum(
        k.repeat * p.batch * p.n * p.k
        for k in launched
        if isinstance(p := k.primitive, Gemm) and p.b_is_weight
    )


def used_weights(traced: Region, name: str) -> float:
    """Elements of the parameters behind each matrix product's operands."""
    flow = analyse(traced.ops, facts(name))
    total = 0
    for op in traced.ops:
        if functional(op.name) not in ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"):
            continue
        for position in range(len(op.inputs) - 2, len(op.inputs)):
            weight = flow.weight(op, position)
            if weight is not None:
                total += op.repeat * int(weight.numel)
    return float(total)


@pytest.mark.parametrize("name", FAMILIES)
def test_eager_and_compiled_kernels_cover_every_op_once(name: str) -> None:
    for phase in phases(name):
        ops = region(name, phase).ops
        flow = analyse(ops, facts(name))
        launching = [op.id for op in ops if (rule := find(op.name)) and rule(op, flow) is not None]
        for engine in ("eager", "compile"):
            covered = [op for kernel in kernels(name, phase, engine) for op in kernel.ops]
            assert sorted(covered) == launching


@pytest.mark.parametrize("name", FAMILIES)
def test_every_kernel_runs_after_those_it_needs(name: str) -> None:
    for phase in unrolled(name):
        flow = analyse(region(name, phase, memo=False).ops, facts(name))
        launched = kernels(name, phase, "vllm", memo=False)
        first: dict[int, int] = {}
        for position, kernel in enumerate(launched):
            for op in kernel.ops:
                first.setdefault(op, position)
        for position, kernel in enumerate(launched):
            needed = {p for op in kernel.ops for p in flow.depends[op]} - set(kernel.ops)
            assert all(first.get(p, -1) < position for p in needed), kernel


@pytest.mark.parametrize("name", FAMILIES)
def test_a_serving_engine_launches_nothing_that_it_would_not(name: str) -> None:
    """No copies of results, no casts or biases on their own, no state written twice."""
    for phase in phases(name):
        traced = region(name, phase)
        for kernel in kernels(name, phase, "vllm"):
            if not kernel.layer:
                continue
            names = {functional(traced.ops[op].name) for op in kernel.ops}
            assert names != {"aten.clone"}, kernel
            assert names != {"aten._to_copy"}, kernel


def per_layer(name: str, phase: Phase = "prefill", engine: str = "vllm") -> Counter[str]:
    """Names of the kernels that run in every layer, with how often they do."""
    launched = kernels(name, phase, engine)
    found: Counter[str] = Counter()
    for kernel in launched:
        if kernel.layer:
            found[kernel.name] += kernel.repeat
    return found


def test_qk_norm_joins_rope_and_append() -> None:
    layers = per_layer("qwen3")
    assert layers == {
        "rms_norm": 1,
        "add_rms_norm": 3 + 4,
        "gemm q_proj+k_proj+v_proj": 4,
        "qk_norm_rope_kv_append": 4,
        "attention": 4,
        "gemm o_proj": 4,
        "gemm gate_proj+up_proj": 4,
        "silu_and_mul": 4,
        "gemm down_proj": 4,
    }


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "glm4"])
def test_four_norms_of_a_sandwiched_layer(name: str) -> None:
    layers = per_layer(name)
    # After attention and after the MLP; before attention (but the first) and before the MLP.
    assert layers["rms_norm"] == 2 * 4 + 1
    assert layers["add_rms_norm"] == 4 + 3


def test_post_norm_takes_its_residual_along() -> None:
    layers = per_layer("olmo2")
    assert layers["add_rms_norm"] == 2 * 4
    assert "add" not in layers
    last = [k.name for k in kernels("olmo2", "prefill", "vllm")][-2:]
    assert last == ["rms_norm", "gemm lm_head"]


@pytest.mark.parametrize("name", ["phi", "gptj", "cohere", "falcon"])
def test_parallel_attention_and_mlp_meet_in_one_norm(name: str) -> None:
    launched = kernels(name, "prefill", "vllm")
    (joined,) = [k for k in launched if k.layer and k.name == "add_layer_norm"]
    assert joined.repeat == 3
    assert isinstance(joined.primitive, RowReduce)
    rows = 2 * 24 * 64 * 2
    # Attention, MLP and residual in; the sum and the normed sum out.
    # One float32 vector in Cohere, two of bfloat16 in the others.
    assert joined.primitive.bytes_read == 3 * rows + 256
    assert joined.primitive.bytes_written == 2 * rows


def test_two_norms_of_one_input_share_the_residual_add() -> None:
    launched = kernels("gpt_neox", "prefill", "vllm")
    norms = Counter[str]()
    for kernel in launched:
        if "norm" in kernel.name:
            norms[kernel.name] += kernel.repeat
    # The add of layers 1 to 3 joins the first norm; the second reads its sum.
    assert norms == {"layer_norm": 1 + 4, "add_layer_norm": 3 + 1}


@pytest.mark.parametrize("name", ["bloom", "mpt", "gpt_neo"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_attention_written_out_is_recognised(name: str, phase: Phase) -> None:
    launched = [k for k in kernels(name, phase, "vllm") if k.block == "attention"]
    assert sum(k.repeat for k in launched if k.name == "attention") == 4
    allowed = {"attention", "kv_append", "layer_norm", "add_layer_norm"}
    assert {k.name for k in launched if not k.name.startswith("gemm")} <= allowed
    attention = next(k.primitive for k in launched if k.name == "attention")
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.qk_dim, attention.math) == (4, 16, "bf16")


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "kimi_linear"])
def test_latent_attention_is_absorbed_in_decode(name: str) -> None:
    launched = kernels(name, "decode", "vllm")
    latent = [k for k in launched if k.name == "mla_attention"]
    assert latent
    for kernel in latent:
        assert isinstance(kernel.primitive, Attention)
        assert (kernel.primitive.kv_heads, kernel.primitive.qk_dim) == (1, 32 + 8)
    assert not any(k.name == "gemm kv_b_proj" for k in launched)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "falcon_h1", "qwen3_next", "lfm2"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_states_are_written_by_the_kernels_that_make_them(name: str, phase: Phase) -> None:
    layers = per_layer(name, phase)
    assert layers["causal_conv1d"] > 0
    assert "state_update" not in layers


def test_gates_of_the_delta_rule_are_one_kernel() -> None:
    mixer = [k for k in kernels("qwen3_next", "decode", "vllm") if k.block == "mixer"]
    between = [k.name for k in mixer if k.layer and isinstance(k.primitive, Memory | Conv1d)]
    assert between == ["cat", "causal_conv1d", "sigmoid_and_mul"]
    assert sum(isinstance(k.primitive, Scan) for k in mixer) == 1


def test_mixture_layer_of_deepseek() -> None:
    launched = kernels("deepseek_v3", "prefill", "vllm")
    moe = [k.name for k in launched if k.block == "moe"]
    assert moe == [
        "add_rms_norm",
        "gemm gate",
        "topk",
        "fused_moe",
        "gemm gate_proj+up_proj",
        "silu_and_mul",
        "gemm down_proj",
    ]


def test_launches_of_experts_by_engine() -> None:
    launches = {
        engine: next(
            k.launches
            for k in kernels("mixtral", "decode", engine)
            if isinstance(k.primitive, Experts)
        )
        for engine in ENGINES
    }
    assert launches == {"eager": 16, "compile": 10, "vllm": 6, "sglang": 6, "trtllm": 6}


def test_expert_biases_are_weights_of_the_active_experts() -> None:
    biased = next(
        k.primitive
        for k in kernels("gpt_oss", "decode", "vllm")
        if isinstance(k.primitive, Experts)
    )
    hidden, inner = 64, 96
    assert biased.bias
    matrices_and_biases = 3 * hidden * inner + 2 * inner + hidden
    assert biased.expert_bytes == 2 * matrices_and_biases
    assert float(biased.weight_bytes) == pytest.approx(
        float(biased.active_experts) * 2 * matrices_and_biases
    )


def test_a_bias_added_after_the_head_is_its_epilogue() -> None:
    last = kernels("phi", "prefill", "vllm")[-1]
    assert last.name == "gemm lm_head"
    assert isinstance(last.primitive, Gemm)
    assert last.primitive.bias


def test_a_weight_expanded_over_the_batch_is_read_once() -> None:
    products = [
        k.primitive
        for k in kernels("zamba", "prefill", "eager")
        if isinstance(k.primitive, Gemm) and k.path.endswith("mamba")
    ]
    assert products
    assert {p.batch for p in products} == {2}
