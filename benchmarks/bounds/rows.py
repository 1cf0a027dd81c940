"""Held-out predictions of whole models as rows of log ratios, each by how it was priced."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from systems import results
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
from hymell.estimators.level3.system import fitted_systems, shipped_system
from hymell.hardware import load_gpu

#: Of the estimators of `held_out_rows`, those that a report prices with.
_RUNGS: Final = {
    results.FITTED: OWN,
    results.SIBLING: TRANSFERRED,
    results.COMPOSED: LEVEL1,
    results.SHEET: SHEET,
}

#: What a measured time is of. Whole latencies are of runs with as long an output as prompt: decode
#: is nearly all of them.
_PHASES: Final = {"ttft": "prefill", "tpot": "decode", "latency": "decode"}

#: Sets of runs under the load of a server; in the others batches start together.
_SERVED: Final = ("aic_silicon", "llmservingsim_bench", "mlenergy_v2", "mlenergy_v3")

#: The rows that bounds are fitted to together.
CELL: Final = ["rung", "engine", "gpu", "source", "load", "phase", "kind"]


def residuals(cache: Path) -> pd.DataFrame:
    """One row per run and way of pricing, none of which has seen the run's model.

    The columns of `CELL`, and ``set``, ``model``, ``group`` (what was left out: the model with its
    near twins), ``gpus``, ``batch``, ``tokens``, ``format``, ``log_ratio`` of measured / predicted,
    ``percent`` that the prediction is off, and ``ships``: False for systems that no report uses.
    Raises HymellError without the measurements.
    """
    rows = held_out_rows(cache)
    rows = rows[rows["estimator"].isin(list(_RUNGS))].reset_index(drop=True)
    rung = pd.Series(
        [
            LEVEL1_TRANSFERRED if rung == LEVEL1 and not _at_home(gpu, engine) else rung
            for rung, gpu, engine in zip(
                rows["estimator"].map(_RUNGS), rows["gpu"], rows["library"], strict=True
            )
        ]
    )
    of_system, prefill = rung.isin(SYSTEMS), rows["what"].map(_PHASES) == "prefill"
    source = rows["campaign"].map({spec.name: spec.title for spec in SPECS})
    ships = [
        not system or title in _sources(engine)
        for system, title, engine in zip(of_system, source, rows["library"], strict=True)
    ]
    # Splitwise has one model, whose systems leave out a number of GPUs instead.
    twins = rows["model"].map(lambda zoo: TWINS.get(zoo, zoo))
    return pd.DataFrame(
        {
            "rung": rung,
            "engine": rows["library"],
            "gpu": rows["gpu"],
            "source": source.where(of_system, ""),
            "load": np.where(rows["set"].isin(_SERVED), "served", "static"),
            "phase": rows["what"].map(_PHASES),
            "kind": np.where(rows["moe"], "moe", "dense"),
            "set": rows["set"],
            "model": rows["model"],
            "group": rows["group"].where(of_system, twins),
            "gpus": rows["n_gpus"].astype(int),
            "batch": rows["batch"].astype(float),
            "tokens": rows["prompt"] + np.where(prefill, 0.0, rows["output"]),
            "format": rows["dtype"].map(format_class),
            "log_ratio": np.log(rows["measured_s"] / rows["predicted_s"]),
            "percent": (rows["predicted_s"] / rows["measured_s"] - 1) * 100,
            "ships": ships,
        }
    )


@cache
def _at_home(gpu: str, engine: str) -> bool:
    found = calibrated_for(load_gpu(gpu), engine)
    return found is not None and found.calibrated


@cache
def _sources(engine: str) -> frozenset[str]:
    """The campaigns that shipped systems of an engine were fitted on."""
    systems = [shipped_system(engine, gpu) for gpu in fitted_systems(engine)]
    return frozenset(system.source for system in systems if system is not None)
