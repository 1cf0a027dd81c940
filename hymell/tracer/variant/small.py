"""A config of the same family that runs on a CPU in a moment."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LAYERS = 2
VOCABULARY = 128
_HEAD_DIM = 16
_HEADS = ("num_attention_heads", "num_key_value_heads")
#: What every small model has, where its config has the field at all.
_SMALL = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "sliding_window": 16,
}
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def smaller(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Configs to try in turn: narrow heads, then the model's own attention; both of two layers.

    Groups of heads, positions and everything else stay as they are.
    """
    text = config.get_text_config(decoder=True)
    heads, kv_heads = (getattr(text, name, None) for name in _HEADS)
    if isinstance(heads, int):
        kv = kv_heads if isinstance(kv_heads, int) else heads
        few = min(kv, 2)
        many = few * max(heads // max(kv, 1), 1)
        yield with_sizes(
            text,
            {
                "num_attention_heads": many,
                "num_key_value_heads": few,
                "head_dim": _HEAD_DIM,
                "hidden_size": _HEAD_DIM * many,
            },
        )
    yield with_sizes(text, {})


def with_sizes(
    config: PretrainedConfig, sizes: dict[str, Any], layers: int = LAYERS
) -> PretrainedConfig:
    """A copy with these sizes and few layers, a small vocabulary and small feed-forward blocks."""
    made: PretrainedConfig = copy.deepcopy(config)
    depth = next((getattr(made, n) for n in _DEPTH if isinstance(getattr(made, n, None), int)), 0)
    for key, value in list(vars(made).items()):
        if isinstance(value, (list, tuple)) and len(value) == depth and depth > layers:
            setattr(made, key, list(value)[:layers])
    for key, value in {**_SMALL, **sizes, **dict.fromkeys(_DEPTH, layers)}.items():
        held = getattr(made, key, None)
        if isinstance(held, int) and not isinstance(held, bool):
            setattr(made, key, min(held, value) if key in _SMALL else value)
    for key in _TOKENS:
        if getattr(made, key, None) is not None:
            setattr(made, key, None)
    return made


def describe(config: PretrainedConfig) -> str:
    """``2 layers, hidden size 64, 4 heads, 2 key/value heads``."""
    text: Any = config.get_text_config(decoder=True)
    words = [f"{LAYERS} layers"]
    for name, title in (
        ("hidden_size", "hidden size {}"),
        ("num_attention_heads", "{} heads"),
        ("num_key_value_heads", "{} key/value heads"),
    ):
        value = getattr(text, name, None)
        if isinstance(value, int):
            words.append(title.format(value))
    return ", ".join(words)
