"""Images packed into one sequence: attention within each, kept as one op over a batch of images.

Vision towers that take images of any size lay all patches end to end and attend within the bounds
of ``cu_seqlens``: one call where a kernel takes bounds, a Python loop over images elsewhere. Here
every image has the same size, so the call is a plain batch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from hymell.tracer.capture import Capture
from hymell.tracer.patching import Patches


def install(model: nn.Module, patches: Patches) -> None:
    """Let packed attention take its one-call path, and keep each frame an image of its own."""
    for name in sorted({type(module).__module__ for module in model.modules()}):
        namespace = sys.modules.get(name)
        asks = getattr(namespace, "is_flash_attention_requested", None)
        if asks is not None:
            patches.attribute(namespace, "is_flash_attention_requested", _where_packed(asks))
        bounds = getattr(namespace, "get_vision_cu_seqlens", None)
        if bounds is not None:
            apart = functools.partial(_frames_apart, bounds)
            patches.attribute(namespace, "get_vision_cu_seqlens", apart)


def _where_packed(asks: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(asks)
    def answer(*args: Any, **kwargs: Any) -> bool:
        # Only a forward that holds the bounds of packed sequences has a one-call path for them.
        return "cu_seqlens" in sys._getframe(1).f_locals or bool(asks(*args, **kwargs))

    return answer


def _frames_apart(bounds: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("merge_temporal", None)
    return bounds(*args[:1], **kwargs)


def unpack(
    capture: Capture, tensors: tuple[Tensor, ...], kwargs: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    """(1, H, n * length, D) tensors as (n, H, length, D) where ``kwargs`` hold n sequences' bounds.

    The stand-ins come from where the packed tensors do; others pass unchanged.
    """
    bounds = kwargs.get("cu_seq_lens_q")
    if not isinstance(bounds, Tensor) or tensors[0].shape[0] != 1 or bounds.numel() < 3:
        return tensors
    count = bounds.numel() - 1
    if any(tensor.shape[2] % count for tensor in tensors):
        return tensors
    return tuple(_unpacked(capture, tensor, count) for tensor in tensors)


def _unpacked(capture: Capture, tensor: Tensor, count: int) -> Tensor:
    _, heads, total, width = tensor.shape
    kind, op, index, name = capture.origin(tensor)
    with capture.paused():
        twin = tensor.new_empty(count, heads, total // count, width)
    if kind == "op":
        capture.bind_output(twin, op, index)
    else:
        capture.bind(twin, kind, name)
    return twin
