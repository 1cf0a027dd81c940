"""How many rows the experts of the fullest rank get: what the time of an MoE layer depends on.

Three routings: `balanced` (every expert the same), `power_law` (the skewed load of published
measurements) and `independent` (each token chooses for itself: what serving looks like).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell.op_registry.primitives import selection_chances

Array: TypeAlias = NDArray[np.float64]

#: Row counts that a kernel's row block may be; an expert's rows are padded to whole blocks.
BLOCKS = (16, 32, 64, 128)

#: Random loads averaged over, and their seed: the same for every size, so that neighbours compare.
_DRAWS = 8
_SEED = 20240607


@dataclass(frozen=True, slots=True)
class Load:
    """Rows on the fullest rank: all ``pairs``, experts with any, the fullest one's, and padded.

    ``padded[i]`` is the sum over its experts of their rows rounded up to ``BLOCKS[i]``.
    """

    pairs: float
    active: float
    fullest: float
    padded: tuple[float, ...]


@lru_cache(maxsize=1 << 16)
def balanced(tokens: int, top_k: int, experts: int, ranks: int) -> Load:
    """Rows dealt out evenly; with fewer rows than experts, one each on experts evenly spaced."""
    local = experts / ranks
    rows = tokens * top_k
    pairs = max(rows / ranks, 1.0) if rows > experts else float(math.ceil(rows / ranks))
    active = min(local, pairs)
    low, extra = divmod(rows, experts)
    full_share = extra / experts
    padded = tuple(
        active * float(block)
        if low == 0
        else local
        * (full_share * _round_up(low + 1, block) + (1 - full_share) * _round_up(low, block))
        for block in BLOCKS
    )
    return Load(pairs, active, float(math.ceil(rows / experts)), padded)


@lru_cache(maxsize=1 << 16)
def power_law(
    tokens: int, top_k: int, experts: int, ranks: int, exponent: float, packed: bool = False
) -> Load:
    """Loads whose density falls as load^-exponent, as aiconfigurator's benchmarks draw them.

    Loads lie between 1 and 0.8 ``tokens`` (0.01 and 2 when there are fewer pairs than experts) and
    are scaled to add up to all pairs; the mean over a few seeded draws is given. An exponent of
    exactly 1 is taken as its limit. ``packed``: as its versions of 2025 did, the rows lost in
    rounding all go to one rank, which matters for a handful of tokens.
    """
    rows = tokens * top_k
    low, high = (1.0, max(0.8 * tokens, 1.0 + 1e-9)) if rows > experts else (0.01, 2.0)
    uniform = _generator(experts).random((_DRAWS, experts))
    power = 1.0 - exponent if abs(exponent - 1.0) > 1e-6 else 1e-6
    loads = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    counts = _integer(loads / loads.sum(1, keepdims=True) * rows, rows, tokens, packed)
    return _fullest(counts, ranks)


@lru_cache(maxsize=1 << 16)
def independent(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> Load:
    """Every token chooses for itself, experts being popular as rank^-``skew`` (0: all equal).

    Counts are normal about tokens x chance where that is 16 or more, Poisson below.
    """
    generator = _generator(experts)
    chances = selection_chances(experts, top_k, skew)
    mean = tokens * generator.permuted(np.tile(chances, (_DRAWS, 1)), axis=1)
    uniform = generator.random((_DRAWS, experts))
    normal = generator.standard_normal((_DRAWS, experts))
    wide = np.sqrt(np.maximum(mean * (1.0 - np.minimum(mean / tokens, 1.0)), 0.0))
    many = np.rint(mean + wide * normal)
    few = np.zeros_like(mean)
    chance = np.exp(-mean)
    below = chance.copy()
    for count in range(1, 64):
        few += uniform > below
        chance = chance * mean / count
        below += chance
    counts = np.clip(np.where(mean >= 16, many, few), 0, tokens)
    scale = tokens * top_k / np.maximum(counts.sum(1, keepdims=True), 1.0)
    return _fullest(_integer(counts * scale, tokens * top_k, tokens), ranks)


def loads(
    routing: Callable[..., Load], *sizes: NDArray[np.float64]
) -> tuple[Array, Array, Array, tuple[Array, ...]]:
    """A routing over columns of its arguments: pairs, active, fullest and padded rows, (rows,).

    Equal rows are computed once. Arguments are whole numbers but for a last exponent.
    """
    keys, index = np.unique(np.stack(sizes, 1), axis=0, return_inverse=True)
    found = [routing(*(int(v) for v in key[:4]), *(float(v) for v in key[4:])) for key in keys]
    table = np.array([(f.pairs, f.active, f.fullest, *f.padded) for f in found])[index.ravel()]
    return table[:, 0], table[:, 1], table[:, 2], tuple(table[:, 3:].T)


def _generator(experts: int) -> np.random.Generator:
    return np.random.default_rng((_SEED, experts))


def _round_up(rows: float, block: int) -> float:
    return math.ceil(rows / block) * float(block)


def _integer(loads: Array, total: int, tokens: int, packed: bool = False) -> Array:
    """Whole loads of the same sum, none above ``tokens``: a token takes an expert once at most.

    Rows that rounding or this cap loses go to the least loaded experts, one each and spread evenly
    over the ranks (``packed``: on the first ones); rows that it adds are taken from the fullest.
    """
    counts = np.minimum(np.rint(loads), tokens)
    for draw in counts:
        missing = int(total - draw.sum())
        while missing > 0:
            room = np.flatnonzero(draw == draw.min())
            count = min(missing, len(room))
            even = np.linspace(0, len(room), count, endpoint=False, dtype=int)
            given = room[:count] if packed else room[even]
            draw[given] += 1
            missing -= len(given)
        while missing < 0:
            taken = np.flatnonzero(draw == draw.max())[:-missing]
            draw[taken] -= 1
            missing += len(taken)
    return counts


def _fullest(counts: Array, ranks: int) -> Load:
    """The mean over the draws of the rank with the most rows."""
    split = counts.reshape(len(counts), ranks, -1)
    mine = split[np.arange(len(counts)), split.sum(2).argmax(1)]
    return Load(
        float(mine.sum(1).mean()),
        float((mine > 0).sum(1).mean()),
        float(mine.max(1).mean()),
        tuple(float((np.ceil(mine / block) * block).sum(1).mean()) for block in BLOCKS),
    )
