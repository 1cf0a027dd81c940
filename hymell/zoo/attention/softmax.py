"""Softmax attention with grouped heads and rotary positions: the baseline of the variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hymell.zoo.attention.heads import (
    HeadShape,
    llama_projections,
    rotate,
    share_heads,
    to_heads,
)


class SoftmaxAttention(nn.Module):
    """Causal softmax attention: o_t = sum_{j<=t} softmax_j(q_t . k_j / sqrt(d)) v_j.

    The same function as Llama's attention: same projections, and the attention implementation that
    the config selects (sdpa, eager, flash_attention_2, ...).
    Sources: Vaswani et al. 2017 (arXiv:1706.03762); grouped heads, Ainslie et al. 2023
    (arXiv:2305.13245).
    """

    is_causal = True

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.scaling = shape.head_dim**-0.5
        self.attention_dropout = float(getattr(config, "attention_dropout", 0.0))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = llama_projections(config)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``(B, S, hidden)`` to ``(B, S, hidden)`` and the weights, where there are any."""
        q = rotate(to_heads(self.q_proj(hidden_states), self.head_dim), position_embeddings)
        k = rotate(to_heads(self.k_proj(hidden_states), self.head_dim), position_embeddings)
        v = to_heads(self.v_proj(hidden_states), self.head_dim)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        o, weights = attention_function(self.config)(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(o.flatten(-2)), weights


def implementation(config: Any) -> str:
    """The attention implementation that the config selects by name; eager if it selects none."""
    return getattr(config, "_attn_implementation", None) or "eager"


def attention_function(config: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function that the config selects, from transformers' registry."""
    found: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
        implementation(config), eager_attention
    )
    return found


def eager_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as two matrix products and a softmax; returns ``(B, S, H, d)`` and the weights.

    ``attention_mask``: bool (True is visible) or additive, broadcast to ``(B, H, q, kv)``; None is
    causal with the queries at the end of the keys.
    """
    groups = module.num_key_value_groups
    scores = query @ share_heads(key, groups).mT * (scaling or query.shape[-1] ** -0.5)
    if attention_mask is None:
        attention_mask = causal_window(query.shape[-2], key.shape[-2], None, query.device)
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    weights = F.dropout(weights, dropout, training=module.training)
    return (weights @ share_heads(value, groups)).transpose(1, 2), weights


def causal_window(
    queries: int, keys: int, window: int | None, device: torch.device | str
) -> Tensor:
    """``(queries, keys)`` bool: each query sees itself and the ``window - 1`` tokens before it.

    The queries are the last tokens of the keys; ``window=None`` sees the whole past.
    """
    rows = torch.arange(keys - queries, keys, device=device).unsqueeze(-1)
    distance = rows - torch.arange(keys, device=device)
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)
