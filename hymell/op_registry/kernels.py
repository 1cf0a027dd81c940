"""A kernel: one launch (or a fixed few) of an engine, with its place in the model."""

from __future__ import annotations

from dataclasses import dataclass

from hymell.dims import Size
from hymell.op_registry.primitives import Primitive


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an engine launches for one or more ops.

    ``repeat``: how often per step (identical layers); ``launches``: device launches each time;
    ``block``: embed, attention, mixer, ffn, moe or head; ``layer``: class of the layer module it
    belongs to ("" outside layers); ``ops``: ids of the ops it covers; ``understood``: False when a
    covered op has no registered lowering.
    """

    name: str
    primitive: Primitive
    block: str
    path: str
    layer: str = ""
    part: str = "model"
    repeat: int = 1
    launches: int = 1
    ops: tuple[int, ...] = ()
    understood: bool = True


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """An activation in memory from the kernel that makes it to the last one that reads it.

    ``born`` and ``dies`` are positions in the kernel list of the same step, inclusive.
    """

    bytes: Size
    born: int
    dies: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """One region lowered by one engine: kernels in launch order, and the activations between."""

    kernels: tuple[Kernel, ...]
    live: tuple[LiveTensor, ...]
