"""Every model family traced once at a small point, shared by the tests of the lowering."""

from __future__ import annotations

from functools import cache

from families import FAMILIES, PARTS
from torch import nn

from hymell.graph import ModelFacts, Phase, Region
from hymell.tracer.build import build_model
from hymell.tracer.concrete import trace_once
from hymell.tracer.parts import split

ALL = {**FAMILIES, **PARTS}
B, S, L = 2, 24, 40


@cache
def model(name: str) -> nn.Module:
    return build_model(ALL[name]())


def phases(name: str) -> list[Phase]:
    found = {phase for part in split(model(name)) for phase in part.phases}
    return [phase for phase in ("prefill", "decode") if phase in found]


@cache
def region(name: str, phase: Phase, *, batch: int = B, memo: bool = True) -> Region:
    """``batch`` sequences of 24 prompt tokens, or of one token on a cache of 40."""
    sizes = (S, 0) if phase == "prefill" else (1, L)
    return trace_once(model(name), phase, batch, *sizes, memo=memo)


def facts(name: str) -> ModelFacts:
    return ModelFacts(
        name=name,
        model_type=name,
        architecture=name,
        dtype="bfloat16",
        parameters=0,
        active_parameters=0,
        weight_bytes=0.0,
        weight_bytes_by_dtype={},
    )
