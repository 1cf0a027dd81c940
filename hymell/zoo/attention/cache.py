"""Where a variant keeps its state: a slot of the Hugging Face cache that the model passes around.

``DynamicCache(config=...)`` of a Llama config fills every slot with a key/value layer. On its first
call a variant puts the kind of layer it needs into its own slot, so no change of the config is
needed and ``generate``, beam search and mask building work as they do for the stock model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from hymell.errors import HymellError, UnsupportedError

Layer = TypeVar("Layer", bound=CacheLayerMixin)


class RecurrentStateLayer(LinearAttentionLayer, CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A cache slot with a recurrent state (and a convolution state) that also counts its tokens.

    Tensors: ``recurrent_states[0]`` ``(B, H, dk, dv)`` fp32, ``conv_states[0]``
    ``(B, channels, kernel - 1)`` where the variant has a short convolution. Transformers' own
    linear-attention slot does not know how many tokens it has seen, so a model with no softmax
    layer could not give the next token its position; ``cumulative_length`` holds that count.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        LinearAttentionLayer.__init__(self)
        CacheLayerMixin.__init__(self)  # type: ignore[no-untyped-call]
        self.cumulative_length = 0

    @property
    def state(self) -> Tensor | None:
        """The recurrent state so far; None before the first token."""
        return self.recurrent_states[0] if self.has_previous_state[0] else None

    def update_recurrent_state(  # type: ignore[override]
        self, recurrent_states: Tensor, state_idx: int = 0, *, new_tokens: int, **kwargs: Any
    ) -> Tensor:
        """Hold the state after ``new_tokens`` more tokens, and return it."""
        # Assigned, not copied: the scan has already written it.
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        self.device = recurrent_states.device  # type: ignore[assignment]
        self.has_previous_state[state_idx] = self.is_initialized = True
        self.cumulative_length += new_tokens
        return recurrent_states

    def update_conv_state(  # type: ignore[override]
        self, conv_states: Tensor, state_idx: int = 0, *, conv_kernel_size: int, **kwargs: Any
    ) -> Tensor:
        """Return the new inputs ``(B, channels, S)`` behind the ``kernel - 1`` before them.

        Before the first token those are zeros. The last ``kernel - 1`` are held for the next call.
        """
        past, context = self.conv_states[state_idx], conv_kernel_size - 1
        if past is None:
            full = F.pad(conv_states, (context, 0))
        else:
            full = torch.cat((past, conv_states), dim=-1)
        self.conv_states[state_idx] = full[..., -context:]
        self.is_conv_states_initialized[state_idx] = True
        return full

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        raise HymellError(
            "This cache slot holds a recurrent state, not keys and values; "
            "start with an empty cache after exchanging the attention of a layer."
        )

    def crop(self, tokens_to_remove: int) -> None:
        raise UnsupportedError(
            "A recurrent state cannot be rolled back; decode without an assistant model."
        )

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        self.is_initialized = False
        self.cumulative_length = 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_states(lambda state: state.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map_states(lambda state: state[indices])

    def _map_states(self, change: Callable[[Tensor], Tensor]) -> None:
        for states in (self.recurrent_states, self.conv_states):
            for index, state in states.items():
                if isinstance(state, torch.Tensor):
                    states[index] = change(state)


def recurrent_slot(cache: Cache | None, layer_idx: int) -> RecurrentStateLayer | None:
    """The slot of this layer as a `RecurrentStateLayer`; None without a cache.

    Raises HymellError when the slot already holds something else.
    """
    if cache is None:
        return None
    slot = _slot(cache, layer_idx)
    if isinstance(slot, RecurrentStateLayer):
        return slot
    return _put(cache, layer_idx, RecurrentStateLayer())


def window_slot(
    cache: Cache | None, layer_idx: int, window: int
) -> DynamicSlidingWindowLayer | None:
    """The slot of this layer as keys and values of ``window - 1`` tokens; None without a cache.

    Raises HymellError when the slot already holds something else.
    """
    if cache is None:
        return None
    slot = _slot(cache, layer_idx)
    if isinstance(slot, DynamicSlidingWindowLayer) and slot.sliding_window == window:
        return slot
    return _put(cache, layer_idx, DynamicSlidingWindowLayer(sliding_window=window))


def _slot(cache: Cache, layer_idx: int) -> Any:
    if not hasattr(cache, "layers"):
        raise UnsupportedError(
            f"{type(cache).__name__} has no per-layer slots; pass a transformers DynamicCache."
        )
    new_slot = cache.layer_class_to_replicate
    while new_slot is not None and len(cache.layers) <= layer_idx:
        cache.layers.append(new_slot())
    if len(cache.layers) <= layer_idx:
        raise HymellError(
            f"The cache has {len(cache.layers)} slots and layer {layer_idx} needs one; "
            "make the cache from the config of this model."
        )
    return cache.layers[layer_idx]


def _put(cache: Cache, layer_idx: int, layer: Layer) -> Layer:
    old = cache.layers[layer_idx]
    if isinstance(old, StaticLayer):
        raise UnsupportedError(
            "A static cache has no slot for this attention variant; use a DynamicCache."
        )
    in_use = getattr(old, "is_initialized", False) or any(
        getattr(old, "has_previous_state", {}).values()
    )
    if in_use:
        raise HymellError(
            f"Slot {layer_idx} of the cache already holds a {type(old).__name__} with tokens of "
            "another kind of attention; start with an empty cache."
        )
    cache.layers[layer_idx] = layer
    return layer
