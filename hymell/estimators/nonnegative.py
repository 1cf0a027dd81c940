"""Least squares with few coefficients, none negative."""

from __future__ import annotations

from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

#: Share of the largest coefficient, in units of the columns' norms, that rounding may leave.
_NOISE = 1e-12


def nonnegative_least_squares(rows: Array, aims: Array) -> Array:
    """The coefficients of least ``|rows @ coefficients - aims|``.

    The best set of non-zero ones is found by trying all of them, unless all are positive anyway:
    exact, and no solver to import.
    """
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    columns = rows / scale
    free = np.linalg.lstsq(columns, aims, rcond=None)[0]
    if (free >= 0).all():
        return np.asarray(_rounded(free) / scale)
    best, least = np.zeros(rows.shape[1]), np.inf
    for size in range(1, rows.shape[1]):
        for chosen in combinations(range(rows.shape[1]), size):
            part = columns[:, chosen]
            found = np.linalg.lstsq(part, aims, rcond=None)[0]
            error = float(((part @ found - aims) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[list(chosen)] = found
    return np.asarray(_rounded(best) / scale)


def _rounded(found: Array) -> Array:
    """Zero for what only rounding left, so that a term that is absent is absent."""
    return np.where(found < _NOISE * found.max(), 0.0, found)
