"""Identical layers are traced once: a repeat count stands for the others.

Two layers are identical when their classes, weights' shapes, settings and inputs' shapes are, and
their cache layers too. The first to run is recorded; a later one returns fresh tensors of the same
shapes that stand for the recorded one's outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from hymell.graph import Feed, Layer
from hymell.tracer import cache_state
from hymell.tracer.capture import Capture, Origin
from hymell.tracer.patching import Patches

#: Where a layer stands, not what it is.
_POSITION = frozenset(
    {"layer_idx", "layer_id", "layer_number", "layer_index", "block_idx", "idx", "seed"}
)
_PLAIN = (int, float, bool, str, type(None))

Producer: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class Run:
    """A recorded layer and the identical ones it stands for."""

    path: str
    module: str
    start: int
    stop: int
    index: int
    output: Any
    origins: dict[int, Origin]
    inputs: list[Tensor]
    producers: list[Producer]
    feeds: list[Counter[Producer]]
    tensors: dict[tuple[str, str], Tensor]
    paths: list[str] = field(default_factory=list)


class LayerMemo:
    """Records every layer's run; with ``memo`` identical layers share one recording.

    ``signatures`` keeps what layers are made of between traces of one unchanged model.
    """

    def __init__(
        self,
        capture: Capture,
        model: nn.Module,
        *,
        memo: bool,
        signatures: dict[int, Any] | None = None,
    ) -> None:
        self._capture = capture
        self._model = model
        self._memo = memo
        self._runs: list[Run] = []
        self._known: dict[Any, Run] = {}
        self._signatures = Signatures(model, signatures)

    def install(self, patches: Patches) -> None:
        """Wrap the forward of every layer while ``patches`` is active."""
        for path, position, layer in layers_of(self._model):
            index = _layer_index(layer, position)
            patches.attribute(layer, "forward", self._wrap(layer, path, index))

    def truncate(self, mark: int) -> None:
        """Forget the runs that began at op ``mark`` or later."""
        self._runs = [run for run in self._runs if run.start < mark]
        self._known = {key: run for key, run in self._known.items() if run.start < mark}

    def layers(self) -> tuple[Layer, ...]:
        """The recorded layers, in the order they ran."""
        return tuple(
            Layer(run.path, run.module, run.start, run.stop, tuple(run.paths), self._feeds(run))
            for run in self._runs
        )

    def repeats(self) -> dict[int, int]:
        """How many layers each recorded op stands for, where more than one."""
        return {
            op: len(run.paths)
            for run in self._runs
            if len(run.paths) > 1
            for op in range(run.start, run.stop)
        }

    def _feeds(self, run: Run) -> tuple[Feed, ...]:
        if len(run.paths) < 2:
            return ()
        read = {
            (operand.op, operand.index)
            for draft in self._capture.drafts[run.start : run.stop]
            for operand in draft.inputs
            if operand.kind == "op" and not run.start <= operand.op < run.stop
        }
        feeds: dict[Producer, Feed] = {}
        for producer, counts in zip(run.producers, run.feeds, strict=True):
            if producer in read and producer not in feeds:
                feeds[producer] = Feed(*producer, tuple(sorted(counts.items())))
        return tuple(feeds.values())

    def _wrap(self, layer: nn.Module, path: str, index: int) -> Callable[..., Any]:
        original = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            if not self._memo:
                return self._record(layer, path, index, original, args, kwargs, tensors)
            cache = next((leaf for leaf in leaves if _is_cache(leaf)), None)
            signature = (
                self._signatures.of(layer, index),
                tuple(_describe(leaf, self._capture, index) for leaf in leaves),
                structure,
                cache_state.layer_signature(cache, index),
            )
            run = self._known.get(signature)
            if run is None:
                out = self._record(layer, path, index, original, args, kwargs, tensors)
                self._known[signature] = self._runs[-1]
                return out
            return self._repeat(run, layer, path, index, cache, tensors)

        return forward

    def _record(
        self,
        layer: nn.Module,
        path: str,
        index: int,
        original: Callable[..., Any],
        args: Any,
        kwargs: Any,
        tensors: list[Tensor],
    ) -> Any:
        capture = self._capture
        producers = [self._producer(tensor) for tensor in tensors]
        start = len(capture.drafts)
        before = {key: id(t) for key, t in held_tensors(layer)}
        out = original(*args, **kwargs)
        changed = {k: t for k, t in held_tensors(layer) if before.get(k) != id(t)}
        made = [*tree_leaves(out), *changed.values()]
        self._runs.append(
            Run(
                path,
                type(layer).__name__,
                start,
                len(capture.drafts),
                index,
                out,
                {id(t): capture.origin(t) for t in made if isinstance(t, Tensor)},
                tensors,
                producers,
                [Counter([producer]) for producer in producers],
                changed,
                [path],
            )
        )
        return out

    def _repeat(
        self, run: Run, layer: nn.Module, path: str, index: int, cache: Any, tensors: list[Tensor]
    ) -> Any:
        for counts, tensor in zip(run.feeds, tensors, strict=True):
            counts[self._producer(tensor)] += 1
        run.paths.append(path)
        if cache is not None:
            cache_state.share_layer(cache, run.index, index)
        modules = dict(layer.named_modules())
        for (name, attribute), tensor in run.tensors.items():
            setattr(modules[name], attribute, self._stand_in(run, tensor))
        passed = {id(old): new for old, new in zip(run.inputs, tensors, strict=True)}
        leaves, structure = tree_flatten(run.output)
        fresh = [passed[id(x)] if id(x) in passed else self._stand_in(run, x) for x in leaves]
        return tree_unflatten(fresh, structure)

    def _stand_in(self, run: Run, value: Any) -> Any:
        """A fresh tensor that comes from where the recorded one does."""
        if not isinstance(value, Tensor):
            return value
        capture = self._capture
        with capture.paused():
            twin = torch.empty_like(value)
        kind, op, index, name = run.origins[id(value)]
        if kind == "op":
            capture.bind_output(twin, op, index)
        elif kind != "constant":
            capture.bind(twin, kind, name)
        return twin

    def _producer(self, tensor: Tensor) -> Producer:
        kind, op, index, _ = self._capture.origin(tensor)
        return (op, index) if kind == "op" else (-1, 0)


class Signatures:
    """What the layers of a model are, wherever they stand: equal ones run the same ops."""

    def __init__(self, model: nn.Module, known: dict[int, Any] | None = None) -> None:
        self._model = model
        self._known: dict[int, Any] = {} if known is None else known
        self._per_layer: dict[int, list[tuple[str, Sequence[Any]]]] = {}

    def of(self, layer: nn.Module, index: int) -> Any:
        """Classes, weights, settings, and what the config says of the layer in its lists."""
        known = self._known.get(id(layer))
        if known is None:
            known = (_settings(layer), tuple(self._config_entries(layer, index)))
            self._known[id(layer)] = known
        return known

    def _config_entries(self, layer: nn.Module, index: int) -> Iterator[tuple[str, str]]:
        """What the config says of this layer in its per-layer lists."""
        config = getattr(layer, "config", None) or next(
            (m.config for m in layer.modules() if hasattr(m, "config")),
            getattr(self._model, "config", None),
        )
        if config is None:
            return
        lists = self._per_layer.get(id(config))
        if lists is None:
            count = getattr(config, "num_hidden_layers", None)
            lists = [
                (key, value)
                for key, value in vars(config).items()
                if isinstance(value, (list, tuple))
                and count
                and len(value) == count
                # A list of layer numbers is not one entry per layer.
                and list(value) != list(range(count))
            ]
            self._per_layer[id(config)] = lists
        for key, value in lists:
            if index < len(value):
                yield key, str(value[index])


def layers_of(model: nn.Module) -> Iterator[tuple[str, int, nn.Module]]:
    """(path, position, module) of the members of every outermost list of layers."""
    outer: list[str] = []
    for name, module in model.named_modules():
        if not _is_layer_list(module) or any(name.startswith(prefix) for prefix in outer):
            continue
        outer.append(f"{name}." if name else "")
        for position, (key, member) in enumerate(module.named_children()):
            yield (f"{name}.{key}" if name else key), position, member


def identical_layers(model: nn.Module) -> tuple[str, ...] | None:
    """Paths of a model's layers where it has one list of them and all are identical, else None."""
    found = list(layers_of(model))
    if not found or len({path.rpartition(".")[0] for path, _, _ in found}) > 1:
        return None
    signatures = Signatures(model)
    first, *others = (
        signatures.of(layer, _layer_index(layer, position)) for _, position, layer in found
    )
    return tuple(path for path, _, _ in found) if all(o == first for o in others) else None


def _is_layer_list(module: nn.Module) -> bool:
    if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) < 2:
        return False
    if isinstance(module, nn.ModuleList):
        return True
    # A Sequential is a run of layers when its members are the user's own blocks.
    kinds = {type(member) for member in module}
    return len(kinds) == 1 and not next(iter(kinds)).__module__.startswith("torch.nn")


def _layer_index(layer: nn.Module, position: int) -> int:
    """The cache layer a model layer writes to."""
    for module in layer.modules():
        for name in ("layer_idx", "layer_id"):
            value = vars(module).get(name)
            if isinstance(value, int):
                return value
    return position


def _is_cache(leaf: Any) -> bool:
    return hasattr(leaf, "get_seq_length")


def _describe(leaf: Any, capture: Capture, index: int) -> Any:
    if type(leaf) is int and leaf == index:
        return "index"
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.is_contiguous(), capture.mask(leaf)
    if isinstance(leaf, _PLAIN):
        return leaf
    return type(leaf).__name__


def held_tensors(layer: nn.Module) -> Iterator[tuple[tuple[str, str], Tensor]]:
    """State that modules keep as plain attributes: ((module path, attribute), tensor)."""
    for name, module in layer.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor):
                yield (name, attribute), value


def _settings(layer: nn.Module) -> tuple[Any, ...]:
    """Classes, weights and plain attributes of a layer and all it holds."""
    parts: list[Any] = []
    for name, module in layer.named_modules():
        parts.append((name, type(module)))
        for key, value in vars(module).items():
            if key in _POSITION or key.startswith("_") or key in ("training", "forward"):
                continue
            if isinstance(value, _PLAIN):
                parts.append((key, value))
            elif isinstance(value, Tensor):
                parts.append((key, tuple(value.shape), value.dtype))
            elif isinstance(value, (list, tuple)):
                if all(isinstance(item, _PLAIN) for item in value):
                    parts.append((key, tuple(value)))
            elif callable(value) and not isinstance(value, nn.Module):
                parts.append((key, getattr(value, "__qualname__", type(value).__name__)))
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    parts.append((key, tuple(tensor.shape), tensor.dtype))
    return tuple(parts)
