"""What a decoder layer passes to its attention, in the words of the user's forward, and back.

A Llama-shaped layer calls ``self_attn(hidden_states=..., position_embeddings=(cos, sin),
attention_mask=..., position_ids=..., cache=...)`` and takes a pair. Forwards that name these
otherwise, take cos and sin apart, return the hidden states alone, or hand their own state back
instead of filling the cache, are met halfway here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from hymell.errors import HymellError
from hymell.tracer.variant.returned_state import Growth, returned_slot
from hymell.zoo.attention.scan_marker import handled_by

#: Names under which forwards take each thing that a layer passes, the layer's own names first.
HIDDEN = ("hidden_states", "x", "hidden", "inputs", "input", "hidden_state", "xs")
POSITIONS = ("position_embeddings", "rotary_pos_emb", "rotary_emb", "rope", "rotary")
MASK = ("attention_mask", "mask", "attn_mask", "causal_mask")
CACHE = (
    "cache",
    "past_key_values",
    "past_key_value",
    "layer_past",
    "kv_cache",
    "past_kv",
    "past",
    "state",
    "past_state",
    "recurrent_state",
    "cache_params",
)
POSITION_IDS = ("position_ids", "positions", "pos")
_ROLES = (HIDDEN, POSITIONS, MASK, CACHE, POSITION_IDS)
#: Attribute in which a module that took an attention's place keeps the index of its layer.
LAYER = "_hymell_layer"
_APART = ("cos", "sin")
_FLAGS = ("use_cache", "output_attentions")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CONTRACT = (
    "the contract is forward(hidden_states, position_embeddings=None, attention_mask=None, "
    "cache=None, **kwargs), in these or other usual names"
)


@dataclass(frozen=True, slots=True)
class Contract:
    """How a class's forward is called: its parameter for each role, and where its state is kept.

    ``growth`` is None for a forward that fills the model's cache, else how the state that it
    returns grows; the state is the last thing that it returns. ``scans_as_written``: a trace sees
    the ops of marked scans, not one op.
    """

    label: str
    hidden: str
    names: Mapping[str, str]
    apart: bool
    flags: tuple[str, ...]
    takes_any: bool
    growth: tuple[Growth, ...] | None = None
    scans_as_written: bool = False

    @staticmethod
    def of(cls: type[nn.Module]) -> Contract:
        """Read the signature of ``cls.forward``. Raises HymellError for one that does not fit."""
        label = cls.__name__
        if cls.forward is nn.Module.forward:
            raise HymellError(f"{label} has no forward; {_CONTRACT}")
        parameters = dict(inspect.signature(cls.forward).parameters)
        parameters.pop(next(iter(parameters), ""), None)  # self
        named = {
            name: p
            for name, p in parameters.items()
            if p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        }
        hidden = next((name for name in HIDDEN if name in named), None)
        if hidden is None:
            hidden = next((name for name, p in named.items() if p.kind in _POSITIONAL), None)
        if hidden is None or any(hidden in role for role in _ROLES[1:]):
            raise HymellError(f"the forward of {label} takes no hidden states; {_CONTRACT}")
        names = {
            role[0]: next(name for name in role if name in named)
            for role in _ROLES[1:]
            if any(name in named for name in role)
        }
        known = {hidden, *names.values(), *_FLAGS, *_APART}
        for name, p in named.items():
            if name not in known and p.default is inspect.Parameter.empty:
                raise HymellError(
                    f"the forward of {label} needs {name!r}, which no decoder layer passes; "
                    f"give it a default: {_CONTRACT}"
                )
            if p.kind is inspect.Parameter.POSITIONAL_ONLY and name != hidden:
                raise HymellError(
                    f"the forward of {label} takes {name!r} by position only, and layers pass it "
                    f"by name; remove the / from its signature: {_CONTRACT}"
                )
        if CACHE[0] not in names:
            raise HymellError(
                f"the forward of {label} takes no cache and could not decode; give it a parameter "
                f"cache (or past_key_values, state, ...) and keep there what later tokens need: "
                f"{_CONTRACT}"
            )
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        apart = all(n in named for n in _APART)
        flags = tuple(n for n in _FLAGS if n in named)
        return Contract(label, hidden, names, apart, flags, takes_any)

    def arguments(self, passed: Mapping[str, Any]) -> dict[str, Any]:
        """What a layer passed, under the names of this forward; the hidden states left out.

        A forward with ``**kwargs`` gets what it does not name as well, as the stock attention does.
        """
        given: dict[str, Any] = {}
        rest = dict(passed)
        for role in _ROLES[1:]:
            values = [rest.pop(name) for name in role if name in rest]
            if role[0] in self.names:
                given[self.names[role[0]]] = next((v for v in values if v is not None), None)
            elif role is POSITIONS and self.apart and values:
                given["cos"], given["sin"] = values[0]
            elif self.takes_any and role is not CACHE:
                given.update(dict(zip(role, values[:1], strict=False)))
        wanted = {"use_cache": given[self.names[CACHE[0]]] is not None, "output_attentions": False}
        given.update({name: wanted[name] for name in self.flags})
        if self.takes_any:
            given.update({name: value for name, value in rest.items() if name not in given})
        return given

    def call(self, module: Any, forward: Any, hidden: Tensor, passed: Mapping[str, Any]) -> Any:
        """One call as a layer makes it: ``(hidden states, None)``.

        Raises HymellError for a result that is not shaped and typed like the hidden states.
        """
        given = self.arguments(passed)
        if self.growth is None:
            result = forward(module, hidden, **given)
            return self.hidden_of(result, hidden), None
        name = self.names[CACHE[0]]
        slot = returned_slot(given[name], module_index(module), self.growth)
        given[name] = None if slot is None else slot.state
        result = forward(module, hidden, **given)
        out = self.hidden_of(result, hidden)
        if slot is not None:
            state = state_of(result)
            if state is None:
                raise HymellError(
                    f"the forward of {self.label} returned no state beside its hidden states, as "
                    "it did before; return (hidden states, state) whenever a cache is asked for"
                )
            slot.hold(state, hidden.shape[1])
        return out, None

    def hidden_of(self, result: Any, hidden: Tensor) -> Tensor:
        """The hidden states in what a forward returned. Raises HymellError as `call` does."""
        out = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(out, Tensor):
            raise HymellError(
                f"the forward of {self.label} returned {type(out).__name__}; return the hidden "
                "states, alone or first in a tuple"
            )
        if out.shape != hidden.shape:
            raise HymellError(
                f"the forward of {self.label} returned shape {tuple(out.shape)} for hidden states "
                f"of shape {tuple(hidden.shape)}; the shape must stay (batch, tokens, hidden size)"
            )
        if out.dtype != hidden.dtype:
            raise HymellError(
                f"the forward of {self.label} returned {_named(out.dtype)} for hidden states in "
                f"{_named(hidden.dtype)}; cast the result back with .to(hidden_states.dtype)"
            )
        return out


def state_of(result: Any) -> Any:
    """The last thing returned after the hidden states that holds tensors; None where nothing does.

    That is the state of a forward which keeps none in the model's cache.
    """
    if not isinstance(result, (tuple, list)):
        return None
    for value in reversed(result[1:]):
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value
    return None


def adapted(cls: type[nn.Module], contract: Contract) -> type[nn.Module]:
    """A subclass of the same name whose forward a decoder layer can call.

    It keeps the module name of ``cls``: the tracer looks up scans and registries there.
    """
    own = cls.forward

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip((POSITIONS[0], MASK[0]), args, strict=False))
        with handled_by(_as_written) if contract.scans_as_written else nullcontext():
            return contract.call(self, own, hidden_states, {**named, **kwargs})

    made: type[nn.Module] = type(
        cls.__name__,
        (cls,),
        {"forward": forward, "__module__": cls.__module__, "__qualname__": cls.__qualname__},
    )
    return made


def _as_written(kind: str, scan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return scan(*args, **kwargs)


def module_index(module: Any) -> int:
    """The cache slot of an attention module."""
    return int(getattr(module, LAYER))


def growth_of(states: Mapping[int, Any]) -> tuple[Growth, ...]:
    """How a returned state grows, from what was returned after each number of tokens.

    Raises HymellError for states whose structure or rank changes with the tokens, or that grow in
    several dims or by other than an entry per token, up to a limit.
    """
    leaves = {n: [x for x in tree_leaves(s) if isinstance(x, Tensor)] for n, s in states.items()}
    if len({len(found) for found in leaves.values()}) > 1:
        raise HymellError(
            "a returned state holds more tensors after more tokens; keep their number fixed"
        )
    count = len(next(iter(leaves.values())))
    return tuple(
        _growth(index, {n: tuple(found[index].shape) for n, found in leaves.items()})
        for index in range(count)
    )


def _growth(index: int, shapes: Mapping[int, tuple[int, ...]]) -> Growth:
    if len({len(shape) for shape in shapes.values()}) > 1:
        raise HymellError("a returned state tensor changes its number of dims with the tokens")
    sizes = list(zip(*shapes.values(), strict=True))
    dims = [dim for dim, found in enumerate(sizes) if len(set(found)) > 1]
    if not dims:
        return Growth(index, None, None)
    far = max(shapes)
    kept = shapes[far][dims[0]]
    regular = all(shape[dims[0]] == min(n, kept) for n, shape in shapes.items())
    if len(dims) > 1 or not regular:
        grown = "; ".join(f"{shape} after {n}" for n, shape in sorted(shapes.items()))
        raise HymellError(
            f"a returned state tensor has the shapes {grown} tokens; only one entry per token, up "
            "to a number of tokens, is supported"
        )
    return Growth(index, dims[0], None if kept == far else kept)


def fills(cache: Any, index: int) -> bool:
    """True when a call left tensors in its slot of the model's cache."""
    layers = getattr(cache, "layers", None) or []
    if index >= len(layers):
        return False
    held, _ = tree_flatten(dict(vars(layers[index])))
    return any(isinstance(leaf, Tensor) and leaf.numel() > 0 for leaf in held)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
