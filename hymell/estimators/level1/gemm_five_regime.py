"""GEMM in five regimes, as HYMELL (arXiv 2608.06723) has it: baseline and option.

Rows are sorted by FLOPs and arithmetic intensity into launch, memory, balanced-memory,
balanced-compute and compute; within a regime time is linear in FLOPs, PF = MN/K, the bytes read
and written, and their products, fitted by least squares of the relative error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Prediction
from hymell.estimators.level1.form import REGIMES, Array, Dims
from hymell.estimators.level1.gemm_formats import of
from hymell.estimators.level1.gemm_tile import tile_form

#: Units that make the terms of everyday sizes about 1: FLOP, 1, bytes, bytes.
_UNITS: Final = (1e12, 1e6, 1e8, 1e8)
#: The terms, by the index into (F, PF, B_in, B_out) of their factors: 11 coefficients a regime.
_TERMS: Final[tuple[tuple[int, ...], ...]] = (
    (),
    *((i,) for i in range(4)),
    *((i, j) for i in range(4) for j in range(i + 1, 4)),
)
#: Upper ends of the launch regime that are tried, in seconds at the data-sheet roofline.
_LAUNCH_S: Final = (0.5e-6, 1e-6, 2e-6, 4e-6)
#: Bounds of memory, balanced-memory and balanced-compute: intensity over the ridge point.
_INTENSITY: Final = (1 / 3, 1.0, 3.0)
_RIDGE: Final = 1e-6


class FiveRegime:
    """Five-regime regression of one dtype on one device, in scikit-learn's manner.

    ``fit`` sets ``coefficients_`` ((5, 11), microseconds per `_TERMS` in `_UNITS`), ``launch_s_``
    and ``spread_``.
    """

    def __init__(self, dtype: str, device: Device) -> None:
        self.dtype = dtype
        self.format = of(dtype)
        self.device = device

    coefficients_: NDArray[np.float64]
    launch_s_: float
    spread_: float
    ranges_: dict[str, tuple[float, float]]
    rows_: int

    def fit(self, dims: Dims, time_s: Array) -> Self:
        """Weighted least squares per regime; the launch bound with the least training error.

        A regime with fewer than 22 rows takes the coefficients of all rows. Raises HymellError for
        fewer than 22 rows in all.
        """
        least = 2 * len(_TERMS)
        if len(time_s) < least:
            raise HymellError(
                f"the five-regime form needs {least} rows or more and got {len(time_s)}"
            )
        terms = self._terms(dims)
        whole = _solve(terms, time_s)
        best = np.inf
        predicted = time_s
        for launch_s in _LAUNCH_S:
            regime = self._regime(dims, launch_s)
            found = np.stack(
                [
                    _solve(terms[rows], time_s[rows]) if rows.sum() >= least else whole
                    for rows in (regime == code for code in range(len(REGIMES)))
                ]
            )
            tried = self._time(dims, terms, found, regime)
            error = float(np.mean(np.abs(tried / time_s - 1.0)))
            if error < best:
                best, predicted = error, tried
                self.coefficients_, self.launch_s_ = found, launch_s
        self.ranges_ = {
            name: (float(dims[name].min()), float(dims[name].max())) for name in ("m", "n", "k")
        }
        self.rows_ = len(time_s)
        self.spread_ = float(np.sqrt(np.mean(np.log(predicted / time_s) ** 2)))
        return self

    def predict(self, dims: Dims) -> Prediction:
        """Seconds, never below the data-sheet floor; the regime is the one that was regressed."""
        regime = self._regime(dims, self.launch_s_)
        time_s = self._time(dims, self._terms(dims), self.coefficients_, regime)
        inside = np.ones(len(time_s), dtype=bool)
        for name, (low, high) in self.ranges_.items():
            inside &= (dims[name] >= low) & (dims[name] <= high)
        return Prediction(time_s, np.full(len(time_s), self.spread_), regime, inside)

    def to_dict(self) -> dict[str, Any]:
        """Everything that was fitted, ready for JSON."""
        return {
            "form": "five-regime",
            "op": "gemm",
            "dtype": self.dtype,
            "coefficients_us": self.coefficients_.tolist(),
            "launch_s": self.launch_s_,
            "ranges": {name: list(bounds) for name, bounds in self.ranges_.items()},
            "spread": self.spread_,
            "rows": self.rows_,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], device: Device) -> Self:
        """The inverse of `to_dict`; KeyError when something is missing."""
        made = cls(content["dtype"], device)
        made.coefficients_ = np.array(content["coefficients_us"])
        made.launch_s_ = float(content["launch_s"])
        made.ranges_ = {k: (float(v[0]), float(v[1])) for k, v in content["ranges"].items()}
        made.spread_ = float(content["spread"])
        made.rows_ = int(content["rows"])
        return made

    def _time(
        self, dims: Dims, terms: Array, coefficients: Array, regime: NDArray[np.int64]
    ) -> Array:
        time_s = (terms * coefficients[regime]).sum(1) * 1e-6
        # a regression may cross zero outside its rows: no kernel takes less than a microsecond
        floor_s = np.maximum(tile_form(self.dtype).floor_s(dims, self.device), 1e-6)
        floored: Array = np.maximum(time_s, floor_s)
        return floored

    def _sizes(self, dims: Dims) -> tuple[Array, Array, Array, Array]:
        """FLOPs, MN/K, bytes read, bytes written."""
        m, n, k, batch = dims["m"], dims["n"], dims["k"], dims["batch"]
        read = (m * k * self.format.a_bytes + n * k * self.format.b_bytes) * batch
        return 2 * m * n * k * batch, m * n / k * batch, read, m * n * self.format.out_bytes * batch

    def _terms(self, dims: Dims) -> Array:
        sizes = [size / unit for size, unit in zip(self._sizes(dims), _UNITS, strict=True)]
        columns = [np.prod([sizes[i] for i in term], axis=0) for term in _TERMS[1:]]
        return np.stack([np.ones(len(dims["m"])), *columns], axis=1)

    def _regime(self, dims: Dims, launch_s: float) -> NDArray[np.int64]:
        flops, _, read, written = self._sizes(dims)
        compute_s = flops / self.device.peak(self.format.math)
        memory_s = (read + written) / self.device.bandwidth
        code = 1 + np.searchsorted(_INTENSITY, compute_s / memory_s, side="right")
        return np.where(np.maximum(compute_s, memory_s) < launch_s, 0, code).astype(np.int64)


def _solve(terms: Array, time_s: Array) -> Array:
    """Least squares of the relative error, columns scaled alike and a trace of ridge."""
    weighted = terms / (time_s * 1e6)[:, None]
    scale = np.maximum(np.sqrt((weighted**2).mean(0)), 1e-30)
    design = weighted / scale
    gram = design.T @ design / len(time_s) + _RIDGE * np.eye(terms.shape[1])
    found: Array = np.linalg.solve(gram, design.mean(0)) / scale
    return found
