"""A model on meta whose attention is the user's module, and its op graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hymell.errors import HymellError, TraceError
from hymell.graph import Op, OpGraph
from hymell.tracer.assemble import trace_model
from hymell.tracer.build import build_model, one_line, quiet
from hymell.tracer.inputs import cache_keyword
from hymell.tracer.parts import language_model
from hymell.tracer.variant.contract import (
    CACHE,
    LAYER,
    Contract,
    adapted,
    fills,
    growth_of,
    state_of,
)
from hymell.tracer.variant.user_class import factory_of, file_of, said
from hymell.zoo.attention.replace import replace_attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from hymell.quantization import QuantScheme

#: Prompt lengths after which a returned state is looked at: that of the short prompt which makes a
#: cache in a trace, two without common factors, and one beyond every window that the module names.
_SEED = 4
_PROBES = (_SEED, 37, 54)
_FAR = 4099


@dataclass(frozen=True, slots=True)
class Variant:
    """A class that can stand in for attention: how it is made, how it is called, where it goes.

    ``layers`` are the indices of the layers that it takes over; None: all.
    """

    cls: type[nn.Module]
    options: Mapping[str, Any]
    contract: Contract
    layers: frozenset[int] | None

    @property
    def label(self) -> str:
        """The class's name."""
        return self.cls.__name__

    def put_into(self, model: nn.Module) -> tuple[int, ...]:
        """Take over the chosen layers of a model; their indices.

        Raises HymellError for layers that the model does not have, a model without layers that
        have a ``self_attn``, and whatever making the module raises.
        """
        stock = attentions(model)
        chosen = sorted(stock) if self.layers is None else sorted(self.layers)
        missing = [index for index in chosen if index not in stock]
        if stock and missing:
            raise HymellError(
                f"there is no attention in layer {missing[0]}; the model has it in layers "
                f"{_ranges(sorted(stock))}"
            )
        make = factory_of(adapted(self.cls, self.contract), self.options)

        def one(config: Any, index: int) -> nn.Module:
            if index not in chosen:
                return stock[index]
            module = make(config, index)
            module.__dict__[LAYER] = index
            return module

        replace_attention(model, one)
        return tuple(chosen)


def variant_of(
    cls: type[nn.Module],
    config: PretrainedConfig,
    *,
    options: Mapping[str, Any],
    layers: frozenset[int] | None = None,
    trust_remote_code: bool = False,
) -> Variant:
    """Read the class's signature and find out on meta where it keeps its state.

    Raises HymellError for a signature that does not fit, a module that cannot be made, and one
    that leaves nothing for later tokens.
    """
    variant = Variant(cls, dict(options), Contract.of(cls), layers)
    model = build_model(config, trust_remote_code=trust_remote_code)
    index = variant.put_into(model)[0]
    module = attention_at(model, index)
    passed = passed_to(model, index, 2, _SEED)
    try:
        kept = _fills_cache(cls, module, variant.contract, passed, index)
    except HymellError:
        raise
    except Exception:  # it may take its own state there, or branch on values: the trace tells
        kept = None
    if kept:
        return variant
    growth = _returned(cls, module, variant.contract, model, index)
    if growth is not None:
        return replace(variant, contract=replace(variant.contract, growth=growth))
    if kept is None:
        return variant
    raise HymellError(
        f"{cls.__name__} cannot decode: its forward neither stored anything in the cache that it "
        f"was given ({variant.contract.names[CACHE[0]]}) nor returned a state; call "
        "cache.update(keys, values, layer_idx), or return (hidden states, state) and take the "
        "state back in the next call"
    )


def attentions(model: nn.Module) -> dict[int, nn.Module]:
    """The attention modules of a model by the index of their layer."""
    found: dict[int, nn.Module] = {}
    for module in language_model(model).modules():
        attention = getattr(module, "self_attn", None)
        index = getattr(attention, LAYER, getattr(attention, "layer_idx", None))
        if isinstance(attention, nn.Module) and isinstance(index, int):
            found[index] = attention
    return found


def attention_at(model: nn.Module, index: int) -> nn.Module:
    """The attention module of layer ``index``."""
    return attentions(model)[index]


def empty_cache(model: Any) -> DynamicCache:
    """A cache of the kind that transformers makes for a model."""
    return DynamicCache(config=model.config)


def passed_to(
    model: nn.Module, index: int, batch: int, tokens: int, cache: Any = None
) -> dict[str, Any]:
    """What the model passes to the attention of a layer for new tokens after those of ``cache``.

    ``hidden_states`` and everything else by the layer's own names. Every attention of the model
    is skipped meanwhile: the hidden states come from the other blocks alone. Raises TraceError
    where the rest of the model cannot run.
    """
    found: dict[str, Any] = {}
    device = next(model.parameters()).device
    text = language_model(model)
    held = attentions(model)
    target = held[index]

    def skipped(module: nn.Module) -> Callable[..., Any]:
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            if module is target:
                found.update(hidden_states=hidden_states, **kwargs)
            return torch.zeros_like(hidden_states), None

        return forward

    for module in held.values():
        module.__dict__["forward"] = skipped(module)
    try:
        with torch.no_grad(), quiet():
            ids = torch.zeros(batch, tokens, dtype=torch.long, device=device)
            # With a cache transformers does not look into the ids, which have no values on meta.
            given = empty_cache(text) if cache is None else cache
            text(ids, **{cache_keyword(text): given, "use_cache": True})
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} does not run without its attention: "
            f"{type(error).__name__}: {one_line(error)}; choose another model"
        ) from error
    finally:
        for module in held.values():
            del module.__dict__["forward"]
    return found


def _fills_cache(
    cls: type[nn.Module],
    module: nn.Module,
    contract: Contract,
    passed: Mapping[str, Any],
    index: int,
) -> bool:
    values = dict(passed)
    hidden = values.pop("hidden_states")
    cache = next(values[name] for name in CACHE if name in values)
    with torch.no_grad():
        result = cls.forward(module, hidden, **contract.arguments(values))
    contract.hidden_of(result, hidden)
    return fills(cache, index)


def _returned(
    cls: type[nn.Module], module: nn.Module, contract: Contract, model: nn.Module, index: int
) -> Any:
    """How the state that a forward returns grows; None where it returns none it takes back."""
    name = contract.names[CACHE[0]]
    far = max(_FAR, *(value + 211 for value in windows_of(module)), 0)

    def run(tokens: int, state: Any) -> Any:
        values = dict(passed_to(model, index, 2, tokens))
        hidden = values.pop("hidden_states")
        given = {**contract.arguments(values), name: state}
        given.update({"use_cache": True} if "use_cache" in contract.flags else {})
        with torch.no_grad():
            result = cls.forward(module, hidden, **given)
        contract.hidden_of(result, hidden)
        return state_of(result)

    try:
        first = run(_PROBES[0], None)
        if first is None or run(1, first) is None:
            return None
        states = {_SEED: first, **{n: run(n, None) for n in (*_PROBES[1:], far)}}
    except HymellError:
        raise
    except Exception:  # what it returned is no state: it does not take it back
        return None
    return growth_of(states)


def windows_of(module: nn.Module) -> tuple[int, ...]:
    """Plain numbers that a module keeps under a name with window or chunk in it."""
    return tuple(
        value
        for member in module.modules()
        for key, value in vars(member).items()
        if type(value) is int and value > 1 and ("window" in key or "chunk" in key)
    )


def trace_variant(
    variant: Variant,
    config: PretrainedConfig,
    name: str,
    *,
    scheme: QuantScheme | None = None,
    notes: tuple[str, ...] = (),
    trust_remote_code: bool = False,
    opaque_modules: Mapping[type, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[OpGraph, tuple[int, ...]]:
    """The op graph of a config's model with the variant in it, and the layers that it took over.

    Raises HymellError as `variant_of` does, TraceError naming the class for what cannot be traced.
    """
    progress(f"putting {variant.label} into {name}")
    model = build_model(config, trust_remote_code=trust_remote_code)
    taken = variant.put_into(model)
    module = attention_at(model, taken[0])
    try:
        graph = trace_model(
            model,
            f"{name} with {variant.label}",
            scheme=scheme,
            notes=notes,
            opaque_modules=opaque_modules,
            boundaries=windows_of(module),
            progress=progress,
        )
    except TraceError as error:
        raise TraceError(_untraceable(variant.cls, name, error)) from error
    if variant.contract.growth is not None:
        regions = tuple(
            replace(region, ops=tuple(map(_appended, region.ops))) for region in graph.regions
        )
        graph = replace(graph, regions=regions)
    return graph, taken


def _untraceable(cls: type[nn.Module], name: str, error: TraceError) -> str:
    cause = error.__cause__
    if isinstance(cause, Exception):
        return f"{cls.__name__} in {name} could not be traced: {said(cause, file_of(cls))}"
    first = str(error).split("; then ")[0]
    return (
        f"{cls.__name__} in {name} could not be traced: {first}; if its forward loops over tokens "
        "or chunks, put the loop into one function marked with hymell.zoo.attention.scan "
        "(docs/attention_variants.md)"
    )


def _appended(op: Op) -> Op:
    """New entries joined to a returned state, as the append in place that engines do."""
    joins = op.name == "aten.cat.default" and len(op.inputs) == 2
    if not joins or op.inputs[0].kind != "state" or op.inputs[1].kind == "state":
        return op
    old, new = op.inputs
    return replace(op, name="hymell.kv_append", inputs=(new, old), attrs={"window": None})


def _ranges(indices: list[int]) -> str:
    if indices == list(range(indices[0], indices[-1] + 1)) and len(indices) > 1:
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))
