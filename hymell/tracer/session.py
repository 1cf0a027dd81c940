"""One tracing session: everything patched at entry is put back at exit, exceptions included."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hymell.errors import HymellError, TraceError
from hymell.graph import Layer, Op
from hymell.tracer import cache_state, composites, experts, opaque, recurrences, scans
from hymell.tracer.build import one_line
from hymell.tracer.capture import Capture
from hymell.tracer.layers import LayerMemo
from hymell.tracer.patching import Patches
from hymell.tracer.shadow import Shadows

T = TypeVar("T")

#: Registries and classes are patched while a trace runs, so traces take turns.
_LOCK = threading.RLock()


class Session:
    """A model under trace: run it, then read the recorded ops."""

    def __init__(self, model: nn.Module, capture: Capture, memo: LayerMemo) -> None:
        self.model = model
        self.capture = capture
        self.results: dict[str, Tensor] = {}
        self._memo = memo

    def mark(self) -> int:
        """How many ops are recorded so far, to `rewind` to."""
        return len(self.capture.drafts)

    def rewind(self, mark: int) -> None:
        """Forget what was recorded since ``mark``."""
        self.capture.truncate(mark)
        self._memo.truncate(mark)

    def drop_tail(self, names: frozenset[str]) -> None:
        """Forget ops at the very end that are among ``names``."""
        drafts = self.capture.drafts
        while drafts and drafts[-1].name in names:
            self.capture.truncate(len(drafts) - 1)

    def input(self, name: str, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        """A model input on meta; ids get zeros as values where values are followed."""
        with self.capture.paused():
            return self.named(torch.empty(shape, dtype=dtype, device="meta"), name)

    def named(self, tensor: Tensor, name: str) -> Tensor:
        """Tell that a tensor is the model input ``name``."""
        self.capture.bind(tensor, "input", name)
        shadows = self.capture.shadows
        if shadows is not None and not tensor.is_floating_point() and not tensor.is_complex():
            shadows.set(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype))
        return tensor

    def recorded(self, parts: Sequence[str]) -> tuple[tuple[Op, ...], tuple[Layer, ...]]:
        """The recorded ops and layers; ``parts`` labels each op."""
        return self.capture.ops(self._memo.repeats(), parts), self._memo.layers()


@contextmanager
def _session(
    model: nn.Module,
    *,
    memo: bool,
    opaque_modules: Mapping[type, str],
    signatures: dict[int, Any] | None,
    follow_values: bool,
) -> Iterator[Session]:
    with ExitStack() as stack:
        stack.enter_context(_LOCK)
        stack.enter_context(_as_found(model))
        capture = Capture(model, Shadows() if follow_values else None)
        layer_memo = LayerMemo(capture, model, memo=memo, signatures=signatures)
        patches = stack.enter_context(Patches())
        composites.install(capture, model, patches)
        scans.install(capture, model, patches)
        cache_state.install(capture, patches)
        recurrences.install(capture, model, patches)
        experts.install(capture, model, patches)
        opaque.install(capture, model, patches, opaque_modules)
        layer_memo.install(patches)
        stack.enter_context(torch.no_grad())
        if not is_hugging_face(model):
            stack.enter_context(composites.SdpaMode(capture))
        stack.enter_context(capture)
        yield Session(model, capture, layer_memo)


def is_hugging_face(model: nn.Module) -> bool:
    """True for transformers' own modules, which look SDPA up in ``torch.nn.functional``."""
    return all(type(m).__module__.startswith(("transformers.", "torch.")) for m in model.modules())


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Trace in eval semantics; modes, attributes and hooks that a forward sets are put back."""
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    before = [(module, dict(vars(module)), tuple(module._forward_hooks)) for module in modules]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module, attributes, hooks in before:
            for added in [key for key in module._forward_hooks if key not in hooks]:
                del module._forward_hooks[added]
            now = vars(module)
            if len(now) != len(attributes) or any(
                now[key] is not value for key, value in attributes.items() if key in now
            ):
                now.clear()
                now.update(attributes)


def run_session(
    model: nn.Module,
    body: Callable[[Session], T],
    *,
    memo: bool,
    opaque_modules: Mapping[type, str],
    label: str,
    signatures: dict[int, Any] | None = None,
) -> T:
    """Run ``body`` in a session; on failure once more with values behind small tensors.

    Raises TraceError with one line that names the model and what went wrong.
    """
    try:
        with _session(
            model,
            memo=memo,
            opaque_modules=opaque_modules,
            signatures=signatures,
            follow_values=False,
        ) as session:
            return body(session)
    except HymellError:
        raise
    except Exception:  # a branch on data shows as any kind of error; the second try tells
        pass
    try:
        with _session(
            model,
            memo=memo,
            opaque_modules=opaque_modules,
            signatures=signatures,
            follow_values=True,
        ) as session:
            return body(session)
    except HymellError:
        raise
    except Exception as error:
        raise TraceError(
            f"{label} could not be traced: {type(error).__name__}: {one_line(error)}"
        ) from error
