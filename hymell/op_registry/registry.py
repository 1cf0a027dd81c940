"""One dict from op name to a function that turns the op into a primitive, filled by a decorator.

Registering an op of your own::

    from hymell.op_registry import lowers, memory_op

    @lowers("mylib.my_norm")
    def my_norm(op, flow):
        return memory_op(op, flow, role="my_norm")

An op of ``torch.library.custom_op("mylib::my_norm", ...)`` is called ``mylib.my_norm``; a module
class that should be one op is kept whole by `hymell.op_registry.opaque.keep_whole`.

A lowering gets the `Op` and the `Dataflow` of its region and returns a primitive, or None for an
op that costs nothing (a view). An op that nobody registered becomes `primitives.Unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from hymell.graph import Op
    from hymell.op_registry.dataflow import Dataflow
    from hymell.op_registry.primitives import Primitive

Lowering: TypeAlias = "Callable[[Op, Dataflow], Primitive | None]"
_L = TypeVar("_L", bound="Callable[..., object]")

LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[_L], _L]:
    """Register the decorated function for these op names.

    A name is a packet ("aten.mm": every overload), an overload ("aten.add.Tensor") or a prefix
    of a composite ("hymell.scan"); the most specific one registered wins. In-place variants
    ("aten.add_") share their functional twin's entry unless they have one of their own.
    """

    def register(function: _L) -> _L:
        for name in names:
            LOWERINGS[name] = function  # type: ignore[assignment]
        return function

    return register


@lru_cache(maxsize=4096)
def packet(name: str) -> str:
    """``aten.add.Tensor`` -> ``aten.add``; composites are their own packet."""
    namespace, _, rest = name.partition(".")
    if namespace == "hymell":
        return name
    return f"{namespace}.{rest.split('.')[0]}"


@lru_cache(maxsize=4096)
def functional(name: str) -> str:
    """The packet without the trailing underscore of an in-place op."""
    short = packet(name)
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def is_in_place(name: str) -> bool:
    """True for ops that write their first argument (``aten.add_``, ``aten.copy_``)."""
    return functional(name) != packet(name)


def find(name: str) -> Lowering | None:
    """The lowering of an op name, or None when nobody registered one."""
    for candidate in (name, packet(name), functional(name)):
        if candidate in LOWERINGS:
            return LOWERINGS[candidate]
    prefix = name
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        if prefix in LOWERINGS and prefix.startswith("hymell."):
            return LOWERINGS[prefix]
    return None
