"""Every run with what each estimator says of its energy, without having seen its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from energies.judge import Campaign, Harness
from energies.rows import KERNELS, SHEET, Array, Left, Runs, load
from energies.times import Times, predicted
from hymell.errors import HymellError
from hymell.estimators.energy import PowerModel
from hymell.estimators.level3.energies import Energies
from hymell.estimators.level3.energy_fit import EnergyFit
from hymell.hardware import find_gpu

#: Names of estimators in records.
DATA_SHEET, KERNEL_POWER, LINEAR = "data sheet", "power of kernels", "linear: t, FLOPs, bytes"
FITTED, CAPPED = "fitted energies", "fitted energies, capped"
ONE_RUN = "fitted energies, one run of each"
ABROAD, SHIPPED = "energies of the other GPU", "shipped energies"

#: The columns of `held_out_rows`. ``campaign`` and ``set`` say whose runs they are; ``group`` is
#: the model with its near twins under one name; ``time``: measured or predicted.
COLUMNS: Final = (
    *("campaign", "set", "gpu", "library", "version", "what", "model", "group", "dtype", "task"),
    *("n_gpus", "moe", "batch", "prompt", "output", "estimator", "split", "time"),
    *("predicted_j", "measured_j"),
)

#: The plain form that all others have to beat: science's first.
_LINEAR_TERMS: Final = ("base", "matrix", "bytes")

#: What one run of each configuration is measured of.
_CONFIGURATION: Final = ("model", "dtype", "n_gpus")


@dataclass(frozen=True)
class Spec:
    """A harness: its set, what a hold-out leaves out, and whether forms are fitted to it.

    ``source``: whose runs they are, in words.
    """

    name: str
    source: str
    set: str
    by: str = "model"
    fits: bool = True


SPECS: Final = (
    Spec("ML.ENERGY v3", "ML.ENERGY v3 (vLLM 0.11.1), served", "mlenergy_v3"),
    Spec("ML.ENERGY v2", "ML.ENERGY v2 (vLLM 0.5), served", "mlenergy_v2"),
    Spec("Splitwise", "Splitwise (vLLM of 2023), Llama-2-70B", "splitwise", "number of GPUs"),
    Spec("Wilkins", "Wilkins et al., eager without a cache", "wilkins_grid_a100"),
    Spec("Argonne", "Argonne LLM-Inference-Bench, mean power", "argonne_power", fits=False),
)


@dataclass(frozen=True)
class Judged:
    """A harness with its runs by GPU, their predicted times, and the forms fitted to them."""

    spec: Spec
    runs: Mapping[str, Runs]
    times: Mapping[str, Times]
    left: Sequence[Left]
    harness: Harness | None = field(default=None)


def judged(spec: Spec, cache: Path) -> Judged:
    """The runs of a harness, priced and timed; fits follow when they are asked for.

    Raises HymellError where the measurements are not there.
    """
    runs, left = load(spec.set, cache)
    times = predicted(spec.set, runs, cache)
    parts: dict[str, Runs] = {}
    timed: dict[str, Times] = {}
    for gpu in sorted(runs.labels["gpu"].unique()):
        mine = (runs.labels["gpu"] == gpu).to_numpy()
        parts[gpu] = runs.take(mine)
        timed[gpu] = Times(times.time_s[mine], times.prompt_share[mine], times.by)
    if not parts:
        raise HymellError(f"no run of {spec.name} has an energy")
    harness = None
    if spec.fits:
        harness = Harness({gpu: Campaign(part, _group(spec, part)) for gpu, part in parts.items()})
    return Judged(spec, parts, timed, left, harness)


def held_out_rows(cache: Path, found: Sequence[Judged] | None = None) -> pd.DataFrame:
    """Every run with its measured joules and those of each estimator, as `COLUMNS`.

    No estimator has seen the model of the run (in Splitwise: its number of GPUs), nor any run of
    its GPU where ``split`` says so. At its predicted time a run is priced at seconds that no system
    has seen its model for. Of a served set a run is one step of the batch. Runs that ``one run of
    each`` was calibrated with are left out of it. Raises HymellError without the measurements.
    """
    harnesses = [judged(spec, cache) for spec in SPECS] if found is None else found
    return pd.concat([frame for each in harnesses for frame in _frames(each)], ignore_index=True)


def with_energies(each: Judged, gpu: str, energies: Energies) -> pd.DataFrame:
    """The runs of a harness on a GPU by energies that were fitted elsewhere, as `COLUMNS`."""
    board, runs = find_gpu(gpu), each.runs[gpu]
    idle_w = PowerModel.of(board).idle_w
    frames = []
    for time, time_s, share in _times(each, gpu):
        joules = energies.energy_j(runs.columns(time_s, share, board), board, idle_w)
        split = "unseen campaign" if energies.gpu == gpu else "unseen campaign and GPU"
        frames.append(_framed(each, runs, SHIPPED, split, time, joules))
    return pd.concat(frames, ignore_index=True)


def _group(spec: Spec, runs: Runs) -> Any:
    if spec.by == "model":
        return runs.labels["group"].to_numpy()
    return runs.labels["n_gpus"].astype(int).astype(str).to_numpy()


def _times(each: Judged, gpu: str) -> Iterator[tuple[str, Array, Array]]:
    runs, times = each.runs[gpu], each.times[gpu]
    yield "measured", runs.time_s, runs.prompt_share
    yield "predicted", times.time_s, times.prompt_share


def _frames(each: Judged) -> Iterator[pd.DataFrame]:
    for gpu, runs in each.runs.items():
        for name, how in ((DATA_SHEET, SHEET), (KERNEL_POWER, KERNELS)):
            for time in ("measured", "predicted"):
                seconds = runs.time_s if time == "measured" else runs.priced[how, "time_s"]
                joules = runs.by_kernels(how, seconds)
                yield _framed(each, runs, name, "all runs", time, joules)
        if each.harness is not None:
            yield from _fitted(each, each.harness, gpu)


def _fitted(each: Judged, harness: Harness, gpu: str) -> Iterator[pd.DataFrame]:
    campaign, runs, board = harness.campaigns[gpu], each.runs[gpu], find_gpu(gpu)
    split = f"unseen {each.spec.by}"
    others = [other for other in harness.campaigns if other != gpu]
    one_each = _middle_runs(runs.labels)
    for time, time_s, share in _times(each, gpu):
        columns = runs.columns(time_s, share, board)
        joules = harness.held_out(gpu, columns)
        yield _framed(each, runs, FITTED, split, time, joules)
        capped = harness.held_out(gpu, columns, capped=True)
        yield _framed(each, runs, CAPPED, split, time, capped)
        yield _framed(each, runs, LINEAR, split, time, _linear(campaign, columns))
        if each.spec.set in _CALIBRATED:
            scaled, left = _one_run(campaign, joules, one_each)
            yield _framed(each, runs, ONE_RUN, f"{split}, one run seen", time, scaled)[left]
        for other in others:
            # What is lent is what ships: a form with a cap.
            joules = harness.held_out(gpu, columns, other, capped=True)
            yield _framed(each, runs, ABROAD, f"{split} and GPU", time, joules)


#: Sets whose configurations ran at several batches.
_CALIBRATED: Final = ("mlenergy_v3", "mlenergy_v2")


def _linear(campaign: Campaign, columns: Mapping[str, Array]) -> Array:
    found = np.zeros(len(campaign.runs))
    for group in np.unique(campaign.group):
        mine = campaign.group == group
        kept = {name: values[~mine] for name, values in campaign.columns.items()}
        fit = EnergyFit(_LINEAR_TERMS, soft=False)
        fit.fit(kept, campaign.runs.energy_j[~mine], campaign.gpu.tdp_w)
        found[mine] = campaign.predict(fit, mine, columns)
    return found


def _middle_runs(labels: pd.DataFrame) -> NDArray[np.int64]:
    """For each run the position of the one at the middle batch of its configuration.

    -1 for a run whose configuration has no other.
    """
    places = labels.reset_index(drop=True)
    found = np.full(len(places), -1)
    for _, mine in places.groupby(list(_CONFIGURATION)):
        if len(mine) > 1:
            found[mine.index] = mine.sort_values("batch").index[len(mine) // 2]
    return found


def _one_run(
    campaign: Campaign, joules: Array, middle: NDArray[np.int64]
) -> tuple[Array, NDArray[np.bool_]]:
    """Joules corrected by one measured run of each configuration, and the mask of all other runs.

    How much of what that run is off the others of its configuration share is learnt from the other
    models: the slope of their logarithmic errors over that of their middle runs.
    """
    error = np.log(campaign.runs.energy_j / joules)
    left = (middle >= 0) & (middle != np.arange(len(joules)))
    seen = np.where(left, error[middle], 0.0)
    found = joules.copy()
    for group in np.unique(campaign.group):
        mine, others = left & (campaign.group == group), left & (campaign.group != group)
        shared = float(seen[others] @ error[others] / max(seen[others] @ seen[others], 1e-12))
        found[mine] *= np.exp(np.clip(shared, 0.0, 1.0) * seen[mine])
    return found, left


def _framed(
    each: Judged, runs: Runs, estimator: str, split: str, time: str, joules: Array
) -> pd.DataFrame:
    labels = runs.labels.reset_index(drop=True)
    return labels.assign(
        campaign=each.spec.name,
        what="energy",
        model=labels["zoo"],
        estimator=estimator,
        split=split,
        time=time,
        predicted_j=joules,
        measured_j=runs.energy_j,
    )[list(COLUMNS)]
