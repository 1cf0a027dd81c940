"""Identical layers traced once must stand for exactly what a full trace records."""

from __future__ import annotations

from collections import Counter

import pytest
from families import FAMILIES, PARTS

from hymell.graph import Region
from hymell.tracer.build import build_model
from hymell.tracer.concrete import trace_once
from hymell.tracer.parts import split

ALL = {**FAMILIES, **PARTS}
CHOSEN = (
    "llama gemma2 gpt2 bloom cohere2 gpt_oss qwen2_moe deepseek_v3 llama4_text ernie4_5_moe "
    "minimax mamba rwkv recurrent_gemma zamba2 jamba xlstm kimi_linear nemotron_h t5 bart qwen2_vl"
).split()


def work(region: Region) -> Counter[object]:
    """What a region runs: op names with all shapes and dtypes, counted over repeats."""
    total: Counter[object] = Counter()
    for op in region.ops:
        total[op.name, tuple(operand.spec for operand in op.inputs), op.outputs] += op.repeat
    return total


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", CHOSEN)
def test_memo_equals_full_trace(name: str, phase: str) -> None:
    model = build_model(ALL[name]())
    memo = trace_once(model, phase, 2, 40, 24)
    full = trace_once(model, phase, 2, 40, 24, memo=False)
    assert work(memo) == work(full)
    assert memo.state == full.state
    assert len(memo.ops) < len(full.ops)
    assert sum(len(layer.paths) for layer in memo.layers) == len(full.layers)
    assert {path for layer in memo.layers for path in layer.paths} == {
        layer.path for layer in full.layers
    }


@pytest.mark.parametrize("name", list(PARTS))
def test_every_op_belongs_to_a_part(name: str) -> None:
    model = build_model(PARTS[name]())
    region = trace_once(model, "prefill", 2, 40, 0)
    assert {op.part for op in region.ops} == {part.name for part in split(model)}


def test_feeds_name_every_producer() -> None:
    model = build_model(FAMILIES["llama"]())
    region = trace_once(model, "prefill", 2, 40, 0)
    (layer,) = region.layers
    hidden = layer.feeds[0]
    embedding = next(op.id for op in region.ops if op.name == "aten.embedding.default")
    last = layer.stop - 1
    assert (hidden.op, hidden.index) == (embedding, 0)
    assert hidden.producers == (((embedding, 0), 1), ((last, 0), 3))
    after = [op for op in region.ops if op.id >= layer.stop]
    assert any(operand.op == last for operand in after[0].inputs)


def test_hybrid_feeds_count_both_kinds_of_layer() -> None:
    region = trace_once(build_model(FAMILIES["qwen3_next"]()), "prefill", 1, 40, 0)
    linear, attention = region.layers
    assert len(linear.paths) == 3
    (hidden,) = [feed for feed in linear.feeds if len(feed.producers) > 1]
    assert sum(count for _, count in hidden.producers) == 3
    assert attention.path.endswith("layers.3")
