"""Split-conformal bounds on log ratios measured / predicted, where what is new is a whole model.

Rows of one model err together, so that a model, not a row, is what is left out. The bounds are
quantiles with the finite-sample correction ceil((n + 1) (1 - alpha / 2)) / n on either side
(Vovk et al. 2005; asymmetric as in Romano et al. 2019), of the rows of a group of models and, with
the weight of `OTHERS_MODELS` models, of rows of like kind elsewhere. Few models say little about
the next one: the bounds are stretched about their middle by 1 + kappa / models^1.5, about as fast
as Student's t nears the normal, and kappa is the value with which bounds from the other models hold
the rows of models left out, each model counting alike (`Stretch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError

Array = NDArray[np.float64]

#: Share of runs that the bounds are to hold.
LEVEL = 0.9

#: Rows from elsewhere weigh as much as the rows of this many models.
OTHERS_MODELS = 1.0

#: How fast a stretch fades with the number of models.
_FADES = 1.5


@dataclass
class Conformal:
    """Bounds on the log ratios of models that were not seen.

    ``kappa`` is a `Stretch`'s. Fitted: ``low_`` and ``high_``, log ratios; ``models_``, the models
    in the fit. The prediction itself always lies within: low_ <= 0 <= high_.
    """

    kappa: float = 0.0
    level: float = LEVEL
    low_: float = field(default=np.nan, init=False)
    high_: float = field(default=np.nan, init=False)
    models_: int = field(default=0, init=False)

    def fit(
        self, log_ratio: Array, model: NDArray[np.object_], others: Array | None = None
    ) -> Conformal:
        """Fit to rows of ``log_ratio``, each of a ``model``; ``others``: log ratios elsewhere.

        Raises HymellError where there is no row at all or one is not finite.
        """
        low, high = quantiles(log_ratio, model, others, self.level)
        self.models_ = len(np.unique(model))
        stretch = 1 + self.kappa / max(self.models_, 1) ** _FADES
        middle, half = (low + high) / 2, (high - low) / 2 * stretch
        self.low_, self.high_ = min(middle - half, 0.0), max(middle + half, 0.0)
        return self

    def holds(self, log_ratio: Array) -> NDArray[np.bool_]:
        """Whether each row lies within the bounds."""
        return np.asarray((log_ratio >= self.low_) & (log_ratio <= self.high_))


@dataclass
class Stretch:
    """How much wider bounds from few models must be: ``kappa_`` of `Conformal`, 0 or more."""

    level: float = LEVEL
    kappa_: float = field(default=0.0, init=False)

    def fit(self, needed: Sequence[Array]) -> Stretch:
        """Fit to the kappa that each row needed (`kappa_needed`), an array for each model left out.

        Raises HymellError without models.
        """
        if not needed or not all(len(rows) for rows in needed):
            raise HymellError("a stretch is fitted to rows of models left out; there are none")
        weight = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in needed])
        self.kappa_ = max(_quantile(np.concatenate(needed), weight, self.level), 0.0)
        return self


def kappa_needed(
    left_out: Array, log_ratio: Array, model: NDArray[np.object_], others: Array | None = None
) -> Array:
    """The kappa with which bounds from the rows given reach each row of a model left out.

    Infinite where the rows given have no spread.
    """
    low, high = quantiles(log_ratio, model, others)
    half = (high - low) / 2
    away = np.abs(left_out - (low + high) / 2)
    if half == 0:
        return np.where(away > 0, np.inf, 0.0)
    return np.asarray((away / half - 1) * max(len(np.unique(model)), 1) ** _FADES)


def quantiles(
    log_ratio: Array,
    model: NDArray[np.object_],
    others: Array | None = None,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Both quantiles, corrected for the number of rows, before any stretch."""
    elsewhere = np.zeros(0) if others is None else others
    rows = np.concatenate([log_ratio, elsewhere])
    if not len(rows) or not np.isfinite(rows).all():
        raise HymellError("bounds are fitted to log ratios of measured runs, each a finite number")
    weight = np.concatenate(
        [
            np.full(len(log_ratio), len(np.unique(model)) / max(len(log_ratio), 1)),
            np.full(len(elsewhere), OTHERS_MODELS / max(len(elsewhere), 1)),
        ]
    )
    share = min(1.0, (1 - (1 - level) / 2) * (len(rows) + 1) / len(rows))
    return -_quantile(-rows, weight, share), _quantile(rows, weight, share)


def _quantile(values: Array, weight: Array, share: float) -> float:
    """The smallest value with at least ``share`` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    place = min(int(np.searchsorted(reached, share - 1e-9)), len(values) - 1)
    return float(values[order[place]])


def hull(bounds: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The narrowest bounds that hold all of them."""
    lows, highs = zip(*bounds, strict=True)
    return min(lows), max(highs)
