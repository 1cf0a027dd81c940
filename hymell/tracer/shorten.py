"""A model of many identical layers is traced on a twin with few, and the rest is counted.

`hymell.tracer.layers` records one of several identical layers, but still runs through all of them
at every point. Where all layers of a model are identical by the same test, a twin with `FEW` layers
records the same ops. What one layer more changes is read off a second twin at one point of each
region: how often ops and states repeat, and whose results repeated layers read. The full model
stands on meta all the same: its layers are compared and its parameters counted.

Anything that does not fit this (layers of several kinds, other ops in the longer twin, constants
that depend on the number of layers) leaves the model to be traced as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from hymell.graph import Feed, Layer, Op, Region, StateSpec
from hymell.tracer.build import build_model
from hymell.tracer.layers import identical_layers
from hymell.tracer.parts import split
from hymell.tracer.template import concrete, flatten

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

#: Layers of the twin that is traced: the first, and one that repeats it.
FEW = 2

_COUNT = "num_hidden_layers"

#: (B, S, L) -> a concrete region.
Trace: TypeAlias = Callable[[int, int, int], Region]


@dataclass(frozen=True, slots=True)
class Twins:
    """Models of `FEW` and of one layer more, and the paths of all layers of the model itself."""

    few: nn.Module
    more: nn.Module
    paths: tuple[str, ...]


def twins_of(config: PretrainedConfig, model: nn.Module) -> Twins | None:
    """The twins of a decoder whose layers are identical; None for any other model."""
    layers = getattr(config, _COUNT, None)
    if not isinstance(layers, int) or layers <= FEW + 1:
        return None
    if [part.name for part in split(model)] != ["model"]:
        return None
    paths = identical_layers(model)
    if paths is None or len(paths) != layers:
        return None
    try:
        few, more = (build_model(_with_layers(config, n)) for n in (FEW, FEW + 1))
    except Exception:  # whatever a config class says of a number of layers it does not expect
        return None
    for twin, count in ((few, FEW), (more, FEW + 1)):
        if identical_layers(twin) != paths[:count]:
            return None
    return Twins(few, more, paths)


def _with_layers(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """A config of fewer layers; lists of one entry per layer are cut."""
    short = copy.deepcopy(config)
    layers = getattr(config, _COUNT)
    for key, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == layers:
            setattr(short, key, value[:count])
    setattr(short, _COUNT, count)
    return short


def grown(region: Region, trace_more: Trace, paths: Sequence[str]) -> Region | None:
    """The region of all layers, from that of `FEW`; ``trace_more`` traces the twin with one more.

    None where one more layer changes anything but counts.
    """
    point = (region.B.lo, region.S.lo, region.L.lo)
    here, there = concrete(region, *point), flatten(trace_more(*point)).region
    if _once(here) != _once(there) or len(here.layers) != len(there.layers):
        return None
    steps = len(paths) - FEW
    layers = [
        _grown_layer(one, other, paths, steps)
        for one, other in zip(here.layers, there.layers, strict=True)
    ]
    known = [layer for layer in layers if layer is not None]
    if len(known) != len(layers) or sum(len(layer.paths) for layer in known) != len(paths):
        return None
    return replace(
        region,
        ops=tuple(
            replace(op, repeat=_count(one.repeat, other.repeat, steps))
            for op, one, other in zip(region.ops, here.ops, there.ops, strict=True)
        ),
        layers=tuple(known),
        state=tuple(
            replace(state, repeat=_count(one.repeat, other.repeat, steps))
            for state, one, other in zip(region.state, here.state, there.state, strict=True)
        ),
    )


def _once(region: Region) -> tuple[list[Op], list[StateSpec]]:
    """Ops and states without their counts."""
    ops = [replace(op, repeat=1) for op in region.ops]
    return ops, [replace(state, repeat=1) for state in region.state]


def _count(few: int, more: int, steps: int) -> int:
    return few + (more - few) * steps


def _grown_layer(few: Layer, more: Layer, paths: Sequence[str], steps: int) -> Layer | None:
    if replace(few, paths=(), feeds=()) != replace(more, paths=(), feeds=()):
        return None
    if len(few.feeds) != len(more.feeds):
        return None
    if few.paths == more.paths:
        return few if few.feeds == more.feeds else None
    # The run of the last layer takes the next one in, and so all that follow.
    if more.paths != (*few.paths, paths[FEW]) or few.paths[-1] != paths[FEW - 1]:
        return None
    feeds = [_grown_feed(a, b, steps) for a, b in zip(few.feeds, more.feeds, strict=True)]
    known = tuple(feed for feed in feeds if feed is not None)
    if len(known) != len(feeds):
        return None
    return replace(few, paths=(*few.paths, *paths[FEW:]), feeds=known)


def _grown_feed(few: Feed, more: Feed, steps: int) -> Feed | None:
    if (few.op, few.index) != (more.op, more.index):
        return None
    if [producer for producer, _ in few.producers] != [producer for producer, _ in more.producers]:
        return None
    producers = tuple(
        (producer, _count(count, other, steps))
        for (producer, count), (_, other) in zip(few.producers, more.producers, strict=True)
    )
    return replace(few, producers=producers)
