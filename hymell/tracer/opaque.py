"""Modules of a class that the user wants kept whole, as one op each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hymell.tracer.capture import Capture
from hymell.tracer.patching import Patches


def install(
    capture: Capture, model: nn.Module, patches: Patches, opaque_modules: Mapping[type, str]
) -> None:
    """Record every instance of a class in ``opaque_modules`` as ``hymell.opaque.<name>``.

    The inputs of the op are the call's tensors, then the module's weights and buffers.
    """
    if not opaque_modules:
        return
    for module in model.modules():
        name = next((n for cls, n in opaque_modules.items() if isinstance(module, cls)), None)
        if name is not None:
            patches.attribute(module, "forward", _whole(capture, module, name))


def _whole(capture: Capture, module: nn.Module, name: str) -> Callable[..., Any]:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        with capture.paused():
            out = original(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        held = [*module.parameters(), *module.buffers()]
        capture.emit(f"hymell.opaque.{name}", [*inputs, *held], outputs, {})
        return out

    return forward
