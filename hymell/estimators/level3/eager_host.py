"""PyTorch eager in 16-bit formats: whole answers of one sequence, which wait for the host.

    T = max(kernels x seconds by data sheet, host_s x launches)

summed over the steps of a run. The host is Python and the dispatcher of transformers: its cost per
launch is that of a server's CPU and of a model's code, not of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.base import Array

#: Name -> (prior, width, unit, meaning).
TERMS: Final[Mapping[str, tuple[float, float, str, str]]] = {
    "kernels": (1.0, 0.2, "1", "x seconds of kernels at data-sheet rates"),
    "host_s": (15e-6, 15e-6, "s", "of host per launch"),
}

#: Relative error of one run that is nothing to speak of.
_NOISE: Final = 0.1


@dataclass
class HostFit:
    """The two coefficients, fitted as scikit-learn's estimators are.

    Minimised is the sum over runs of rho(log(predicted / measured) / 10%), soft-L1, each group
    weighing as a run does, plus ((value - prior) / width)^2.
    """

    coefficients_: dict[str, float] = field(default_factory=dict, init=False)

    def fit(
        self, kernel_s: Array, launches: Array, time_s: Array, group: NDArray[np.str_]
    ) -> HostFit:
        """Fit to runs of ``time_s`` seconds in groups of like ones; returns itself.

        Raises HymellError without runs and for a time that is no positive number.
        """
        if not len(time_s) or not (np.isfinite(time_s) & (time_s > 0)).all():
            raise HymellError("eager is fitted to measured runs, each of more than 0 seconds")
        from scipy.optimize import least_squares  # type: ignore[import-untyped]

        prior, width = (np.array([term[i] for term in TERMS.values()]) for i in (0, 1))
        _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
        weight = 1 / (_NOISE * np.sqrt(counts[place]))

        def residuals(scaled: Array) -> Array:
            told = _seconds(scaled * width, kernel_s, launches)
            return np.concatenate([weight * np.log(told / time_s), scaled - prior / width])

        start = prior / width
        best = least_squares(residuals, start, loss="soft_l1", bounds=(0.01 * start, np.inf))
        self.coefficients_ = dict(zip(TERMS, (best.x * width).tolist(), strict=True))
        return self

    def predict(self, kernel_s: Array, launches: Array) -> Array:
        """Seconds of runs, or of steps."""
        return _seconds(np.array(list(self.coefficients_.values())), kernel_s, launches)


def _seconds(values: Array, kernel_s: Array, launches: Array) -> Array:
    found: Array = np.maximum(values[0] * kernel_s, values[1] * launches)
    return found
