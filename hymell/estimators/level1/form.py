"""What a level-1 estimator is made of: an analytical form with named, physical coefficients.

A `Form` is data and pure functions over arrays; `hymell.estimators.level1.estimator.Level1` fits
and evaluates any of them, so that a new primitive is one small module with one `Form`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level1.device import Device
from hymell.op_registry.primitives import Value

Array: TypeAlias = NDArray[np.float64]
#: Sizes of many kernels: one array per name, all of one length.
Dims: TypeAlias = Mapping[str, Array]
Coefficients: TypeAlias = Mapping[str, float]
#: A discrete choice of a form (a tile packing, an occupancy), picked on training rows.
Choice: TypeAlias = Mapping[str, float | str | bool]

#: Regime codes, in the order of `REGIMES`.
REGIMES = ("launch", "memory", "balanced-memory", "balanced-compute", "compute")


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A positive coefficient: its unit, and a prior as a function of the device.

    ``sigma`` is the width of the log-normal prior (1.0: a factor of e). No fit leaves
    ``least(device)`` to ``most(device)``, where physics knows such bounds.
    """

    name: str
    unit: str
    prior: Callable[[Device], float]
    sigma: float = 1.0
    least: Callable[[Device], float] | None = None
    most: Callable[[Device], float] | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """An evaluated form: total time, and the parts it is made of, in seconds.

    ``compute_s`` and ``memory_s`` decide the regime; ``launch_s`` is the constant part. ``extra``
    holds whatever else the features want (waves, padding, HBM share), unit by unit its own.
    """

    time_s: Array
    launch_s: Array
    memory_s: Array
    compute_s: Array
    extra: Mapping[str, Array] = field(default_factory=dict)

    def regime(self) -> NDArray[np.int64]:
        """Code of the regime each row is in: what its time is mostly made of.

        launch: the constant part is more than half; memory or compute: one of the two is more
        than 1.5 times the other; balanced in between.
        """
        balance = self.compute_s / np.maximum(self.memory_s, 1e-30)
        code = np.select([balance < 1 / 1.5, balance < 1.0, balance < 1.5], [1, 2, 3], default=4)
        return np.where(self.launch_s > 0.5 * self.time_s, 0, code).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Form:
    """An analytical form.

    ``evaluate(coefficients, dims, device, choice)`` gives `Terms`; ``floor_s(dims, device)`` is the
    data-sheet time that no prediction may undercut; ``features(dims, terms, device)`` gives the
    (rows, n) matrix that the residual correction sees: scale-free, bounded ratios and log terms.
    ``as_measured(dims)`` puts sizes in a state that no table has (caches and weights from HBM, as
    in serving) into that of the tables, where the correction is asked; a cold kernel never costs
    less. ``dims`` names the sizes it needs, ``range_dims`` those whose range in the training data
    says where the correction is trusted.
    """

    name: str
    op: str
    dims: tuple[str, ...]
    range_dims: tuple[str, ...]
    coefficients: tuple[Coefficient, ...]
    evaluate: Callable[[Coefficients, Dims, Device, Choice], Terms]
    floor_s: Callable[[Dims, Device], Array]
    features: Callable[[Dims, Terms, Device], Array]
    choices: tuple[Choice, ...] = ({},)
    as_measured: Callable[[Dims], Dims] | None = None
    source: str = ""


def as_benchmarked(dims: Dims) -> Dims:
    """`Form.as_measured` where ``cold`` 1 is data from HBM, and 0 what a benchmark repeats."""
    if not dims["cold"].any():
        return dims
    return {**dims, "cold": np.zeros_like(dims["cold"])}


def as_dims(**sizes: Value) -> dict[str, Array]:
    """Numbers and arrays as float arrays of one length, at least 1."""
    arrays = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, dtype=float)) for v in sizes.values())
    )
    return dict(zip(sizes, arrays, strict=True))


def join(a: Array, b: Array, power: float) -> Array:
    """(a^p + b^p)^(1/p): the larger of two overlapping costs, smoothly. Needs p >= 1."""
    high = np.maximum(a, b)
    low = np.minimum(a, b)
    return high * (1.0 + (low / np.maximum(high, 1e-30)) ** power) ** (1.0 / power)


def l2_miss(footprint_bytes: Array, l2_bytes: float, capacity: float, width: float) -> Array:
    """Share of accesses that miss L2 at a footprint: 1 / (1 + (x / (capacity L2))^(-1/width))."""
    ratio = np.maximum(footprint_bytes, 1.0) / (capacity * l2_bytes)
    with np.errstate(over="ignore"):  # far below the knee the power is inf: nothing misses
        return 1.0 / (1.0 + ratio ** (-1.0 / width))
