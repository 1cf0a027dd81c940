"""Weights, cache, activations: what fits, and what would."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from deployments import (
    H100,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    PLAIN,
    SERVING,
    VOCAB,
    cache,
    deployment,
    region,
    step,
    toy,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.dims import B, L, S
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.memory import (
    RESERVE_BYTES,
    cache_bytes,
    capacity_bytes,
    memory_cost,
    weights_bytes,
)
from hymell.graph import Op, Operand, Range, StateSpec, TensorSpec
from hymell.op_registry.kernels import LiveTensor
from hymell.workload import Precision, Workload

PER_TOKEN = 2 * KV_HEADS * HEAD_DIM * 2


def with_state(*entries: StateSpec, **more: object) -> Deployment:
    """Decode with this state; nothing else matters."""
    decode = region("decode", tuple(entries), S=Range())
    return deployment([(region("prefill"), step(S, S)), (decode, step(1, L + 1))], **more)  # type: ignore[arg-type]


def entry(heads: int, width: int, repeat: int, **more: object) -> StateSpec:
    """One tensor per token of ``repeat`` layers."""
    kind = str(more.pop("kind", "kv"))
    length = more.pop("length", L)
    spec = TensorSpec((B, heads, length, width), str(more.pop("dtype", "bfloat16")))  # type: ignore[arg-type]
    return StateSpec(kind, "k", "layers", spec, repeat, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry(8, 128, 32), entry(8, 128, 32)], 131_072),  # Llama-3.1-8B
        ([entry(8, 128, 28), entry(8, 128, 28)], 114_688),  # Qwen3-0.6B
        (
            [entry(1, 512, 61, kind="latent"), entry(1, 64, 61, kind="latent")],
            70_272,
        ),  # DeepSeek-V3
    ],
)
def test_published_bytes_per_token(entries: list[StateSpec], expected: float) -> None:
    model = with_state(*entries)
    assert memory_cost(model, Workload(3, 1000, 50)).kv_bytes_per_token == expected
    assert memory_cost(model, Workload(1, 1, 1)).kv_bytes_per_token == expected


def test_sliding_layers_stop_growing() -> None:
    """gpt-oss-120b: 18 full and 18 sliding layers of window 128, 73,728 bytes at length 1."""
    kv = [entry(8, 64, 18), entry(8, 64, 18)]
    sliding = [replace(e, window=128) for e in kv]
    model = with_state(*kv, *sliding)
    assert memory_cost(model, Workload(1, 1, 1)).kv_bytes_per_token == 73_728
    assert memory_cost(model, Workload(1, 128, 1)).kv_bytes_per_token == 73_728
    assert memory_cost(model, Workload(1, 129, 1)).kv_bytes_per_token == 36_864
    assert cache_bytes(model, 1, 1000, 1)[0] == 36_864 * (1000 + 128)


@pytest.mark.parametrize(("windows", "gb"), [(True, 11.17), (False, 66.57)])
def test_gemma_at_its_full_context(windows: bool, gb: float) -> None:
    """Gemma-3-27B at 131,072 tokens: 10 global layers of 62, window 1024."""
    engine = replace(SERVING, windowed_cache=windows)
    full = [entry(16, 128, 10), entry(16, 128, 10)]
    for length in (L, 1023):  # a cache traced before and after its window filled
        sliding = [entry(16, 128, 52, window=1024, length=length) for _ in "kv"]
        model = with_state(*full, *sliding, engine=engine)
        assert cache_bytes(model, 1, 131_072, 1)[0] / 1e9 == pytest.approx(gb, abs=0.005)


def test_the_cache_ends_at_the_last_token() -> None:
    """The last generated token is never fed back, so it is not in the cache."""
    assert cache_bytes(toy(), 3, 100, 20)[0] == 3 * LAYERS * PER_TOKEN * 119
    assert cache_bytes(toy(), 1, 100, 1)[0] == LAYERS * PER_TOKEN * 100


def test_recurrent_state_does_not_grow_with_length() -> None:
    state = StateSpec("recurrent", "s", "m", TensorSpec((B, 8, 64, 64), "float32"), LAYERS)
    model = with_state(*cache(), state)
    held = memory_cost(model, Workload(2, 100, 1))
    assert held.state_bytes == 2 * LAYERS * 8 * 64 * 64 * 4
    assert held.kv_cache_bytes == held.state_bytes + 2 * LAYERS * PER_TOKEN * 100
    assert held.kv_bytes_per_token == LAYERS * PER_TOKEN
    assert memory_cost(model, Workload(1, 1, 1)).kv_bytes_per_token == LAYERS * PER_TOKEN


def test_kv_format_halves_the_cache_and_leaves_the_state() -> None:
    state = StateSpec("recurrent", "s", "m", TensorSpec((B, 8, 64, 64), "float32"), LAYERS)
    model = with_state(*cache(), state)
    fp8 = replace(model, precision=Precision(kv="float8_e4m3"))
    (before, kept), (after, still) = (cache_bytes(m, 2, 100, 1) for m in (model, fp8))
    assert still == kept
    assert after - still == (before - kept) / 2


def test_encoder_decoder_keeps_source_and_generated_tokens() -> None:
    """Cross-attention holds the source, self-attention what was generated."""
    own, cross = entry(8, 64, 6), entry(8, 64, 6, length=S)
    model = with_state(own, cross, parts=("encoder", "decoder"))
    assert cache_bytes(model, 2, 300, 40)[0] == 2 * 6 * 8 * 64 * 2 * (300 + 40)


def test_an_encoder_keeps_nothing() -> None:
    model = deployment([(region("prefill"), step(S, S))])
    held = memory_cost(model, Workload(1, 100, 1))
    assert (held.kv_cache_bytes, held.kv_bytes_per_token, held.fits) == (0, 0, True)


def linear(weight: str, n: int, k: int, repeat: int, op: int, dtype: str = "bfloat16") -> Op:
    """A product with a stored weight."""
    rows = Operand(TensorSpec((B * S, k), "bfloat16"), "input")
    stored = Operand(TensorSpec((k, n), dtype), "weight", name=weight)
    out = TensorSpec((B * S, n), "bfloat16")
    return Op(op, "aten.mm.default", "m", "Linear", (rows, stored), (out,), repeat=repeat)


def weighted(repeat: int = LAYERS, **more: object) -> Deployment:
    """A model whose weights are an embedding, ``repeat`` square GEMMs and a head."""
    table = Operand(TensorSpec((VOCAB, HIDDEN), "bfloat16"), "weight", name="embed")
    out = (TensorSpec((B, S, HIDDEN), "bfloat16"),)
    embed = Op(0, "aten.embedding.default", "e", "Embedding", (table,), out)
    ops = (embed, linear("w", HIDDEN, HIDDEN, repeat, 1), linear("head", VOCAB, HIDDEN, 1, 2))
    prefill = replace(region("prefill"), ops=ops)
    return deployment([(prefill, step(S, S)), (region("decode", cache()), step(1, L + 1))], **more)  # type: ignore[arg-type]


def test_weight_format_changes_the_weights_of_layers_only() -> None:
    model = weighted()
    stored = model.graph.facts.weight_bytes
    assert weights_bytes(model) == stored
    layers = LAYERS * HIDDEN * HIDDEN
    assert weights_bytes(model, Precision(weights="float8_e4m3")) == stored - layers
    assert weights_bytes(model, Precision(activations="float32")) == 2 * stored
    assert weights_bytes(model, Precision(activations="float16")) == stored


def test_weights_shared_by_layers_are_counted_once() -> None:
    """12 layers read one stored weight: fp32 must not add 12 of them."""
    once = 2 * (HIDDEN * HIDDEN + 2 * VOCAB * HIDDEN)
    model = weighted(repeat=12, weight_bytes=once)
    assert weights_bytes(model, Precision(activations="float32")) == pytest.approx(2 * once)


def test_activations_peak_where_most_is_alive() -> None:
    live = [LiveTensor(B * S * 100, 0, 1), LiveTensor(B * S * 30, 1, 2), LiveTensor(B * 7, 2, 3)]
    model = toy(engine=PLAIN, live=live)
    assert memory_cost(model, Workload(2, 50, 1)).activation_bytes == 2 * 50 * 130


def test_serving_engines_chunk_the_prefill() -> None:
    live = [LiveTensor(B * S * 100, 0, 0)]
    for batch, prompt in ((1, 8192), (1, 100_000), (64, 1000), (5, 5000)):
        chunked = memory_cost(toy(live=live), Workload(batch, prompt, 1))
        assert chunked.activation_bytes == pytest.approx(8192 * 100)
        whole = memory_cost(toy(engine=PLAIN, live=live), Workload(batch, prompt, 1))
        assert whole.activation_bytes == batch * prompt * 100


def test_total_and_room() -> None:
    held = memory_cost(toy(), Workload(2, 100, 10))
    parts = held.weights_bytes + held.kv_cache_bytes + held.activation_bytes
    assert held.total_bytes == parts + RESERVE_BYTES == parts + held.reserve_bytes
    assert held.usable_bytes == held.pool_bytes == 0.9 * capacity_bytes(H100)
    plain = memory_cost(toy(engine=PLAIN), Workload(2, 100, 10))
    assert (plain.usable_bytes, plain.pool_bytes) == (capacity_bytes(H100), 0)


@given(prompt=st.integers(500, 20_000), output=st.integers(1, 3000), serving=st.booleans())
@settings(max_examples=25, deadline=None)
def test_max_batch_is_exact(prompt: int, output: int, serving: bool) -> None:
    model = toy(engine=SERVING if serving else PLAIN, weight_bytes=60e9)
    most = memory_cost(model, Workload(1, prompt, output)).max_batch
    assert most >= 1
    assert memory_cost(model, Workload(most, prompt, output)).fits
    assert not memory_cost(model, Workload(most + 1, prompt, output)).fits


def test_a_batch_too_large_names_the_largest_and_the_lengths_that_fit() -> None:
    model = toy(weight_bytes=60e9)
    held = memory_cost(model, Workload(100_000, 1000, 10))
    assert not held.fits
    assert 0 < held.max_batch < 100_000
    advice = "\n".join(held.advice)
    assert f"largest batch that fits at this prompt and output is {held.max_batch}" in advice
    prompts = re.search(r"prompts of up to (\d+) tokens fit", advice)
    assert prompts is not None
    longest = int(prompts[1])
    assert memory_cost(model, Workload(100_000, longest, 10)).fits
    assert not memory_cost(model, Workload(100_000, longest + 1, 10)).fits


def test_weights_too_large_name_gpus_and_counts() -> None:
    """405B parameters in bf16 on one H100."""
    held = memory_cost(toy(weight_bytes=810e9), Workload(1, 100, 10))
    assert (held.fits, held.max_batch) == (False, 0)
    assert any("11 x h100-sxm" in sentence for sentence in held.advice)
    fits_elsewhere = memory_cost(toy(weight_bytes=100e9), Workload(1, 100, 10))
    larger = next(s for s in fits_elsewhere.advice if s.startswith("one of these would hold it"))
    assert "h200-sxm" in larger
    assert "h100" not in larger


def test_lighter_weights_are_advised_where_they_help() -> None:
    stored = 150e9
    huge = int((stored / 2 - 2 * VOCAB * HIDDEN) / HIDDEN**2)
    held = memory_cost(weighted(repeat=huge, weight_bytes=stored), Workload(1, 100, 10))
    assert any("fp8 weights" in sentence for sentence in held.advice)
    already = weighted(repeat=huge, weight_bytes=stored)
    already = replace(already, precision=Precision(weights="int4_g128"))
    assert memory_cost(already, Workload(1, 100, 10)).fits


def test_a_given_pool_decides() -> None:
    model = toy()
    per_sequence = LAYERS * PER_TOKEN * 109
    pool = per_sequence * 7.5
    held = memory_cost(model, Workload(7, 100, 10), pool)
    assert (held.fits, held.max_batch) == (True, 7)
    assert held.usable_bytes == held.pool_bytes == held.total_bytes - held.kv_cache_bytes + pool
    assert not memory_cost(model, Workload(8, 100, 10), pool).fits


@pytest.mark.parametrize("pool", [0.0, -1e9, 1e12, float("nan")])
def test_an_impossible_pool_is_an_error(pool: float) -> None:
    with pytest.raises(HymellError, match="KV pool"):
        memory_cost(toy(), Workload(1, 100, 10), pool)
