"""What ops give on meta tensors, remembered: most of a trace's time goes into working that out.

The result of an op on meta tensors is its shape, strides and dtype, which follow from those of the
inputs and the other arguments. Architectures of one family, and traces of one architecture, run
many ops on the same shapes again. Only ops that make new tensors are remembered: no views, nothing
written in place, nothing that shares storage with an input, nothing with values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

_Made: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]

#: (of one tensor, the tensors) by op and arguments; None: not to be remembered.
_KNOWN: dict[Any, tuple[bool, tuple[_Made, ...]] | None] = {}
_MOST = 100_000

_PLAIN = (int, float, bool, str, type(None))
_ODD = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What ``func`` gives, with new tensors; an op whose schema has no aliases."""
    try:
        key = (func, *[_key(value) for value in args], *[(k, _key(v)) for k, v in kwargs.items()])
        known = _KNOWN[key]
    except KeyError:
        out = func(*args, **kwargs)
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = _made(out, args)
        return out
    except _UnlikeError:
        return func(*args, **kwargs)
    if known is None:
        return func(*args, **kwargs)
    single, made = known
    tensors = [
        torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        for shape, strides, dtype in made
    ]
    return tensors[0] if single else tuple(tensors)


class _UnlikeError(Exception):
    """An argument that no key describes."""


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        if not value.is_meta:
            raise _UnlikeError
        return value.shape, value.stride(), value.dtype
    if kind in _PLAIN:
        # 1, 1.0 and True are equal and promote differently.
        return kind, value
    if kind is list or kind is tuple:
        return tuple([_key(item) for item in value])
    if isinstance(value, _ODD):
        return value
    raise _UnlikeError


def _made(out: Any, args: tuple[Any, ...]) -> tuple[bool, tuple[_Made, ...]] | None:
    tensors = (out,) if isinstance(out, Tensor) else out
    if not isinstance(tensors, tuple) or not tensors:
        return None
    if not all(type(t) is Tensor and _is_new(t, args) for t in tensors):
        return None
    made = tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors)
    return isinstance(out, Tensor), made


def _is_new(tensor: Tensor, args: tuple[Any, ...]) -> bool:
    return (
        tensor.is_meta
        and not tensor.requires_grad
        and tensor._base is None
        and tensor.storage_offset() == 0
        and all(tensor is not value for value in args)
    )
