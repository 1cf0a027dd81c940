"""Attention variants as runnable modules, drop-in for Llama-shaped Hugging Face models.

Importing this package imports torch and transformers.
"""

from __future__ import annotations

from hymell.zoo.attention.gated_delta import GatedDeltaAttention
from hymell.zoo.attention.gated_linear import GatedLinearAttention
from hymell.zoo.attention.kernel_linear import KernelLinearAttention
from hymell.zoo.attention.replace import AttentionFactory, replace_attention
from hymell.zoo.attention.retention import RetentionAttention
from hymell.zoo.attention.scan_marker import handled_by, scan
from hymell.zoo.attention.sliding_window import SlidingWindowAttention
from hymell.zoo.attention.softmax import SoftmaxAttention
from hymell.zoo.attention.variants import VARIANTS, AttentionVariant

__all__ = [
    "VARIANTS",
    "AttentionFactory",
    "AttentionVariant",
    "GatedDeltaAttention",
    "GatedLinearAttention",
    "KernelLinearAttention",
    "RetentionAttention",
    "SlidingWindowAttention",
    "SoftmaxAttention",
    "handled_by",
    "replace_attention",
    "scan",
]
