"""What is held out of the attention tables.

Two grains of head configuration: ``heads`` holds out (heads, kv_heads, head_dim) with every window,
``configs`` (heads, kv_heads, head_dim, window), so that the same heads may have been seen under
another window. Every batch and length goes with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.measure.table import Table

Mask = NDArray[np.bool_]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

SEEDS: Final = (0, 1, 2)
_HELD_SHARE: Final = 0.2
#: Longest lengths fitted on when the longest are held out.
_TRAINED_LENGTH: Final = {
    "attention_prefill": 4096,
    "encoder_attention": 4096,
    "attention_decode": 8192,
}


def dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """The sizes that the level-1 forms of attention take; benchmarks replay a warm L2 (cold 0)."""
    sizes = {
        name: table[name]
        for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
    }
    return sizes | byte_dims(table)


def byte_dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """Bytes per element of queries and of the cache, and ``cold`` 0."""
    return {
        "q_bytes": _bytes(table["dtype"]),
        "kv_bytes": _bytes(table["kv_dtype"]),
        "cold": np.zeros(len(table)),
    }


def _bytes(names: NDArray[np.object_]) -> NDArray[np.float64]:
    formats, index = np.unique(names.astype(str), return_inverse=True)
    return np.array([float(bytes_per_element(str(f))) for f in formats])[index]


def splits(table: Table) -> list[Split]:
    """Head configurations held out at both grains (one split per seed), then the longest lengths.

    Raises HymellError for a table of another op.
    """
    if table.op not in _TRAINED_LENGTH:
        raise HymellError(f"attention splits do not cut a table of {table.op}; use its own module")
    heads = ("heads", "kv_heads", "head_dim")
    held = [
        *held_groups(table, heads, "heads"),
        *held_groups(table, (*heads, "window"), "configs"),
    ]
    long = table["kv_len"] > _TRAINED_LENGTH[table.op]
    return [*held, ("length", ~long, long)]


def held_groups(table: Table, names: tuple[str, ...], label: str) -> Iterator[Split]:
    """A fifth of the distinct values of ``names`` held out whole, by each of `SEEDS`.

    Two are held out at least: nothing where that would leave none to fit on.
    """
    values = np.stack([table[name] for name in names], axis=1)
    groups, index = np.unique(values, axis=0, return_inverse=True)
    count = max(2, round(_HELD_SHARE * len(groups)))
    if count >= len(groups):
        return
    for seed in SEEDS:
        chosen = np.random.default_rng(seed).choice(len(groups), count, replace=False)
        held = np.isin(index.reshape(-1), chosen)
        yield f"{label}-{seed}", ~held, held
