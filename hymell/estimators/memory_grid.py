"""Memory of many workloads at once: what `hymell.estimators.memory` says of one, over arrays.

The peak of the activations is the largest of a few polynomials: one per kernel, the sum of what is
alive then. Those that another one exceeds in every coefficient never are the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hymell.dims import Exponents, as_terms
from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment, Mask
from hymell.estimators.memory import (
    PREFILL_CHUNK,
    RESERVE_BYTES,
    capacity_bytes,
    entry_bytes,
    is_serving,
    state_entries,
    weights_bytes,
)
from hymell.estimators.pipeline import largest_stage
from hymell.graph import Phase, Range
from hymell.op_registry.kernels import Lowered


def memory_of(model: Deployment, B: Array, prompt: Array, output: Array) -> tuple[Array, Mask]:
    """(bytes in all, whether they fit) of workloads; three arrays of one shape.

    Raises HymellError for a workload that no traced region holds.
    """
    peak = cache(lambda index: _Peak(model.lowered(index)))
    held = np.broadcast_to(
        _cache_bytes(model, B, prompt, output) + _activations(model, B, prompt, output, peak),
        B.shape,
    )
    total = weights_bytes(model) + RESERVE_BYTES + held
    fits = total <= model.engine.memory_fraction * capacity_bytes(model.gpu)
    return total, fits


def _cache_bytes(model: Deployment, B: Array, prompt: Array, output: Array) -> Array:
    found = np.zeros(B.shape)
    if "decode" not in model.graph.phases():
        return found
    S, L = _end(model, prompt, output)
    share = 1.0 if model.parallel.pp == 1 else largest_stage(model)
    for index, rows in _regions(model, "decode", B, S, L):
        for entry in state_entries(model, model.graph.regions[index]):
            found[rows] += share * entry_bytes(entry, model.engine, B[rows], S[rows], L[rows])
    return found


def _end(model: Deployment, prompt: Array, output: Array) -> tuple[Array, Array]:
    """(S, L) after the last decode step, as `hymell.estimators.memory.run_end`."""
    if model.encoder_decoder:
        return np.minimum(prompt, model.longest_source), output
    return np.ones_like(prompt), prompt + output - 1


def _activations(
    model: Deployment, B: Array, prompt: Array, output: Array, peak: Callable[[int], _Peak]
) -> Array:
    most = PREFILL_CHUNK * model.parallel.batch_parts
    chunked = is_serving(model.engine) & (B * prompt > most)
    queries = np.where(chunked, np.minimum(prompt, PREFILL_CHUNK), prompt)
    rows = np.where(chunked, most / queries, B)
    found = np.zeros(B.shape)
    for index, at in _regions(model, "prefill", np.ceil(rows), queries, np.zeros_like(B)):
        found[at] = peak(index).bytes(rows[at], queries[at], np.zeros_like(rows[at]))
    later = output > 1
    if "decode" in model.graph.phases() and later.any():
        S, L = _end(model, prompt, np.maximum(output - 1, 1))
        for index, at in _regions(model, "decode", B, S, L):
            held = peak(index).bytes(B[at], S[at], L[at])
            found[at] = np.where(later[at], np.maximum(found[at], held), found[at])
    return found


def _regions(
    model: Deployment, phase: Phase, B: Array, S: Array, L: Array
) -> Iterator[tuple[int, Mask]]:
    """The regions that hold points, each with the mask of its points; the first one wins."""
    left = np.ones(B.shape, dtype=bool)
    for index, region in enumerate(model.graph.regions):
        if region.phase != phase or not left.any():
            continue
        held = left & _inside(region.B, B) & _inside(region.S, S) & _inside(region.L, L)
        if held.any():
            left &= ~held
            yield index, held
    if left.any():
        at = np.unravel_index(int(left.argmax()), left.shape)
        raise HymellError(
            f"{model.graph.facts.name}: no traced {phase} region holds "
            f"B={B[at]:.0f}, S={S[at]:.0f}, L={L[at]:.0f}"
        )


def _inside(bounds: Range, values: Array) -> Mask:
    found: Mask = (values >= bounds.lo) & (values <= (np.inf if bounds.hi is None else bounds.hi))
    return found


class _Peak:
    """The largest sum of live activations of a step, as polynomials in B, S and L."""

    def __init__(self, lowered: Lowered) -> None:
        terms = [dict(as_terms(tensor.bytes)) for tensor in lowered.live]
        self._monomials: list[Exponents] = sorted({e for held in terms for e in held})
        if not terms:
            self._sums: NDArray[np.float64] = np.zeros((1, 0))
            return
        sizes = np.array([[float(held.get(e, 0)) for e in self._monomials] for held in terms])
        born = np.array([tensor.born for tensor in lowered.live])
        after = np.array([tensor.dies + 1 for tensor in lowered.live])
        change = np.zeros((int(after.max()) + 1, len(self._monomials)))
        np.add.at(change, born, sizes)
        np.subtract.at(change, after, sizes)
        self._sums = _largest(np.unique(np.cumsum(change, axis=0), axis=0))

    def bytes(self, B: Array, S: Array, L: Array) -> Array:
        """The peak at workload points, arrays of one shape."""
        found = np.zeros(B.shape)
        values = [B**b * S**s * L**length for b, s, length in self._monomials]
        for row in self._sums:
            held = np.zeros(B.shape)
            for coefficient, value in zip(row, values, strict=True):
                if coefficient:
                    held += coefficient * value
            np.maximum(found, held, out=found)
        return found


def _largest(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows that no other row exceeds in every column: B, S and L are never negative."""
    exceeded = (sums[None] >= sums[:, None]).all(axis=2) & ~np.eye(len(sums), dtype=bool)
    return sums[~exceeded.any(axis=1)]
