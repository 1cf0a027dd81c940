"""Fitted systems judged on models they have not seen, the form chosen without them too.

For every model left out (its near twins with it) a form is chosen among `FORMS` by leaving out,
one after the other, the models that remain, over all cells of the campaign; then it is fitted on
those and judged on the one left out. A cell is an engine on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.level3.fit import SystemFit
from hymell.estimators.level3.residual import BOUND, Residual, residual_features
from hymell.estimators.level3.terms import FLOORS, TERMS, total
from systems.rows import Array, Runs


@dataclass(frozen=True, slots=True)
class Form:
    """A choice of terms, of multipliers that share a value, of how firm the priors are.

    ``pooled``: where the means of the priors come from: "" `TERMS`, "engine" the same engine on
    other GPUs. ``first``: how many times a run to the first token counts.
    """

    terms: tuple[str, ...]
    tied: tuple[str, ...]
    width: float
    pooled: str
    first: int = 1

    def __str__(self) -> str:
        tied = " = ".join(self.tied) or "none"
        return (
            f"{', '.join(self.terms)}; tied: {tied}; width {self.width:g}; "
            f"priors from {self.pooled or 'no runs'}"
            + (f"; first tokens count {self.first} times" if self.first > 1 else "")
        )


_KERNELS: Final = ("prefill", "dense", "attention")
_HOST: Final = (
    ("step_s", "sequence_s"),
    ("step_s", "logit_s"),
    ("step_s", "sequence_s", "logit_s"),
    ("sequence_s", "logit_s"),
)
_TIED: Final = ((), ("dense", "attention"), _KERNELS)
_WIDTHS: Final = (0.25, 0.5)
_TIGHT: Final = 0.1
_POOLED: Final = ("", "engine")

#: A dozen runs to the first token stand beside hundreds of whole ones.
_FIRST: Final = (1, 10)

#: Terms of exchanges and of experts, for campaigns that have them.
_BETWEEN: Final = ("comm", "message_s")
_ROUTED: Final = ("experts", "routed_s")

Cell = tuple[str, str]

#: A residual is judged by leaving out one of the others: two at least must remain.
_FEWEST_OTHERS: Final = 2


def forms(runs: Runs) -> list[Form]:
    """What is chosen among for some runs."""
    some = {name: bool(values.any()) for name, values in runs.terms.items()}
    kernels = [name for name in (*_KERNELS, "gqa") if some[name]]
    more = [name for name in (*_BETWEEN, *_ROUTED) if some[name]]
    # Experts share a value with the other kernels where these share one.
    extra = [name for name in ("experts",) if some[name]]
    timed = set(runs.labels["what"])
    counts = _FIRST if {"ttft", "latency"} <= timed else _FIRST[:1]
    found = [
        Form(
            (*kernels, *host, *more),
            tuple(name for name in (*tied, *extra) if name in kernels or name in extra)
            if tied
            else (),
            width,
            pooled,
            first,
        )
        for host, tied, width, pooled, first in product(_HOST, _TIED, _WIDTHS, _POOLED, counts)
    ]
    return list(dict.fromkeys(found))


def floored_forms(runs: Runs) -> list[Form]:
    """`forms`, and each with a host that prefill, or both phases, may wait for."""
    plain = forms(runs)
    floors = (("prefill_launch_s",), tuple(FLOORS))
    return plain + [replace(f, terms=(*f.terms, *more)) for f in plain for more in floors]


def served_forms(runs: Runs) -> list[Form]:
    """What is chosen among for runs of servers: fewer host terms, layers of experts or none."""
    engines = runs.labels.groupby("library")["gpu"].nunique()
    found = [form for form in forms(runs) if "step_s" in form.terms]
    if engines.max() == 1:
        found = [form for form in found if not form.pooled]
    tight = [replace(form, width=_TIGHT) for form in found if form.width == min(_WIDTHS)]
    plain = [
        replace(form, terms=tuple(name for name in form.terms if name != "routed_s"))
        for form in (*found, *tight)
    ]
    return list(dict.fromkeys((*found, *tight, *plain)))


@dataclass
class Campaign:
    """Runs of one measuring campaign, and the forms that may explain them.

    ``group`` is what is left out together: the model of each run, twins under one name.
    """

    runs: Runs
    forms: list[Form]
    group: NDArray[Any]
    _fits: dict[Any, dict[str, float]] = field(default_factory=dict, repr=False)
    _networks: dict[Any, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def cells(self) -> dict[Cell, NDArray[Any]]:
        """Positions of the runs of each (GPU, library)."""
        pairs = list(zip(self.runs.labels["gpu"], self.runs.labels["library"], strict=True))
        return {
            cell: np.array([i for i, pair in enumerate(pairs) if pair == cell])
            for cell in sorted(set(pairs))
        }

    def coefficients(self, form: Form, cell: Cell, out: frozenset[str]) -> dict[str, float]:
        """Fitted without the models ``out``; the priors where the cell has no other model."""
        key = (form, cell, out)
        if key not in self._fits:
            self._fits[key] = self._fit(form, cell, out)
        return self._fits[key]

    def _fit(self, form: Form, cell: Cell, out: frozenset[str]) -> dict[str, float]:
        kept = ~np.isin(self.group, list(out))
        prior = self._pooled(form, cell, out, kept)
        own = self.cells[cell][kept[self.cells[cell]]]
        if not len(own):
            return {name: prior.get(name, TERMS[name].prior) for name in form.terms}
        return self._solve(form, self._counted(form, own), prior, form.width)

    def _pooled(
        self, form: Form, cell: Cell, out: frozenset[str], kept: NDArray[np.bool_]
    ) -> Mapping[str, float]:
        if not form.pooled:
            return {}
        others = [
            self._counted(form, rows[kept[rows]])
            for other, rows in self.cells.items()
            if other != cell and other[1] == cell[1]
        ]
        rows = np.concatenate([np.zeros(0, dtype=int), *others])
        return self._solve(form, rows, {}, 1.0) if len(rows) else {}

    def _solve(
        self, form: Form, rows: NDArray[Any], prior: Mapping[str, float], width: float
    ) -> dict[str, float]:
        fit = SystemFit(form.terms, form.tied, prior, width)
        return fit.fit(self._terms(rows), self.runs.time_s[rows]).coefficients_

    def _counted(self, form: Form, rows: NDArray[Any]) -> NDArray[Any]:
        """The runs as often as they count."""
        first = (self.runs.labels["what"].to_numpy()[rows] == "ttft") if form.first > 1 else None
        return rows if first is None else np.repeat(rows, np.where(first, form.first, 1))

    def _terms(self, rows: NDArray[Any]) -> dict[str, Array]:
        return {name: values[rows] for name, values in self.runs.terms.items()}

    def errors(self, form: Form, cell: Cell, out: frozenset[str], model: str) -> Array:
        """Signed relative errors on the runs of ``model`` of a fit without it and ``out``."""
        rows = self.cells[cell][self.group[self.cells[cell]] == model]
        found = total(self._terms(rows), self.coefficients(form, cell, out | {model}))
        return np.asarray(found / self.runs.time_s[rows] - 1)

    def score(self, form: Form, out: frozenset[str] = frozenset()) -> float:
        """Mean over the cells, and over what was timed there, of the mean absolute error on each
        model left out beside ``out``.
        """
        means = []
        timed = self.runs.labels["what"].to_numpy()
        for cell, rows in self.cells.items():
            models = [m for m in np.unique(self.group[rows]) if m not in out]
            found = [np.abs(self.errors(form, cell, out, model)) for model in models]
            if found:
                what = np.concatenate([timed[rows[self.group[rows] == m]] for m in models])
                errors = np.concatenate(found)
                means += [float(errors[what == each].mean()) for each in np.unique(what)]
        return float(np.mean(means)) if means else np.inf

    def choose(self, out: frozenset[str] = frozenset()) -> Form:
        """The best form as judged without the models ``out``; of equals the first."""
        return min(self.forms, key=lambda form: self.score(form, out))

    @cached_property
    def chosen(self) -> dict[str, Form]:
        """The form chosen without each model."""
        return {str(m): self.choose(frozenset({str(m)})) for m in np.unique(self.group)}

    def held_out(self, cell: Cell) -> Array:
        """Predicted seconds of the runs of a cell, each by a fit and a form without its model."""
        found = np.zeros(len(self.cells[cell]))
        for model in np.unique(self.group[self.cells[cell]]):
            mine = self.group[self.cells[cell]] == model
            form = self.chosen[str(model)]
            error = self.errors(form, cell, frozenset(), str(model))
            found[mine] = (1 + error) * self.runs.time_s[self.cells[cell][mine]]
        return found

    def with_network(self, cell: Cell) -> Array:
        """As `held_out`, with a bounded residual that has not seen the model either."""
        found = np.zeros(len(self.cells[cell]))
        for model in np.unique(self.group[self.cells[cell]]):
            mine = self.group[self.cells[cell]] == model
            found[mine] = self._corrected(self.chosen[str(model)], cell, frozenset({str(model)}))[
                mine
            ]
        return found

    def network_helps(self, cell: Cell, model: str) -> bool | None:
        """Whether the residual is nearer to models left out of those that remain without a model.

        None where fewer than two remain.
        """
        mine = self.group[self.cells[cell]]
        others = [m for m in np.unique(mine) if m != model]
        if len(others) < _FEWEST_OTHERS:
            return None
        form, time_s = self.chosen[model], self.runs.time_s[self.cells[cell]]
        plain, corrected = [], []
        for other in others:
            out, held = frozenset({model, str(other)}), mine == other
            alone = total(self._terms(self.cells[cell]), self.coefficients(form, cell, out))
            plain.append(np.abs(alone / time_s - 1)[held])
            corrected.append(np.abs(self._corrected(form, cell, out) / time_s - 1)[held])
        return float(np.concatenate(corrected).mean()) < float(np.concatenate(plain).mean())

    def _corrected(self, form: Form, cell: Cell, out: frozenset[str]) -> Array:
        """Predicted seconds of all runs of a cell by a system and a residual without ``out``."""
        key = (form, cell, out)
        if key not in self._networks:
            rows = self.cells[cell]
            alone = total(self._terms(rows), self.coefficients(form, cell, out))
            self._networks[key] = alone * self._factor(cell, out, alone, BOUND)
        return self._networks[key]

    def networks_alone(self, cell: Cell) -> Array:
        """HYMELL's way: a network without bound on kernels' sums, no system; as `held_out`."""
        rows = self.cells[cell]
        found = np.zeros(len(rows))
        for model in np.unique(self.group[rows]):
            mine = self.group[rows] == model
            sums = self.runs.analytic_s[rows]
            found[mine] = (sums * self._factor(cell, frozenset({str(model)}), sums, np.inf))[mine]
        return found

    def _factor(self, cell: Cell, out: frozenset[str], alone: Array, bound: float) -> Array:
        """Of a residual over ``alone`` seconds of all runs of a cell, trained without ``out``."""
        rows = self.cells[cell]
        features = residual_features(
            self._terms(rows), {name: values[rows] for name, values in self.runs.sizes.items()}
        )
        seen = ~np.isin(self.group[rows], list(out))
        ratio = np.log(self.runs.time_s[rows] / alone)
        return Residual(bound).fit(features[seen], ratio[seen]).predict(features)

    def abroad(self, cell: Cell, homes: Sequence[Cell]) -> Array | None:
        """Predicted seconds of the runs of a cell by fits to other cells, its model left out too.

        None where the cells have no other model.
        """
        rows = self.cells[cell]
        found = np.zeros(len(rows))
        for model in np.unique(self.group[rows]):
            form = self.chosen[str(model)]
            theirs = np.concatenate([self.cells[home] for home in homes])
            theirs = theirs[self.group[theirs] != model]
            if not len(theirs):
                return None
            values = self._solve(form, self._counted(form, theirs), {}, form.width)
            mine = self.group[rows] == model
            found[mine] = total(self._terms(rows[mine]), values)
        return found
