"""How far the measured runs themselves go beyond kernel tables."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

import hymell
from hymell.errors import HymellError
from hymell.estimators.breakdown import beyond_measured
from hymell.workload import Workload


def beyond(rows: pd.DataFrame, phase: str) -> float:
    """Median over the models of ``rows`` of the share of a phase's kernel time, in the model's
    largest run, on sizes that no kernel table holds; 0 where no model can be priced.
    """
    shares = []
    for _, mine in rows.groupby("model"):
        run = mine.loc[(mine["batch"] * mine["tokens"]).idxmax()]
        found = _shares(
            *(str(run[name]) for name in ("model", "gpu", "engine", "dtype")),
            int(run["gpus"]),
            *(max(round(run[name]), 1) for name in ("batch", "prompt", "output")),
        )
        shares += [found[phase]] if phase in found else []
    return float(np.median(shares)) if shares else 0.0


@cache
def _shares(
    model: str, gpu: str, engine: str, dtype: str, gpus: int, batch: int, prompt: int, output: int
) -> dict[str, float]:
    try:
        report = hymell.predict(
            model,
            Workload(batch, prompt, max(output, 2)),
            gpu=gpu,
            engine=engine,
            dtype=dtype,
            tp=gpus,
        )
    except HymellError:
        # What tensor parallelism alone cannot split; the other models stand for it.
        return {}
    return beyond_measured(report.kernels)
