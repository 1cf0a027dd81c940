"""How much longer, or shorter, a block takes than the kernels of level 1 added up.

    block = sum of level 1 * exp(fade * clip(log(scaled / sum) + net, -bound, bound))

``scaled`` has a multiplier for each kind of kernel, fitted in log space and held near 1 by a ridge;
``net`` is a small `Mlp` on what is left. Beyond the blocks seen both fade to the sum of level 1, as
level 1's own corrections fade to physics. Which of the stages is used is decided by leaving out one
model after the other of those that are fitted on (`choose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level2.sums import KINDS, RATIOS, Array, BlockSums
from hymell.estimators.mlp import Mlp

#: Nothing, multipliers per kind, multipliers and net.
STAGES: Final = ("sum", "scaled", "net")

#: Octaves outside the blocks seen that a correction keeps its weight, and over which it fades.
_TRUSTED_OCTAVES: Final = 1.0
_FADING_OCTAVES: Final = 3.0

#: With fewer groups nothing is chosen: what is left of them says too little of one more.
FEWEST_GROUPS: Final = 3

#: A stage must leave at most this share of the error of a simpler one to be worth it.
_WORTHWHILE: Final = 0.97

#: Standard deviation believed of a kind's log multiplier before any block is seen, and the error of
#: one block that is nothing to speak of.
_PRIOR_WIDTH: Final = 0.3
_NOISE: Final = 0.05

#: How many rows a table of blocks counts as beside the ridge: its rows are no independent samples.
_PRIOR_ROWS: Final = 300.0


@dataclass
class BlockCorrection:
    """Fitted as scikit-learn's estimators are.

    ``stage``: one of `STAGES`. ``bound`` of the log ratio; ``hidden``, ``epochs`` and ``seeds`` are
    those of the net. `fit` sets ``multipliers_`` (log, one per kind of `KINDS`), ``net_`` (None
    before the last stage), ``ranges_`` ((size, 2): least and most log2 of `_sizes`), ``rows_``.
    """

    stage: str = "net"
    bound: float = 1.0
    hidden: tuple[int, ...] = (16, 16)
    epochs: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    multipliers_: Array = field(init=False)
    net_: Mlp | None = field(init=False, default=None)
    ranges_: Array = field(init=False)
    rows_: int = field(init=False, default=0)

    def fit(self, sums: BlockSums, time_s: Array) -> BlockCorrection:
        """Fit to measured seconds (rows,); needs scipy, and torch for the net.

        Raises HymellError for another stage than `STAGES`, without blocks, and for a time or a sum
        that is no positive number.
        """
        if self.stage not in STAGES:
            raise HymellError(
                f"a block correction has no stage {self.stage!r}: {', '.join(STAGES)}"
            )
        check(sums, time_s)
        self.rows_ = len(sums)
        self.multipliers_ = np.zeros(len(KINDS))
        self.net_ = None
        sizes = _sizes(sums)
        self.ranges_ = np.column_stack([sizes.min(axis=0), sizes.max(axis=0)])
        if self.stage == "sum":
            return self
        self.multipliers_ = _multipliers(sums, time_s)
        if self.stage == "net":
            from hymell.estimators.training import train_mlp

            self.net_ = train_mlp(
                self._features(sums),
                np.log(time_s / self._scaled_s(sums)),
                hidden=self.hidden,
                epochs=self.epochs,
                seeds=self.seeds,
                bound=self.bound,
            )
        return self

    def log_ratio(self, sums: BlockSums) -> Array:
        """log(block / sum of level 1), (rows,)."""
        found = np.log(self._scaled_s(sums) / sums.total_s)
        if self.net_ is not None:
            found = found + self.net_.predict(self._features(sums))[0]
        sizes = _sizes(sums)
        outside = np.maximum(self.ranges_[:, 0] - sizes, sizes - self.ranges_[:, 1]).max(axis=1)
        fade = np.clip(1.0 - (outside - _TRUSTED_OCTAVES) / _FADING_OCTAVES, 0.0, 1.0)
        ratio: Array = fade * np.clip(found, -self.bound, self.bound)
        return ratio

    def predict(self, sums: BlockSums) -> Array:
        """Seconds of blocks, (rows,)."""
        seconds: Array = sums.total_s * np.exp(self.log_ratio(sums))
        return seconds

    def _scaled_s(self, sums: BlockSums) -> Array:
        scaled: Array = sums.seconds @ np.exp(self.multipliers_)
        return scaled

    def _features(self, sums: BlockSums) -> Array:
        return sums.features()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the weights of the net, ready for JSON."""
        return {
            "stage": self.stage,
            "bound": self.bound,
            "multipliers": {
                kind: round(float(np.exp(value)), 5)
                for kind, value in zip(KINDS, self.multipliers_, strict=True)
            },
            "ranges_log2": {
                name: [round(float(value), 4) for value in bounds]
                for name, bounds in zip(_SIZES, self.ranges_, strict=True)
            },
            "rows": self.rows_,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], net: Mlp | None) -> BlockCorrection:
        """The inverse of `to_dict`; KeyError, TypeError or ValueError for other content."""
        made = cls(stage=str(content["stage"]), bound=float(content["bound"]))
        if made.stage not in STAGES or (made.stage == "net") != (net is not None):
            raise ValueError(f"stage {made.stage!r} and its weights do not fit")
        multipliers = np.array([float(content["multipliers"][kind]) for kind in KINDS])
        made.ranges_ = np.array([content["ranges_log2"][name] for name in _SIZES], dtype=float)
        numbers = np.array([*multipliers, *made.ranges_.ravel(), made.bound])
        positive = (multipliers > 0).all() and made.bound > 0
        if made.ranges_.shape != (len(_SIZES), 2) or not (positive and np.isfinite(numbers).all()):
            raise ValueError("multipliers, bound or ranges cannot be")
        made.multipliers_ = np.log(multipliers)
        made.rows_, made.net_ = int(content["rows"]), net
        return made


#: What says whether a block is like those seen, in log2.
_SIZES: Final = ("us", *RATIOS)


def _sizes(sums: BlockSums) -> Array:
    return np.column_stack([np.log2(sums.total_s * 1e6), sums.ratios])


def _multipliers(sums: BlockSums, time_s: Array) -> Array:
    """Log multipliers that make the sum nearest in log space, robustly; 0 for kinds not there."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    used = sums.seconds.any(axis=0)
    seconds = sums.seconds[:, used]
    weight = np.sqrt(_PRIOR_ROWS / len(time_s))

    def miss(values: Array) -> Array:
        error: Array = np.log(seconds @ np.exp(values) / time_s) / _NOISE
        return np.concatenate([weight * error, values / _PRIOR_WIDTH])

    found = np.zeros(len(KINDS))
    start = np.zeros(int(used.sum()))
    found[used] = least_squares(miss, start, loss="soft_l1").x
    return found


def check(sums: BlockSums, time_s: Array) -> None:
    """Raises HymellError unless there are blocks, each of positive measured and summed seconds."""
    if not len(time_s) or len(time_s) != len(sums):
        raise HymellError(
            f"a block correction is fitted to measured blocks: {len(sums)} sums, "
            f"{len(time_s)} times"
        )
    for what, values in (("measured time", time_s), ("sum of level 1", sums.total_s)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise HymellError(f"every block needs a {what} of more than 0 seconds")
    if not np.isfinite(sums.ratios).all():
        raise HymellError("every block needs finite ratios")


@dataclass(frozen=True, slots=True)
class Choice:
    """A stage, and the mean absolute error in % of each stage on models left out."""

    stage: str
    errors: Mapping[str, float]


def choose(
    sums: BlockSums,
    time_s: Array,
    groups: NDArray[Any],
    stages: Sequence[str] = STAGES,
    **options: Any,
) -> Choice:
    """The simplest stage that no later one clearly beats on groups left out one after the other.

    ``groups`` (rows,): the model of each block. With fewer than `FEWEST_GROUPS` the sum of level 1
    stands. ``options`` are those of `BlockCorrection`. Errors are the mean over groups, so that no
    model decides by its number of rows.
    """
    names = np.unique(groups)
    if len(names) < FEWEST_GROUPS:
        return Choice("sum", {})
    errors: dict[str, list[float]] = {stage: [] for stage in stages}
    for name in names:
        held = groups == name
        for stage in stages:
            made = BlockCorrection(stage, **options).fit(sums.take(~held), time_s[~held])
            off = made.predict(sums.take(held)) / time_s[held] - 1.0
            errors[stage].append(100.0 * float(np.abs(off).mean()))
    means = {stage: float(np.mean(found)) for stage, found in errors.items()}
    best = stages[0]
    for stage in stages[1:]:
        if means[stage] < _WORTHWHILE * means[best]:
            best = stage
    return Choice(best, means)
