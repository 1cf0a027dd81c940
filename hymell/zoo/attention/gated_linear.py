"""Gated linear attention: a data-dependent decay for each key channel."""

from __future__ import annotations

from typing import Any

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
    share_heads,
    to_heads,
)
from hymell.zoo.attention.scans import CHUNK_SIZE, chunk_gated_linear_attention

GATE_RANK = 16
"""Rank of the gate projection (Yang et al. 2023, section 4)."""
GATE_TEMPERATURE = 16.0
"""tau of alpha = sigmoid(.)^(1 / tau), which keeps gates near 1 (Yang et al. 2023, section 4)."""


class GatedLinearAttention(nn.Module):
    """S_t = diag(alpha_t) S_{t-1} + k_t v_t^T, o = W_O (swish(W_r x + b_r) * LN(q_t S_t)).

    alpha_t = sigmoid(W_2 W_1 x_t + b)^(1/16), W_1 of rank 16, one gate per channel of each query
    head. No positions: the gates order the tokens. LN is per head, so no 1/sqrt(d) is needed.
    Key/value heads are repeated for their query heads (GLA itself halves the key width).
    Source: Yang et al. 2023, "Gated Linear Attention Transformers", section 4 (arXiv:2312.06635).
    """

    def __init__(self, config: Any, layer_idx: int, chunk_size: int = CHUNK_SIZE) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx, self.chunk_size = config, layer_idx, chunk_size
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = llama_projections(config)
        self.gate_down = nn.Linear(shape.hidden, GATE_RANK, bias=False)
        self.gate_up = nn.Linear(GATE_RANK, shape.q_width, bias=True)
        self.g_proj = nn.Linear(shape.hidden, shape.q_width, bias=True)
        self.norm = nn.LayerNorm(shape.head_dim)

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
        q = to_heads(self.q_proj(hidden_states), self.head_dim)
        k = hide_padding(to_heads(self.k_proj(hidden_states), self.head_dim), real)
        v = to_heads(self.v_proj(hidden_states), self.head_dim)
        log_gate = F.logsigmoid(self.gate_up(self.gate_down(hidden_states)).float())
        log_gate = to_heads(log_gate / GATE_TEMPERATURE, self.head_dim)
        o, state = chunk_gated_linear_attention(
            q,
            share_heads(k, self.num_key_value_groups),
            share_heads(v, self.num_key_value_groups),
            hide_padding(log_gate, real),
            state=None if slot is None else slot.state,
            chunk_size=self.chunk_size,
        )
        if slot is not None:
            slot.update_recurrent_state(state, new_tokens=tokens)
        gated = F.silu(self.g_proj(hidden_states)) * from_heads(self.norm(o))
        return self.o_proj(gated), None
