"""Exchange the attention of every layer of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hymell.errors import HymellError

AttentionFactory = Callable[[Any, int], nn.Module]
"""Makes one layer's attention from the config and the layer's index; a module class is one."""


def replace_attention(model: nn.Module, factory: AttentionFactory) -> int:
    """Put ``factory(config, layer_idx)`` in place of each layer's ``self_attn``; return how many.

    ``model`` is a Llama-shaped Hugging Face model on any device, meta included: its layers call
    ``self.self_attn(hidden_states=..., position_embeddings=..., ...)`` and expect a pair. The new
    module gets the device, the dtype and the training mode of the old one. Parameters that have
    the same name and shape in both (the projections q, k, v, o) stay in use; others are new, and
    what only the old module had (Qwen2's biases, Qwen3's norms) is gone.

    Raises HymellError when the model has no config or no such layer, or the factory does not
    return an ``nn.Module``. The model is changed only when every new module could be made.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise HymellError(
            f"{type(model).__name__} has no config; replace_attention takes a Hugging Face model."
        )
    config = config.get_text_config(decoder=True)
    layers = [m for m in model.modules() if _is_attention(getattr(m, "self_attn", None))]
    if not layers:
        raise HymellError(
            f"{type(model).__name__} has no layer with a self_attn and its layer_idx; "
            "replace_attention takes a Llama-shaped decoder."
        )
    made = [_successor(layer.self_attn, config, factory) for layer in layers]
    for layer, attention in zip(layers, made, strict=True):
        layer.self_attn = attention
    return len(layers)


def _is_attention(module: Any) -> bool:
    return isinstance(module, nn.Module) and isinstance(getattr(module, "layer_idx", None), int)


def _successor(old: Any, config: Any, factory: AttentionFactory) -> nn.Module:
    like = next(old.parameters(), torch.empty(0))
    with torch.device(like.device):
        new = factory(config, old.layer_idx)
    if not isinstance(new, nn.Module):
        raise HymellError(
            f"The attention factory returned a {type(new).__name__} for layer {old.layer_idx}; "
            "it must return a torch.nn.Module."
        )
    new.to(device=like.device, dtype=like.dtype).train(old.training)
    for name, kept in old.named_parameters():
        owner, _, leaf = name.rpartition(".")
        target = _child(new, owner)
        fresh = None if target is None else target._parameters.get(leaf)
        if target is not None and fresh is not None and fresh.shape == kept.shape:
            setattr(target, leaf, kept)
    return new


def _child(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
