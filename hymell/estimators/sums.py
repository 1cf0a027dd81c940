"""Exact sums over decode steps: polynomials, and maxima of polynomials, in closed form.

A kernel's cost is a polynomial of degree <= 2 in L between known breaks, so three samples fix it,
and the sum over any run of whole L follows from the sums of 1, L and L^2 (Faulhaber). A maximum of
several polynomials is cut where two of them cross: in between, one is the largest throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from hymell.estimators.base import Array
from hymell.op_registry.primitives import Value


@dataclass(frozen=True, slots=True)
class Samples:
    """Costs at one L per workload: ``sums`` add up as they are, of each group the maximum does."""

    sums: tuple[Value, ...]
    maxima: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class _Quadratic:
    """c0 + c1 x + c2 x^2 with x from -1 to 1 over a piece."""

    c0: Array
    c1: Array
    c2: Array

    def sum(self, moments: tuple[Array, Array, Array]) -> Array:
        return self.c0 * moments[0] + self.c1 * moments[1] + self.c2 * moments[2]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole L from ``start`` to before ``stop`` (none where they are equal), per workload."""

    start: Array
    stop: Array

    @property
    def last(self) -> Array:
        return np.maximum(self.stop - 1, self.start)

    @property
    def middle(self) -> Array:
        return (self.start + self.last) / 2

    @property
    def half(self) -> Array:
        # One point makes a piece of no width; any scale does there.
        return np.maximum((self.last - self.start) / 2, 0.5)

    def moments(self, start: Array, stop: Array) -> tuple[Array, Array, Array]:
        """Sums of 1, x and x^2 over the whole L from ``start`` to before ``stop``."""
        count = stop - start
        offset = (start + stop - 1) / 2 - self.middle
        squares = offset**2 + (count**2 - 1) / 12
        return count, count * offset / self.half, count * squares / self.half**2


def sum_over_steps(
    cost: Callable[[Array], Samples], first: Array, last: Array, breaks: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Sums over L = first .. last of what ``cost`` gives, one entry per workload.

    ``cost`` takes one L per workload, halves allowed. ``breaks`` are the L at which a new
    polynomial begins, one entry per workload; those outside the range are ignored. Returns the
    sums of ``Samples.sums`` and of the maxima of ``Samples.maxima``.
    """
    edges = [first, last + 1]
    if breaks:
        inner = np.sort(np.clip(np.stack(list(breaks)), first, last + 1), axis=0)
        edges = [first, *inner, last + 1]
    totals: list[Array] = []
    maxima: list[Array] = []
    for start, stop in pairwise(edges):
        piece = _Piece(start, stop)
        if totals and not (stop > start).any():
            continue
        low, middle, high = cost(piece.start), cost(piece.middle), cost(piece.last)
        whole = piece.moments(start, stop)
        found = [
            _fit(*values).sum(whole)
            for values in zip(low.sums, middle.sums, high.sums, strict=True)
        ]
        peaks = [
            _sum_of_maximum([_fit(*values) for values in zip(*group, strict=True)], piece)
            for group in zip(low.maxima, middle.maxima, high.maxima, strict=True)
        ]
        totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
        maxima = [a + b for a, b in zip(maxima, peaks, strict=True)] if maxima else peaks
    return totals, maxima


def _fit(low: Value, middle: Value, high: Value) -> _Quadratic:
    return _Quadratic(middle, (high - low) / 2, (high + low) / 2 - middle)


def _sum_of_maximum(terms: Sequence[_Quadratic], piece: _Piece) -> Array:
    cuts = [cut for pair in combinations(terms, 2) for cut in _crossings(*pair, piece)]
    edges = [piece.start, *np.sort(np.stack(cuts), axis=0)] if cuts else [piece.start]
    total: Array = np.zeros_like(piece.start)
    for start, stop in pairwise([*edges, piece.stop]):
        moments = piece.moments(start, stop)
        largest = terms[0].sum(moments)
        for term in terms[1:]:
            largest = np.maximum(largest, term.sum(moments))
        total += largest
    return total


def _crossings(a: _Quadratic, b: _Quadratic, piece: _Piece) -> list[Array]:
    """First whole L past each crossing of two terms, within the piece, per workload."""
    d0, d1, d2 = a.c0 - b.c0, a.c1 - b.c1, a.c2 - b.c2
    cuts = []
    # No crossing shows as a root that is infinite, not a number, or outside of [-1, 1].
    with np.errstate(all="ignore"):
        root = np.sqrt(d1 * d1 - 4 * d2 * d0)
        stable = -0.5 * (d1 + np.where(d1 < 0, -root, root))
        for x in (np.divide(stable, d2), np.divide(d0, stable)):
            inside = np.abs(x) < 1
            if inside.any():
                cut = np.floor(piece.middle + np.where(inside, x, 0) * piece.half) + 1
                cuts.append(np.where(inside, np.clip(cut, piece.start, piece.stop), piece.start))
    return cuts
