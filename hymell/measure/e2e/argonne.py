"""argonne-lcf/LLM-Inference-Bench: static batches on H100, GH200 and A100, in float16.

Every sequence has equal prompt and output lengths (but in the grid), all of a batch start together.
Versions of the engines are not stated (2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e.layout import RunFile, common, tidy_tables

SOURCE = "argonne-lcf/LLM-Inference-Bench"

_FLAT_FROM_BATCH = 16
_OFF_FROM_BATCH = 32


def files(root: Path) -> Iterator[RunFile]:
    """The tables of this source."""
    loads = {
        "argonne_e2e": whole_runs,
        "argonne_grid_a100": whole_runs,
        "argonne_ttft": first_tokens,
        "argonne_power": powers,
    }
    return tidy_tables(root, SOURCE, loads)


def whole_runs(path: Path) -> pd.DataFrame:
    """Latency of a batch from its prompts to its last token."""
    rows = common(path)
    rows["latency_s"] = rows["latency_ms"] / 1e3
    if "n_rep" in rows:
        rows["repeats"] = rows["n_rep"]
    if "kv_fill" in rows:
        rows.loc[rows["kv_fill"] >= 1, "drop"] = "kv_overflow"
    rows.loc[_stopped_early(rows), "drop"] = "early_stop"
    trt_mixtral = (rows["library"] == "trtllm") & (rows["zoo"] == "mixtral-8x7b")
    rows.loc[trt_mixtral, "drop"] = "degenerate_routing"
    mistral = (
        rows["model"].eq("mistral-7b") & rows["library"].eq("vllm") & rows["gpu"].eq("h100-sxm")
    )
    rows.loc[mistral & (rows["batch"] >= _OFF_FROM_BATCH), "drop"] = "mistral_large_batch"
    return rows


def _stopped_early(rows: pd.DataFrame) -> pd.Series:
    """Faster than the same batch with shorter prompts and outputs, among runs of equal lengths."""
    equal = rows[(rows["drop"] == "") & (rows["prompt"] == rows["output"])]
    keys = ["model", "gpu", "library", "n_gpus", "batch"]
    longest = equal.sort_values("prompt").groupby(keys)["latency_s"].cummax()
    return rows["latency_s"] < longest.reindex(rows.index)


def first_tokens(path: Path) -> pd.DataFrame:
    """Runs of one output token: the prefill alone."""
    rows = common(path)
    rows["ttft_s"] = rows["latency_ms"] / 1e3
    return rows


def powers(path: Path) -> pd.DataFrame:
    """Mean power over a run, an idle tail of about 1 s included; the energy is power x latency."""
    rows = whole_runs(path)
    flat = rows["gpu"].eq("h100-sxm") & rows["library"].eq("trtllm")
    rows.loc[flat & (rows["batch"] >= _FLAT_FROM_BATCH), "power_drop"] = "power_flat"
    return rows
