"""Softmax attention that sees only the last few tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hymell.errors import HymellError, UnsupportedError
from hymell.zoo.attention.cache import window_slot
from hymell.zoo.attention.heads import HeadShape, llama_projections, rotate, to_heads
from hymell.zoo.attention.softmax import attention_function, causal_window, implementation


class SlidingWindowAttention(nn.Module):
    """Softmax attention over the token itself and the ``window - 1`` tokens before it.

    The cache keeps ``window - 1`` past keys and values and no more. The window is given or read
    from ``config.sliding_window``.
    Sources: Beltagy et al. 2020, "Longformer" (arXiv:2004.05150); as in Mistral 7B, Jiang et al.
    2023 (arXiv:2310.06825).
    """

    is_causal = True

    def __init__(self, config: Any, layer_idx: int, window: int | None = None) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.scaling = shape.head_dim**-0.5
        self.attention_dropout = float(getattr(config, "attention_dropout", 0.0))
        self.sliding_window = window_of(config, window)
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
        slot = window_slot(cache, self.layer_idx, self.sliding_window)
        if slot is not None:
            k, v = slot.update(k, v)
        o, weights = attention_function(self.config)(
            self,
            q,
            k,
            v,
            self._mask(attention_mask, q, k),
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(o.flatten(-2)), weights

    def _mask(self, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """Narrow the model's causal mask to the window, where the implementation reads a mask."""
        name, queries, keys = implementation(self.config), q.shape[-2], k.shape[-2]
        if name == "flex_attention":
            raise UnsupportedError(
                "Sliding-window attention does not support flex_attention; "
                "load the model with attn_implementation='sdpa'."
            )
        if name not in ("sdpa", "eager"):
            return mask  # kernels apply the window from the sliding_window argument
        if mask is None and keys <= self.sliding_window and queries in (1, keys):
            return None
        visible = causal_window(queries, keys, self.sliding_window, q.device)
        if mask is None:
            return visible[None, None]
        mask = mask[..., -keys:]  # the model may have sized it for a layer that keeps every token
        if mask.dtype == torch.bool:
            return mask & visible
        return mask.masked_fill(~visible, torch.finfo(mask.dtype).min)


def window_of(config: Any, window: int | None = None) -> int:
    """The window in tokens: the given one, else ``config.sliding_window``.

    Raises HymellError when neither is set or the window is below 2.
    """
    found = getattr(config, "sliding_window", None) if window is None else window
    if not isinstance(found, int):
        raise HymellError(
            "Sliding-window attention needs its window: pass window=..., "
            "or set sliding_window in the config."
        )
    if found < 2:
        raise HymellError(f"The attention window must be at least 2 tokens, not {found}.")
    return found
