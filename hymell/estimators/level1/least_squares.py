"""Robust fitting of positive coefficients to relative errors. Needs scipy (extra ``calibrate``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def fit_log(
    predict: Callable[[Array, NDArray[np.int64]], Array],
    prior: Array,
    sigma: Array,
    time_s: Array,
    *,
    f_scale: float = 0.1,
    ridge: float = 0.05,
    bound: float = 3.0,
    max_rows: int = 6000,
    max_evaluations: int = 200,
    seed: int = 0,
    least: Array | None = None,
    most: Array | None = None,
) -> Array:
    """Coefficients that minimise soft-L1 of log(predicted / measured), near their priors.

    ``predict(coefficients, rows)`` gives seconds for the chosen rows. Each log-coefficient stays
    within ``bound`` of its prior and pays ``ridge * ((log c - log prior) / sigma)^2`` times the
    number of rows, so that what the data does not identify stays put; ``least`` and ``most`` bound
    the coefficients further. At most ``max_rows`` rows,
    drawn with ``seed``, are used: the fit is deterministic.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    count = len(time_s)
    chosen = np.arange(count)
    if count > max_rows:
        chosen = np.sort(np.random.default_rng(seed).choice(count, max_rows, replace=False))
    target = time_s[chosen]
    centre = np.log(prior)
    weight = np.sqrt(ridge * len(chosen)) * f_scale

    def residuals(theta: Array) -> Array:
        error = np.log(np.maximum(predict(np.exp(theta), chosen), 1e-12) / target)
        scaled = (error / f_scale) ** 2
        # soft-L1 by hand, so that the prior stays quadratic
        robust = f_scale * np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled) - 1.0))
        return np.concatenate([robust, weight * (theta - centre) / sigma])

    low, high = centre - bound, centre + bound
    if least is not None and most is not None:
        with np.errstate(divide="ignore"):  # no least value is 0
            low, high = np.maximum(low, np.log(least)), np.minimum(high, np.log(most))
    found = least_squares(
        residuals,
        # The solver starts inside the bounds.
        np.clip(centre, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        # Finer steps change predictions by less than any table repeats to.
        ftol=1e-5,
        max_nfev=max_evaluations,
        x_scale="jac",
    )
    return np.asarray(np.exp(found.x))
