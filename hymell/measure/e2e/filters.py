"""The filters of whole-model runs: named, worded, counted, and fixed before any fit.

None looks at a prediction. The one that looks at a time compares it with what the data sheet
allows (`bounds`), which no run can pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from hymell.measure.e2e.bounds import bound, run_of, tdp_w
from hymell.measure.e2e.layout import RunFile
from hymell.measure.e2e.table import (
    ENERGY,
    FLAGS,
    LABELS,
    MEASURED,
    PEERS,
    RUN_COLUMNS,
    SIZES,
    WHOLE_MODEL,
)
from hymell.measure.readers.filters import counts, mark
from hymell.measure.table import Tally

#: Why a run is left out, by the name under which it is counted.
REASONS: Final[Mapping[str, str]] = {
    "joined": "upstream has several rows per run (prompt, token, whole), which stand in one here",
    "exact_copy": "the same run, times included, stands twice",
    "withheld": "the set keeps this GPU for the last judgement; the row was left in the open",
    "kv_overflow": "the cache does not fit, so the batch ran in waves",
    "early_stop": "faster than the same run of shorter prompts and outputs: it stopped early",
    "degenerate_routing": "all prompts are equal, so every token went to the same experts",
    "mistral_large_batch": "vLLM's Mistral from 32 sequences on is off by half on this GPU",
    "training": "a training step",
    "parts_do_not_add_up": "prompt and tokens differ from the whole run by 2% or more",
    "pipeline_cut": "layers are cut over GPUs: waits of the pipeline are in it",
    "short_output": "under 32 tokens: start-up of the first run is in it",
    "batch_not_stated": "the concurrency is missing",
    "parallelism_unclear": "the columns do not say over how many GPUs the model was cut, or how",
    "several_machines": "more than 8 GPUs: several machines, or prefill and decode apart",
    "not_finite": "a time is 0, negative or missing",
    "faster_than_data_sheet": "faster than the GPU can read the weights or do the products",
    "power_above_tdp": "energy over time is more than the boards' power limit",
    "repeat": "merged into the mean of the runs of one configuration",
}

#: Why the power and the energy of a run are blanked; its times are kept.
POWER_REASONS: Final[Mapping[str, str]] = {
    "power_of_another_window": "17% of TDP for prompts of 8192 tokens: the sampling missed the run",
    "power_flat": "448-452 W whatever the model and the batch",
}

_KEYS = [*LABELS, *SIZES, *FLAGS, "arrival_s"]


def tidy(file: RunFile) -> tuple[pd.DataFrame, list[Tally]]:
    """The runs of a file in the columns of `RUN_COLUMNS`, and what was left out, per tally."""
    rows = _framed(file)
    timed = rows[["ttft_s", "tpot_s", "latency_s"]]
    mark(rows, ~(timed.gt(0) | timed.isna()).all(axis=1) | timed.isna().all(axis=1), "not_finite")
    mark(rows, _too_fast(rows), "faster_than_data_sheet")
    usable = rows["power_drop"] == ""
    rows.loc[~usable, list(ENERGY)] = np.nan
    mark(rows, _too_hot(rows), "power_above_tdp")
    kept = _merge(rows[rows["drop"] == ""])
    groups = ["gpu", "library", "version", "dtype"]
    tallies = []
    for key, mine in rows.groupby(groups, sort=False):
        left = kept[(kept[groups] == list(key)).all(axis=1)]
        tallies.append(_tally(file, key, mine, left))
    return kept[list(RUN_COLUMNS)], tallies


def _framed(file: RunFile) -> pd.DataFrame:
    """The loaded runs with every column that their reader left out."""
    rows = file.load(file.path).reset_index(drop=True)
    defaults: dict[str, Any] = dict.fromkeys((*LABELS, "drop", "power_drop"), "")
    defaults |= dict.fromkeys(
        (*(n for n in SIZES if n != "context"), *MEASURED, *PEERS, "arrival_s"), np.nan
    )
    defaults |= {"tp": 1.0, "pp": 1.0, "ep": 1.0, "dp": 1.0}
    defaults |= {"kv_cache": True, "queued": False, "prompt_stated": True}
    defaults |= {"repeats": 1, "spread": 0.0, "joined": 1}
    for name, value in defaults.items():
        if name not in rows:
            rows[name] = value
    if "context" not in rows:
        rows["context"] = rows["prompt"] + rows["output"] / 2
    numbers = [*SIZES, *MEASURED, *PEERS, "arrival_s", "spread"]
    rows[numbers] = rows[numbers].astype("float64")
    return rows.assign(set=file.set, source=file.source, file=str(file.path))


def _too_fast(rows: pd.DataFrame) -> pd.Series:
    return pd.Series([_passes(row) for row in rows.itertuples()], index=rows.index, dtype=bool)


def _passes(row: Any) -> bool:
    """Whether a run is faster than the data sheet allows in any of its parts."""
    least = bound(run_of(row))
    if least is None:
        return False
    steps = max(row.output - 1, 0) if row.output == row.output else 0
    whole = least.prefill_s + steps * least.step_s
    fast = row.ttft_s < least.prefill_s or row.tpot_s < least.step_s or row.latency_s < whole
    return bool(fast)


def _too_hot(rows: pd.DataFrame) -> pd.Series:
    limit = rows["gpu"].map(tdp_w).astype("float64") * rows["n_gpus"]
    return rows["power_w"] > limit


def _merge(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: means, their number, and how far apart the times are."""
    if not rows.duplicated(_KEYS).any():
        return rows
    groups = rows.groupby(_KEYS, sort=False, dropna=False)
    merged = groups[[*MEASURED, *PEERS]].mean()
    time = rows["latency_s"].fillna(rows["tpot_s"]).fillna(rows["ttft_s"])
    apart = time.groupby([rows[key] for key in _KEYS], sort=False, dropna=False)
    merged["repeats"] = groups["repeats"].sum()
    between = (apart.max() - apart.min()) / apart.mean()
    merged["spread"] = np.maximum(groups["spread"].max(), between)
    merged["file"] = groups["file"].first()
    return merged.reset_index()


def _tally(file: RunFile, key: Any, rows: pd.DataFrame, kept: pd.DataFrame) -> Tally:
    gpu, library, version, dtype = key
    dropped = counts(rows["drop"])
    joined = int((rows["joined"] - 1).sum())
    repeats = int((rows["drop"] == "").sum()) - len(kept)
    dropped |= {"joined": joined} if joined else {}
    dropped |= {"repeat": repeats} if repeats else {}
    return Tally(
        source=file.set,
        gpu=gpu,
        library=library,
        version=version,
        op=WHOLE_MODEL,
        dtype=dtype,
        rows_in=int(rows["joined"].sum()),
        dropped=dropped,
        rows=len(kept),
        power_rows=int(kept[list(ENERGY)].notna().any(axis=1).sum()),
        power_unusable=counts(rows.loc[rows["drop"] == "", "power_drop"]),
    )
