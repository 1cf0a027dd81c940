"""Sizes of the models that LLMServingSim's profiles name but do not describe."""

from __future__ import annotations

from dataclasses import dataclass

from hymell.zoo import find


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Widths of one decoder layer and the vocabulary, before any parallelism.

    ``experts`` and ``top_k`` are 0 for a dense model; ``expert_width`` is the width of one expert.
    ``norm`` is the op of its norms.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    norm: str = "rms_norm"


#: Models outside the zoo; the figures are those of the published config.json.
_OTHERS = {
    "microsoft/Phi-mini-MoE-instruct": ModelSizes(
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        width=960,
        vocab=32064,
        experts=16,
        top_k=2,
        expert_width=960,
        norm="layer_norm",
    )
}


def model_sizes(model: str) -> ModelSizes | None:
    """The sizes of a hub id, None where they are not known."""
    known = find(model)
    if known is None:
        return _OTHERS.get(model)
    config = known.config
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    return ModelSizes(
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        width=config["intermediate_size"],
        vocab=config["vocab_size"],
        experts=experts,
        top_k=config.get("num_experts_per_tok") or 0,
        expert_width=config.get("moe_intermediate_size")
        or (experts and config["intermediate_size"]),
    )
