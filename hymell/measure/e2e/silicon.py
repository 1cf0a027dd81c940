"""ai-dynamo/aiconfigurator's served measurements: time per output token by concurrency.

Two dumps of InferenceMAX and NVIDIA's own runs (``nv_gap``). Time to first token is queueing at
these loads. Upstream's own columns of parallelism are at odds for InferenceMAX: a run on eight GPUs
with ``tp8_ep8`` in its name stands with tp 64, or with 64 replicas of attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hymell.measure.e2e import names
from hymell.measure.e2e.bounds import bound, memory_bytes, run_of
from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "ai-dynamo/aiconfigurator"

_ONE_MACHINE = 8
_COPY = ["gpu", "model", "concurrency", "prompt", "output", "latency_ms", "ttft_ms"]


def files(root: Path) -> Iterator[RunFile]:
    """The table of this source."""
    return tidy_tables(root, SOURCE, {"aic_silicon": load})


def load(path: Path) -> pd.DataFrame:
    """One row per configuration and concurrency; the concurrency counts all sequences in flight."""
    raw = common(path)
    found = raw["framework"].fillna(raw["backend"]).map(names.library)
    raw = raw.assign(library=found.str[0], version=found.str[1], engine=found.str[2])
    gpus, attention, experts = _parallelism(raw)
    rows = raw.assign(
        n_gpus=gpus,
        tp=gpus / attention,
        dp=attention,
        ep=experts,
        batch=raw["concurrency"],
        tpot_s=raw["latency_ms"] / 1e3,
        queued=True,
    )
    # OpenAI publishes gpt-oss in MXFP4, which upstream calls by the name of NVIDIA's format.
    mxfp4 = rows["zoo"].str.startswith("gpt-oss") & rows["dtype"].eq("nvfp4")
    rows.loc[mxfp4, "dtype"] = "mxfp4"
    blocks = rows["dtype"].eq("float8_e4m3") & rows["moe_dtype"].eq("fp8_block")
    rows.loc[blocks, "dtype"] = "float8_block128"
    rows["dtype"] = list(map(names.stored_dtype, rows["dtype"], rows["zoo"]))
    for bad, reason in (
        (rows["concurrency"].isna(), "batch_not_stated"),
        (gpus.isna(), "parallelism_unclear"),
        (gpus > _ONE_MACHINE, "several_machines"),
    ):
        rows.loc[bad & (rows["drop"] == ""), "drop"] = reason
    rows["context"] = rows["prompt"] + rows["output"] / 2
    queued = pd.Series([_overflows(row) for row in rows.itertuples()], rows.index, dtype=bool)
    rows.loc[queued & (rows["drop"] == ""), "drop"] = "kv_overflow"
    # Last, so that of two copies the one that says how it was cut is kept.
    copies = rows[rows["drop"] == ""].duplicated(_COPY)
    rows.loc[copies[copies].index, "drop"] = "exact_copy"
    return rows


def _overflows(row: Any) -> bool:
    """Whether weights and mean cache exceed all memory: fewer sequences ran than were sent."""
    least, memory = bound(run_of(row)), memory_bytes(row.gpu)
    return least is not None and memory is not None and least.held_bytes > memory * row.n_gpus


def _parallelism(raw: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series]:
    """(GPUs, replicas of attention, ranks of experts) per row; NaN GPUs where they are not clear.

    The name of an InferenceMAX run states GPUs and ranks of experts; where it does not, only
    columns that agree count. In NVIDIA's runs the concurrency over the batch is the replicas.
    """
    stated = raw["id"].str.extract(r"_tp(\d+)(?:_0)?_ep(\d+)").astype("float64")
    product = raw["moe_tp"] * raw["moe_ep"]
    attention = raw["adp"].where(raw["adp"] >= 1, 1.0)
    own = raw["sub"] == "nv_gap"
    replicas = (raw["concurrency"] / raw["batch"]).where(own, 1.0)
    columns = raw["tp"] * replicas.where(own, attention)
    agree = product.le(1) | product.eq(columns)
    # Where two of three are cut, InferenceMAX's columns multiplied what the name states once.
    agree &= own | (raw["tp"].eq(1) | attention.eq(1)) & (raw["moe_tp"].eq(1) | raw["moe_ep"].eq(1))
    gpus = stated[0].where(stated[0].notna() & ~own, columns.where(agree))
    shared = pd.Series(np.where(attention > 1, gpus, 1.0), raw.index)
    experts = stated[1].where(stated[1].notna() & ~own, raw["moe_ep"].clip(lower=1))
    return gpus, replicas.where(own, shared), experts
