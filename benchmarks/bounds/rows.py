"""Held-out predictions of whole models as rows of log ratios, each by how it was priced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import eager
import numpy as np
import pandas as pd
from energies import held_out as energies
from systems import predictions
from systems.campaigns import SPECS
from systems.held_out import held_out_rows
from systems.rows import TWINS

from hymell.estimators.bounded import format_class
from hymell.estimators.calibrated import calibrated_for
from hymell.estimators.intervals import (
    LEVEL1,
    LEVEL1_TRANSFERRED,
    OWN,
    SHEET,
    SYSTEMS,
    TRANSFERRED,
)
from hymell.estimators.level3.energies import fitted_energies, shipped_energies
from hymell.estimators.level3.system import fitted_systems, shipped_system
from hymell.hardware import find_gpu

#: Of the estimators of either `held_out_rows`, those that a report prices with.
_RUNGS: Final = {
    predictions.FITTED: OWN,
    predictions.SIBLING: TRANSFERRED,
    predictions.COMPOSED: LEVEL1,
    predictions.SHEET: SHEET,
}
_EAGER_RUNGS: Final = {eager.KNOWN: OWN, eager.MEASURED: TRANSFERRED}
#: Only forms with a cap ship.
_ENERGY_RUNGS: Final = {
    energies.CAPPED: OWN,
    energies.ABROAD: TRANSFERRED,
    energies.KERNEL_POWER: LEVEL1,
    energies.DATA_SHEET: SHEET,
}

#: What a measured time is of. Whole latencies are of runs with as long an output as prompt: decode
#: is nearly all of them.
_PHASES: Final = {"ttft": "prefill", "tpot": "decode", "latency": "decode"}

#: Sets of runs under the load of a server; in the others batches start together.
_SERVED: Final = ("aic_silicon", "llmservingsim_bench", "mlenergy_v2", "mlenergy_v3")

#: Runs that another campaign has too, and runs without a KV cache, as no report prices them.
_APART: Final = ("aic_silicon Llama-3-8B", "Wilkins")

#: Engines by the names of libraries.
_ENGINES: Final = {"vllm": "vllm", "trtllm": "trtllm", "sglang": "sglang", "pytorch": "eager"}

#: The rows that bounds are fitted to together.
CELL: Final = ["rung", "engine", "gpu", "basis", "load", "phase", "kind"]


def residuals(times: Path, joules: Path) -> pd.DataFrame:
    """One row per run and way of pricing, none of which has seen the run's model.

    The columns of `CELL`, and ``set``, ``model``, ``group`` (what was left out: the model with its
    near twins), ``gpus``, ``batch``, ``tokens``, ``prompt``, ``output``, ``dtype``, ``format``,
    ``log_ratio`` of measured / predicted, ``percent`` that the prediction is off, and ``ships``:
    False for systems that no report uses.
    ``times`` and ``joules`` are caches of priced runs. Raises HymellError without the measurements.
    """
    return pd.concat([_of_times(times), _of_eager(), _of_energy(joules)], ignore_index=True)


def _of_times(cache: Path) -> pd.DataFrame:
    rows = _wanted(held_out_rows(cache), _RUNGS)
    phase = rows["what"].map(_PHASES)
    rung = _rung(rows, _RUNGS)
    specs = {spec.name: spec for spec in SPECS}
    cells = rows.groupby(["campaign", "gpu", "library"])
    version = pd.Series("", index=rows.index)
    for (campaign, _, _), mine in cells:
        version[mine.index] = specs[campaign].version_of(mine)
    basis = version.where(rung.isin(SYSTEMS), "")
    ships = [
        _ships_system(rung, engine, gpu, version)
        for rung, engine, gpu, version in zip(rung, rows["engine"], rows["gpu"], basis, strict=True)
    ]
    tokens = rows["prompt"] + np.where(phase == "prefill", 0.0, rows["output"])
    ratio = rows["measured_s"] / rows["predicted_s"]
    return _framed(rows, rung, phase, basis, tokens, ratio, ships)


def _of_eager() -> pd.DataFrame:
    """Passes over prompts in float32: of a known GPU, and of one left out."""
    rows = eager.held_out_rows()
    rows = rows[rows["estimator"].isin(list(_EAGER_RUNGS)) & np.isfinite(rows["predicted_s"])]
    rows = rows.assign(engine="eager", model=rows["group"], output=1.0).reset_index(drop=True)
    basis = pd.Series(eager.TITLE, index=rows.index)
    phase = pd.Series("prefill", index=rows.index)
    ratio = rows["measured_s"] / rows["predicted_s"]
    rung = rows["estimator"].map(_EAGER_RUNGS)
    return _framed(rows, rung, phase, basis, rows["prompt"], ratio, [True] * len(rows))


def _of_energy(cache: Path) -> pd.DataFrame:
    rows = _wanted(energies.held_out_rows(cache), _ENERGY_RUNGS)
    rows = rows[rows["time"] == "predicted"].reset_index(drop=True)
    rung = _rung(rows, _ENERGY_RUNGS)
    source = rows["campaign"].map({spec.name: spec.source for spec in energies.SPECS})
    basis = source.where(rung.isin(SYSTEMS), "")
    ships = [
        _ships_energies(rung, gpu, source)
        for rung, gpu, source in zip(rung, rows["gpu"], basis, strict=True)
    ]
    phase = pd.Series("energy", index=rows.index)
    ratio = rows["measured_j"] / rows["predicted_j"]
    return _framed(rows, rung, phase, basis, rows["prompt"] + rows["output"], ratio, ships)


def _wanted(rows: pd.DataFrame, rungs: Mapping[str, str]) -> pd.DataFrame:
    rows = rows.assign(engine=rows["library"].map(_ENGINES))
    wanted = rows["estimator"].isin(list(rungs)) & ~rows["campaign"].isin(_APART)
    return rows[wanted & rows["engine"].notna()].reset_index(drop=True)


def _framed(
    rows: pd.DataFrame,
    rung: pd.Series[str],
    phase: pd.Series[str],
    basis: pd.Series[str],
    tokens: pd.Series[float],
    ratio: pd.Series[float],
    ships: Sequence[bool],
) -> pd.DataFrame:
    # Splitwise has one model, whose systems leave out a number of GPUs instead.
    twins = rows["model"].map(lambda zoo: TWINS.get(zoo, zoo))
    return pd.DataFrame(
        {
            "rung": rung,
            "engine": rows["engine"],
            "gpu": rows["gpu"],
            "basis": basis,
            "load": np.where(rows["set"].isin(_SERVED), "served", "static"),
            "phase": phase,
            "kind": np.where(rows["moe"].astype(bool), "moe", "dense"),
            "set": rows["set"],
            "model": rows["model"],
            "group": rows["group"].astype(str).where(rung.isin(SYSTEMS), twins),
            "gpus": rows["n_gpus"].astype(int),
            "batch": rows["batch"].astype(float),
            "tokens": tokens.astype(float),
            "prompt": rows["prompt"].astype(float),
            "output": rows["output"].astype(float),
            "dtype": rows["dtype"],
            "format": rows["dtype"].map(format_class),
            "log_ratio": np.log(ratio.astype(float)),
            "percent": (1 / ratio.astype(float) - 1) * 100,
            "ships": ships,
        }
    )


def _rung(rows: pd.DataFrame, rungs: Mapping[str, str]) -> pd.Series[str]:
    named = rows["estimator"].map(rungs)
    home = [
        rung != LEVEL1 or _at_home(gpu, engine)
        for rung, gpu, engine in zip(named, rows["gpu"], rows["engine"], strict=True)
    ]
    return named.where(pd.Series(home, index=rows.index), LEVEL1_TRANSFERRED)


@cache
def _at_home(gpu: str, engine: str) -> bool:
    found = calibrated_for(find_gpu(gpu), engine)
    return found is not None and found.calibrated


@cache
def _ships_system(rung: str, engine: str, gpu: str, version: str) -> bool:
    """Whether reports price by it: the system of this GPU, or one that it lends."""
    if rung == OWN:
        return (gpu, version) in fitted_systems(engine)
    lent = (shipped_system(engine, home, v) for home, v in fitted_systems(engine) if v == version)
    return rung not in SYSTEMS or any(system is not None and system.transfers for system in lent)


@cache
def _ships_energies(rung: str, gpu: str, source: str) -> bool:
    """Whether reports take energies from it."""
    shipped = [shipped_energies(home) for home in fitted_energies()]
    found = [each for each in shipped if each is not None and each.source == source]
    if rung == OWN:
        return any(each.gpu == gpu for each in found)
    return rung not in SYSTEMS or any(each.transfers for each in found)
