"""Ops that only describe existing memory another way, or make a tensor without writing it."""

from __future__ import annotations

from functools import lru_cache

from hymell.op_registry.registry import packet

VIEWS = frozenset(
    f"aten.{name}"
    for name in """
view _unsafe_view reshape _reshape_alias t transpose permute expand expand_as slice select split
split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk unsqueeze squeeze
unbind alias detach as_strided narrow unfold diagonal view_as view_as_real view_as_complex
lift_fresh movedim swapaxes mT numpy_T flatten unflatten real imag squeeze_ unsqueeze_
transpose_ t_ detach_ as_strided_ _conj resolve_conj resolve_neg
""".split()
)

FREE = frozenset(
    f"aten.{name}"
    for name in """
empty empty_like empty_strided new_empty new_empty_strided empty_permuted sym_size sym_stride
sym_numel _local_scalar_dense item is_nonzero lift _assert_async _assert_scalar
_assert_tensor_metadata resize_ set_ dropout native_dropout
""".split()
)


@lru_cache(maxsize=4096)
def is_view(name: str) -> bool:
    """True when the op's outputs share its first input's memory and nothing is computed."""
    return packet(name) in VIEWS


def is_free(name: str) -> bool:
    """True when the op launches nothing at all: a view, an uninitialised tensor, a size query."""
    return packet(name) in VIEWS or packet(name) in FREE
