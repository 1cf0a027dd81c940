"""Linear attention with the ELU feature map."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hymell.zoo.attention.cache import recurrent_slot
from hymell.zoo.attention.heads import (
    HeadShape,
    from_heads,
    hide_padding,
    llama_projections,
    real_tokens,
    rotate,
    share_heads,
    to_heads,
)
from hymell.zoo.attention.scans import CHUNK_SIZE, chunk_linear_attention


class KernelLinearAttention(nn.Module):
    """o_t = sum_{j<=t} (phi(q_t) . phi(k_j)) v_j / sum_{j<=t} phi(q_t) . phi(k_j), phi = elu + 1.

    The normaliser rides in the same scan as one more value channel that is always 1, so the state
    is ``(B, H, d, d + 1)``. Queries and keys are rotated before the feature map, since a
    Llama-shaped model has no other positions. Key/value heads are repeated for their query heads.
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3 (arXiv:2006.16236).
    """

    def __init__(self, config: Any, layer_idx: int, chunk_size: int = CHUNK_SIZE) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx, self.chunk_size = config, layer_idx, chunk_size
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = llama_projections(config)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """``(B, S, hidden)`` to ``(B, S, hidden)``; there are no attention weights to return."""
        tokens = hidden_states.shape[1]
        slot = recurrent_slot(past_key_values if cache is None else cache, self.layer_idx)
        real = real_tokens(attention_mask, tokens)
        q = rotate(to_heads(self.q_proj(hidden_states), self.head_dim), position_embeddings)
        k = rotate(to_heads(self.k_proj(hidden_states), self.head_dim), position_embeddings)
        v = to_heads(self.v_proj(hidden_states), self.head_dim)
        k = hide_padding(_feature_map(k), real)
        v = F.pad(v, (0, 1), value=1.0)
        o, state = chunk_linear_attention(
            _feature_map(q),
            share_heads(k, self.num_key_value_groups),
            share_heads(v, self.num_key_value_groups),
            state=None if slot is None else slot.state,
            chunk_size=self.chunk_size,
        )
        if slot is not None:
            slot.update_recurrent_state(state, new_tokens=tokens)
        weighted, weight = o[..., :-1], o[..., -1:]
        # A padded token may have seen nothing, so its weight may be 0.
        o = weighted / weight.clamp_min(torch.finfo(weight.dtype).tiny)
        return self.o_proj(from_heads(o)), None


def _feature_map(x: Tensor) -> Tensor:
    return F.elu(x) + 1
