"""Offsets fitted to a few measured runs: few enough that priors decide how far they are believed.

Minimised is the sum over measured times of ((estimate with offsets / measured - 1) / NOISE)^2 plus,
for each offset, ((value - prior) / width)^2; none is below 0. The widths were chosen on published
runs by `benchmarks/own_runs.py` (docs/accuracy_own_runs.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hymell.estimators.level3.fit import NOISE
from hymell.estimators.nonnegative import Array, nonnegative_least_squares
from hymell.estimators.offsets import LEAST, MOST, Offsets

#: Offset of time -> its value without any run.
PRIORS: Final[Mapping[str, float]] = {
    "prefill": 1.0,
    "decode": 1.0,
    "step_s": 0.0,
    "sequence_s": 0.0,
}

#: How far each is believed to be from that; an offset of width 0 is not fitted.
WIDTHS: Final[Mapping[str, float]] = {
    "prefill": 0.06,
    "decode": 0.06,
    "step_s": 5e-4,
    "sequence_s": 1e-5,
}

#: The same of the factor of energy.
ENERGY_WIDTH: Final = 0.8


@dataclass
class OffsetFit:
    """Offsets of time of one configuration, fitted as scikit-learn's estimators are.

    ``widths``: of the prior of each of `PRIORS`. ``offsets_``: what was found.
    """

    widths: Mapping[str, float] = field(default_factory=lambda: dict(WIDTHS))
    offsets_: Offsets = field(default_factory=Offsets, init=False)

    def fit(self, columns: Mapping[str, Array], time_s: Array) -> OffsetFit:
        """Fit to measured times; returns itself.

        ``columns`` holds for each of `PRIORS` what it is multiplied with, one entry per time:
        estimated seconds of prefill and of decode in it, its steps, its steps x sequences of one
        GPU.
        """
        # What no time has a part in stays as it is believed.
        fitted = [name for name in PRIORS if self.widths[name] and columns[name].any()]
        fixed = sum(PRIORS[name] * columns[name] for name in PRIORS if name not in fitted)
        prior = np.array([PRIORS[name] for name in fitted])
        width = np.array([self.widths[name] for name in fitted])
        design = np.stack([columns[name] / time_s for name in fitted], axis=1)
        target = 1 - fixed / time_s
        # In units of the widths, so that seconds and factors are of one size.
        rows = np.vstack([design * width / NOISE, np.eye(len(fitted))])
        found = nonnegative_least_squares(rows, np.concatenate([target / NOISE, prior / width]))
        values = dict(PRIORS) | dict(zip(fitted, (found * width).tolist(), strict=True))
        for name in ("prefill", "decode"):
            values[name] = min(max(values[name], LEAST), MOST)
        self.offsets_ = Offsets(**values)
        return self

    def predict(self, columns: Mapping[str, Array]) -> Array:
        """Seconds of times with these columns."""
        return np.asarray(sum(getattr(self.offsets_, name) * columns[name] for name in PRIORS))


def energy_factor(joules: Array, measured_j: Array, width: float = ENERGY_WIDTH) -> float:
    """The factor of energy, drawn to 1 as `OffsetFit` draws times; 1 without measurements."""
    ratios = joules / measured_j
    precision = float((ratios**2).sum()) / NOISE**2 + 1 / width**2
    found = (float(ratios.sum()) / NOISE**2 + 1 / width**2) / precision
    return min(max(found, LEAST), MOST)
