"""A report of made-up but consistent figures, and a toy graph, for tests of what prints them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hymell.cost_report import (
    BlockCost,
    CostReport,
    Coverage,
    KernelCost,
    MemoryCost,
    PhaseCost,
)
from hymell.dims import B, S
from hymell.graph import ModelFacts, Op, Operand, OpGraph, Range, Region, TensorSpec

MODEL = "an-organisation-with-a-long-name/A-Model-With-A-Name-That-Is-Quite-Long-8B-Instruct-2507"

_SIZES = {
    "qkv": {"m": "B*S", "n": "6144", "k": "4096", "batch": "1", "a_dtype": "bfloat16"},
    "attention": {"batch": "B", "q_len": "S", "kv_len": "L + S", "heads": "32", "window": "None"},
    "gate_up": {"m": "B*S", "n": "28672", "k": "4096", "a_dtype": "bfloat16", "b_dtype": "mxfp4"},
    "lm_head": {"m": "B", "n": "128256", "k": "4096", "bias": "False"},
}
_SHARES = {"attention": 0.3, "ffn": 0.6, "head": 0.1}
_KINDS = {"attention": "attention"}
_BLOCKS = {"gate_up": "ffn", "lm_head": "head"}


def synthetic_report(**changes: Any) -> CostReport:
    """A report whose shares sum to 1; ``changes`` replace fields of it."""
    kernels = tuple(_kernel(phase, name) for phase in ("prefill", "decode") for name in _SIZES)
    report = CostReport(
        model=MODEL,
        gpu="h100-sxm",
        engine="vllm",
        dtype="bfloat16",
        workload={"batch": 1, "prompt": 1024, "output": 128},
        ttft_s=0.0234,
        tpot_s=0.00612,
        latency_s=0.80064,
        tokens_per_s=159.9,
        energy_j=321.5,
        energy_per_output_token_j=2.51,
        power_w=401.6,
        energy_calibrated=False,
        prefill=PhaseCost(1, 1.59e13, 1.55e13, 1.8e10, 1.6e10, 0.0234, 12.3, 261.0, 0.0134),
        decode=PhaseCost(127, 1.9e12, 1.9e12, 2.1e12, 2.0e12, 0.77724, 309.2, 33147.0, 0.76724),
        memory=MemoryCost(
            weights_bytes=16.06e9,
            kv_cache_bytes=0.151e9,
            state_bytes=0.0,
            activation_bytes=0.2e9,
            total_bytes=16.911e9,
            capacity_bytes=85.9e9,
            usable_bytes=77.3e9,
            pool_bytes=61.0e9,
            kv_bytes_per_token=131072.0,
            fits=True,
            max_batch=404,
            reserve_bytes=0.5e9,
        ),
        parameters={"total": 8_030_261_248, "active": 8_030_261_248},
        coverage=Coverage(1.0, 1.0, 1.0, 0.0, ()),
        blocks=tuple(
            _block(p, b) for p in ("prefill", "decode") for b in ("attention", "ffn", "head")
        ),
        kernels=kernels,
        assumptions={
            "batch": "1 sequence",
            "prompt": "1024 tokens",
            "output": "128 tokens",
            "dtype": "bfloat16 throughout",
            "engine": "vLLM",
            "kernels": "roofline",
            "blocks": "sum of level 1",
            "energy": "uncalibrated",
            "memory": "512 MiB for CUDA context and framework",
            "routing": "uniform",
        },
    )
    return replace(report, **changes)


def with_unknown(report: CostReport) -> CostReport:
    """The same report with two ops that nothing prices."""
    unknown = (("mylib.secret.default", 32, 0.04), ("aten.fft_rfft.default", 1, 0.001))
    return replace(report, coverage=Coverage(0.9, 1.0, 0.959, 0.0, unknown))


def too_large(report: CostReport) -> CostReport:
    """The same report on a GPU that it does not fit."""
    memory = replace(
        report.memory,
        weights_bytes=812e9,
        total_bytes=813e9,
        fits=False,
        max_batch=0,
        advice=("12 GPUs of this size would hold the weights",),
    )
    return replace(report, memory=memory)


def toy_graph() -> OpGraph:
    """A product, a view of it, and an op that nobody registered; prefill only."""
    x = TensorSpec((B * S, 8), "bfloat16")
    weight = Operand(TensorSpec((8, 16), "bfloat16"), "weight", name="w")
    y = TensorSpec((B * S, 16), "bfloat16")
    ops = (
        Op(0, "aten.mm.default", "block.proj", "Linear", (Operand(x, "input"), weight), (y,)),
        Op(1, "aten.view.default", "block", "Block", (Operand(y, "op", 0),), (y,)),
        Op(2, "mylib.secret.default", "block", "Block", (Operand(y, "op", 1),), (y,), repeat=3),
    )
    facts = ModelFacts("toy", "toy", "Toy", "bfloat16", 128, 128, 256.0, {"bfloat16": 256.0})
    return OpGraph(facts, (Region("prefill", ops, S=Range(1)),))


def _kernel(phase: str, name: str) -> KernelCost:
    order = list(_SIZES).index(name)
    layers = 1 if name == "lm_head" else 32
    return KernelCost(
        phase=phase,
        name=name,
        primitive=_KINDS.get(name, "gemm"),
        block=_BLOCKS.get(name, "attention"),
        part="model",
        layer="" if name == "lm_head" else "LlamaDecoderLayer",
        path="lm_head" if name == "lm_head" else f"model.layers.0.{name}",
        repeat=layers,
        launches=layers * (127 if phase == "decode" else 1),
        sizes=_SIZES[name],
        flops=1e12 * (order + 1),
        flops_causal=1e12 * (order + 1),
        bytes=1e9 * (order + 1),
        weight_bytes=1e9,
        time_s=1e-3 * (order + 1),
        energy_j=0.4 * (order + 1),
        share_of_time=(order + 1) / 10,
        regime="compute" if phase == "prefill" else "memory",
        estimator="roofline",
        understood=True,
    )


def _block(phase: str, block: str) -> BlockCost:
    share = _SHARES[block]
    return BlockCost(phase, block, "model", 1e12, 1e9, share * 1e-2, share * 4, share, share)
