"""Block corrections judged on what they have not seen, the stage chosen without it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from blocks_parts.level1 import Stack
from blocks_parts.truth import Array, Blocks
from hymell.estimators.level2.correction import BlockCorrection, Choice, choose
from hymell.estimators.level2.sums import stacked
from hymell.estimators.training import train_mlp

#: Of the trials by which a stage is chosen.
TRIAL: Final[Mapping[str, Any]] = {"seeds": (0,)}

#: Estimators, in the order of the tables.
SHEET, ANALYTICAL, SUM, MLP, OURS = ESTIMATORS = (
    "data sheet",
    "analytical sum",
    "sum of level 1",
    "unbounded MLP",
    "level 2",
)


class Source(Protocol):
    """Blocks of one kind and phase that one stack timed, in groups that are left out together."""

    stack: Stack
    bound: float

    @property
    def names(self) -> Sequence[str]:
        """The groups."""

    def test(self, name: str) -> Blocks:
        """The blocks of a group, by level 1 that has not seen their shapes."""

    def learnt(self, without: str = "") -> tuple[Blocks, NDArray[Any]]:
        """What a correction for an unseen group learns from, and the group of each block."""

    def strange(self, there: Source) -> Blocks:
        """All blocks, by what is known of the GPU of ``there`` alone where level 1 needs rows."""


@dataclass(frozen=True)
class Held:
    """Predictions for blocks that were left out; seconds, (rows,), by name of `ESTIMATORS`."""

    labels: pd.DataFrame
    groups: NDArray[Any]
    time_s: Array
    predicted_s: Mapping[str, Array]
    choices: Mapping[str, Choice]

    def percent(self, name: str = OURS) -> Array:
        """Signed errors in %."""
        found: Array = 100.0 * (self.predicted_s[name] / self.time_s - 1.0)
        return found

    def mape(self, name: str = OURS) -> float:
        return float(np.abs(self.percent(name)).mean())


def joined(parts: Sequence[Blocks]) -> Blocks:
    """Blocks one after another."""
    return Blocks(
        pd.concat([part.labels for part in parts], ignore_index=True),
        np.concatenate([part.time_s for part in parts]),
        np.concatenate([part.sheet_s for part in parts]),
        stacked(part.analytical for part in parts),
        stacked(part.corrected for part in parts),
    )


def held_out(source: Source) -> Held:
    """Every group left out in turn."""
    tests: list[Blocks] = []
    ours: list[Array] = []
    plain: list[Array] = []
    choices: dict[str, Choice] = {}
    for name in source.names:
        test = source.test(name)
        train, owner = source.learnt(name)
        choices[name], made = corrected(train, owner, source.bound)
        ours.append(made.predict(test.corrected))
        plain.append(unbounded(train, test))
        tests.append(test)
    names = np.repeat(list(source.names), [len(test) for test in tests])
    return _held(joined(tests), names, np.concatenate(ours), np.concatenate(plain), choices)


def corrected(train: Blocks, owner: NDArray[Any], bound: float) -> tuple[Choice, BlockCorrection]:
    """A correction at the stage that groups left out of ``train`` speak for."""
    choice = choose(train.corrected, train.time_s, owner, bound=bound, **TRIAL)
    made = BlockCorrection(choice.stage, bound=bound).fit(train.corrected, train.time_s)
    return choice, made


def abroad(home: Source, others: Sequence[Source]) -> Held:
    """Blocks of one GPU by corrections of others, the stage chosen by leaving out one of them.

    With fewer of them than a choice needs, their models are left out instead.
    """
    learnt = [other.learnt() for other in others]
    train = joined([blocks for blocks, _ in learnt])
    owner = np.concatenate(
        [
            np.array([f"{other.stack.gpu} {name}" for name in names])
            for other, (_, names) in zip(others, learnt, strict=True)
        ]
    )
    gpus = np.array([name.split(" ", 1)[0] for name in owner])
    groups = gpus if len(np.unique(gpus)) > 2 else owner
    choice, made = corrected(train, groups, home.bound)
    test = home.strange(others[0])
    name = home.stack.gpu
    whole = np.full(len(test), name)
    ours, plain = made.predict(test.corrected), unbounded(train, test)
    return _held(test, whole, ours, plain, {name: choice})


def _held(
    blocks: Blocks,
    names: NDArray[Any],
    ours: Array,
    plain: Array,
    choices: Mapping[str, Choice],
) -> Held:
    predicted = {
        SHEET: blocks.sheet_s,
        ANALYTICAL: blocks.analytical.total_s,
        SUM: blocks.corrected.total_s,
        MLP: plain,
        OURS: ours,
    }
    return Held(blocks.labels, names, blocks.time_s, predicted, choices)


def unbounded(train: Blocks, test: Blocks) -> Array:
    """HYMELL's way: a plain MLP on the sums of level 1, not bounded, nowhere fading."""
    sums = train.corrected
    log_ratio = np.log(train.time_s / sums.total_s)
    net = train_mlp(sums.features(), log_ratio, epochs=1, seeds=(0,), bound=np.inf)
    free = replace(net, low=np.full_like(net.low, -np.inf), high=np.full_like(net.high, np.inf))
    found: Array = test.corrected.total_s * np.exp(free.predict(test.corrected.features())[0])
    return found
