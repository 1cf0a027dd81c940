"""The tidy table of blocks: the attention or the FFN of one layer, measured layer by layer."""

from __future__ import annotations

from typing import Final

import pandas as pd

#: The ``op`` of a `Table` of blocks.
BLOCK: Final = "block"

#: Strings. ``block`` is attention or ffn, ``phase`` prefill or decode, "" where the block is the
#: same in both. ``members`` are upstream's layers whose times were added, ``missing`` what a block
#: has and upstream did not measure, both joined by +.
LABELS: Final = (
    "source",
    "gpu",
    "library",
    "version",
    "model",
    "zoo",
    "block",
    "phase",
    "dtype",
    "gemm_dtype",
    "kv_dtype",
    "kernel",
    "members",
    "missing",
)

#: float64. ``tokens`` is batch x q_len, what the GEMMs see; ``q_len``, ``kv_len`` and ``batch`` are
#: NaN where only ``tokens`` matters, ``active_experts`` NaN for a dense FFN.
NUMBERS: Final = ("tp", "tokens", "batch", "q_len", "kv_len", "active_experts", "time_s")

BLOCK_COLUMNS: Final = (*LABELS, *NUMBERS, "file")


def framed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows in the columns of `BLOCK_COLUMNS`; those left out are "" or NaN."""
    filled = rows.reindex(columns=list(BLOCK_COLUMNS))
    filled[list(LABELS)] = filled[list(LABELS)].astype(object).fillna("")
    return filled.astype(dict.fromkeys(NUMBERS, "float64"))


def summed(times: pd.DataFrame, names: tuple[str, ...], missing: str = "") -> pd.DataFrame:
    """The time of a block from those of its layers, in seconds; NaN where one is missing.

    Of ``names`` those that ``times`` has no column of are no layer of this model.
    """
    found = [name for name in names if name in times]
    time = times[found].sum(axis=1, skipna=False)
    return pd.DataFrame({"time_s": time, "members": "+".join(found), "missing": missing})
