"""The cost at L cached tokens that the formulas give equals that of a fresh trace at L."""

from __future__ import annotations

import pytest
from families import FAMILIES

from hymell.graph import ModelFacts, Region
from hymell.op_registry.engines import get_engine
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import at
from hymell.tracer.assemble import trace_model
from hymell.tracer.build import build_model
from hymell.tracer.concrete import trace_once

TESTED = (
    "llama",
    "gpt2",
    "gemma2",
    "mistral",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_oss",
    "mamba2",
    "falcon_h1",
    "qwen3_next",
    "bloom",
)


def costs(region: Region, facts: ModelFacts, engine: str, B: int, L: int) -> dict[str, float]:
    kernels = lower(region, get_engine(engine), facts).kernels
    return {
        what: sum(k.repeat * float(getattr(at(k.primitive, B, 1, L), what)) for k in kernels)
        for what in ("flops", "flops_causal", "bytes_read", "bytes_written", "weight_bytes")
    }


@pytest.mark.parametrize("family", TESTED)
def test_formulas_equal_a_fresh_trace(family: str) -> None:
    model = build_model(FAMILIES[family]())
    graph = trace_model(model, family)
    for B, L in ((1, 17), (3, 64), (2, 777)):
        fitted = graph.region("decode", B, 1, L)
        fresh = trace_once(model, "decode", B, 1, L)
        for engine in ("eager", "vllm"):
            assert costs(fitted, graph.facts, engine, B, L) == pytest.approx(
                costs(fresh, graph.facts, engine, B, L), rel=1e-12
            )
