"""HYMELL's last step: a small network on global parameters that corrects a system's time.

It looks at ratios and logarithms only (`residual_features`), gives the logarithm of a factor, and
is bounded: a system is never corrected by more than exp(`bound`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level3.terms import Columns
from hymell.estimators.mlp import Mlp

Array = NDArray[np.float64]

#: Global parameters of a run that the network looks at: counts, one entry per run.
SIZES: Final = (
    *("parameters", "active_parameters", "layers", "gpus"),
    *("batch", "prompt", "output"),
)

#: Groups of kernels whose shares of all kernels' seconds it looks at.
_SHARES: Final = ("prefill", "attention", "experts", "comm")

#: Seconds of kernels, each counted once.
_KERNELS: Final = ("prefill", "dense", "experts", "attention", "comm")

#: exp(0.2) - 1: a system is corrected by 22% at most.
BOUND: Final = 0.2


def residual_features(columns: Columns, sizes: Mapping[str, Array]) -> Array:
    """(runs, n) logarithms of `SIZES`, of their ratios, and shares of kernels' seconds.

    ``columns`` are those of `terms.columns`. The width is that of a dense model with as many active
    parameters per layer; the share of active parameters tells experts from dense models.
    """
    kernels = np.sum([columns[name] for name in _KERNELS], axis=0)
    width = np.sqrt(sizes["active_parameters"] / np.maximum(sizes["layers"], 1))
    logs = [
        width,
        sizes["layers"] + 1,
        sizes["active_parameters"] / sizes["parameters"],
        sizes["gpus"],
        sizes["batch"],
        sizes["prompt"],
        sizes["output"],
    ]
    shares = [columns[name] / np.maximum(kernels, 1e-12) for name in _SHARES]
    return np.column_stack([*map(np.log2, logs), *shares])


@dataclass
class Residual:
    """A network from `residual_features` to log(measured / predicted), fitted as estimators are.

    ``bound`` infinite is HYMELL's own, which nothing holds. Deterministic on one thread.
    """

    bound: float = BOUND
    hidden: tuple[int, ...] = (16, 16)
    steps: int = 200
    network_: Mlp | None = field(default=None, init=False)

    def fit(self, features: Array, log_ratio: Array) -> Residual:
        """Train on runs; returns itself. Needs torch; raises HymellError without runs."""
        if not len(log_ratio):
            raise HymellError("a residual is trained on measured runs; there are none")
        from hymell.estimators.training import train_mlp

        self.network_ = train_mlp(
            features,
            log_ratio,
            hidden=self.hidden,
            bound=self.bound,
            batch=len(log_ratio),
            epochs=1,
            fewest_steps=self.steps,
        )
        return self

    def predict(self, features: Array) -> Array:
        """The factor by which each run's time is to be multiplied."""
        if self.network_ is None:
            raise HymellError("the residual is not fitted; call fit first")
        return np.asarray(np.exp(self.network_.predict(features)[0]))
