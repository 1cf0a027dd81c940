"""What is held out of the latent-attention tables."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.measure.splits.attention import Split, byte_dims, held_groups
from hymell.measure.table import Table

#: Longest lengths fitted on when the longest are held out.
_TRAINED_LENGTH: Final = {
    "mla_prefill": 4096,
    "mla_prefill_module": 4096,
    "mla_decode": 8193,
    "mla_decode_module": 8193,
}

#: Bytes of a weight, the scales of its block included.
_BLOCK_SCALED: Final = {"float8_block128": 1.0, "nvfp4": 0.5625}


def dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """The sizes that the level-1 forms of latent attention take."""
    sizes = {name: table[name] for name in ("batch", "q_len", "kv_len", "heads")}
    sizes |= byte_dims(table)
    if "gemm_dtype" in table.columns:
        sizes["weight_bytes"] = np.array([weight_bytes(str(f)) for f in table["gemm_dtype"]])
    return sizes


def weight_bytes(gemm_dtype: str) -> float:
    """Bytes per weight of a format, with the scales of fp4 blocks of 16."""
    return _BLOCK_SCALED.get(gemm_dtype) or float(bytes_per_element(gemm_dtype))


def splits(table: Table) -> list[Split]:
    """Head counts held out (one split per seed), then the longest lengths.

    Raises HymellError for a table of another op.
    """
    if table.op not in _TRAINED_LENGTH:
        raise HymellError(f"latent-attention splits do not cut a table of {table.op}")
    long = table["kv_len"] > _TRAINED_LENGTH[table.op]
    return [*held_groups(table, ("heads",), "heads"), ("length", ~long, long)]
