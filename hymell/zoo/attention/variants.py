"""The variants by name, with their sources and what each keeps per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from hymell.zoo.attention.gated_delta import CONV_SIZE, GatedDeltaAttention
from hymell.zoo.attention.gated_linear import GatedLinearAttention
from hymell.zoo.attention.heads import HeadShape
from hymell.zoo.attention.kernel_linear import KernelLinearAttention
from hymell.zoo.attention.retention import RetentionAttention
from hymell.zoo.attention.sliding_window import SlidingWindowAttention, window_of
from hymell.zoo.attention.softmax import SoftmaxAttention

STATE_BYTES = 4
"""A recurrent state is held in fp32."""


@dataclass(frozen=True)
class AttentionVariant:
    """A drop-in attention and what is known about it."""

    name: str
    module: type[nn.Module]
    """Made by ``module(config, layer_idx)``."""
    description: str
    source: str
    scan_kind: str | None
    """The kind of its marked scan; None where it has none."""
    state_formula: str
    """`state_bytes` in words: H, Hkv heads, d channels per head, L tokens, e bytes per element."""
    state_bytes: Callable[[Any, int, int], int]
    """``state_bytes(config, tokens, element_bytes)``: bytes cached per sequence and layer."""


def _softmax_bytes(config: Any, tokens: int, element_bytes: int) -> int:
    return 2 * HeadShape.of(config).kv_width * tokens * element_bytes


def _window_bytes(config: Any, tokens: int, element_bytes: int) -> int:
    return _softmax_bytes(config, min(tokens, window_of(config) - 1), element_bytes)


def _matrix_bytes(config: Any, tokens: int, element_bytes: int) -> int:
    shape = HeadShape.of(config)
    return shape.heads * shape.head_dim**2 * STATE_BYTES


def _normalised_bytes(config: Any, tokens: int, element_bytes: int) -> int:
    shape = HeadShape.of(config)
    return shape.heads * shape.head_dim * (shape.head_dim + 1) * STATE_BYTES


def _delta_bytes(config: Any, tokens: int, element_bytes: int) -> int:
    shape = HeadShape.of(config)
    conv_inputs = (CONV_SIZE - 1) * (shape.q_width + 2 * shape.kv_width)
    return _matrix_bytes(config, tokens, element_bytes) + conv_inputs * element_bytes


_ALL = (
    AttentionVariant(
        name="softmax",
        module=SoftmaxAttention,
        description="causal softmax attention with grouped heads and rotary positions",
        source="Vaswani et al. 2017, arXiv:1706.03762",
        scan_kind=None,
        state_formula="2 Hkv d L e",
        state_bytes=_softmax_bytes,
    ),
    AttentionVariant(
        name="kernel_linear",
        module=KernelLinearAttention,
        description="linear attention with the feature map elu + 1",
        source="Katharopoulos et al. 2020, arXiv:2006.16236",
        scan_kind="linear_attention",
        state_formula="4 H d (d + 1)",
        state_bytes=_normalised_bytes,
    ),
    AttentionVariant(
        name="retention",
        module=RetentionAttention,
        description="linear attention with a fixed decay per head",
        source="Sun et al. 2023, arXiv:2307.08621",
        scan_kind="retention",
        state_formula="4 H d^2",
        state_bytes=_matrix_bytes,
    ),
    AttentionVariant(
        name="gated_linear",
        module=GatedLinearAttention,
        description="linear attention with a data-dependent gate per key channel",
        source="Yang et al. 2023, arXiv:2312.06635",
        scan_kind="gated_linear_attention",
        state_formula="4 H d^2",
        state_bytes=_matrix_bytes,
    ),
    AttentionVariant(
        name="gated_delta",
        module=GatedDeltaAttention,
        description="delta rule with a data-dependent decay per head and a short convolution",
        source="Yang et al. 2024, arXiv:2412.06464",
        scan_kind="gated_delta_rule",
        state_formula="4 H d^2 + 3 (H + 2 Hkv) d e",
        state_bytes=_delta_bytes,
    ),
    AttentionVariant(
        name="sliding_window",
        module=SlidingWindowAttention,
        description="softmax attention over the last window tokens",
        source="Beltagy et al. 2020, arXiv:2004.05150",
        scan_kind=None,
        state_formula="2 Hkv d min(L, window - 1) e",
        state_bytes=_window_bytes,
    ),
)

VARIANTS: Mapping[str, AttentionVariant] = MappingProxyType({v.name: v for v in _ALL})
