"""Fit and evaluate any level-1 form, in scikit-learn's manner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level1.device import Device
from hymell.estimators.level1.form import Array, Choice, Dims, Form, Terms
from hymell.estimators.mlp import Mlp

#: Octaves over which the correction fades: slowly enough that doubling a size still costs more.
#: Physics alone speaks beyond.
_FADING_OCTAVES = 3.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an estimator says of each row.

    ``spread`` is the standard deviation of log time that the estimator is unsure by; ``regime``
    indexes `form.REGIMES`; ``in_range`` is True where every size lies in the range seen, nowhere
    for coefficients that nothing was seen for.
    """

    time_s: Array
    spread: Array
    regime: NDArray[np.int64]
    in_range: NDArray[np.bool_]


class Level1:
    """An analytical form with an optional bounded residual correction, for one device.

    ``trusted_octaves`` is how far outside the range seen the correction keeps its full weight;
    three octaves further it has faded.

    Nothing happens in ``__init__``; ``fit`` sets ``coefficients_`` (by name), ``choice_``,
    ``ranges_`` (log2 bounds of each range dim), ``spread_`` (of the training residuals, in log
    time), ``correction_`` (an `Mlp`, or None) and ``rows_`` (0: coefficients at their priors).
    """

    def __init__(
        self,
        form: Form,
        device: Device,
        *,
        corrected: bool = True,
        bound: float = 1.0,
        hidden: Sequence[int] = (32, 32, 32),
        epochs: int = 60,
        seeds: Sequence[int] = (0, 1, 2),
        f_scale: float = 0.1,
        ridge: float = 0.05,
        trusted_octaves: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.form = form
        self.device = device
        self.corrected = corrected
        self.bound = bound
        self.hidden = hidden
        self.epochs = epochs
        self.seeds = seeds
        self.f_scale = f_scale
        self.ridge = ridge
        self.trusted_octaves = trusted_octaves
        self.seed = seed

    coefficients_: dict[str, float]
    choice_: Choice
    ranges_: dict[str, tuple[float, float]]
    spread_: float
    correction_: Mlp | None
    rows_: int = 0

    def fit(self, dims: Dims, time_s: Array) -> Self:
        """Fit to measured seconds; every discrete choice is tried on the training rows alone.

        ``dims``: one float array per size that the form names. Needs scipy, and torch when
        corrected.
        """
        from hymell.estimators.level1.least_squares import fit_log

        form, device = self.form, self.device
        names = [c.name for c in form.coefficients]
        prior = np.array([c.prior(device) for c in form.coefficients])
        sigma = np.array([c.sigma for c in form.coefficients])
        least = np.array([c.least(device) if c.least else 0.0 for c in form.coefficients])
        most = np.array([c.most(device) if c.most else np.inf for c in form.coefficients])
        best = np.inf
        for choice in form.choices:

            def predict(values: Array, rows: NDArray[np.int64], choice: Choice = choice) -> Array:
                chosen = {name: array[rows] for name, array in dims.items()}
                named = dict(zip(names, values.tolist(), strict=True))
                return form.evaluate(named, chosen, device, choice).time_s

            found = fit_log(
                predict,
                prior,
                sigma,
                time_s,
                f_scale=self.f_scale,
                ridge=self.ridge,
                seed=self.seed,
                least=least,
                most=most,
            )
            error = float(np.abs(np.log(predict(found, np.arange(len(time_s))) / time_s)).mean())
            if error < best:
                best = error
                self.coefficients_ = dict(zip(names, found.tolist(), strict=True))
                self.choice_ = choice
        self.ranges_ = {
            name: (
                float(np.log2(np.maximum(dims[name], 1.0)).min()),
                float(np.log2(np.maximum(dims[name], 1.0)).max()),
            )
            for name in form.range_dims
        }
        self.rows_ = len(time_s)
        self.correction_ = None
        if self.corrected:
            return self.correct(dims, time_s)
        return self._measure_spread(dims, time_s)

    def correct(self, dims: Dims, time_s: Array) -> Self:
        """Train the correction of fitted coefficients, which stay as they are. Needs torch."""
        from hymell.estimators.training import train_mlp

        terms = self.terms(dims)
        self.correction_ = train_mlp(
            self.form.features(dims, terms, self.device),
            np.log(time_s / self._floored(terms.time_s, dims)),
            hidden=self.hidden,
            epochs=self.epochs,
            seeds=self.seeds,
            bound=self.bound,
        )
        return self._measure_spread(dims, time_s)

    def _measure_spread(self, dims: Dims, time_s: Array) -> Self:
        self.spread_ = 0.0
        residual = np.log(time_s / self.predict(dims).time_s)
        self.spread_ = float(np.sqrt(np.mean(residual**2)))
        return self

    @classmethod
    def at_priors(cls, form: Form, device: Device, spread: float) -> Self:
        """With coefficients at their priors and no correction, for want of measurements.

        Marked as such: ``rows_`` is 0. ``spread``: what the priors are unsure by, in log time.
        """
        made = cls(form, device, corrected=False)
        made.coefficients_ = {c.name: c.prior(device) for c in form.coefficients}
        made.choice_, made.ranges_ = dict(form.choices[0]), {}
        made.spread_, made.correction_, made.rows_ = spread, None, 0
        return made

    def terms(self, dims: Dims) -> Terms:
        """The analytical form alone, evaluated."""
        return self.form.evaluate(self.coefficients_, dims, self.device, self.choice_)

    def predict(self, dims: Dims, *, corrected: bool = True) -> Prediction:
        """Seconds, spread, regime and whether the sizes were in range, for each row.

        No time is below the data-sheet floor. ``corrected`` False gives the analytical form alone.
        """
        terms = asked = self.terms(dims)
        time_s = terms.time_s
        seen = dims if self.form.as_measured is None else self.form.as_measured(dims)
        if seen is not dims:
            asked = self.terms(seen)
            time_s = np.maximum(time_s, asked.time_s)
        outside = self._octaves_outside(dims)
        spread = np.full(len(time_s), self.spread_)
        if corrected and self.correction_ is not None:
            log_ratio, disagreement = self.correction_.predict(
                self.form.features(seen, asked, self.device)
            )
            beyond = outside - self.trusted_octaves
            fade = np.clip(1.0 - beyond / _FADING_OCTAVES, 0.0, 1.0)
            time_s = self._floored(time_s, dims) * np.exp(fade * log_ratio)
            spread = np.hypot(spread, disagreement)
        spread = spread * (1.0 + outside)
        return Prediction(
            self._floored(time_s, dims),
            spread,
            terms.regime(),
            (outside == 0) & (self.rows_ > 0),
        )

    def _floored(self, time_s: Array, dims: Dims) -> Array:
        return np.maximum(time_s, self.form.floor_s(dims, self.device))

    def _octaves_outside(self, dims: Dims) -> Array:
        """How far each row lies outside the range seen, in octaves, the worst size counting."""
        total = np.zeros(len(next(iter(dims.values()))))
        for name, (low, high) in self.ranges_.items():
            value = np.log2(np.maximum(dims[name], 1.0))
            total = np.maximum(total, np.maximum(low - value, value - high))
        return np.maximum(total, 0.0)

    def to_dict(self) -> dict[str, object]:
        """Everything but the correction's weights, ready for JSON."""
        return {
            "form": self.form.name,
            "op": self.form.op,
            "coefficients": {
                c.name: {"value": self.coefficients_[c.name], "unit": c.unit}
                for c in self.form.coefficients
            },
            "choice": dict(self.choice_),
            "ranges_log2": {name: list(bounds) for name, bounds in self.ranges_.items()},
            "spread": self.spread_,
            "rows": self.rows_,
            "corrected": self.correction_ is not None,
            "trusted_octaves": self.trusted_octaves,
        }

    @classmethod
    def from_dict(
        cls, content: Mapping[str, object], form: Form, device: Device, correction: Mlp | None
    ) -> Self:
        """The inverse of `to_dict`; KeyError or TypeError when the content is not of that shape."""
        made = cls(
            form,
            device,
            corrected=correction is not None,
            trusted_octaves=float(content["trusted_octaves"]),  # type: ignore[arg-type]
        )
        coefficients = content["coefficients"]
        assert isinstance(coefficients, Mapping)
        made.coefficients_ = {
            str(name): float(entry["value"]) for name, entry in coefficients.items()
        }
        choice = content["choice"]
        assert isinstance(choice, Mapping)
        made.choice_ = dict(choice)
        ranges = content["ranges_log2"]
        assert isinstance(ranges, Mapping)
        made.ranges_ = {str(k): (float(v[0]), float(v[1])) for k, v in ranges.items()}
        made.spread_ = float(content["spread"])  # type: ignore[arg-type]
        made.rows_ = int(content["rows"])  # type: ignore[call-overload]
        made.correction_ = correction
        return made
