"""Attention and mixture-of-experts kept whole, through Hugging Face's own registries.

Registered under the name ``hymell`` while a trace runs: an attention function, mask functions that
compute nothing, and an experts function. Plain modules that call
``F.scaled_dot_product_attention`` are caught by a `TorchFunctionMode`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hymell.tracer import packed
from hymell.tracer.capture import Capture, MaskTag
from hymell.tracer.patching import Patches

NAME = "hymell"
_SDPA = functional.scaled_dot_product_attention


def install(capture: Capture, model: nn.Module, patches: Patches) -> None:
    """Switch a Hugging Face model to the composites; a plain module is left as it is."""
    patches.attribute(functional, "scaled_dot_product_attention", _sdpa(capture))
    if "transformers" not in sys.modules:
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

    masks = ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    patches.item(ALL_ATTENTION_FUNCTIONS._global_mapping, NAME, _attention_function(capture))
    patches.item(ALL_EXPERTS_FUNCTIONS._global_mapping, NAME, _experts_function(capture))
    patches.item(masks, NAME, _mask_function(capture, additive=False))
    patches.item(masks, "sdpa", _mask_function(capture, additive=False))
    patches.item(masks, "eager", _mask_function(capture, additive=True))
    # A warning that reads token ids, which have no values here.
    patches.attribute(
        PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *args, **kwargs: None
    )
    packed.install(model, patches)
    for config, functional_attention in _configs(model):
        if functional_attention:
            patches.attribute(config, "_attn_implementation_internal", NAME)
        patches.attribute(config, "_experts_implementation_internal", NAME)


def _configs(model: nn.Module) -> Iterator[tuple[Any, bool]]:
    """Every config that a module of the model holds, and whether attention is looked up there.

    A modeling file that imports the attention registry asks it by the config's entry; any other
    fixed its attention when it was built.
    """
    found: dict[int, tuple[Any, bool]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        namespace = vars(sys.modules.get(type(module).__module__, sys))
        _, before = found.get(id(config), (config, False))
        found[id(config)] = (config, before or "ALL_ATTENTION_FUNCTIONS" in namespace)
    yield from found.values()


def _attention_function(capture: Capture) -> Callable[..., Any]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        batch, heads, length, _ = query.shape
        with capture.paused():
            out = query.new_empty(batch, length, heads, value.shape[-1])
        query, key, value = packed.unpack(capture, (query, key, value), kwargs)
        tag = capture.mask(attention_mask)
        if is_causal is None:
            is_causal = bool(getattr(module, "is_causal", True)) if tag is None else tag.causal
        window = tag.window if tag is not None and tag.window else sliding_window
        extra = [] if s_aux is None else [s_aux]
        extra += [bias for bias in (attention_mask, *kwargs.values()) if _is_bias(bias)]
        attrs = {
            "causal": is_causal,
            "window": window,
            "chunk": None if tag is None else tag.chunk,
            "softcap": softcap,
            "sink": s_aux is not None,
            "scale": None if scaling is None else float(scaling),
        }
        capture.emit("hymell.attention", [query, key, value, *extra], [out], attrs)
        return out, None

    def _is_bias(tensor: object) -> bool:
        return (
            isinstance(tensor, Tensor)
            and capture.mask(tensor) is None
            and tensor.is_floating_point()
            and tensor.dim() in (3, 4)
            and tensor.shape[-3] > 1
        )

    return attention


def _mask_function(capture: Capture, *, additive: bool) -> Callable[..., Tensor]:
    def mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        *args: Any,
        mask_function: Callable[..., Any] | None = None,
        local_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Tensor:
        with capture.paused():
            shape = (batch_size, 1, int(q_length), int(kv_length))
            empty = torch.empty(shape, dtype=dtype if additive else torch.bool, device="meta")
        return capture.tag_mask(empty, _tag(mask_function, local_size))

    return mask


def _tag(mask_function: Callable[..., Any] | None, local_size: int | None) -> MaskTag:
    names = set(_function_names(mask_function))
    causal = not any("bidirectional" in name for name in names)
    if any("chunked" in name for name in names):
        return MaskTag(causal, chunk=local_size)
    return MaskTag(causal, window=local_size)


def _function_names(function: object, depth: int = 0) -> Iterator[str]:
    """Names of a mask function and of those it combines, found in its closure."""
    if not callable(function) or depth > 8:
        return
    yield getattr(function, "__qualname__", "")
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        for inner in content if isinstance(content, (tuple, list)) else (content,):
            yield from _function_names(inner, depth + 1)


def _experts_function(capture: Capture) -> Callable[..., Tensor]:
    def experts(module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        first = "gate_up_proj" if module.has_gate else "up_proj"
        names = [first, "down_proj"]
        if module.has_bias:
            names += [f"{first}_bias", "down_proj_bias"]
        down = module.down_proj
        return emit_experts(
            capture,
            hidden,
            top_k_index,
            top_k_weights,
            [getattr(module, name) for name in names],
            experts=down.shape[0],
            gated=bool(module.has_gate),
            intermediate=down.shape[1] if module.is_transposed else down.shape[2],
        )

    return experts


def emit_experts(
    capture: Capture,
    hidden: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    weights: list[Tensor],
    *,
    experts: int,
    gated: bool,
    intermediate: int,
) -> Tensor:
    """Record ``hymell.experts`` on tokens (T, H) routed by (T, k) indices and weights."""
    with capture.paused():
        out = torch.empty_like(hidden)
    tokens = 1
    for size in hidden.shape[:-1]:
        tokens *= size
    attrs = {
        "tokens": tokens,
        "top_k": top_k_index.shape[-1],
        "experts": experts,
        "gated": gated,
        "hidden": hidden.shape[-1],
        "intermediate": intermediate,
    }
    capture.emit("hymell.experts", [hidden, top_k_index, top_k_weights, *weights], [out], attrs)
    return out


def _sdpa(capture: Capture) -> Callable[..., Tensor]:
    """``F.scaled_dot_product_attention`` as one op instead of ~27 float32 ops on meta."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        with capture.paused():
            out = query.new_empty(*query.shape[:-1], value.shape[-1])
        tag = capture.mask(attn_mask)
        bias = attn_mask is not None and tag is None and attn_mask.is_floating_point()
        extra = [attn_mask] if bias and attn_mask is not None else []
        attrs = {
            "causal": is_causal or (tag is not None and tag.causal),
            "window": None if tag is None else tag.window,
            "chunk": None if tag is None else tag.chunk,
            "softcap": None,
            "sink": False,
            "scale": scale,
        }
        capture.emit("hymell.attention", [query, key, value, *extra], [out], attrs)
        return out

    return attention


class SdpaMode(TorchFunctionMode):
    """Keeps ``F.scaled_dot_product_attention`` whole however a module got hold of it."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._attention = _sdpa(capture)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _SDPA:
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
