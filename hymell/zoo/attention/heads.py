"""What the variants share: head counts, Llama's four projections, rotary positions, padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hymell.errors import HymellError, UnsupportedError


@dataclass(frozen=True)
class HeadShape:
    """Sizes of an attention layer: query heads, key/value heads, channels per head, model width."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int

    @classmethod
    def of(cls, config: Any) -> HeadShape:
        """Read a Llama-shaped config. Raises HymellError naming what is missing or does not fit."""
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", default=heads)
        head_dim = _size(config, "head_dim", default=hidden // heads)
        if heads % kv_heads:
            raise HymellError(
                f"num_attention_heads ({heads}) must be a multiple of "
                f"num_key_value_heads ({kv_heads})."
            )
        return cls(heads=heads, kv_heads=kv_heads, head_dim=head_dim, hidden=hidden)

    @property
    def groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


def llama_projections(config: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """The query, key, value and output projections, shaped as in Llama so weights carry over."""
    shape, bias = HeadShape.of(config), bool(getattr(config, "attention_bias", False))
    return (
        nn.Linear(shape.hidden, shape.q_width, bias=bias),
        nn.Linear(shape.hidden, shape.kv_width, bias=bias),
        nn.Linear(shape.hidden, shape.kv_width, bias=bias),
        nn.Linear(shape.q_width, shape.hidden, bias=bias),
    )


def to_heads(x: Tensor, head_dim: int) -> Tensor:
    """``(B, S, H * d)`` to ``(B, H, S, d)``."""
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def from_heads(x: Tensor) -> Tensor:
    """``(B, H, S, d)`` to ``(B, S, H * d)``."""
    return x.transpose(1, 2).flatten(-2)


def share_heads(x: Tensor, groups: int) -> Tensor:
    """Repeat each head for its group of query heads: ``(B, Hkv, S, d)`` to ``(B, H, S, d)``."""
    if groups == 1:
        return x
    return x.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)


def rotate(x: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotary position embedding of ``(B, H, S, d)``, channel i paired with channel i + d / 2.

    ``positions`` is (cos, sin), each ``(B or 1, S, d)``, as a Hugging Face model passes them.
    Source: Su et al. 2021, "RoFormer" (arXiv:2104.09864), in the half-split order of Llama.
    """
    if positions is None:
        raise HymellError("This attention needs position_embeddings=(cos, sin) from the model.")
    cos, sin = (angle.unsqueeze(1) for angle in positions)
    if cos.shape[-1] != x.shape[-1]:
        raise UnsupportedError(
            f"Rotary embedding of {cos.shape[-1]} of {x.shape[-1]} channels per head is not "
            "supported by the zoo's attention; use a config that rotates every channel."
        )
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def real_tokens(attention_mask: Tensor | None, new_tokens: int) -> Tensor | None:
    """Which new tokens are not padding: ``(B, 1, S, 1)`` bool; None when all are.

    Takes what a Hugging Face model passes on: None, a ``(B, kv)`` mask, or a causal
    ``(B, 1, q, kv)`` mask (bool, or additive with 0 for visible). A mask on the meta device has no
    values, so such a trace is one without padding.

    Raises UnsupportedError for a mask that hides real tokens (packed sequences, windows), because
    a recurrent state cannot forget on demand.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() not in (2, 4):
        raise UnsupportedError(
            "Linear attention cannot read this attention mask; "
            "load the model with attn_implementation='sdpa'."
        )
    if attention_mask.is_meta:
        return None
    if attention_mask.dim() == 2:
        return (attention_mask[:, -new_tokens:] != 0)[:, None, :, None]
    visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
    own = visible.diagonal(visible.shape[-1] - new_tokens, dim1=-2, dim2=-1)[:, 0]
    seen_by_last = visible[:, 0, -1, -new_tokens:]
    if not torch.equal(own, seen_by_last):
        raise UnsupportedError(
            "The attention mask hides tokens other than padding (packed sequences or a sliding "
            "window), which a recurrent state cannot do; pass one sequence per row and a config "
            "without sliding_window."
        )
    return own[:, None, :, None]


def hide_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """Zero the padded tokens of ``(B, H, S, d)``."""
    return x if real is None else x * real


def _size(config: Any, name: str, default: int | None = None) -> int:
    value = getattr(config, name, None)
    if value is None:
        value = default
    if not isinstance(value, int) or value < 1:
        raise HymellError(
            f"The config needs {name} as a positive whole number, not {value!r}; "
            "the zoo's attention fits Llama-shaped configs."
        )
    return value
