"""How a flash-attention kernel cuts its work: tiles, splits and the busiest SM, in closed form.

Queries of one KV head (all of its group when packed) are cut into tiles of ``m`` rows, keys into
tiles of ``n``; one thread block walks the key tiles that the mask lets its query tile see.
Everything here is vectorised over rows and takes no loop over tiles.

Sources: FlashAttention-2 (arXiv 2307.08691), FlashAttention-3 (arXiv 2407.08608); tile sizes and
the split rule as in the public repository Dao-AILab/flash-attention (hopper/tile_size.h,
hopper/flash_prepare_scheduler.cu; csrc/flash_attn for the second version).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import Array

#: Head dims that kernels are compiled for; others are padded to the next.
HEAD_DIMS: Final = (64, 128, 192, 256, 512)

_Tiles = Mapping[int, tuple[int, int]]

_FA3: Final[_Tiles] = {
    64: (192, 128),
    128: (128, 128),
    192: (128, 96),
    256: (128, 80),
    512: (64, 64),
}
_FA3_FP8: Final[_Tiles] = {
    64: (192, 160),
    128: (128, 160),
    192: (128, 128),
    256: (128, 128),
    512: (64, 64),
}
_FA2: Final[_Tiles] = {
    64: (128, 128),
    128: (128, 64),
    192: (128, 64),
    256: (64, 64),
    512: (64, 32),
}

#: How far over the mean load of an SM the split rule lets a part be.
_MARGIN: Final = 1.1


def tile_sizes(head_dim: Array, kv_bytes: Array, device: Device) -> tuple[Array, Array]:
    """(query rows, keys) of a tile, by head dim (padded up) and format."""
    index = np.minimum(np.searchsorted(HEAD_DIMS, head_dim), len(HEAD_DIMS) - 1)
    wide = np.array(list((_FA3 if modern(device) else _FA2).values()), dtype=np.float64)
    narrow = np.array(list((_FA3_FP8 if modern(device) else _FA2).values()), dtype=np.float64)
    chosen = np.where((kv_bytes < 2)[:, None], narrow[index], wide[index])
    return chosen[:, 0], chosen[:, 1]


def modern(device: Device) -> bool:
    """True where kernels are warp-specialised with asynchronous copies: Hopper and later."""
    return device.family in ("hopper", "blackwell")


@dataclass(frozen=True, slots=True)
class Tiling:
    """The work of one launch, in key tiles of ``m`` by ``n``; one entry per row.

    Each of ``heads`` (all sequences together) has ``tiles`` query tiles. From the longest down they
    see ``longest`` key tiles, then over the last ``ramp`` of them ``step`` fewer each, ``shortest``
    at least; ``total`` is the sum over all heads.
    """

    m: Array
    n: Array
    heads: Array
    tiles: Array
    longest: Array
    shortest: Array
    ramp: Array
    step: Array
    total: Array

    @property
    def tasks(self) -> Array:
        """Thread blocks before any split."""
        return self.heads * self.tiles

    def length_at(self, level: Array) -> Array:
        """Key tiles of the query tile that is ``level``-th from the longest."""
        flat = self.tiles - self.ramp
        down = np.maximum(level - flat + 1.0, 0.0) * self.step
        return np.maximum(np.where(level < flat, self.longest, self.longest - down), self.shortest)

    def makespan(self, overhead: float | Array, sms: float, splits: float | Array = 1.0) -> Array:
        """Key tiles of the busiest of ``sms``, each task costing ``overhead`` tiles more.

        Longest task first: the makespan is close to the largest of the longest task, the mean load
        and, for each round k, (k+1) times the task that opens it (Graham, SIAM J. Appl. Math.
        17(2), 1969). The rounds that can attain the maximum are looked at, not all of them.
        """
        copies = self.heads * splits
        tasks = copies * self.tiles
        per_task = 1.0 / splits

        def opened(k: Array) -> Array:
            level = np.floor(k * sms / copies)
            length = self.length_at(np.minimum(level, self.tiles - 1.0)) * per_task + overhead
            return np.where(k * sms < tasks, (k + 1.0) * length, 0.0)

        last = np.floor((tasks - 1.0) / sms)
        edge = np.floor((copies * np.maximum(self.tiles - self.ramp, 1.0) - 1.0) / sms)
        reach = (
            self.tiles
            - self.ramp
            + (self.longest * per_task + overhead) / np.maximum(self.step * per_task, 1e-9)
        )
        middle = np.minimum(np.maximum((reach * copies / sms - 1.0) / 2.0, edge), last)
        mean = (self.total + tasks * overhead) / sms
        best = np.maximum(self.longest * per_task + overhead, mean)
        for k in (edge, np.floor(middle), np.ceil(np.minimum(middle, last)), last):
            best = np.maximum(best, opened(k))
        return best


def tile(
    batch: Array,
    q_len: Array,
    kv_len: Array,
    heads: Array,
    group: Array,
    window: Array,
    tile_m: Array,
    tile_n: Array,
    *,
    causal: bool,
) -> Tiling:
    """Cut attention into tiles: ``heads`` sets of ``group * q_len`` query rows per sequence.

    ``window`` 0 is none. Causal: the queries are the last ``q_len`` positions and each sees the
    keys up to itself.
    """
    rows = q_len * group
    tiles = np.ceil(rows / tile_m)
    per_tile = tile_m / group
    whole = np.ceil(kv_len / tile_n)
    # The share of a key tile that rounding up adds on average, for steps of per_tile keys.
    shared = np.gcd(tile_m.astype(np.int64), np.rint(group * tile_n).astype(np.int64))
    excess = 0.5 * (1.0 - shared / np.maximum(group * tile_n, 1.0))
    windowed = (window > 0) & (window < kv_len)
    sides = 1.0 if causal else 2.0
    seen = sides * (window - 1.0) + np.minimum(per_tile, q_len)
    longest = np.where(windowed, np.minimum(seen / tile_n + 2.0 * excess, whole), whole)
    if not causal:
        return Tiling(
            tile_m,
            tile_n,
            batch * heads,
            tiles,
            longest,
            longest,
            np.zeros_like(tiles),
            np.zeros_like(tiles),
            batch * heads * tiles * longest,
        )
    before = kv_len - q_len
    step = per_tile / tile_n
    # Query tiles before the mask's full reach: the ramp; the last tile ends with the sequence.
    ramp = np.clip(np.floor((longest * tile_n - before) / per_tile), 0.0, tiles - 1.0)
    climbed = _climb(before, per_tile, tile_n, ramp, excess)
    shortest = np.minimum(np.ceil((before + np.minimum(per_tile, q_len)) / tile_n), longest)
    total = batch * heads * (np.minimum(climbed, ramp * longest) + (tiles - ramp) * longest)
    return Tiling(tile_m, tile_n, batch * heads, tiles, longest, shortest, ramp, step, total)


def _climb(before: Array, step: Array, n: Array, count: Array, excess: Array) -> Array:
    """Sum of ceil((before + i * step) / n) over i = 1 .. count.

    Steps below n: tiles stay on a plateau of n/step before they go up (exact where that is whole).
    Steps above: the mean of what rounding adds.
    """
    plateau = np.maximum(n / step, 1.0)
    whole = np.floor(before / n)
    start = (before - whole * n) / step

    def plateaus(x: Array) -> Array:
        full = np.floor(x / plateau)
        climbed = plateau * full * (full + 1.0) / 2.0 + (x - full * plateau) * (full + 1.0)
        return np.asarray(climbed)

    slow = whole * count + plateaus(start + count) - plateaus(start)
    fast = (before * count + step * count * (count + 1.0) / 2.0) / n + excess * count
    return np.asarray(np.where(step < n, slow, fast))


def dynamic_splits(tasks: Array, longest: Array, sms: float) -> Array:
    """Parts that FlashAttention-3 cuts the keys of each task into to fill the SMs, 1 or more."""
    share = np.ceil(_MARGIN * tasks * longest / sms)
    return np.asarray(np.ceil(longest / np.maximum(share, 1.0)))
