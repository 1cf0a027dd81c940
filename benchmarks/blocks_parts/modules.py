"""Latent attention measured as one module, priced by the shipped calibration of its library.

The tables are of DeepSeek's module alone, cut to fewer and fewer heads: a number of heads left out
stands for an unseen model. Level 1 was fitted on other tables, never on modules. The products of a
module that runs again and again find in L2 what its own weights leave there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from blocks_parts.judge import Source, joined
from blocks_parts.level1 import Stack
from blocks_parts.truth import Array, Blocks, deployed, sized
from hymell.estimators.base import Deployment
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.fitted import find_fitted
from hymell.estimators.level2.pricing import blocks_of
from hymell.estimators.level2.sums import block_sums
from hymell.estimators.queries import columns, query
from hymell.measure.judging import ROOFLINE_LAUNCH_S
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.primitives import Gemm, Primitive, RowReduce
from hymell.workload import Precision

#: Stored formats of the weights that a module ran in, as hymell's precision: None is the model's.
_WEIGHTS: Final = {"bfloat16": "bfloat16", "float8_block128": None, "nvfp4": "nvfp4"}


@dataclass(frozen=True)
class Seconds:
    """One kernel of every block: data sheet with its launches, analytical, corrected; (rows,)."""

    sheet: Array
    plain: Array
    better: Array


#: Blocks of one number of heads and format that are judged, and learnt from.
_JUDGED: Final = 400
_LEARNT: Final = 120

#: Left out together: a number of heads lies between two others, a quarter of them does not.
_HEADS: Final = ("1-2 heads", "4-8 heads", "16-32 heads", "64-128 heads")


@dataclass
class Modules:
    """The module tables of one GPU, library and phase, of the newest version.

    Level 1's latent attention is another library's where its own was not measured, and up to ten
    times off: the correction is bounded more widely.
    """

    stack: Stack
    rows: pd.DataFrame
    bound: float = 2.5

    @property
    def names(self) -> Sequence[str]:
        return _HEADS

    def test(self, name: str) -> Blocks:
        return self._drawn(_JUDGED, self._group == name)

    def learnt(self, without: str = "") -> tuple[Blocks, NDArray[Any]]:
        train = self._drawn(_LEARNT, self._group != without)
        return train, _group(train.labels)

    def strange(self, there: Source) -> Blocks:
        """By the calibration of this GPU: only modules are new to it."""
        return self._drawn(_JUDGED, np.ones(len(self._all), dtype=bool))

    @cached_property
    def _all(self) -> Blocks:
        keys = ["dtype", "gemm_dtype", "kv_dtype", "tp"]
        return joined([priced(self.stack, rows) for _, rows in self.rows.groupby(keys, sort=True)])

    @cached_property
    def _group(self) -> NDArray[Any]:
        return _group(self._all.labels)

    def _drawn(self, most: int, wanted: NDArray[np.bool_]) -> Blocks:
        labels = self._all.labels[wanted]
        parts = labels.groupby(["gemm_dtype", "kv_dtype", "tp"], sort=True)
        rows = [part.sample(min(len(part), most), random_state=0).index for _, part in parts]
        return self._all.take(np.sort(np.concatenate(rows)))


def _group(labels: pd.DataFrame) -> NDArray[Any]:
    """What is left out together: by the heads on one GPU."""
    heads = 128.0 / labels["tp"].to_numpy(float)
    return np.array(_HEADS)[np.floor(np.log2(heads) / 2.0 + 1e-9).astype(int).clip(0, 3)]


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of one GPU and library the rows of the newest version, of one model: all have its shape."""
    version = max(rows["version"].unique(), key=_natural)
    mine = rows[(rows["version"] == version) & rows["dtype"].eq("bfloat16")]
    return mine[mine["model"] == sorted(mine["model"].unique())[-1]]


def _natural(version: str) -> tuple[tuple[bool, int], ...]:
    digits = "".join(c if c.isdigit() else " " for c in version).split()
    return tuple((True, int(part)) for part in digits)


def priced(stack: Stack, rows: pd.DataFrame) -> Blocks:
    """Modules of one shape, format and phase."""
    first = rows.iloc[0]
    phase = str(first["phase"])
    kv = None if first["kv_dtype"] == first["dtype"] else str(first["kv_dtype"])
    precision = Precision(weights=_WEIGHTS[str(first["gemm_dtype"])], kv=kv)
    model = deployed(str(first["zoo"]), stack.gpu, stack.library, int(first["tp"]), precision)
    kernels = kernels_of(model, phase)
    primitives = [sized(kernel, rows, phase) for kernel in kernels]
    weights = sum(p.weight_bytes for p in primitives if isinstance(p, Gemm))
    found = [
        _seconds(p, k, model, weights, len(rows)) for p, k in zip(primitives, kernels, strict=True)
    ]
    return Blocks(
        rows.reset_index(drop=True),
        rows["time_s"].to_numpy(float),
        np.sum([each.sheet for each in found], axis=0),
        block_sums(((p, f.plain) for p, f in zip(primitives, found, strict=True)), len(rows)),
        block_sums(((p, f.better) for p, f in zip(primitives, found, strict=True)), len(rows)),
    )


def kernels_of(model: Deployment, phase: str) -> list[Kernel]:
    """The kernels of the module in one layer: from its first product on, no exchange."""
    region = next(i for i, r in enumerate(model.graph.regions) if r.phase == phase)
    kernels = model.lowered(region).kernels
    block = [b for b in blocks_of(kernels, phase) if b.key[:2] == ("attention", "latent")][-1]
    chosen = [kernels[place] for place in block.kernels]
    while isinstance(chosen[0].primitive, RowReduce):
        chosen.pop(0)
    return chosen


def _seconds(
    primitive: Primitive, kernel: Kernel, model: Deployment, weights: Any, rows: int
) -> Seconds:
    priced_by = model.estimator
    inner = getattr(priced_by, "inner", priced_by)
    assert isinstance(inner, Calibrated)
    asked = query(primitive)
    found = None
    if asked is not None:
        if asked.host is not None and asked.beside is not None:
            host = query(asked.host)
            whose = None if host is None else find_fitted(model.gpu, inner.sources, host.keys)
            if whose is not None and whose.library:
                asked = asked.beside(whose.library)
        if asked.included:
            nothing = np.zeros(rows)
            return Seconds(nothing, nothing, nothing)
        found = find_fitted(model.gpu, inner.sources, asked.keys)
    if found is None or asked is None:
        time_s = np.broadcast_to(inner.time(primitive, model.gpu).time_s, rows).astype(float)
        sheet = inner.fallback.time(primitive, model.gpu).time_s + ROOFLINE_LAUNCH_S
        return Seconds(np.broadcast_to(sheet, rows) * kernel.launches, time_s, time_s)
    sizes = dict(asked.sizes())
    if "copies" in sizes:
        sizes["copies"] = weights / np.maximum(primitive.weight_bytes, 1)
    if "cold" in sizes:
        sizes["cold"] = 0
    dims = {n: np.broadcast_to(v, rows).copy() for n, v in columns(sizes).items()}
    estimator = found.estimator
    floor = estimator.form.floor_s(dims, estimator.device) + ROOFLINE_LAUNCH_S
    plain = estimator.predict(dims, corrected=False).time_s
    return Seconds(kernel.launches * floor, plain, estimator.predict(dims).time_s)
