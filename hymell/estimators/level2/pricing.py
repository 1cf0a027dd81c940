"""Level 2 in a deployment: the factor of every kernel of a step, by the block that it is in.

A layer's kernels of one block are one row for a correction; its factor holds for each of them.
Exchanges between GPUs are in no block, and neither is a norm that was not timed with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from hymell.estimators.level2.shipped import BlockEntry, BlockEstimates, Key
from hymell.estimators.level2.sums import Array, block_sums
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    GroupedGemm,
    Primitive,
    RowReduce,
    Value,
    at,
)

#: What `hymell.op_registry.blocks` calls the blocks that a correction may be of.
_BLOCK_OF: Final = {"attention": "attention", "ffn": "ffn", "moe": "ffn"}

_LAYER: Final = re.compile(r"(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Block:
    """The kernels of one block of one kind of layer: positions in a step's list, repeats."""

    key: Key
    kernels: tuple[int, ...]
    layers: float


def blocks_of(kernels: Sequence[Kernel], phase: str) -> list[Block]:
    """The attention and FFN blocks among the kernels of a step, in launch order."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for place, kernel in enumerate(kernels):
        if kernel.block in _BLOCK_OF and not isinstance(kernel.primitive, Collective):
            key = (kernel.part, kernel.block, layer_of(kernel.path))
            members.setdefault(key, []).append(place)
    found = []
    for (_, block, _), places in members.items():
        form = form_of(block, [kernels[place].primitive for place in places])
        layers = float(median(kernels[place].repeat for place in places))
        found.append(Block((_BLOCK_OF[block], form, phase), tuple(places), layers))
    return found


def layer_of(path: str) -> str:
    """The layer that a module path is in, the path itself outside of layers."""
    found = _LAYER.match(path)
    return found.group(1) if found else path


def form_of(block: str, primitives: Sequence[Primitive]) -> str:
    """The form (`shipped.BLOCK_FORMS`) of a block."""
    if block != "attention":
        routed = any(isinstance(p, Experts | GroupedGemm) for p in primitives)
        return "experts" if routed else "dense"
    attention = [p for p in primitives if isinstance(p, Attention)]
    # Latent attention is expanded to heads of unequal widths in prefill.
    latent = any(p.latent or p.qk_dim != p.v_dim for p in attention)
    return "latent" if latent else "heads"


def inside(kernels: Sequence[Kernel], block: Block, entry: BlockEntry) -> tuple[int, ...]:
    """Those of a block's kernels that its measurements covered."""
    if entry.norm:
        return block.kernels
    after = [
        n for n, p in enumerate(block.kernels) if not isinstance(kernels[p].primitive, RowReduce)
    ]
    return block.kernels[after[0] :] if after else ()


def factors(
    estimates: BlockEstimates,
    kernels: Sequence[Kernel],
    times_s: Sequence[Value],
    phase: str,
    workload: tuple[Array, Array, Array],
) -> dict[int, tuple[BlockEntry, Array]]:
    """By position of a kernel: the entry that its block is priced by, and the factor per workload.

    ``times_s``: seconds of one step of each kernel, its repeats together; ``workload``: B, S and L
    of that step.
    """
    found: dict[int, tuple[BlockEntry, Array]] = {}
    rows = len(workload[0])
    for block in blocks_of(kernels, phase):
        entry = estimates.find(block.key)
        if entry is None:
            continue
        places = inside(kernels, block, entry)
        sums = block_sums(
            (
                (at(kernels[place].primitive, *workload), times_s[place] / block.layers)
                for place in places
            ),
            rows,
        )
        factor = np.exp(entry.correction.log_ratio(sums))
        found |= dict.fromkeys(places, (entry, factor))
    return found
