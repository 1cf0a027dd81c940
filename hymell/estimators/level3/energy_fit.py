"""Fitting power to measured energy of whole runs: bounded below, held by priors, deterministic.

Minimised is the sum of rho over the residuals (predicted / measured - 1) / NOISE of the runs and
(coefficient - prior) / width of the coefficients, rho being soft-L1 so that runs that went wrong
upstream do not decide. No coefficient is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level3.energy_terms import (
    CAP,
    ENERGY_TERMS,
    SHARPNESS,
    Columns,
    capped,
    power_share,
)

#: Relative error of one run that is nothing to speak of: repeats differ by 1-5%.
NOISE = 0.05

#: The cap is a share of TDP that long loads come near; beyond these its form says nothing.
_CAP_RANGE = (0.4, 1.2)
_SHARPNESS_RANGE = (1.0, 20.0)


@dataclass
class EnergyFit:
    """Coefficients of `ENERGY_TERMS`, fitted as scikit-learn's estimators are.

    ``terms``: those that are fitted, the others stay at 0. ``soft``: with a cap below which power
    levels off; else power is linear up to TDP.
    """

    terms: tuple[str, ...]
    soft: bool = True
    coefficients_: dict[str, float] = field(default_factory=dict, init=False)

    def fit(
        self, columns: Columns, energy_j: NDArray[np.float64], tdp_w: NDArray[np.float64] | float
    ) -> EnergyFit:
        """Fit to runs of ``energy_j`` joules; returns itself.

        ``columns`` as `energy_columns` gives them, ``tdp_w`` of one GPU. Raises HymellError without
        runs, and for an energy that is no positive number.
        """
        if not len(energy_j) or not (np.isfinite(energy_j) & (energy_j > 0)).all():
            raise HymellError("power is fitted to measured runs, each of more than 0 joules")
        from scipy.optimize import least_squares  # type: ignore[import-untyped]

        known = [ENERGY_TERMS[name] for name in self.terms]
        known += [CAP, SHARPNESS] if self.soft else []
        prior = np.array([term.prior for term in known])
        width = np.array([term.width for term in known])
        shares = np.stack([columns[name] / columns["base"] for name in self.terms], 1)
        measured = energy_j / (tdp_w * columns["base"])

        def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
            x = shares @ values[: len(self.terms)]
            share = capped(x, *values[-2:]) if self.soft else x
            return np.concatenate([(share / measured - 1) / NOISE, (values - prior) / width])

        def slopes(values: NDArray[np.float64]) -> NDArray[np.float64]:
            slope = _slopes(shares, shares @ values[:-2], *values[-2:]) if self.soft else shares
            return np.vstack([slope / measured[:, None] / NOISE, np.diag(1 / width)])

        low, high = np.zeros(len(known)), np.full(len(known), np.inf)
        if self.soft:
            low[-2:], high[-2:] = zip(_CAP_RANGE, _SHARPNESS_RANGE, strict=True)
        found = least_squares(
            residuals, prior, slopes, (low, high), x_scale=width, loss="soft_l1", max_nfev=200
        ).x
        names = [term.name for term in known]
        self.coefficients_ = dict(zip(names, found.tolist(), strict=True))
        return self

    def predict(self, columns: Columns, tdp_w: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Joules of runs."""
        return np.asarray(tdp_w * columns["base"] * power_share(columns, self.coefficients_))


def _slopes(
    shares: NDArray[np.float64], x: NDArray[np.float64], cap: float, k: float
) -> NDArray[np.float64]:
    """Derivatives of `capped` by each coefficient, the cap and its sharpness."""
    found = capped(x, cap, k)
    by_x, by_cap = (found / x) ** (k + 1), (found / cap) ** (k + 1)
    # d ln P / dk, with the weights of x and of the cap in the sum of powers.
    of_x = (found / x) ** k
    mean_log = of_x * np.log(x) + (1 - of_x) * np.log(cap)
    by_k = found / k * (mean_log - np.log(found))
    return np.column_stack([shares * by_x[:, None], by_cap, by_k])
