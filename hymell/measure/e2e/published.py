"""A dozen rows each from two published tables, to see that nothing is far off.

TensorRT-LLM's documentation of version 0.5 (time to first token), and XiongjieDai's table of
llama.cpp on many boards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.e2e.layout import RunFile, common, tidy_tables


def files(root: Path) -> Iterator[RunFile]:
    """The two tables."""
    yield from tidy_tables(root, "NVIDIA/TensorRT-LLM", {"trtllm_doc_ttft": phases})
    yield from tidy_tables(
        root, "XiongjieDai/GPU-Benchmarks-on-LLM-Inference", {"llamacpp_xdai": phases}
    )


def phases(path: Path) -> pd.DataFrame:
    """A prefill, or the mean token of a decode from an empty cache."""
    rows = common(path)
    time, prefill = rows["latency_ms"] / 1e3, rows["phase"].eq("prefill")
    return rows.assign(ttft_s=time.where(prefill), tpot_s=time.where(~prefill))
