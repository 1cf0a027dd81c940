"""KV and state caches: their writes as single ops, their tensors at any L, what they hold.

Engines append keys and values in place, so the concatenation inside a Hugging Face cache layer is
recorded as one ``hymell.kv_append``; a recurrent or convolution state that is overwritten is one
``hymell.state_update``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hymell.graph import StateSpec
from hymell.tracer.capture import Capture, spec
from hymell.tracer.patching import Patches

#: Tensors of a cache layer that hold one entry per token, and the dim that counts tokens.
_GROWING = {
    "keys": -2,
    "values": -2,
    "indexer_keys": -2,
    "idx_keys": -2,
    "indexer_position_ids": -1,
}


def install(capture: Capture, patches: Patches) -> None:
    """Record cache writes whole while ``patches`` is active."""
    cache_utils = sys.modules.get("transformers.cache_utils")
    if cache_utils is None:
        return
    # Static addresses serve CUDA graphs only, and marking them would import torch._dynamo.
    patches.attribute(cache_utils, "is_torchdynamo_compiling", lambda: True)
    own = vars(cache_utils.Cache)
    patches.attribute(cache_utils.Cache, "get_seq_length", _length(own["get_seq_length"]))
    patches.attribute(cache_utils.Cache, "get_mask_sizes", _mask_sizes(own["get_mask_sizes"]))
    for cls in _subclasses(cache_utils.DynamicLayer):
        if "update" in vars(cls):
            patches.attribute(cls, "update", _append(capture, vars(cls)["update"]))
        for name in ("update_indexer", "update_index"):
            if name in vars(cls):
                patches.attribute(cls, name, _append_index(capture, vars(cls)[name]))
    for cls in _subclasses(cache_utils.LinearAttentionLayer):
        for name in ("update_conv_state", "update_recurrent_state"):
            if name in vars(cls):
                patches.attribute(cls, name, _state_update(capture, vars(cls)[name], name))


def _subclasses(cls: type) -> Iterator[type]:
    seen: set[type] = set()
    pending = [cls]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            yield current
            pending.extend(current.__subclasses__())


def _length(original: Callable[..., int]) -> Callable[..., int]:
    def get_seq_length(cache: Any, *args: Any, **kwargs: Any) -> int:
        try:
            return original(cache, *args, **kwargs)
        except ValueError:
            # A hybrid model without one attention layer: only the stretched length is known.
            return getattr(cache, "_hymell_length", 0)

    return get_seq_length


def _mask_sizes(original: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    def get_mask_sizes(cache: Any, query_length: int, layer_idx: int) -> tuple[int, int]:
        try:
            return original(cache, query_length, layer_idx)
        except ValueError:
            return getattr(cache, "_hymell_length", 0) + query_length, 0

    return get_mask_sizes


def _append(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    def update(layer: Any, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        old = [t for t in (layer.keys, layer.values) if isinstance(t, Tensor) and t.numel()]
        with capture.paused():
            keys, values = original(layer, key, value, *args, **kwargs)
            if keys is values:
                values = values.view_as(values)
        number = capture.emit(
            "hymell.kv_append",
            [key, value, *old],
            [keys, values],
            {"window": _window(layer)},
        )
        if number >= 0:
            layer._hymell_path = capture.path
            for index, tensor in enumerate((layer.keys, layer.values)):
                if isinstance(tensor, Tensor):
                    capture.bind_output(tensor, number, index)
        return keys, values

    return update


def _append_index(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    def update(layer: Any, new: Tensor) -> Tensor:
        names = ("indexer_keys", "idx_keys")
        held = [getattr(layer, name, None) for name in names]
        old = [t for t in held if isinstance(t, Tensor) and t.numel()]
        with capture.paused():
            full: Tensor = original(layer, new)
            if full is new:
                full = new.view_as(new)
        capture.emit("hymell.kv_append", [new, *old], [full], {"window": None})
        return full

    return update


def _state_update(
    capture: Capture, original: Callable[..., Any], name: str
) -> Callable[..., Tensor]:
    kind = "conv" if "conv" in name else "recurrent"
    holder = f"{kind}_states"

    def update(layer: Any, new: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        old = getattr(layer, holder).get(state_idx)
        inputs = [new] if old is None or kind == "recurrent" else [new, old]
        with capture.paused():
            returned: Tensor = original(layer, new, state_idx=state_idx, **kwargs)
        state = getattr(layer, holder)[state_idx]
        outputs = [state] if returned is new or returned is state else [state, returned]
        capture.emit("hymell.state_update", inputs, outputs, {"kind": kind})
        if capture.recording:
            layer._hymell_path = capture.path
        return returned

    return update


def _window(layer: Any) -> int | None:
    return getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None


def stretch(cache: Any, length: int) -> None:
    """Let a cache hold ``length`` tokens: per-token tensors change size, nothing is computed.

    The cross-attention half of an encoder-decoder cache keeps the source length.
    """
    if hasattr(cache, "layers"):
        cache._hymell_length = length
    for name, layer in _layers(cache):
        if name.startswith("cache.cross"):
            continue
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = length
        if hasattr(layer, "stretch_to"):
            layer.stretch_to(length)
        window = _window(layer)
        kept = length if window is None else min(length, window - 1)
        for name, dim in _GROWING.items():
            tensor = getattr(layer, name, None)
            if isinstance(tensor, Tensor) and tensor.dim() >= -dim and tensor.numel():
                shape = list(tensor.shape)
                shape[dim] = kept
                setattr(layer, name, tensor.new_empty(shape))


def bind_state(capture: Capture, cache: Any, model: nn.Module) -> None:
    """Tell the capture that what cache and modules hold comes from an earlier step."""
    for name, tensor, _ in _all_tensors(cache, model):
        capture.bind(tensor, "state", name)


def state_specs(cache: Any, model: nn.Module) -> tuple[StateSpec, ...]:
    """What is kept between steps as it stands now; identical layers are counted together.

    Most models keep it in a cache; some (RecurrentGemma) as attributes of their modules.
    """
    counts: dict[tuple[Any, ...], int] = {}
    first: dict[tuple[Any, ...], tuple[str, str]] = {}
    for name, tensor, layer in _all_tensors(cache, model):
        attribute = name.rsplit(".", 1)[-1]
        kind = _kind(attribute, layer)
        holder = "cross" if name.startswith("cache.cross") else "self"
        size = spec(tuple(tensor.shape), tensor.dtype)
        key = (kind, size, _window(layer), attribute, holder)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, (name, getattr(layer, "_hymell_path", "")))
    return tuple(
        StateSpec(kind, first[key][0], first[key][1], size, counts[key], window)
        for key in counts
        for kind, size, window, *_ in [key]
    )


def _kind(attribute: str, layer: Any) -> str:
    if attribute in ("keys", "values"):
        keys, values = layer.keys, layer.values
        # MLA caches one compressed vector and one shared rotary key per token, of unequal widths.
        latent = keys.dim() == 4 and keys.shape[1] == 1 and keys.shape[-1] != values.shape[-1]
        return "latent" if latent else "kv"
    grows = attribute in _GROWING or attribute in getattr(layer, "growing", ())
    if grows or attribute.startswith("compressed"):
        return "kv"
    return "conv" if "conv" in attribute or "buffer" in attribute else "recurrent"


def _layers(cache: Any) -> Iterator[tuple[str, Any]]:
    """(name, layer) of every cache layer; an encoder-decoder cache holds two caches."""
    if hasattr(cache, "self_attention_cache"):
        for i, layer in enumerate(cache.self_attention_cache.layers):
            yield f"cache.self.{i}", layer
        for i, layer in enumerate(cache.cross_attention_cache.layers):
            yield f"cache.cross.{i}", layer
        return
    for i, layer in enumerate(getattr(cache, "layers", ()) or ()):
        yield f"cache.{i}", layer


def _all_tensors(cache: Any, model: nn.Module) -> Iterator[tuple[str, Tensor, Any]]:
    yield from _tensors(cache)
    for path, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor) and value.dim() > 1 and not attribute.startswith("_"):
                yield f"{path}.{attribute}", value, None


def _tensors(cache: Any) -> Iterator[tuple[str, Tensor, Any]]:
    """(name, tensor, holder) of everything a cache keeps between steps."""
    for name, layer in _layers(cache):
        for attribute, value in vars(layer).items():
            yield from _named_tensors(f"{name}.{attribute}", attribute, value, layer)
    if not hasattr(cache, "layers"):
        if isinstance(cache, (list, tuple, dict)):
            yield from _named_tensors("state", "state", cache, None)
        elif hasattr(cache, "__dict__"):
            for attribute, value in vars(cache).items():
                yield from _named_tensors(f"cache.{attribute}", attribute, value, None)
    elif hasattr(cache, "linear_cache"):
        for i, value in enumerate(cache.linear_cache):
            if isinstance(value, Tensor):
                yield f"cache.{i}.linear", value, None


def _named_tensors(
    name: str, attribute: str, value: Any, layer: Any
) -> Iterator[tuple[str, Tensor, Any]]:
    if isinstance(value, Tensor):
        if value.dim() > 1 and value.numel() and not attribute.startswith("_"):
            yield name, value, layer
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_tensors(
                f"{name.rsplit('.', 1)[0]}.{key}.{attribute}", attribute, item, layer
            )
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _named_tensors(
                f"{name.rsplit('.', 1)[0]}.{i}.{attribute}", attribute, item, layer
            )


def share_layer(cache: Any, source: int, target: int) -> None:
    """Let cache layer ``target`` look as ``source`` does after an identical layer ran."""
    for part in (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if hasattr(cache, "self_attention_cache")
        else (cache,)
    ):
        _share(part, source, target)
    updated = getattr(cache, "is_updated", None)
    if isinstance(updated, dict) and source in updated:
        updated[target] = updated[source]


def _share(cache: Any, source: int, target: int) -> None:
    layers = getattr(cache, "layers", None)
    if layers is not None and source < len(layers):
        replicated = getattr(cache, "layer_class_to_replicate", None)
        while len(layers) <= target:
            layers.append(replicated() if replicated else object.__new__(type(layers[source])))
        twin = object.__new__(type(layers[source]))
        vars(twin).update(
            {k: dict(v) if isinstance(v, dict) else v for k, v in vars(layers[source]).items()}
        )
        layers[target] = twin
    linear = getattr(cache, "linear_cache", None)
    if linear is not None and source < len(linear):
        cache.set_linear_cache(target, linear[source])


def layer_signature(cache: Any, index: int) -> tuple[Any, ...]:
    """Everything about a cache layer that could change what a model layer runs."""
    parts: list[Any] = []
    for part in (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if hasattr(cache, "self_attention_cache")
        else (cache,)
    ):
        layers = getattr(part, "layers", None) or ()
        if index < len(layers):
            layer = layers[index]
            parts.append(type(layer).__name__)
            parts.extend((k, _summary(v)) for k, v in vars(layer).items() if k != "_hymell_path")
        linear = getattr(part, "linear_cache", None)
        if linear is not None and index < len(linear):
            parts.append(_summary(linear[index]))
    updated = getattr(cache, "is_updated", None)
    if isinstance(updated, dict):
        parts.append(updated.get(index))
    return tuple(parts)


def _summary(value: Any) -> Any:
    described = tree_map_only(Tensor, lambda t: (tuple(t.shape), str(t.dtype)), value)
    return repr(described) if isinstance(described, (dict, list, tuple)) else str(described)
