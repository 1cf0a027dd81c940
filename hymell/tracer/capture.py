"""The recorder: what one forward pass does on meta tensors, as graph ops with their dataflow.

One `TorchDispatchMode` sees every ATen op, module hooks tell where it runs, and `Capture.emit` adds
an op that is kept whole (attention, experts, a scan) in place of what it would decompose into.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from hymell.graph import Op, Operand, Source, TensorSpec
from hymell.tracer import meta_results
from hymell.tracer.shadow import Shadows

Origin: TypeAlias = tuple[Source, int, int, str]

_CONSTANT: Origin = ("constant", -1, 0, "")
#: The same tensor under another Python object: nothing runs.
_SAME = frozenset({"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"})
#: CPU tensors up to this size keep their values (frequencies, scalars); larger ones become meta.
_MAX_REAL_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class MaskTag:
    """What an attention mask means; its tensor is never computed."""

    causal: bool
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A recorded op before its repeat count is known; its id is its place in the list."""

    name: str
    path: str
    module: str
    inputs: tuple[Operand, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, Any]


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops that run while it is active; ops are in ``drafts``.

    Weights and buffers of ``model`` are known by name; tell other tensors' origin with `bind`.
    With ``shadows`` small tensors carry values, so that ``.item()`` can answer.
    """

    def __init__(self, model: nn.Module, shadows: Shadows | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drafts: list[Draft] = []
        self.shadows = shadows
        self._modules = {id(m): (name, type(m).__name__) for name, m in model.named_modules()}
        root = ("", type(model).__name__)
        self._stack: list[tuple[str, str]] = [root]
        self._paused = 0
        self._thread = threading.get_ident()
        self._origins: dict[int, Origin] = {}
        self._masks: dict[int, MaskTag] = {}
        self._alive: list[Tensor] = []
        self._hooks: list[Any] = []
        for name, parameter in model.named_parameters():
            self.bind(parameter, "weight", name)
        for name, buffer in model.named_buffers():
            self.bind(buffer, "weight", name)

    def __enter__(self) -> Capture:
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def recording(self) -> bool:
        """False inside `paused`."""
        return self._paused == 0

    @property
    def path(self) -> str:
        """Path of the innermost module that runs now."""
        return self._stack[-1][0]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run ops without recording them."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Attribute ops to ``module`` where its own forward is replaced."""
        self._stack.append(self._modules.get(id(module), self._stack[-1]))
        try:
            yield
        finally:
            self._stack.pop()

    def truncate(self, mark: int) -> None:
        """Forget the ops from number ``mark`` on; what they made becomes constant."""
        del self.drafts[mark:]
        self._origins = {
            key: origin
            for key, origin in self._origins.items()
            if origin[0] != "op" or origin[1] < mark
        }

    def bind(self, tensor: Tensor, kind: Source, name: str = "") -> None:
        """Say where a tensor that no recorded op made comes from."""
        self._origins[id(tensor)] = (kind, -1, 0, name)
        self._alive.append(tensor)

    def bind_output(self, tensor: Tensor, op: int, index: int = 0) -> None:
        """Let ``tensor`` stand for output ``index`` of op ``op``."""
        self._origins[id(tensor)] = ("op", op, index, "")
        self._alive.append(tensor)

    def origin(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from."""
        return self._origins.get(id(tensor), _CONSTANT)

    def module_path(self, module: nn.Module) -> str:
        """Path of a module of the traced model; the current path for a foreign one."""
        known = self._modules.get(id(module))
        return self.path if known is None else known[0]

    def tag_mask(self, tensor: Tensor, tag: MaskTag) -> Tensor:
        """Mark a tensor as an attention mask that stays symbolic."""
        self._masks[id(tensor)] = tag
        self._alive.append(tensor)
        return tensor

    def mask(self, tensor: object) -> MaskTag | None:
        """The tag of a symbolic mask, or None."""
        return self._masks.get(id(tensor))

    def emit(
        self,
        name: str,
        inputs: Iterable[Tensor],
        outputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
    ) -> int:
        """Record one op that is kept whole; returns its id, or -1 while paused."""
        if self._paused:
            return -1
        number = len(self.drafts)
        path, module = self._stack[-1]
        self.drafts.append(
            Draft(
                name,
                path,
                module,
                tuple(self._operand(tensor) for tensor in inputs),
                tuple(spec(tuple(tensor.shape), tensor.dtype) for tensor in outputs),
                attrs,
            )
        )
        for index, tensor in enumerate(outputs):
            self.bind_output(tensor, number, index)
        return number

    def ops(self, repeats: Mapping[int, int], parts: Sequence[str]) -> tuple[Op, ...]:
        """The recorded ops; ``repeats`` holds the count of each op that stands for several.

        ``parts`` names the part of the model of each op.
        """
        return tuple(
            Op(
                number,
                draft.name,
                draft.path,
                draft.module,
                draft.inputs,
                draft.outputs,
                draft.attrs,
                repeats.get(number, 1),
                parts[number],
            )
            for number, draft in enumerate(self.drafts)
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = _tensor_arguments(args, kwargs)
        if _needs_meta(tensors):
            args, kwargs = _on_meta(args), {key: _on_meta(value) for key, value in kwargs.items()}
            moved = _tensor_arguments(args, kwargs)
            for old, new in zip(tensors, moved, strict=True):
                if old is not new:
                    self._moved(old, new)
            tensors = moved
        if "device" in kwargs and any(tensor.device.type == "meta" for tensor in tensors):
            # A result fetched to the host has no values to fetch.
            kwargs = {**kwargs, "device": torch.device("meta")}
        if self.shadows is not None:
            out = self.shadows.run(func, args, kwargs)
        elif tensors and _plan(func).fresh:
            out = meta_results.run(func, args, kwargs)
        else:
            out = func(*args, **kwargs)
        if self._paused or (tensors and self._only_masks(tensors, out)):
            return out
        produced = _tensors_of(out)
        if produced:
            self._record(func, args, kwargs, tensors, produced)
        return out

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: Sequence[Tensor],
        produced: Sequence[Tensor],
    ) -> None:
        plan = _plan(func)
        if plan.name in _SAME:
            self._origins[id(produced[0])] = self.origin(tensors[0])
            self._alive.append(produced[0])
            return
        attrs = {} if plan.view else _attributes(plan.arguments, args, kwargs)
        number = self.emit(plan.name, tensors, produced, attrs)
        for position in plan.written:
            if position < len(args) and isinstance(args[position], Tensor):
                # A write through a view changes what later readers of its base see.
                base = args[position]._base
                if base is not None:
                    self.bind_output(base, number, 0)

    def _moved(self, old: Tensor, new: Tensor) -> None:
        """Let a meta twin of a CPU tensor keep its origin and value."""
        if id(old) in self._origins:
            self._origins[id(new)] = self._origins[id(old)]
            self._alive.append(new)
        if self.shadows is not None and old.device.type == "cpu":
            self.shadows.set(new, old)

    def _operand(self, tensor: Tensor) -> Operand:
        kind, op, index, name = self._origins.get(id(tensor), _CONSTANT)
        return Operand(spec(tuple(tensor.shape), tensor.dtype), kind, op, index, name)

    def _only_masks(self, tensors: Sequence[Tensor], out: Any) -> bool:
        """True for an op on symbolic masks alone: its results are symbolic too."""
        if not self._masks:
            return False
        tags = [self._masks.get(id(tensor)) for tensor in tensors]
        if tags[0] is None or None in tags:
            return False
        for tensor in _tensors_of(out):
            self.tag_mask(tensor, tags[0])
        return True

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() == self._thread:
            self._stack.append(self._modules.get(id(module), self._stack[-1]))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and len(self._stack) > 1:
            self._stack.pop()


@lru_cache(maxsize=65536)
def spec(shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    """A `TensorSpec` of a concrete shape."""
    return TensorSpec(shape, dtype_name(dtype))


@lru_cache(maxsize=256)
def dtype_name(dtype: torch.dtype) -> str:
    """hymell's name of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "float8_e4m3", "float8_e4m3fnuz": "float8_e4m3"}.get(name, name)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What recording needs to know of an ATen overload."""

    name: str
    view: bool
    fresh: bool
    arguments: tuple[str, ...]
    written: tuple[int, ...]


@lru_cache(maxsize=4096)
def _plan(func: Any) -> _Plan:
    arguments = func._schema.arguments
    aliases = [argument.alias_info for argument in arguments]
    written = tuple(i for i, alias in enumerate(aliases) if alias is not None and alias.is_write)
    view = not written and any(alias is not None for alias in aliases)
    returned = any(result.alias_info is not None for result in func._schema.returns)
    fresh = not returned and all(alias is None for alias in aliases)
    return _Plan(str(func), view, fresh, tuple(argument.name for argument in arguments), written)


def _attributes(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if isinstance(value, (bool, int, float, str)):
            attrs[name] = value
        elif isinstance(value, torch.dtype):
            attrs[name] = dtype_name(value)
        elif isinstance(value, (list, tuple)) and all(
            isinstance(item, (bool, int, float, str)) for item in value
        ):
            attrs[name] = list(value)
    return attrs


def _tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, Tensor))
    return found


def _tensors_of(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, (list, tuple)):
        return [item for item in out if isinstance(item, Tensor)]
    return []


def _needs_meta(tensors: Sequence[Tensor]) -> bool:
    on_meta = on_host = False
    large = 0
    for tensor in tensors:
        if tensor.device.type == "meta":
            on_meta = True
        else:
            large += tensor.numel()
            on_host = on_host or tensor.dim() > 0
    return on_host and (on_meta or large > _MAX_REAL_ELEMENTS)


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.device.type == "meta" or value.dim() == 0:
            return value
        return torch.empty_like(value, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_on_meta(item) for item in value)
    return value
