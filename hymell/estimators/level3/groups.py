"""The groups that a system's multipliers speak of, and attention as an engine with GQA unaware."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    Gemm,
    GroupedGemm,
    Primitive,
)

#: Groups of kernels that a phase's seconds are summed by.
GROUPS: Final = ("gemm", "experts", "rest", "attention", "comm")


def group_of(primitive: Primitive) -> str:
    """The group of `GROUPS` that a kernel counts in."""
    if isinstance(primitive, Attention):
        return "attention"
    if isinstance(primitive, Collective):
        return "comm"
    if isinstance(primitive, Experts | GroupedGemm):
        return "experts"
    return "gemm" if isinstance(primitive, Gemm) else "rest"


def all_heads(primitive: Primitive) -> Attention | None:
    """The same attention with as many KV heads as query heads, None where it has them or none."""
    if not isinstance(primitive, Attention) or primitive.latent:
        return None
    if primitive.kv_heads >= primitive.heads:
        return None
    return replace(primitive, kv_heads=primitive.heads)
