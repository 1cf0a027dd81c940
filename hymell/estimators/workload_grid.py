"""Many workloads of one model at once: every batch with every prompt and output length.

Prefill depends on batch and prompt alone and is priced once for each pair. Decode steps of many
workloads coincide: the step of batch B at L cached tokens is the same whatever the prompt was. So
one table per batch holds the cost of steps at chosen lengths; between them the cost is a parabola
through three of them, and a workload's decode is a difference of two running sums. The lengths lie
at equal ratios (`PIECES_PER_OCTAVE`), where kernels start another block of the cache, and where a
region of the graph or an attention window begins.

The roll-up (`hymell.estimators.rollup`) does the same with pieces of each workload's own, fewer
ones, and takes a block's factor at the mean step: a grid differs from it by less than 0.1%
(tests/test_workload_grid.py), with latent attention by up to 1%, and is the nearer to the sum of
single steps. Small grids,
encoder-decoders, and estimators with closed forms go through the roll-up itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.base import Array, Deployment
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.energy import PowerModel
from hymell.estimators.links import Linked
from hymell.estimators.pipeline import energy_j
from hymell.estimators.rollup import (
    SMOOTH_PIECES,
    PhaseTotals,
    decode_breaks,
    decode_totals,
    prefill_totals,
)

#: Parabolas per doubling of the length.
PIECES_PER_OCTAVE = 16

#: Decode kernels read the cache in blocks of so many tokens, and their time jumps from one to the
#: next (`level1.attention_decode`). Pieces begin at such jumps; up to `_EVERY_BLOCK` at each.
_BLOCK = 128
_EVERY_BLOCK = 64 * _BLOCK

#: Samples of one parabola.
_SAMPLES = 3

#: What of a phase nobody asks here.
_UNUSED = frozenset({"flops", "flops_causal", "launches"})

#: What gives its time and energy; each adds up over steps.
_SUMMED = tuple(field.name for field in fields(PhaseTotals) if field.name not in _UNUSED)

#: Rows that are priced together: small enough for a core's cache.
_CHUNK = 32_768


def price_grid(
    model: Deployment, batches: Sequence[int], prompts: Sequence[int], outputs: Sequence[int]
) -> dict[str, Array]:
    """Costs of every (batch, prompt, output), arrays of shape (batches, prompts, outputs).

    ``ttft_s``, ``tpot_s`` (0 where output is 1), ``latency_s``, ``tokens_per_s``, ``energy_j`` and
    ``energy_per_output_token_j`` as `hymell.estimators.predict.price` gives them. Raises
    HymellError for a workload that no traced region holds.
    """
    B, P, N = (np.array(values, dtype=np.float64) for values in (batches, prompts, outputs))
    shape = (len(B), len(P), len(N))
    prefill = _prefill(model, B, P)
    tabulated = _tabulates(model, B, P, N)
    decode = _from_table(model, B, P, N) if tabulated else _one_by_one(model, B, P, N)
    power = PowerModel.of(model.gpu)
    first_j = energy_j(model, "prefill", _totals(prefill), power)[..., None]
    joules = first_j + energy_j(model, "decode", _totals(decode), power)
    ttft_s = np.broadcast_to(prefill["time_s"][..., None], shape)
    latency_s = ttft_s + decode["time_s"]
    tokens = B[:, None, None] * N
    return {
        "ttft_s": np.ascontiguousarray(ttft_s),
        "tpot_s": decode["time_s"] / np.maximum(N - 1, 1),
        "latency_s": latency_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": joules,
        "energy_per_output_token_j": joules / tokens,
    }


def _totals(sums: dict[str, Array]) -> PhaseTotals:
    """Sums as the totals of a phase, of which `energy_j` reads no others."""
    zero = np.zeros_like(sums["time_s"])
    return PhaseTotals(**sums, **dict.fromkeys(_UNUSED, zero))


def _prefill(model: Deployment, B: Array, P: Array) -> dict[str, Array]:
    shape = (len(B), len(P))
    b, p = (values.reshape(-1) for values in np.broadcast_arrays(B[:, None], P))
    parts = [
        prefill_totals(model, b[i : i + _CHUNK], p[i : i + _CHUNK])
        for i in range(0, b.size, _CHUNK)
    ]
    return {name: _joined(parts, name).reshape(shape) for name in _SUMMED}


def _joined(parts: Sequence[PhaseTotals], name: str) -> Array:
    found: Array = np.concatenate([getattr(part, name) for part in parts])
    return found


def _one_by_one(model: Deployment, B: Array, P: Array, N: Array) -> dict[str, Array]:
    shape = (len(B), len(P), len(N))
    b, p, o = (
        values.reshape(-1) for values in np.broadcast_arrays(B[:, None, None], P[:, None], N)
    )
    parts = [
        decode_totals(model, b[rows], p[rows], o[rows])
        for rows in (slice(i, i + _CHUNK) for i in range(0, b.size, _CHUNK))
    ]
    return {name: _joined(parts, name).reshape(shape) for name in _SUMMED}


def _tabulates(model: Deployment, B: Array, P: Array, N: Array) -> bool:
    """True where a table takes fewer samples than the workloads' own pieces."""
    inner = model.estimator.inner if isinstance(model.estimator, Linked) else model.estimator
    if not isinstance(inner, Calibrated) or model.encoder_decoder or N.max() < 2:
        return False
    if "decode" not in model.graph.phases():
        return False
    octaves = np.log2((P.max() + N.max()) / (P.min() + 1))
    # The roll-up prices a single step three times over.
    blocks = (min(P.max() + N.max(), _EVERY_BLOCK) - P.min()) / _BLOCK
    table = (PIECES_PER_OCTAVE * octaves + max(blocks, 0) + 2) * _SAMPLES**2
    return bool(table < len(P) * len(N) * SMOOTH_PIECES * _SAMPLES)


def _from_table(model: Deployment, B: Array, P: Array, N: Array) -> dict[str, Array]:
    first, stop = P[:, None], P[:, None] + N - 1
    starts, stops = _pieces(model, B, float(P.min()), float(stop.max()))
    lasts = stops - 1
    middles = np.floor((starts + lasts) / 2)
    lengths, where = np.unique([starts, middles, lasts], return_inverse=True)
    where = where.reshape(_SAMPLES, -1)
    b, length = (v.reshape(-1) for v in np.broadcast_arrays(B[:, None], lengths))
    steps = [
        decode_totals(model, b[rows], length[rows], np.full(b[rows].shape, 2.0))
        for rows in (slice(i, i + _CHUNK) for i in range(0, b.size, _CHUNK))
    ]
    found = {}
    for name in _SUMMED:
        low, middle, high = (_joined(steps, name).reshape(len(B), -1)[:, at] for at in where)
        table = _Running(starts, stops, middles, low, middle, high)
        found[name] = table.below(stop) - table.below(first)
    return found


def _pieces(model: Deployment, B: Array, first: float, stop: float) -> tuple[Array, Array]:
    """Starts and ends (exclusive) of the pieces that cover ``first`` to before ``stop``."""
    count = int(np.ceil(PIECES_PER_OCTAVE * np.log2((stop + 1) / (first + 1)))) + 1
    ratio = np.floor(np.geomspace(first + 1, stop + 1, count + 1)) - 1
    ratio = np.where(ratio > _EVERY_BLOCK, _BLOCK * np.floor(ratio / _BLOCK), ratio)
    edges = np.concatenate([ratio, np.arange(_BLOCK, _EVERY_BLOCK + 1, _BLOCK)])
    breaks = [L for L in decode_breaks(model, B) if first < L < stop]
    inside = np.unique(np.concatenate([edges, breaks, [first, stop]]))
    inside = inside[(inside >= first) & (inside <= stop)]
    return inside[:-1], inside[1:]


class _Running:
    """Running sums over whole L of parabolas, one set of pieces for all rows.

    A piece goes through (start, ``low``), (middle, ``mid``) and (stop - 1, ``high``); rows are
    batches.
    """

    def __init__(
        self, starts: Array, stops: Array, middles: Array, low: Array, mid: Array, high: Array
    ) -> None:
        self._starts = starts
        m, n = middles - starts, stops - 1 - starts
        # Newton's form low + a x + c x (x - m), x = L - start; a piece of one or two L has c = 0.
        a = np.where(m > 0, (mid - low) / np.maximum(m, 1), (high - low) / np.maximum(n, 1))
        slope = (high - mid) / np.maximum(n - m, 1)
        c = np.where(m > 0, (slope - a) / np.maximum(n, 1), 0.0)
        self._terms = (low, a - c * m, c)
        sums = self._sum(np.arange(len(starts)), stops - starts)
        self._before = np.concatenate([np.zeros((len(low), 1)), np.cumsum(sums, axis=1)], axis=1)

    def _sum(self, piece: NDArray[np.intp], count: Array) -> Array:
        """Sums over the first ``count`` L of pieces, per row: Faulhaber's formulas."""
        constant, linear, square = (term[:, piece] for term in self._terms)
        ones, x = count, count * (count - 1) / 2
        found: Array = constant * ones + linear * x + square * (x * (2 * count - 1) / 3)
        return found

    def below(self, length: Array) -> Array:
        """Sums over all L before ``length``, shape (rows, *length.shape)."""
        flat = length.reshape(-1)
        piece = np.clip(np.searchsorted(self._starts, flat, "right") - 1, 0, len(self._starts) - 1)
        found = self._before[:, piece] + self._sum(piece, flat - self._starts[piece])
        return found.reshape(-1, *length.shape)
