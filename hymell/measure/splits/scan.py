"""What is held out of the tables of scans and of their convolution.

Head counts (channel counts of a convolution) are held out with every batch and length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1.scan import DEFAULT_CHUNK
from hymell.measure.splits.attention import SEEDS, Split
from hymell.measure.table import Table

#: Longest sequence fitted on when the longest are held out.
_TRAINED_LENGTH: Final = 4096
_HELD_SHARE: Final = 0.2
_HELD: Final[Mapping[str, str]] = {
    "gdn": "heads",
    "kda": "heads",
    "mamba2": "heads",
    "conv1d": "channels",
}
_ELEMENT_BYTES: Final = 2.0


def splits(table: Table) -> list[Split]:
    """A fifth of the head (or channel) counts held out, one split per seed, then the longest.

    With fewer than three counts there is nothing to hold out. Raises HymellError for a table of
    another op.
    """
    if table.op not in _HELD:
        raise HymellError(f"scan splits do not cut a table of {table.op}; use its own module")
    found: list[Split] = []
    counts = np.unique(table[_HELD[table.op]])
    if len(counts) >= 3:
        for seed in SEEDS:
            size = max(1, round(_HELD_SHARE * len(counts)))
            chosen = np.random.default_rng(seed).choice(counts, size, replace=False)
            held = np.isin(table[_HELD[table.op]], chosen)
            found.append((f"{_HELD[table.op]}-{seed}", ~held, held))
    long = table["q_len"] > _TRAINED_LENGTH
    if long.any() and not long.all():
        found.append(("length", ~long, long))
    return found


def dims(table: Table) -> Mapping[str, NDArray[Any]]:
    """The sizes that the level-1 form of the table takes.

    A scan reads queries and keys of ``groups`` heads and values, and writes outputs, of ``heads``
    heads; where a table does not state the chunk of its kernel it is 64.
    """
    sizes = {"batch": table["batch"], "length": table["q_len"]}
    if table.op == "conv1d":
        return sizes | {"channels": table["channels"], "width": table["width"]}
    tokens, heads = table["batch"] * table["q_len"], table["heads"]
    row = 2.0 * table["groups"] * table["key_dim"] + 2.0 * heads * table["value_dim"]
    return sizes | {
        "heads": heads,
        "key_dim": table["key_dim"],
        "value_dim": table["value_dim"],
        "chunk": np.where(table["chunk"] > 0, table["chunk"], DEFAULT_CHUNK),
        "token_bytes": _ELEMENT_BYTES * tokens * row,
    }
