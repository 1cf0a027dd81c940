"""The gated delta rule: a decaying state whose writes first erase what the key held."""

from __future__ import annotations

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hymell.zoo.attention.cache import RecurrentStateLayer, recurrent_slot
from hymell.zoo.attention.heads import (
    HeadShape,
    from_heads,
    hide_padding,
    llama_projections,
    real_tokens,
    share_heads,
    to_heads,
)
from hymell.zoo.attention.scans import CHUNK_SIZE, chunk_gated_delta_rule

CONV_SIZE = 4
"""Taps of the short causal convolution (Yang et al. 2024, section 3)."""


class GatedDeltaAttention(nn.Module):
    """S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, with a gated output.

    q, k and v pass a short causal depthwise convolution and SiLU, q and k are normalised to unit
    length; beta = sigmoid(W_b x); alpha = exp(-exp(A) softplus(W_a x + dt)), one of each per query
    head; o = W_O (silu(W_G x) * RMSNorm(q_t S_t)). No positions: the decay orders the tokens.
    Key/value heads are repeated for their query heads.
    Source: Yang et al. 2024, "Gated Delta Networks", section 3 (arXiv:2412.06464); alpha and its
    initial values as in Mamba-2, Dao and Gu 2024 (arXiv:2405.21060).
    """

    def __init__(self, config: Any, layer_idx: int, chunk_size: int = CHUNK_SIZE) -> None:
        super().__init__()
        shape = HeadShape.of(config)
        self.config, self.layer_idx, self.chunk_size = config, layer_idx, chunk_size
        self.head_dim, self.num_key_value_groups = shape.head_dim, shape.groups
        self.widths = [shape.q_width, shape.kv_width, shape.kv_width]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = llama_projections(config)
        channels = sum(self.widths)
        self.conv = nn.Conv1d(channels, channels, CONV_SIZE, groups=channels, bias=False)
        self.a_proj = nn.Linear(shape.hidden, shape.heads, bias=False)
        self.b_proj = nn.Linear(shape.hidden, shape.heads, bias=False)
        self.g_proj = nn.Linear(shape.hidden, shape.q_width, bias=False)
        self.norm = nn.RMSNorm(shape.head_dim, eps=float(getattr(config, "rms_norm_eps", 1e-6)))
        self.A_log = nn.Parameter(torch.empty(shape.heads).uniform_(1, 16).log())
        step = torch.empty(shape.heads).uniform_(log(1e-3), log(1e-1)).exp()
        # The inverse of softplus, so that softplus(dt_bias) is the step.
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))

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
        projections = (self.q_proj, self.k_proj, self.v_proj)
        mixed = torch.cat([project(hidden_states) for project in projections], dim=-1)
        if real is not None:
            mixed = mixed * real[:, 0]
        mixed = self._convolve(mixed, slot)
        q, k, v = (to_heads(x, self.head_dim) for x in torch.split(mixed, self.widths, dim=-1))
        q, k = F.normalize(q, dim=-1), hide_padding(F.normalize(k, dim=-1), real)
        step = F.softplus(self.a_proj(hidden_states).float() + self.dt_bias.float())
        log_decay = (-self.A_log.float().exp() * step).mT
        beta = self.b_proj(hidden_states).sigmoid().mT
        if real is not None:
            log_decay, beta = log_decay * real[..., 0], beta * real[..., 0]
        o, state = chunk_gated_delta_rule(
            q,
            share_heads(k, self.num_key_value_groups),
            share_heads(v, self.num_key_value_groups),
            log_decay,
            beta,
            state=None if slot is None else slot.state,
            chunk_size=self.chunk_size,
        )
        if slot is not None:
            slot.update_recurrent_state(state, new_tokens=tokens)
        o = from_heads(self.norm(o))
        return self.o_proj(F.silu(self.g_proj(hidden_states)) * o), None

    def _convolve(self, x: Tensor, slot: RecurrentStateLayer | None) -> Tensor:
        """Causal convolution and SiLU of ``(B, S, channels)``."""
        if slot is None:
            x = F.pad(x.mT, (CONV_SIZE - 1, 0))
        else:
            x = slot.update_conv_state(x.mT, conv_kernel_size=CONV_SIZE)
        return F.silu(self.conv(x)).mT
