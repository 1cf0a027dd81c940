"""Predicted times of the runs: by level 3 without the model of the run, else composed.

Energy accrues over the mean time of a step, batch over throughput, while level 3's campaigns are
about the median; so the same forms are fitted to either, and the part of a step that goes to
prompts is what the mean is longer by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from systems import judge
from systems import rows as system_rows
from systems.campaigns import SPECS
from systems.judge import Campaign
from systems.keeping import kept

from energies.rows import KERNELS, SERVED, Array, Runs, measured, state

#: What tells two runs of a set apart.
_KEYS: Final = [*"gpu library version dtype model task n_gpus batch prompt output".split()]

#: How firm the priors of version 2 may be: its host takes many times what priors expect of one.
_WIDTHS_V2: Final = (1.0, 8.0)

_HOST: Final = frozenset({"step_s", "sequence_s", "logit_s"})


@dataclass(frozen=True)
class Times:
    """Predicted seconds and prompts' part of them, and who says so; one entry per run."""

    time_s: Array
    prompt_share: Array
    by: str


def predicted(name: str, runs: Runs, cache: Path) -> Times:
    """The times of runs of the set ``name``."""
    composed = runs.priced[KERNELS, "prompt_s"] / runs.priced[KERNELS, "time_s"]
    found = _held_out(name, cache)
    if found is None:
        return Times(_scaled(runs), composed, "level-1 composition x one factor")
    merged = runs.labels[_KEYS].merge(found, on=_KEYS, how="left", validate="one_to_one")
    time_s = merged["time_s"].to_numpy(float)
    if name in SERVED:
        composed = np.clip(1 - merged["step_s"].to_numpy(float) / time_s, 0.0, 1.0)
    return Times(time_s, composed, "fitted system")


def _scaled(runs: Runs) -> Array:
    """Composed seconds times the median factor that the other models took."""
    composed_s, group = runs.priced[KERNELS, "time_s"], runs.labels["group"].to_numpy()
    found = composed_s.copy()
    for model in np.unique(group):
        mine = group == model
        found[mine] *= np.median(runs.time_s[~mine] / composed_s[~mine])
    return found


def _held_out(name: str, cache: Path) -> pd.DataFrame | None:
    """`_KEYS`, ``time_s`` and ``step_s`` (median) of each run; None where no system is fitted."""
    if name not in (*SERVED, "splitwise", "argonne_power"):
        return None
    file = cache / f"times-{name}-{_state(name)}.pkl"
    return kept(file, lambda: pd.concat(_predictions(name, cache), ignore_index=True))


def _state(name: str) -> str:
    """Of the priced runs and of the code that fits systems to them."""
    import hashlib

    found = hashlib.sha256(state(name).encode())
    for file in (judge.__file__, system_rows.__file__, __file__):
        found.update(Path(str(file)).read_bytes())
    return found.hexdigest()[:16]


def _predictions(name: str, cache: Path) -> Iterator[pd.DataFrame]:
    for campaign in _campaigns(name, cache):
        labels = campaign.runs.labels
        mine = (labels["set"] == name).to_numpy()
        found = labels[_KEYS].assign(time_s=_predict(campaign))
        if name in SERVED:
            found["step_s"] = found["time_s"]
            found["time_s"] = _predict(_of_means(name, campaign))
        yield found[mine]


def _campaigns(name: str, cache: Path) -> Iterator[Campaign]:
    """Runs of the median step, or of whole runs, by level 3's own campaigns where there are."""
    if name == "mlenergy_v3":
        for spec in SPECS:
            if any(part == name for part, _ in spec.sets):
                yield spec.load(cache)[0]
    elif name == "mlenergy_v2":
        runs = _version_2()
        forms = _few_forms(runs, _WIDTHS_V2)
        yield Campaign(runs, forms, runs.group)
    else:
        # Splitwise is of one model, so that a hold-out leaves out a number of GPUs.
        sets = (name,) if name == "splitwise" else (name, "argonne_e2e")
        runs = system_rows.joined([system_rows.load(part, "latency", cache)[0] for part in sets])
        single = name == "splitwise"
        group = runs.labels["n_gpus"].astype(str).to_numpy() if single else runs.group
        forms = _few_forms(runs, (0.25, 0.5))
        yield Campaign(runs, forms, group)


def _few_forms(runs: system_rows.Runs, widths: tuple[float, ...]) -> list[judge.Form]:
    """Forms with all host terms, whose priors come from the same engine on other GPUs or none."""
    found = [
        replace(form, width=width, first=1)
        for form in judge.forms(runs)
        for width in widths
        if set(form.terms) >= _HOST
    ]
    return list(dict.fromkeys(found))


def _version_2() -> system_rows.Runs:
    """Steps of version 2, whose prompts `measured` fills in."""
    rows = measured("mlenergy_v2").assign(what="tpot")
    rows = rows[(rows["zoo"] != "") & (rows["engine"] != "")].assign(time_s=rows["tpot_s"])
    keys = ["model", "zoo", "gpu", "engine", "dtype", "tp", "ep", "dp", "pp"]
    return system_rows.joined(
        [
            system_rows._priced(dict(zip(keys, key, strict=True)), mine, "tpot")
            for key, mine in rows.groupby(keys, sort=True)
        ]
    )


def _of_means(name: str, campaign: Campaign) -> Campaign:
    """The same runs with the mean time of a step in place of the median."""
    rows = measured(name)[[*_KEYS, "time_s"]]
    means = campaign.runs.labels[_KEYS].merge(rows, on=_KEYS, how="left", validate="one_to_one")
    runs = replace(campaign.runs, time_s=means["time_s"].to_numpy(float))
    return Campaign(runs, campaign.forms, campaign.group)


def _predict(campaign: Campaign) -> Array:
    found = np.full(len(campaign.runs), np.nan)
    for cell, rows in campaign.cells.items():
        if len(np.unique(campaign.group[rows])) > 1:
            found[rows] = campaign.held_out(cell)
    return found
