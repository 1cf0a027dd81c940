"""Power forms judged on models they have not seen, the form chosen without them too.

For every model left out (near twins with it) a form is chosen among `FORMS` by leaving out, one
after the other, the models that remain, over all GPUs of the harness; then it is fitted on those of
one GPU and judged on the one left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from energies.rows import Array, Runs
from hymell.estimators.level3.energy_fit import EnergyFit
from hymell.hardware import Gpu, find_gpu


@dataclass(frozen=True, slots=True)
class Form:
    """How power follows from work.

    ``bytes``: "split" tells weights, cache and activations apart, "joint" counts all bytes and the
    time that either data-sheet rate needs, "none" that time alone. ``soft``: power levels off below
    a fitted cap, else it is linear. ``prompts``: time in which prompts are processed draws more.
    """

    bytes: str
    soft: bool
    prompts: bool

    def terms(self, experts: bool) -> tuple[str, ...]:
        """The terms that are fitted; ``experts``: to runs some of which have routed experts."""
        kinds = _KINDS[self.bytes]
        more = (("padded",) if experts else ()) + (("prompts",) if self.prompts else ())
        return ("base", "matrix", *kinds, *more)

    def __str__(self) -> str:
        return (
            f"{self.bytes} bytes, {'soft cap' if self.soft else 'linear'}, prompts "
            f"{'apart' if self.prompts else 'like the rest'}"
        )


_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "split": ("weights", "cache", "activations"),
    "joint": ("bytes", "busy"),
    "none": ("busy",),
}

FORMS: Final = tuple(Form(*choice) for choice in product(_KINDS, (False, True), (False, True)))


@dataclass
class Campaign:
    """Runs of one harness on one GPU, with what is left out together: ``group`` of each run."""

    runs: Runs
    group: NDArray[Any]
    _fits: dict[Any, EnergyFit] = field(default_factory=dict, repr=False)

    @property
    def gpu(self) -> Gpu:
        """The GPU of the runs."""
        return find_gpu(str(self.runs.labels["gpu"].iloc[0]))

    @cached_property
    def columns(self) -> dict[str, Array]:
        """Of the runs at their measured time."""
        return self.runs.columns(self.runs.time_s, self.runs.prompt_share, self.gpu)

    def fit(self, form: Form, out: frozenset[str] = frozenset()) -> EnergyFit:
        """Fitted without the groups ``out``."""
        key = (form, out)
        if key not in self._fits:
            kept = ~np.isin(self.group, list(out))
            columns = {name: values[kept] for name, values in self.columns.items()}
            made = EnergyFit(form.terms(bool(columns["padded"].any())), form.soft)
            self._fits[key] = made.fit(columns, self.runs.energy_j[kept], self.gpu.tdp_w)
        return self._fits[key]

    def score(self, form: Form, out: frozenset[str]) -> float:
        """Mean absolute relative error on each group left out beside ``out``."""
        found = []
        for group in np.unique(self.group):
            if group not in out:
                mine = self.group == group
                predicted = self.predict(self.fit(form, out | {str(group)}), mine, self.columns)
                found.append(np.abs(predicted / self.runs.energy_j[mine] - 1))
        return float(np.concatenate(found).mean())

    def predict(self, fit: EnergyFit, rows: NDArray[Any], columns: Mapping[str, Array]) -> Array:
        """Joules of the runs of a mask."""
        return fit.predict({name: values[rows] for name, values in columns.items()}, self.gpu.tdp_w)


@dataclass
class Harness:
    """Runs of one harness on one or several GPUs, by GPU."""

    campaigns: Mapping[str, Campaign]
    _scores: dict[Any, float] = field(default_factory=dict, repr=False)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The forms that the runs can tell apart: prompts are apart only where shares differ."""
        shares = [campaign.runs.prompt_share for campaign in self.campaigns.values()]
        apart = all(share.min() < share.max() for share in shares)
        return tuple(form for form in FORMS if apart or not form.prompts)

    def choose(self, out: frozenset[str] = frozenset(), capped: bool = False) -> Form:
        """The best form in the mean over the GPUs, judged without the groups ``out``.

        ``capped``: among those with a cap.
        """
        return min((f for f in self.forms if f.soft or not capped), key=lambda f: self._of(f, out))

    def _of(self, form: Form, out: frozenset[str]) -> float:
        key = (form, out)
        if key not in self._scores:
            scores = [each.score(form, out) for each in self.campaigns.values()]
            self._scores[key] = float(np.mean(scores))
        return self._scores[key]

    def chosen(self, capped: bool = False) -> dict[str, Form]:
        """The form chosen without each group."""
        groups = np.unique(np.concatenate([each.group for each in self.campaigns.values()]))
        return {str(group): self.choose(frozenset({str(group)}), capped) for group in groups}

    def held_out(
        self, gpu: str, columns: Mapping[str, Array], home: str = "", capped: bool = False
    ) -> Array:
        """Joules of all runs on ``gpu``, each by a fit and a form without its group.

        ``home``: another GPU, whose runs of other groups are fitted instead.
        """
        forms = self.chosen(capped)
        here, fitted = self.campaigns[gpu], self.campaigns[home or gpu]
        found = np.zeros(len(here.runs))
        for group in np.unique(here.group):
            mine = here.group == group
            fit = fitted.fit(forms[str(group)], frozenset({str(group)}))
            found[mine] = here.predict(fit, mine, columns)
        return found
