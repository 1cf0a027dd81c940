"""Mixers whose forward unrolls a recurrence in Python, rewritten around one scan op."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hymell.tracer.capture import Capture
from hymell.tracer.patching import Patches
from hymell.tracer.scans import Geometry, emit_scan


def install(capture: Capture, model: nn.Module, patches: Patches) -> None:
    """Replace the forward of mixers that loop over blocks or tokens."""
    config = getattr(model, "config", None)
    if hasattr(config, "max_inference_chunksize"):
        # xLSTM cuts long prompts to bound memory; the work is the same in one piece.
        patches.attribute(config, "max_inference_chunksize", sys.maxsize)
    for module in model.modules():
        if type(module).__name__ == "MiniMaxLightningAttention":
            patches.attribute(module, "forward", types.MethodType(_lightning(capture), module))


def _lightning(capture: Capture) -> Callable[..., tuple[Tensor, Tensor]]:
    """MiniMax-01's lightning attention (arXiv:2501.08313): decayed linear attention in blocks."""

    def forward(
        module: Any,
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        cache = past_key_values if cache is None else cache
        batch, length, _ = hidden_states.shape
        heads, dim = module.num_attention_heads, module.head_dim
        qkv = module.act_fn(module.qkv_proj(hidden_states))
        parts = torch.split(qkv.reshape(batch, length, heads, 3 * dim), dim, dim=3)
        query, key, value = (part.transpose(1, 2) for part in parts)
        state = None if cache is None else cache.get_linear_cache(module.layer_idx)
        known = isinstance(state, Tensor)
        with capture.paused():
            out = torch.empty_like(value)
            new_state = value.new_empty(batch, heads, dim, dim)
        geometry = Geometry(
            "lightning",
            "recurrent" if known else "chunk",
            heads,
            dim,
            dim,
            None if known else module.block_size,
        )
        decays = [module.slope_rate]
        if not known:
            decays += [module.query_decay, module.key_decay, module.diagonal_decay]
        inputs = [query, key, value, *decays, *([state] if known else [])]
        emit_scan(capture, inputs, [out, new_state], geometry)
        mixed = module.norm(out.transpose(1, 2).reshape(batch, length, heads * dim))
        gated = functional.sigmoid(module.output_gate(hidden_states)) * mixed
        if cache is not None:
            cache.set_linear_cache(module.layer_idx, new_state)
        return module.out_proj(gated), new_state

    return forward
