"""Blocks that are sums of layers timed one by one: Vidur's and LLMServingSim's.

Level 1 is fitted anew for every hold-out. The blocks that a correction learns from are priced by
level 1 without their own shapes as well: as far off as on a model that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from systems.rows import TWINS

from blocks_parts.judge import Source, joined
from blocks_parts.level1 import Stack, fitted, transferred
from blocks_parts.truth import Blocks, deployed, groups, kernels_of, priced, zoo_of
from hymell.errors import HymellError
from hymell.op_registry.primitives import Attention, Gemm
from hymell.workload import Precision

#: Blocks of one model, tensor parallelism and phase that are judged, and learnt from.
_JUDGED: Final = 1500
_LEARNT: Final = 300


@dataclass
class Layers:
    """``rows`` of `hymell.measure.blocks.read_blocks`, of one block and phase on one stack.

    ``folder`` keeps level-1 fits.
    """

    stack: Stack
    rows: pd.DataFrame
    folder: Path
    bound: float = 1.0

    @property
    def names(self) -> Sequence[str]:
        return list(self.models)

    @cached_property
    def models(self) -> dict[str, frozenset[str]]:
        """Upstream's models by group: near twins, and those with the very same block, together."""
        found: dict[str, set[str]] = {}
        same: dict[tuple[Any, ...], str] = {}
        pairs = self.rows[["model", "zoo", "block", "phase", "members", "dtype"]]
        for row in pairs.drop_duplicates(["model"]).sort_values("model").itertuples(index=False):
            shape = self._shape(row)
            name = same.setdefault(shape, TWINS.get(row.zoo, row.zoo) or row.model)
            found.setdefault(name, set()).add(row.model)
        return {name: frozenset(models) for name, models in sorted(found.items())}

    def _shape(self, row: Any) -> tuple[Any, ...]:
        zoo = zoo_of(row.model, row.zoo)
        precision = Precision.of(row.dtype)
        model = deployed(zoo, self.stack.gpu, self.stack.library, 1, precision)
        kernels = kernels_of(model, row.block, row.phase or "decode", row.members.split("+"))
        primitives = [kernel.primitive for kernel in kernels]
        products = [(p.n, p.k) for p in primitives if isinstance(p, Gemm)]
        heads = [(p.heads, p.kv_heads) for p in primitives if isinstance(p, Attention)]
        return (*products, *heads) or (row.model,)

    def test(self, name: str) -> Blocks:
        return self._blocks(name, frozenset({name}), _JUDGED)

    def learnt(self, without: str = "") -> tuple[Blocks, NDArray[Any]]:
        out = frozenset({without} if without else ())
        parts = {n: self._blocks(n, out | {n}, _LEARNT) for n in self.names if n != without}
        owner = np.concatenate([np.full(len(part), name) for name, part in parts.items()])
        return joined(list(parts.values())), owner

    def strange(self, there: Source) -> Blocks:
        """By level 1 of the other GPU, scaled to this one and without its corrections."""
        made = transferred(fitted(there.stack, frozenset(), self.folder), self.stack)
        rows = _drawn(self.rows, _JUDGED)
        return joined([priced(self.stack, made, part) for part in groups(rows)])

    def _blocks(self, of: str, without: frozenset[str], most: int) -> Blocks:
        models = frozenset().union(*(self.models[name] for name in without))
        made = fitted(self.stack, models, self.folder)
        mine = _drawn(self.rows[self.rows["model"].isin(self.models[of])], most)
        return joined([priced(self.stack, made, part) for part in groups(mine)])


def _drawn(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many rows of each group, drawn with a fixed seed."""
    return pd.concat([g.sample(min(len(g), most), random_state=0) for g in groups(rows)])


def priceable(
    stack: Stack, rows: pd.DataFrame, folder: Path
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The rows of models that can be priced, and why the others cannot."""
    why: dict[str, str] = {}
    made = fitted(stack, frozenset(), folder)
    for model, mine in rows.groupby("model"):
        try:
            for part in groups(mine):
                priced(stack, made, part.head(1))
        except HymellError as error:
            why[str(model)] = str(error)
    return rows[~rows["model"].isin(list(why))], why
