"""The inputs of a causal language model's forward, on meta."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

#: Names under which forwards take and give the state of earlier steps.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")


def parameters_of(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The forward's parameters, decorators looked through."""
    return inspect.signature(module.forward).parameters


def causal_inputs(
    model: nn.Module, ids: Tensor, cache: Any = None, logits_to_keep: int = 1
) -> dict[str, Any]:
    """Keyword arguments of one step: token ids (B, S), the state so far, what to compute.

    ``logits_to_keep`` is passed where the forward takes it; 0 means every token.
    """
    parameters = parameters_of(model)
    arguments: dict[str, Any] = {"input_ids": ids}
    if "use_cache" in parameters or _takes_any(parameters):
        arguments["use_cache"] = True
    if "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = logits_to_keep
    if cache is not None:
        arguments[cache_keyword(model)] = cache
    return arguments


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def cache_keyword(model: nn.Module) -> str:
    """The name under which a forward takes the state of earlier steps."""
    parameters = parameters_of(model)
    return next((name for name in CACHE_NAMES if name in parameters), "cache")


def cache_of(output: Any) -> Any:
    """The state a forward returned, or None."""
    for name in CACHE_NAMES:
        state = getattr(output, name, None)
        if state is not None:
            return state
    return None


def explicit_cache(model: nn.Module) -> Any:
    """An empty cache for a forward that takes one but does not return its own, else None."""
    if "cache" not in parameters_of(model) and "past_key_values" not in parameters_of(model):
        return None
    from transformers import DynamicCache

    config: Any = model.config
    cache = DynamicCache(config=config)
    blocks = max((len(m) for m in model.modules() if isinstance(m, nn.ModuleList)), default=0)
    return cache if len(cache.layers) >= blocks else DynamicCache()
