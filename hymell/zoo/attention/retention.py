"""Retention: linear attention with a fixed decay per head."""

from __future__ import annotations

from math import log1p
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
from hymell.zoo.attention.scans import CHUNK_SIZE, chunk_retention


class RetentionAttention(nn.Module):
    """S_t = gamma_h S_{t-1} + k_t v_t^T, o = W_O (swish(W_G x) * norm_h(q_t S_t)).

    gamma_h = 1 - 2^(-5-h) for head h; norm_h normalises each head on its own (the paper's
    GroupNorm, without learned scale, which is why no 1/sqrt(d) is needed). Key/value heads are
    repeated for their query heads, values are as wide as keys (RetNet itself doubles them).
    Source: Sun et al. 2023, "Retentive Network", section 2 (arXiv:2307.08621).
    """

    def __init__(self, config: Any, layer_idx: int, chunk_size: int = CHUNK_SIZE) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx, self.chunk_size = config, layer_idx, chunk_size
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = llama_projections(config)
        self.g_proj = nn.Linear(shape.hidden, shape.q_width, bias=False)
        log_decay = torch.tensor([log1p(-(2.0 ** (-5 - head))) for head in range(shape.heads)])
        self.log_decay: Tensor
        self.register_buffer("log_decay", log_decay, persistent=False)

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
        o, state = chunk_retention(
            q,
            share_heads(hide_padding(k, real), self.num_key_value_groups),
            share_heads(v, self.num_key_value_groups),
            self.log_decay,
            state=None if slot is None else slot.state,
            chunk_size=self.chunk_size,
        )
        if slot is not None:
            slot.update_recurrent_state(state, new_tokens=tokens)
        o = from_heads(F.layer_norm(o, (self.head_dim,)))
        return self.o_proj(F.silu(self.g_proj(hidden_states)) * o), None
