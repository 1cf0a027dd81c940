"""The runnable attention variants: right values, causal, prefill equal to decode, meta, errors."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

from hymell.errors import HymellError, UnsupportedError
from hymell.zoo.attention import (
    VARIANTS,
    GatedDeltaAttention,
    KernelLinearAttention,
    RetentionAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
    handled_by,
    replace_attention,
    scan,
)
from hymell.zoo.attention.scans import (
    chunk_gated_delta_rule,
    chunk_gated_linear_attention,
    chunk_linear_attention,
    chunk_retention,
)

WINDOW = 8
# transformers 5.24 calls the cache `cache`, earlier versions `past_key_values`.
CACHE = (
    "cache"
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    else "past_key_values"
)
RECURRENT = [name for name, variant in VARIANTS.items() if variant.scan_kind]
every_variant = pytest.mark.parametrize("name", VARIANTS)
every_recurrent = pytest.mark.parametrize("name", RECURRENT)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, by far on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_config(**changes: object) -> LlamaConfig:
    sizes = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": None,
    }
    return LlamaConfig(**(sizes | changes))


def config_for(name: str, **changes: object) -> LlamaConfig:
    return tiny_config(sliding_window=WINDOW if name == "sliding_window" else None, **changes)


def tiny_model(name: str, device: str = "cpu", **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config_for(name, **changes)).eval()
    assert replace_attention(model, VARIANTS[name].module) == 2
    return model


def prompt(tokens: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(1, 97, (batch, tokens), generator=generator)


@torch.no_grad()
def step_by_step(model: nn.Module, ids: Tensor) -> tuple[Tensor, DynamicCache]:
    cache = DynamicCache(config=model.config)
    steps = [model(ids[:, t : t + 1], **{CACHE: cache}).logits for t in range(ids.shape[1])]
    return torch.cat(steps, dim=1), cache


# ---- the scans against the recurrences they stand for


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token at a time; ``log_decay`` is (B, H, S, dk) or (B, H, S, 1)."""
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for t in range(q.shape[2]):
        if log_decay is not None:
            state = log_decay[:, :, t].exp().unsqueeze(-1) * state
        value = v[:, :, t]
        if beta is not None:
            value = beta[:, :, t, None] * (value - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t]))
        state = state + k[:, :, t].unsqueeze(-1) * value.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(outputs, dim=2), state


def scan_inputs(tokens: int, strength: float = 1.0) -> SimpleNamespace:
    """Random double-precision inputs with B = 2, H = 3, dk = 8, dv = 5."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return SimpleNamespace(
        q=normal(2, 3, tokens, 8),
        k=nn.functional.normalize(normal(2, 3, tokens, 8), dim=-1),
        v=normal(2, 3, tokens, 5),
        state=normal(2, 3, 8, 5),
        head=-strength * normal(3).abs(),
        token=-strength * normal(2, 3, tokens).abs(),
        channel=-strength * normal(2, 3, tokens, 8).abs(),
        beta=normal(2, 3, tokens).sigmoid(),
    )


def both_ways(kind: str, x: SimpleNamespace, state: Tensor | None, chunk_size: int) -> tuple:
    """The chunked scan and the recurrence on the same inputs."""
    qkv, rest = (x.q, x.k, x.v), {"state": state, "chunk_size": chunk_size}
    if kind == "linear_attention":
        return chunk_linear_attention(*qkv, **rest), naive(*qkv, state=state)
    if kind == "retention":
        decay = x.head.view(1, 3, 1, 1).expand(2, 3, x.q.shape[2], 1)
        return chunk_retention(*qkv, x.head, **rest), naive(*qkv, decay, state=state)
    if kind == "gated_linear_attention":
        chunked = chunk_gated_linear_attention(*qkv, x.channel, **rest)
        return chunked, naive(*qkv, x.channel, state=state)
    assert kind == "gated_delta_rule"
    chunked = chunk_gated_delta_rule(*qkv, x.token, x.beta, **rest)
    return chunked, naive(*qkv, x.token.unsqueeze(-1), x.beta, state=state)


KINDS = [VARIANTS[name].scan_kind for name in RECURRENT]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
@pytest.mark.parametrize("chunk_size", [1, 8, 64])
@pytest.mark.parametrize("with_state", [False, True])
def test_chunked_scan_equals_the_recurrence(kind, tokens, chunk_size, with_state):
    x = scan_inputs(tokens)
    chunked, stepped = both_ways(kind, x, x.state if with_state else None, chunk_size)
    torch.testing.assert_close(chunked, stepped, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_strong_decay_neither_overflows_nor_loses_precision(kind):
    x = scan_inputs(130, strength=50.0)
    for name, tensor in vars(x).items():
        setattr(x, name, tensor.float())
    chunked, stepped = both_ways(kind, x, x.state, 64)
    assert all(part.isfinite().all() for part in chunked)
    torch.testing.assert_close(chunked, stepped, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_strong_decay_has_finite_gradients(kind):
    x = scan_inputs(33, strength=100.0)
    leaves = [leaf.float().requires_grad_() for leaf in vars(x).values()]
    x = SimpleNamespace(**dict(zip(vars(x), leaves, strict=True)))
    (o, state), _ = both_ways(kind, x, x.state, 64)
    gradients = torch.autograd.grad(o.sum() + state.sum(), leaves, allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_chunked_scan_equal_those_of_the_recurrence(kind):
    x = scan_inputs(11, strength=5.0)
    leaves = [x.q, x.k, x.v, x.state]
    for leaf in leaves:
        leaf.requires_grad_()
    grads = [
        torch.autograd.grad(o.sin().sum() + state.cos().sum(), leaves)
        for o, state in both_ways(kind, x, x.state, 4)
    ]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


def test_scan_keeps_the_dtype_of_v_and_the_state_in_fp32():
    x = scan_inputs(9)
    qkv = [t.bfloat16() for t in (x.q, x.k, x.v)]
    o, state = chunk_retention(*qkv, x.head.float())
    assert (o.dtype, o.shape) == (torch.bfloat16, (2, 3, 9, 5))
    assert (state.dtype, state.shape) == (torch.float32, (2, 3, 8, 5))


def test_scan_work_grows_linearly_with_the_sequence():
    def flops(tokens: int) -> int:
        x = scan_inputs(tokens)
        with FlopCounterMode(display=False) as counter:
            chunk_gated_linear_attention(x.q, x.k, x.v, x.channel, chunk_size=16)
        return counter.get_total_flops()

    assert flops(128) == 2 * flops(64) == 4 * flops(32)


def test_scan_refuses_wrong_shapes_and_chunk_sizes():
    x = scan_inputs(4)
    with pytest.raises(HymellError, match="power of two"):
        chunk_linear_attention(x.q, x.k, x.v, chunk_size=48)
    with pytest.raises(HymellError, match=r"q and k of shape"):
        chunk_linear_attention(x.q, x.k, x.v[:, :, 1:])
    with pytest.raises(HymellError, match=r"\(2, 3, 8, 5\)"):
        chunk_linear_attention(x.q, x.k, x.v, x.state.mT)
    with pytest.raises(HymellError, match="S >= 1"):
        chunk_linear_attention(*(t[:, :, :0] for t in (x.q, x.k, x.v)))


# ---- the marker


def test_marked_scan_runs_as_itself_without_a_handler():
    @scan(kind="sum")
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1, b=4) == 5
    assert (add.scan_kind, add.__name__, add.__doc__) == ("sum", "add", "Add.")


def test_handler_stands_in_for_the_scan_and_is_removed_after():
    calls = []

    @scan(kind="quotient")
    def divide(a: int, b: int = 2) -> float:
        return a / b

    def handler(kind, fn, args, kwargs):
        calls.append((kind, args, kwargs))
        return -fn(*args, **kwargs)

    with handled_by(handler):
        assert divide(1, b=4) == -0.25
    with pytest.raises(ZeroDivisionError), handled_by(handler):
        divide(1, 0)
    assert calls == [("quotient", (1,), {"b": 4}), ("quotient", (1, 0), {})]
    assert divide(1) == 0.5


def test_marker_module_itself_needs_no_torch():
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('m', sys.argv[1])\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "assert 'torch' not in sys.modules"
    )
    path = sys.modules["hymell.zoo.attention.scan_marker"].__file__
    subprocess.run([sys.executable, "-c", code, path], check=True)


@every_recurrent
def test_every_layer_makes_one_marked_scan_of_the_documented_shapes(name):
    model = tiny_model(name)
    calls = []

    def handler(kind, fn, args, kwargs):
        calls.append(kind)
        q, _, v = args[:3]
        assert kwargs["chunk_size"] == 64
        assert q.shape == (2, 4, 7, 16)
        state = v.new_empty(2, 4, 16, v.shape[-1], dtype=torch.float32)
        return torch.empty_like(v), state

    with torch.no_grad(), handled_by(handler):
        logits = model(prompt(7)).logits
    assert logits.shape == (2, 7, 97)
    assert calls == [VARIANTS[name].scan_kind] * 2


class OpCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


@every_recurrent
def test_graph_of_a_handled_trace_does_not_grow_with_the_prompt(name):
    def handler(kind, fn, args, kwargs):
        q, _, v = args[:3]
        return torch.empty_like(v), v.new_empty(*q.shape[:2], q.shape[-1], v.shape[-1])

    def trace(tokens: int) -> Counter[str]:
        ids = torch.empty(1, tokens, dtype=torch.long, device="meta")
        with handled_by(handler), OpCounter() as counter:
            model(ids, use_cache=True)
        return counter.ops

    model = tiny_model(name, device="meta")
    assert trace(64) == trace(4096)


# ---- the variants in a model


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_has_the_shape_and_dtype_of_the_input(name, dtype):
    config = config_for(name)
    attention = VARIANTS[name].module(config, 0).to(dtype)
    hidden = torch.randn(3, 10, 64, dtype=dtype)
    angles = torch.randn(1, 10, 16, dtype=dtype)
    output, _ = attention(
        hidden_states=hidden, position_embeddings=(angles.cos(), angles.sin()), attention_mask=None
    )
    assert (output.shape, output.dtype) == (hidden.shape, dtype)
    assert output.isfinite().all()


@every_variant
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_no_token_sees_the_future(name, implementation):
    model = tiny_model(name)
    model.set_attn_implementation(implementation)
    ids = prompt(70)
    changed = ids.clone()
    changed[:, 40] = ids[:, 40] % 96 + 1
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :40], after[:, :40], rtol=0, atol=1e-6)
    assert (before[:, 40] - after[:, 40]).abs().max() > 1e-3


@every_variant
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_prefill_equals_step_by_step_decode(name, implementation):
    model = tiny_model(name)
    model.set_attn_implementation(implementation)
    ids = prompt(70)
    with torch.no_grad():
        at_once = model(ids).logits
    stepped, _ = step_by_step(model, ids)
    torch.testing.assert_close(at_once, stepped, rtol=0, atol=1e-4)


@every_variant
@pytest.mark.parametrize("cuts", [(66, 4), (3, 2, 65), (1, 69)])
def test_prefill_in_pieces_equals_one_prefill(name, cuts):
    model = tiny_model(name)
    ids = prompt(70)
    cache = DynamicCache()
    with torch.no_grad():
        at_once = model(ids).logits
        pieces = [model(piece, **{CACHE: cache}).logits for piece in ids.split(cuts, dim=1)]
    torch.testing.assert_close(at_once, torch.cat(pieces, 1), rtol=0, atol=1e-4)


@every_variant
def test_generate_equals_greedy_decoding_without_a_cache(name):
    model = tiny_model(name)
    ids = prompt(12)
    with torch.no_grad():
        made = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None)
        expected = ids
        for _ in range(4):
            best = model(expected, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat((expected, best), dim=1)
    assert made.tolist() == expected.tolist()


@every_variant
def test_beam_search_reorders_the_state(name):
    model = tiny_model(name)
    settings = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    ids = prompt(12)
    with torch.no_grad():
        cached = model.generate(ids, **settings)
        plain = model.generate(ids, use_cache=False, **settings)
    assert cached.tolist() == plain.tolist()


@every_variant
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_left_padding_changes_nothing(name, implementation):
    model = tiny_model(name)
    model.set_attn_implementation(implementation)
    ids = prompt(20, batch=1)
    pads = 5
    padded = torch.cat((prompt(pads, batch=1), ids), dim=1)
    mask = (torch.arange(20 + pads) >= pads).long()[None]
    batch = torch.cat((padded, prompt(20 + pads, batch=1)))
    mask = torch.cat((mask, torch.ones_like(mask)))
    with torch.no_grad():
        alone = model(ids).logits
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        together = model(batch, attention_mask=mask, position_ids=positions).logits
    assert together.isfinite().all()
    torch.testing.assert_close(together[:1, pads:], alone, rtol=0, atol=1e-5)


@every_variant
def test_padded_batch_generates_what_each_row_does_alone(name):
    model = tiny_model(name)
    ids = prompt(12, batch=1)
    padded = torch.cat((prompt(3, batch=1), ids), dim=1)
    mask = (torch.arange(15) >= 3).long()[None]
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        batched = model.generate(padded, attention_mask=mask, **settings)
    assert batched[:, 3:].tolist() == alone.tolist()


@every_variant
def test_every_parameter_gets_a_gradient_in_training(name):
    model = tiny_model(name).train()
    ids = prompt(70)
    model(ids, labels=ids).loss.backward()
    for parameter, tensor in model.named_parameters():
        assert tensor.grad is not None, parameter
        assert tensor.grad.isfinite().all(), parameter
        assert tensor.grad.abs().sum() > 0, parameter


@every_variant
@pytest.mark.parametrize("tokens", [7, 64, 130])
def test_meta_device_prefill_and_decode(name, tokens):
    model = tiny_model(name, device="meta", dtype=torch.bfloat16)
    cache = DynamicCache(config=model.config)
    for new in (tokens, 1):
        ids = torch.empty(3, new, dtype=torch.long, device="meta")
        out = model(ids, use_cache=True, logits_to_keep=1, **{CACHE: cache})
        assert out.logits.shape == (3, 1, 97)
        assert out.logits.is_meta
    assert cache.get_seq_length() == tokens + 1


def cached_bytes(layer: object) -> int:
    recurrent = getattr(layer, "recurrent_states", {}), getattr(layer, "conv_states", {})
    tensors = [layer.keys, layer.values, *(t for states in recurrent for t in states.values())]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


@every_variant
@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes_are_those_of_the_cache(name, tokens, dtype):
    model = tiny_model(name).to(dtype)
    with torch.no_grad():
        cache = model(prompt(tokens, batch=1), use_cache=True)[CACHE]
    stated = VARIANTS[name].state_bytes(model.config, tokens, dtype.itemsize)
    assert [cached_bytes(layer) for layer in cache.layers] == [stated, stated]


# ---- single variants


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("bias", [False, True])
def test_softmax_baseline_equals_llama_with_the_same_weights(implementation, bias):
    torch.manual_seed(0)
    config = tiny_config(attention_bias=bias, head_dim=24)
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    ids = prompt(30)
    with torch.no_grad():
        stock = model(ids, output_attentions=implementation == "eager")
        assert replace_attention(model, SoftmaxAttention) == 2
        ours = model(ids)
        stepped, _ = step_by_step(model, ids)
    torch.testing.assert_close(ours.logits, stock.logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(stepped, stock.logits, rtol=0, atol=1e-5)


def test_sliding_window_equals_mistral_with_the_same_weights():
    torch.manual_seed(0)
    shared = tiny_config(sliding_window=WINDOW).to_dict()
    shared.pop("model_type")
    mistral = MistralForCausalLM(MistralConfig(**shared)).eval()
    llama = LlamaForCausalLM(tiny_config()).eval()
    llama.load_state_dict(mistral.state_dict())
    replace_attention(llama, partial(SlidingWindowAttention, window=WINDOW))
    ids = prompt(30)
    with torch.no_grad():
        expected, ours = mistral(ids).logits, llama(ids).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_sliding_window_ignores_older_tokens_and_sees_the_rest(implementation):
    torch.manual_seed(0)
    config = tiny_config(num_hidden_layers=1)
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    replace_attention(model, partial(SlidingWindowAttention, window=WINDOW))
    ids = prompt(40)
    changed = ids.clone()
    changed[:, 10] = ids[:, 10] % 96 + 1
    with torch.no_grad():
        difference = (model(ids).logits - model(changed).logits).abs().amax((0, 2))
        stepped, cache = step_by_step(model, ids)
        stepped_changed, _ = step_by_step(model, changed)
    seen = torch.zeros(40, dtype=torch.bool)
    seen[10 : 10 + WINDOW] = True
    assert ((difference > 1e-6) == seen).all()
    assert (((stepped - stepped_changed).abs().amax((0, 2)) > 1e-6) == seen).all()
    assert cache.layers[0].keys.shape[-2] == WINDOW - 1


def test_kernel_linear_is_a_weighted_mean_of_the_values():
    attention = KernelLinearAttention(tiny_config(), 0)
    nn.init.eye_(attention.o_proj.weight)
    nn.init.zeros_(attention.v_proj.weight)
    attention.v_proj.bias = nn.Parameter(torch.full((32,), 3.0))
    angles = torch.randn(1, 9, 16)
    out, _ = attention(torch.randn(2, 9, 64), (angles.cos(), angles.sin()))
    torch.testing.assert_close(out, torch.full((2, 9, 64), 3.0))


def test_retention_decays_are_those_of_the_paper():
    log_decay = RetentionAttention(tiny_config(), 0).log_decay
    expected = torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256])
    torch.testing.assert_close(log_decay.exp(), expected)


def test_gated_delta_decay_starts_in_the_range_of_mamba2():
    attention = GatedDeltaAttention(tiny_config(num_attention_heads=32, num_key_value_heads=2), 0)
    assert ((attention.A_log.exp() >= 1) & (attention.A_log.exp() <= 16)).all()
    step = nn.functional.softplus(attention.dt_bias)
    assert ((step >= 0.99e-3) & (step <= 0.101)).all()


def hybrid_model(order: tuple[str, str], implementation: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config()).eval()
    model.set_attn_implementation(implementation)
    kinds = {name: VARIANTS[name].module for name in VARIANTS}
    kinds["sliding_window"] = partial(SlidingWindowAttention, window=WINDOW)
    replace_attention(model, lambda config, index: kinds[order[index]](config, index))
    return model


every_order = pytest.mark.parametrize(
    "order",
    [("softmax", "gated_delta"), ("retention", "sliding_window"), ("softmax", "sliding_window")],
)

# Pieces of 20 tokens that end inside, at and past the window.
PIECES = (slice(0, 6), slice(6, 12), slice(12, 13), slice(13, 20))


@every_order
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_layers_of_different_kinds_work_in_one_model(order, implementation):
    model = hybrid_model(order, implementation)
    ids = prompt(20)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        at_once = model(ids).logits
        pieces = [model(ids[:, part], **{CACHE: cache}).logits for part in PIECES]
    stepped, _ = step_by_step(model, ids)
    torch.testing.assert_close(at_once, stepped, rtol=0, atol=1e-4)
    torch.testing.assert_close(at_once, torch.cat(pieces, 1), rtol=0, atol=1e-4)


@every_order
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_layers_of_different_kinds_decode_past_left_padding(order, implementation):
    model = hybrid_model(order, implementation)
    ids, pads = prompt(20, batch=1), 3
    padded = torch.cat((prompt(pads, batch=1), ids), dim=1)
    mask = (torch.arange(20 + pads) >= pads).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        alone = model(ids).logits[:, -2:]
        for end in (21, 22, 23):
            start = cache.get_seq_length()
            after = model(
                padded[:, start:end],
                attention_mask=mask[:, :end],
                position_ids=positions[:, start:end],
                **{CACHE: cache},
            ).logits[:, -1]
            if end > 21:
                torch.testing.assert_close(after, alone[:, end - 22], rtol=0, atol=1e-4)


# ---- replacing


def test_replacing_keeps_device_dtype_mode_and_common_weights():
    model = LlamaForCausalLM(tiny_config()).to(torch.bfloat16).eval()
    old = model.model.layers[1].self_attn
    replace_attention(model, VARIANTS["gated_linear"].module)
    new = model.model.layers[1].self_attn
    assert new.q_proj.weight is old.q_proj.weight
    assert {p.dtype for p in new.parameters()} == {torch.bfloat16}
    assert not new.training
    assert new.layer_idx == 1


def test_replacing_works_on_a_base_model_and_a_sibling_of_llama():
    mistral = MistralConfig(**{**tiny_config().to_dict(), "model_type": "mistral"})
    model = MistralForCausalLM(mistral).eval()
    assert replace_attention(model.model, VARIANTS["retention"].module) == 2
    with torch.no_grad():
        assert model(prompt(9)).logits.shape == (2, 9, 97)


def test_replacing_refuses_what_it_cannot_do():
    with pytest.raises(HymellError, match="Linear has no config"):
        replace_attention(nn.Linear(2, 2), SoftmaxAttention)
    model = LlamaForCausalLM(tiny_config())
    old = model.model.layers[0].self_attn
    with pytest.raises(HymellError, match="returned a int for layer 0"):
        replace_attention(model, lambda config, index: index)
    with pytest.raises(HymellError, match="needs its window"):
        replace_attention(model, SlidingWindowAttention)
    assert model.model.layers[0].self_attn is old
    model.model.layers = nn.ModuleList()
    with pytest.raises(HymellError, match="no layer with a self_attn"):
        replace_attention(model, SoftmaxAttention)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"head_dim": "16"}, "head_dim"),
    ],
)
def test_configs_that_do_not_fit_are_named(changes, named):
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2} | changes
    with pytest.raises(HymellError, match=named):
        SoftmaxAttention(SimpleNamespace(**config), 0)


def test_window_must_be_at_least_two():
    with pytest.raises(HymellError, match="at least 2"):
        SlidingWindowAttention(tiny_config(), 0, window=1)


def test_missing_or_partial_positions_are_refused():
    attention = SoftmaxAttention(tiny_config(), 0)
    with pytest.raises(HymellError, match="position_embeddings"):
        attention(torch.zeros(1, 2, 64))
    with pytest.raises(UnsupportedError, match="8 of 16 channels"):
        attention(torch.zeros(1, 2, 64), (torch.ones(1, 2, 8), torch.ones(1, 2, 8)))


# ---- caches


@every_variant
def test_both_names_of_the_cache_argument_are_read(name):
    torch.manual_seed(0)
    attention = VARIANTS[name].module(config_for(name), 0)
    hidden, angles = torch.randn(1, 6, 64), torch.randn(1, 6, 16)
    positions = angles.cos(), angles.sin()
    ends = []
    for word in ("cache", "past_key_values"):
        cache = DynamicCache()
        attention(hidden[:, :5], tuple(p[:, :5] for p in positions), **{word: cache})
        assert cache.get_seq_length() == 5
        end, _ = attention(hidden[:, 5:], tuple(p[:, 5:] for p in positions), **{word: cache})
        ends.append(end)
    whole, _ = attention(hidden, positions)
    torch.testing.assert_close(torch.cat(ends), whole[:, 5:].expand(2, -1, -1))


@every_recurrent
def test_a_cache_with_keys_of_another_attention_is_refused(name):
    stock = LlamaForCausalLM(tiny_config()).eval()
    with torch.no_grad():
        cache = stock(prompt(4), use_cache=True)[CACHE]
        with pytest.raises(HymellError, match="Slot 0 of the cache already holds"):
            tiny_model(name)(prompt(1), **{CACHE: cache})


def test_a_cache_with_a_recurrent_state_is_refused_by_softmax():
    with torch.no_grad():
        cache = tiny_model("retention")(prompt(4), use_cache=True)[CACHE]
        with pytest.raises(HymellError, match="holds a recurrent state"):
            tiny_model("softmax")(prompt(1), **{CACHE: cache})


@pytest.mark.parametrize("name", ["gated_delta", "sliding_window"])
def test_a_static_cache_is_refused(name):
    cache = StaticCache(config=tiny_config(), max_cache_len=16)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="DynamicCache"):
        tiny_model(name)(prompt(4), **{CACHE: cache})


@every_recurrent
def test_recurrent_slot_can_be_reset_repeated_and_selected(name):
    model = tiny_model(name)
    ids = prompt(6)
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        first = model(ids, **{CACHE: cache}).logits
        cache.reset()
        assert cache.get_seq_length() == 0
        again = model(ids, **{CACHE: cache}).logits
        torch.testing.assert_close(again, first, rtol=0, atol=0)
        for layer in cache.layers:
            assert layer.device == torch.device("cpu")
            layer.offload()
            layer.prefetch()
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        swapped = model(prompt(1), **{CACHE: cache}).logits
        fresh = DynamicCache(config=model.config)
        model(ids.flip(0), **{CACHE: fresh})
        torch.testing.assert_close(swapped, model(prompt(1), **{CACHE: fresh}).logits)
        with pytest.raises(UnsupportedError, match="rolled back"):
            cache.crop(-1)


@every_recurrent
def test_masks_that_hide_real_tokens_are_refused(name):
    model = tiny_model(name)
    packed = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad(), pytest.raises(UnsupportedError, match="packed sequences"):
        model(prompt(7, batch=1), position_ids=packed, use_cache=False)


def test_registry_is_complete_and_read_only():
    assert list(VARIANTS) == [
        "softmax",
        "kernel_linear",
        "retention",
        "gated_linear",
        "gated_delta",
        "sliding_window",
    ]
    for name, variant in VARIANTS.items():
        assert variant.name == name
        assert "arXiv:" in variant.source
        assert variant.description
        assert variant.state_formula
    with pytest.raises(TypeError):
        VARIANTS["new"] = VARIANTS["softmax"]  # type: ignore[index]


def test_the_documented_examples_run():
    text = (Path(__file__).parents[1] / "docs" / "attention_variants.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3
    exec("\n".join(blocks), {})
