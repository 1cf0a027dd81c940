"""Bounds fitted without a model, judged on it; and the entries that ship, fitted to all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bounds.reach import beyond
from bounds.rows import CELL
from hymell.estimators.conformal import Conformal, Stretch, kappa_needed
from hymell.estimators.intervals import OWN, TRANSFERRED, Entry, Judged

Array = NDArray[np.float64]

#: Rows that bounds need: of n exchangeable rows (n - 1)/(n + 1) lie between the others' extremes,
#: 88% of 15.
FEWEST: Final = 15

#: Standard deviations on either side that hold 90% of a Gaussian.
_DEVIATIONS: Final = 1.645

#: What makes rows of different engines and GPUs alike.
_LIKE: Final = [name for name in CELL if name not in ("engine", "gpu")]

#: What tells runs apart, however they are priced: a stretch is not judged on runs of its fit.
_RUNS: Final = ["engine", "gpu", "load", "phase"]


Index = NDArray[np.int64]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Residuals:
    """Rows of `rows.residuals`, numbered from 0, and what bounds make of them."""

    rows: pd.DataFrame
    _needed: dict[tuple[Key, str, Key], Array] = field(default_factory=dict, repr=False)

    @cached_property
    def _cells(self) -> Mapping[Key, Index]:
        return {key: rows.to_numpy() for key, rows in self.rows.groupby(CELL).groups.items()}

    @cached_property
    def _alike(self) -> Mapping[Key, Index]:
        """Rows by what makes them alike: all of a cell's key but its engine and GPU."""
        return {key: rows.to_numpy() for key, rows in self.rows.groupby(_LIKE).groups.items()}

    def _groups(self, key: Key) -> NDArray[Any]:
        return np.unique(self._group[self._cells[key]])

    @cached_property
    def _group(self) -> NDArray[Any]:
        return self.rows["group"].to_numpy(dtype=object)

    @cached_property
    def _log(self) -> Array:
        return self.rows["log_ratio"].to_numpy(dtype=float)

    def _split(self, key: Key, out: str, apart: Key = ()) -> tuple[Index, Index, Index]:
        """Rows of a cell: of the model ``out``, of the others, and of others in like cells.

        Nothing of the latter is a run of ``apart``, as `_runs` names them.
        """
        mine = self._cells[key]
        left = self._group[mine] == out
        like = self._alike[_of(key, _LIKE)]
        elsewhere = np.setdiff1d(like[self._group[like] != out], mine)
        if apart:
            parts = zip(_RUNS, apart, strict=True)
            same = np.all([self._same[name][elsewhere] == value for name, value in parts], axis=0)
            elsewhere = elsewhere[~same]
        return mine[left], mine[~left], elsewhere

    @cached_property
    def _same(self) -> Mapping[str, NDArray[Any]]:
        return {name: self.rows[name].to_numpy(dtype=object) for name in _RUNS}

    def _fitted_to(self, kept: Index, elsewhere: Index) -> tuple[Array, NDArray[Any], Array]:
        return self._log[kept], self._group[kept], self._log[elsewhere]

    def _kappas(self, key: Key, out: str, apart: Key) -> Array:
        """The kappa that each row of a model left out of a cell needs."""
        if (key, out, apart) not in self._needed:
            left, kept, elsewhere = self._split(key, out, apart)
            needed = np.zeros(0)
            if len(kept) + len(elsewhere):
                needed = kappa_needed(self._log[left], *self._fitted_to(kept, elsewhere))
            self._needed[key, out, apart] = needed
        return self._needed[key, out, apart]

    def kappa(self, rung: str, apart: Key = ()) -> float:
        """The stretch of a rung, of all rungs where it has no other runs; none of ``apart``."""
        cells = [key for key in self._cells if _of(key, _RUNS) != apart]
        cells = [key for key in cells if key[0] == rung] or cells
        needed = [self._kappas(key, out, apart) for key in cells for out in self._groups(key)]
        return Stretch().fit([rows for rows in needed if len(rows)]).kappa_

    def judged(self) -> pd.DataFrame:
        """The rows with ``low`` and ``high`` of bounds that have not seen their model.

        Nor has the stretch seen any run of the cell. ``gaussian_low`` and ``gaussian_high``: mean
        and deviation of the other models of the cell, as if rows were independent and normal. Rows
        that nothing else is like are left out.
        """
        found = []
        for key in self._cells:
            kappa = self.kappa(key[0], _of(key, _RUNS))
            for out in self._groups(key):
                left, kept, elsewhere = self._split(key, out)
                if not len(kept) + len(elsewhere):
                    continue
                bounds = Conformal(kappa).fit(*self._fitted_to(kept, elsewhere))
                plain = self._log[kept if len(kept) > 1 else elsewhere]
                spread = _DEVIATIONS * plain.std(ddof=1) if len(plain) > 1 else np.nan
                made = self.rows.iloc[left].assign(
                    low=bounds.low_,
                    high=bounds.high_,
                    gaussian_low=plain.mean() - spread,
                    gaussian_high=plain.mean() + spread,
                )
                found.append(made)
        return pd.concat(found).sort_index()

    def entries(self) -> Iterator[Entry]:
        """What ships: each GPU's, and that of all GPUs of an engine.

        Of fewer than `FEWEST` rows, those of like cells included, nothing does.
        """
        rows = self.rows[self.rows["ships"]]
        kappa = {rung: self.kappa(rung) for rung in rows["rung"].unique()}
        for pooled in (False, True):
            by = [name for name in CELL if name != "gpu" or not pooled]
            for key, mine in rows.groupby(by):
                where = dict(zip(by, key, strict=True))
                # A system is its own GPU's; one that is lent is judged on all that it was lent to.
                if where["rung"] == (OWN if pooled else TRANSFERRED):
                    continue
                alike = self.rows.loc[self._alike[tuple(where[name] for name in _LIKE)]]
                elsewhere = alike.drop(mine.index)
                if len(mine) + len(elsewhere) >= FEWEST:
                    yield _entry(where, mine, elsewhere, kappa[where["rung"]])


def _entry(
    where: Mapping[str, str], mine: pd.DataFrame, elsewhere: pd.DataFrame, kappa: float
) -> Entry:
    bounds = Conformal(kappa).fit(
        mine["log_ratio"].to_numpy(),
        mine["group"].to_numpy(),
        elsewhere["log_ratio"].to_numpy(),
    )
    several = mine["gpus"] > 1
    judged = {"one": mine[~several], "several": mine[several]}
    return Entry(
        rung=where["rung"],
        engine=where["engine"],
        gpu=where.get("gpu", ""),
        basis=where["basis"],
        load=where["load"],
        phase=where["phase"],
        kind=where["kind"],
        low=round(bounds.low_, 4),
        high=round(bounds.high_, 4),
        rows=len(mine),
        models=int(mine["model"].nunique()),
        sets=tuple(sorted(mine["set"].unique())),
        judged={
            name: Judged(
                round(float(part["percent"].abs().mean()), 2),
                len(part),
                int(part["model"].nunique()),
            )
            for name, part in judged.items()
            if len(part)
        },
        batch=_ends(mine["batch"]),
        tokens=_ends(mine["tokens"]),
        gpus=(int(mine["gpus"].min()), int(mine["gpus"].max())),
        formats=tuple(sorted(mine["format"].unique())),
        beyond=round(beyond(mine, where["phase"]), 3),
    )


def _ends(values: pd.Series[Any]) -> tuple[float, float]:
    return round(float(values.min()), 1), round(float(values.max()), 1)


def _of(key: Key, names: Sequence[str]) -> Key:
    """The parts of a cell's key that have these names."""
    return tuple(key[CELL.index(name)] for name in names)


Record = dict[str, Any]


def record(rows: pd.DataFrame) -> Record:
    """Coverage in % and mean width in % of the prediction of judged rows, and a Gaussian's."""
    held = _holds(rows, "low", "high")
    plain = _holds(rows, "gaussian_low", "gaussian_high")
    return {
        "rows": len(rows),
        "models": int(rows["model"].nunique()),
        "coverage": round(float(held.mean()) * 100, 1),
        "width": round(_width(rows["low"], rows["high"]), 1),
        "gaussian_coverage": round(float(plain.mean()) * 100, 1),
        "gaussian_width": round(_width(rows["gaussian_low"], rows["gaussian_high"]), 1),
        "ships": bool(rows["ships"].all()),
    }


def _holds(rows: pd.DataFrame, low: str, high: str) -> pd.Series[bool]:
    return (rows["log_ratio"] >= rows[low]) & (rows["log_ratio"] <= rows[high])


def _width(low: pd.Series[Any], high: pd.Series[Any]) -> float:
    return float((np.exp(high) - np.exp(low)).mean() * 100)


def missed(rows: pd.DataFrame) -> str:
    """The model that most of the rows out of bounds are of, and how many of its rows are."""
    out = ~_holds(rows, "low", "high")
    counts = out.groupby(rows["model"]).agg(["sum", "size"])
    name = str(counts["sum"].idxmax())
    worst, all_of_it = counts.loc[name, "sum"], counts.loc[name, "size"]
    bias = rows.loc[rows["model"] == name, "percent"].mean()
    return f"{name}: {worst} of {all_of_it} outside, bias {bias:+.0f}%"
