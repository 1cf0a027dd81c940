"""FLOPs of the eager lowering against `torch.utils.flop_counter` on the same model."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from families import ATTENTION, MIXTURE
from family_regions import ALL, B, S, facts, model, region
from torch.utils.flop_counter import FlopCounterMode

from hymell.graph import Phase
from hymell.op_registry.engines import get_engine
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Conv, Conv1d, Scan
from hymell.tracer.build import build_model
from hymell.tracer.concrete import trace_once

_Kinds = type | tuple[type, ...]

#: What the counter cannot run on meta tensors: routing that reads values.
UNCOUNTABLE = {"dbrx", "jetmoe"}
#: Experts that Hugging Face runs on every token and engines only on those routed to them.
DENSE_EXPERTS = {"llama4_text"}
EXACT = sorted({*ATTENTION, *MIXTURE} - UNCOUNTABLE - DENSE_EXPERTS)
#: Recurrences that the counter does not see at all.
UNSEEN_SCANS = ["rwkv", "recurrent_gemma", "lfm2"]
#: Selective scans: the counter sees the product that reads the state, not the update of it.
HALF_SEEN_SCANS = ["mamba", "falcon_mamba", "zamba", "jamba"]


def counted(name: str, phase: Phase) -> dict[Any, int]:
    """FLOPs by op of one step; experts as batched products, which the counter understands."""
    # A model of its own: a forward outside a trace may leave its mark on it.
    subject = build_model(ALL[name]())
    if hasattr(subject, "set_experts_implementation"):
        subject.set_experts_implementation("batched_mm")
    last = {"logits_to_keep": 1}
    if "logits_to_keep" not in inspect.signature(subject.forward).parameters:
        last = {}
    prompt = torch.zeros((B, S), dtype=torch.long, device="meta")
    with torch.no_grad():
        if phase == "prefill":
            with FlopCounterMode(display=False) as counter:
                subject(input_ids=prompt, use_cache=True, **last)
        else:
            cache = subject(input_ids=prompt, use_cache=True, **last).past_key_values
            token = torch.zeros((B, 1), dtype=torch.long, device="meta")
            with FlopCounterMode(display=False) as counter:
                subject(input_ids=token, past_key_values=cache, use_cache=True, **last)
    return counter.get_flop_counts()["Global"]


def lowered(name: str, phase: Phase, only: _Kinds = object, without: _Kinds = ()) -> float:
    whole = phase == "prefill"
    traced = region(name, phase) if whole else trace_once(model(name), phase, B, 1, S)
    primitives = [
        (k.repeat, k.primitive) for k in lower(traced, get_engine("eager"), facts(name)).kernels
    ]
    return sum(
        repeat * float(primitive.flops)
        for repeat, primitive in primitives
        if isinstance(primitive, only) and not isinstance(primitive, without)
    )


def counted_products(name: str) -> float:
    """The counter's FLOPs without those of convolutions, whose padding it counts as well."""
    by_op = counted(name, "prefill")
    return sum(flops for op, flops in by_op.items() if "convolution" not in str(op))


@pytest.mark.parametrize("name", EXACT)
def test_prefill_flops_are_those_of_the_counter(name: str) -> None:
    assert lowered(name, "prefill") == sum(counted(name, "prefill").values())


@pytest.mark.parametrize(
    "name", ["llama", "gemma2", "gpt2", "falcon", "bloom", "mixtral", "qwen3_moe", "deepseek_v3"]
)
def test_decode_flops_are_those_of_the_counter(name: str) -> None:
    assert lowered(name, "decode") == sum(counted(name, "decode").values())


@pytest.mark.parametrize("name", UNSEEN_SCANS)
def test_products_around_an_unseen_scan_are_those_of_the_counter(name: str) -> None:
    convolutions = lowered(name, "prefill", only=(Conv, Conv1d))
    assert lowered(name, "prefill", without=Scan) - convolutions == counted_products(name)


@pytest.mark.parametrize("name", HALF_SEEN_SCANS)
def test_half_of_a_selective_scan_is_what_the_counter_sees(name: str) -> None:
    scans = lowered(name, "prefill", only=Scan)
    assert scans > 0
    assert lowered(name, "prefill", without=(Scan, Conv1d)) + scans / 2 == counted_products(name)


def test_experts_run_on_the_tokens_routed_to_them() -> None:
    """Llama 4's code runs all 4 experts on every token in 2 layers; each token chose one."""
    hidden, inner, experts, layers = 64, 96, 4, 2
    one = 2 * 3 * hidden * inner * B * S
    theirs = sum(counted("llama4_text", "prefill").values())
    assert theirs - lowered("llama4_text", "prefill") == layers * (experts - 1) * one


def test_counter_is_blind_to_grouped_products_and_hymell_is_not() -> None:
    subject = build_model(ALL["mixtral"]())
    subject.set_experts_implementation("grouped_mm")
    ids = torch.zeros((B, S), dtype=torch.long, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        subject(input_ids=ids, use_cache=True, logits_to_keep=1)
    hidden, inner, top_k, layers = 64, 96, 2, 4
    experts = layers * 2 * 3 * hidden * inner * B * S * top_k
    assert lowered("mixtral", "prefill") - counter.get_total_flops() == experts
