"""A cache slot for a forward that takes its state as an argument and returns the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from transformers.cache_utils import Cache, CacheLayerMixin

from hymell.errors import HymellError


@dataclass(frozen=True, slots=True)
class Growth:
    """How one tensor of a state grows: by a token in ``dim`` up to ``limit``; None: never."""

    index: int
    dim: int | None
    limit: int | None


class ReturnedStateLayer(CacheLayerMixin):
    """Holds whatever a forward returned last, leaf by leaf (``state_0``, ``state_1``, ...).

    ``stretch_to`` gives the tensors that grow the size they have after that many tokens.
    """

    is_sliding = False

    def __init__(self, growth: tuple[Growth, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cumulative_length = 0
        self.growing = frozenset(f"state_{g.index}" for g in growth if g.dim is not None)
        self._growth = growth
        self._structure: TreeSpec | None = None
        self._leaves: tuple[Any, ...] = ()

    @property
    def state(self) -> Any:
        """The state as it was returned; None before the first token."""
        if self._structure is None:
            return None
        own = [getattr(self, leaf) if _is_own(leaf) else leaf for leaf in self._leaves]
        return tree_unflatten(own, self._structure)

    def hold(self, state: Any, new_tokens: int) -> None:
        """Keep a returned state after ``new_tokens`` more tokens."""
        leaves, self._structure = tree_flatten(state)
        names: list[Any] = []
        tensors = 0
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                setattr(self, f"state_{tensors}", leaf)
                names.append(f"state_{tensors}")
                tensors += 1
            else:
                names.append(leaf)
        self._leaves = tuple(names)
        self.is_initialized = True
        self.cumulative_length += new_tokens

    def stretch_to(self, length: int) -> None:
        """Let the state be that of ``length`` tokens; nothing is computed."""
        for growth in self._growth:
            if growth.dim is None:
                continue
            name = f"state_{growth.index}"
            tensor: Tensor = getattr(self, name)
            shape = list(tensor.shape)
            shape[growth.dim] = length if growth.limit is None else min(length, growth.limit)
            setattr(self, name, tensor.new_empty(shape))

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        raise HymellError("a slot for returned state holds no keys and values of another attention")


def _is_own(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf.startswith("state_")


def returned_slot(
    cache: Cache | None, index: int, growth: tuple[Growth, ...]
) -> ReturnedStateLayer | None:
    """The slot ``index`` of a cache as a `ReturnedStateLayer`; None without a cache."""
    if cache is None:
        return None
    make = cache.layer_class_to_replicate
    while make is not None and len(cache.layers) <= index:
        cache.layers.append(make())
    slot = cache.layers[index]
    if not isinstance(slot, ReturnedStateLayer):
        slot = cache.layers[index] = ReturnedStateLayer(growth)
    return slot
