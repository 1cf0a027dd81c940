"""Fitting a system's coefficients to measured runs: bounded below, held by priors, deterministic.

Minimised is the sum over runs of rho((predicted / measured - 1) / NOISE) plus, for each
coefficient, ((value - prior) / width)^2. rho is soft-L1, 2 (sqrt(1 + r^2) - 1), so that a run that
went wrong upstream does not decide. All coefficients are 0 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level3.terms import (
    FLOORS,
    MULTIPLIERS,
    TERMS,
    Columns,
    comm_s,
    hidden_s,
    total,
)

Array = NDArray[np.float64]

#: Relative error of one run that is nothing to speak of: repeats differ by 1-5%.
NOISE = 0.05

_ROUNDS = 8


@dataclass
class SystemFit:
    """Coefficients of `TERMS`, fitted as scikit-learn's estimators are.

    ``terms``: those that are fitted, the others stay at 0 (multipliers at 1). ``tied``: multipliers
    that share one value. ``prior``: means that replace those of `TERMS`. ``width``: by what their
    widths are multiplied; smaller keeps closer to the prior.
    """

    terms: tuple[str, ...] = tuple(TERMS)
    tied: tuple[str, ...] = ()
    prior: Mapping[str, float] = field(default_factory=dict)
    width: float = 1.0
    coefficients_: dict[str, float] = field(default_factory=dict, init=False)

    def fit(self, columns: Columns, time_s: NDArray[np.float64]) -> SystemFit:
        """Fit to runs of ``time_s`` seconds; returns itself.

        Raises HymellError without runs, and for a time that is no positive number.
        """
        if not len(time_s) or not (np.isfinite(time_s) & (time_s > 0)).all():
            raise HymellError("a system is fitted to measured runs, each of more than 0 seconds")
        from scipy.optimize import nnls  # type: ignore[import-untyped]

        fixed = {name: 1.0 for name in MULTIPLIERS if name not in self.terms}
        groups = self._groups()
        names = [group[0] for group in groups]
        bound = {floor: np.zeros(len(time_s), dtype=bool) for floor in FLOORS}
        prior = np.array([self._prior(name) for name in names])
        width = np.array([TERMS[name].width * self.width for name in names])
        weight = np.ones(len(time_s))
        found = self._started(columns, time_s, names, prior)
        for _ in range(_ROUNDS):
            values = self._values(found, groups, fixed)
            for floor in FLOORS:
                host_s = values.get(floor, 0.0) * columns[floor]
                bound[floor] = host_s > hidden_s(columns, values, floor)
            seen = _seen(columns, bound)
            design = np.stack([sum(seen[name] for name in group) / time_s for group in groups], 1)
            target = 1 - sum(value * seen[name] for name, value in fixed.items()) / time_s
            scale = weight / NOISE
            # In units of the widths, so that seconds and multipliers are of one size.
            rows = np.vstack([design * width * scale[:, None], np.eye(len(names))])
            aims = np.concatenate([target * scale, prior / width])
            found = nnls(rows, aims)[0] * width
            error = (design @ found - target) / NOISE
            weight = (1 + error**2) ** -0.25
        values = self._values(found, groups, fixed)
        self.coefficients_ = {name: values[name] for name in TERMS if name in values}
        return self

    def _values(
        self, found: Array, groups: list[tuple[str, ...]], fixed: Mapping[str, float]
    ) -> dict[str, float]:
        values = dict(fixed)
        for group, value in zip(groups, found.tolist(), strict=True):
            values |= dict.fromkeys(group, value)
        return values

    def _started(self, columns: Columns, time_s: Array, names: list[str], prior: Array) -> Array:
        """Priors; a host's pace starts as slow as the fastest run allows, or no run is bound."""
        found = prior.copy()
        for place, name in enumerate(names):
            if name in FLOORS and columns[name].any():
                launched = columns[name] > 0
                found[place] = float((time_s[launched] / columns[name][launched]).min())
        return found

    def predict(self, columns: Columns) -> NDArray[np.float64]:
        """Seconds of runs."""
        return total(columns, self.coefficients_)

    def _prior(self, name: str) -> float:
        return self.prior.get(name, TERMS[name].prior)

    def _groups(self) -> list[tuple[str, ...]]:
        together = tuple(name for name in self.terms if name in self.tied)
        alone: list[tuple[str, ...]] = [(n,) for n in self.terms if n not in self.tied]
        return [together, *alone] if together else alone


def _seen(columns: Columns, bound: Mapping[str, NDArray[np.bool_]]) -> dict[str, Array]:
    """The columns as they count: where a host binds its launches, elsewhere the kernels."""
    seen = dict(columns)
    for floor, kernels in FLOORS.items():
        seen[floor] = np.where(bound[floor], columns[floor], 0.0)
        seen["comm"] = seen["comm"] - np.where(bound[floor], comm_s(columns, floor), 0.0)
        for name in kernels:
            seen[name] = np.where(bound[floor], 0.0, columns[name])
    return seen
