"""What each estimator says of runs whose models it has not seen; kept in build/."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hymell.estimators import training
from hymell.estimators.level1.device import Device
from hymell.estimators.level3 import fit, residual, terms
from hymell.hardware import load_gpu
from systems import judge as judging
from systems.campaigns import Spec
from systems.judge import Campaign, Cell, Form
from systems.rows import Array

SHEET, COMPOSED, FITTED = "data sheet", "level-1 composition", "fitted system"
#: Kernels alone, by the analytical forms without corrections: in the spirit of AMALI and LIFE.
ANALYTIC: Final = "analytical composition"
#: The analytical kernels and a network that nothing holds: in the spirit of HYMELL.
UNBOUNDED: Final = "unbounded MLP"
NETWORK: Final = "fitted system + MLP"
#: With the network where it helped on the models that remained, without it elsewhere.
KEPT: Final = "fitted system, MLP where kept"
ABROAD: Final = "system of other GPUs"
SIBLING: Final = "system of one family"
SHIPPED: Final = "shipped system"

#: Those that nothing was fitted for.
UNFITTED: Final = (SHEET, ANALYTIC, COMPOSED)

Predictions = dict[Cell, dict[str, Array]]


@dataclass(frozen=True)
class Judged:
    """Predicted seconds of the runs of each cell by estimator, and the forms behind them.

    An estimator is absent where there are no other models, or no other GPUs, to fit. ``forms``:
    that chosen without each model; ``final``: that chosen with all.
    """

    seconds: Predictions
    forms: Mapping[str, Form]
    final: Form


def split(spec: Spec, estimator: str) -> str:
    """What an estimator has not seen of the runs that it is judged on."""
    if estimator in UNFITTED:
        return "all runs"
    if estimator == SHIPPED:
        return "unseen campaign"
    return spec.split + (" and GPU" if estimator in (ABROAD, SIBLING) else "")


def judge(spec: Spec, campaign: Campaign, cache: Path) -> Judged:
    """Every prediction of a campaign, from ``cache`` where it has them."""
    name = f"predictions-{spec.name.replace(' ', '-')}-{_state(campaign)}"
    file, forms = cache / f"{name}.parquet", cache / f"{name}.json"
    if not file.is_file() or not forms.is_file():
        chosen = {model: asdict(form) for model, form in campaign.chosen.items()}
        every = {"final": asdict(campaign.choose()), "chosen": chosen}
        forms.write_text(json.dumps(every), encoding="utf-8")
        made = [
            pd.DataFrame({"gpu": cell[0], "library": cell[1], **_of(campaign, cell)})
            for cell in campaign.cells
        ]
        pd.concat(made, ignore_index=True).to_parquet(file)
    kept = pd.read_parquet(file)
    every = json.loads(forms.read_text(encoding="utf-8"))
    chosen = {model: _form(values) for model, values in every["chosen"].items()}
    return Judged(_by_cell(campaign, kept), chosen, _form(every["final"]))


def _form(values: Mapping[str, Any]) -> Form:
    lists = {name: tuple(values[name]) for name in ("terms", "tied")}
    return Form(**{**values, **lists})


def _by_cell(campaign: Campaign, kept: pd.DataFrame) -> Predictions:
    return {
        cell: {
            str(name): mine[name].to_numpy()
            for name in mine.columns.drop(["gpu", "library"])
            if mine[name].notna().all()
        }
        for cell in campaign.cells
        for mine in [kept[(kept["gpu"] == cell[0]) & (kept["library"] == cell[1])]]
    }


def _state(campaign: Campaign) -> str:
    """Of the priced runs, the forms to choose among and all code that fits and judges them."""
    runs = campaign.runs
    numbers = [runs.time_s, runs.sheet_s, runs.analytic_s, runs.composed_s]
    numbers += [*runs.terms.values(), *runs.sizes.values()]
    found = hashlib.sha256(np.concatenate(numbers).tobytes())
    words = [runs.labels.to_csv(), *map(str, campaign.group), *map(repr, campaign.forms)]
    found.update("\n".join(words).encode())
    for module in (judging, fit, terms, residual, training):
        found.update(Path(str(module.__file__)).read_bytes())
    found.update(Path(__file__).read_bytes())
    return found.hexdigest()[:16]


def _of(campaign: Campaign, cell: Cell) -> dict[str, Array]:
    runs = campaign.runs.take(campaign.cells[cell])
    found = {SHEET: runs.sheet_s, ANALYTIC: runs.analytic_s, COMPOSED: runs.composed_s}
    groups = campaign.group[campaign.cells[cell]]
    if len(np.unique(groups)) > 1:
        held, corrected = campaign.held_out(cell), campaign.with_network(cell)
        helps = {g: campaign.network_helps(cell, str(g)) for g in np.unique(groups)}
        kept = np.array([bool(helps[g]) for g in groups])
        found |= {FITTED: held, NETWORK: corrected, KEPT: np.where(kept, corrected, held)}
        found |= {UNBOUNDED: campaign.networks_alone(cell)}
    others = [c for c in campaign.cells if c != cell and c[1] == cell[1]]
    near = [c for c in others if kernels(c) == kernels(cell)]
    for name, homes in ((ABROAD, others), (SIBLING, near)):
        away = campaign.abroad(cell, homes) if homes else None
        if away is not None:
            found[name] = away
    return found


def kernels(cell: Cell) -> tuple[str, str]:
    """Engine and kernel family."""
    return cell[1], Device.of(load_gpu(cell[0])).family
