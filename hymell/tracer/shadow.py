"""Real values behind small meta tensors, so that data-dependent Python control flow can go on.

Ids are zeros, positions and masks are what the model computes from them; nothing that depends on a
weight has a value, so a branch on activations still fails, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

#: Elements above which a tensor carries no value: 32 MiB of int64.
MAX_ELEMENTS = 1 << 22

_READ = torch.ops.aten._local_scalar_dense.default
_TO_COPY = torch.ops.aten._to_copy.default
_INDEXING = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten.index_put.default,
)


class Shadows:
    """CPU values of meta tensors, carried along as the ops run."""

    def __init__(self) -> None:
        self._values: dict[int, Tensor] = {}
        self._alive: list[Tensor] = []

    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Let ``value`` (CPU) stand for ``tensor``."""
        self._values[id(tensor)] = value
        self._alive.append(tensor)

    def value(self, tensor: Tensor) -> Tensor | None:
        """The CPU value of a tensor, or None when it has none."""
        if tensor.device.type == "cpu":
            return tensor
        return self._values.get(id(tensor))

    def run(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op on meta tensors, and on the values behind them where all are known."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        values = [self.value(tensor) for tensor in tensors]
        known = all(value is not None for value in values)
        if func is _READ and known:
            return func(values[0])
        if func is _TO_COPY and known and _device(kwargs) == "cpu":
            return func(values[0], **kwargs)
        real = self._real(func, args, kwargs, tensors) if known else None
        if func in _INDEXING:
            args = (args[0], self._integer_indices(args[1]), *args[2:])
        try:
            out = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):
            if real is None:
                raise
            out = tree_map_only(Tensor, lambda t: torch.empty_like(t, device="meta"), real)
        if real is None:
            self._forget_written(func, args)
        else:
            for fake, value in zip(tree_leaves(out), tree_leaves(real), strict=False):
                if isinstance(fake, Tensor) and fake.device.type == "meta":
                    self.set(fake, value)
        return out

    def _real(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            return None
        if any(tensor.numel() > MAX_ELEMENTS for tensor in tensors):
            return None
        if not tensors and not _small_factory(args):
            return None
        real_args, real_kwargs = tree_map_only(Tensor, self.value, (tuple(args), dict(kwargs)))
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        try:
            out = func(*real_args, **real_kwargs)
        except (NotImplementedError, RuntimeError):
            return None
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        return out if all(size <= MAX_ELEMENTS for size in sizes) else None

    def _integer_indices(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Boolean indices with a known value as the integer indices they stand for."""
        result: list[Tensor | None] = []
        for index in indices:
            value = None if index is None else self.value(index)
            if value is None or value.dtype not in (torch.bool, torch.uint8):
                result.append(index)
            else:
                result.extend(column.to("meta") for column in value.nonzero(as_tuple=True))
        return result

    def _forget_written(self, func: Any, args: Sequence[Any]) -> None:
        if not func._schema.is_mutable:
            return
        for argument, value in zip(func._schema.arguments, args, strict=False):
            alias = argument.alias_info
            if alias is not None and alias.is_write and isinstance(value, Tensor):
                for written in (value, value._base):
                    if written is not None:
                        self._values.pop(id(written), None)


def _device(kwargs: Mapping[str, Any]) -> str:
    device = kwargs.get("device")
    return "" if device is None else torch.device(device).type


def _small_factory(args: Sequence[Any]) -> bool:
    total = 1
    for leaf in tree_leaves(tuple(args)):
        if isinstance(leaf, (int, float)) and leaf > 0:
            total *= int(leaf) or 1
    return total <= MAX_ELEMENTS
