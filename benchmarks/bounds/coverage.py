"""Bounds fitted without a model, judged on it; and the entries that ship, fitted to all models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bounds.rows import CELL
from hymell.estimators.conformal import Conformal, Stretch, kappa_needed
from hymell.estimators.intervals import OWN, TRANSFERRED, Entry, Judged

Array = NDArray[np.float64]

#: Standard deviations on either side that hold 90% of a Gaussian.
_DEVIATIONS: Final = 1.645

#: Runs that a stretch may not be fitted to when it is judged on one of them.
_SAME: Final = ["engine", "gpu", "load", "phase"]


@dataclass(frozen=True)
class Residuals:
    """Rows of `rows.residuals`, and what bounds make of them."""

    rows: pd.DataFrame

    def __post_init__(self) -> None:
        self.rows.reset_index(drop=True, inplace=True)

    @cached_property
    def _cells(self) -> Mapping[tuple[str, ...], NDArray[np.int64]]:
        return {key: rows.to_numpy() for key, rows in self.rows.groupby(CELL).groups.items()}

    def _split(
        self, key: tuple[str, ...], out: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rows of a cell: of the model ``out``, of the others, and of others in like cells."""
        mine = self._cells[key]
        group = self.rows["group"].to_numpy()
        where = dict(zip(CELL, key, strict=True))
        alike = np.ones(len(self.rows), dtype=bool)
        for name in ("rung", "basis", "load", "phase", "kind"):
            alike &= (self.rows[name] == where[name]).to_numpy()
        alike[mine] = False
        elsewhere = np.flatnonzero(alike & (group != out))
        return mine[group[mine] == out], mine[group[mine] != out], elsewhere

    @cached_property
    def _needed(self) -> pd.DataFrame:
        """The kappa that each row of each model left out needs."""
        found = []
        for key, mine in self._cells.items():
            for out in np.unique(self.rows["group"].to_numpy()[mine]):
                left, kept, elsewhere = self._split(key, out)
                if len(kept) + len(elsewhere):
                    needed = kappa_needed(self._log(left), *self._fitted_to(kept, elsewhere))
                    found.append(pd.DataFrame({"row": left, "needed": needed}))
        return self.rows.join(pd.concat(found).set_index("row"), how="inner")

    def _log(self, index: NDArray[np.int64]) -> Array:
        return self.rows["log_ratio"].to_numpy()[index]

    def _fitted_to(
        self, kept: NDArray[np.int64], elsewhere: NDArray[np.int64]
    ) -> tuple[Array, NDArray[np.object_], Array]:
        return self._log(kept), self.rows["group"].to_numpy()[kept], self._log(elsewhere)

    def kappa(self, rung: str, apart: Mapping[str, str] | None = None) -> float:
        """The stretch of a rung; fitted without the runs of ``apart`` where they are given."""
        rows = self._needed[self._needed["rung"] == rung]
        if apart is not None:
            same = np.all([rows[name] == apart[name] for name in _SAME], axis=0)
            rows = rows[~same] if not same.all() else self._needed[self._needed["rung"] != rung]
        return Stretch().fit(rows["needed"].to_numpy()).kappa_

    def judged(self) -> pd.DataFrame:
        """The rows with ``low`` and ``high`` of bounds that have not seen their model.

        Nor has the stretch seen any run of the cell. ``gaussian_low`` and ``gaussian_high``: mean
        and deviation of the other models of the cell, as if rows were independent and normal. Rows
        that nothing else is like are left out.
        """
        found = []
        for key, mine in self._cells.items():
            where = dict(zip(CELL, key, strict=True))
            kappa = self.kappa(where["rung"], where)
            for out in np.unique(self.rows["group"].to_numpy()[mine]):
                left, kept, elsewhere = self._split(key, out)
                if not len(kept) + len(elsewhere):
                    continue
                bounds = Conformal(kappa).fit(*self._fitted_to(kept, elsewhere))
                plain = self._log(kept if len(kept) > 1 else elsewhere)
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
        """What ships: each GPU's, and that of all GPUs of an engine."""
        rows = self.rows[self.rows["ships"]]
        kappa = {rung: self.kappa(rung) for rung in rows["rung"].unique()}
        for pooled in (False, True):
            by = [name for name in CELL if name != "gpu" or not pooled]
            for key, mine in rows.groupby(by):
                where = dict(zip(by, key, strict=True))
                # A system is its own GPU's; one that is lent is judged on all that it was lent to.
                if where["rung"] == (OWN if pooled else TRANSFERRED):
                    continue
                yield self._entry(where, mine, rows, kappa[where["rung"]])

    def _entry(
        self, where: Mapping[str, str], mine: pd.DataFrame, rows: pd.DataFrame, kappa: float
    ) -> Entry:
        alike = np.all(
            [rows[name] == where[name] for name in ("rung", "basis", "load", "phase", "kind")],
            axis=0,
        )
        elsewhere = rows[alike & ~rows.index.isin(mine.index)]
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
        )


def _ends(values: pd.Series[Any]) -> tuple[float, float]:
    return round(float(values.min()), 1), round(float(values.max()), 1)


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
