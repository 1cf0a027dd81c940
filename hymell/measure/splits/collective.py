"""What is held out of the tables of collectives.

Upstream measured powers of two. Every other size is held out, so that each one judged lies an
octave from what was fitted; so are the largest sizes, and the middle number of GPUs as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hymell.measure.table import Table

Mask = NDArray[np.bool_]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

#: log2 of the sizes from which "largest" counts: 128 MiB.
_LARGEST_LOG2: Final = 27
_MIDDLE_GPUS: Final = 4


def dims(table: Table) -> dict[str, NDArray[np.float64]]:
    """``collective.COLLECTIVE_DIMS``."""
    return {"message_bytes": table["message_bytes"], "n_gpus": table["n_gpus"]}


def splits(table: Table) -> Iterator[Split]:
    """Every other size, once the odd and once the even powers; the largest; four GPUs."""
    power = np.round(np.log2(table["message_bytes"])).astype(np.int64)
    inside = (power > power.min()) & (power < power.max())
    for name, rest in (("odd", 1), ("even", 0)):
        test = (power % 2 == rest) & inside
        yield f"unseen sizes {name}", ~test, test
    test = power >= _LARGEST_LOG2
    if 0 < test.sum() < len(table):
        yield "largest sizes", ~test, test
    test = table["n_gpus"] == _MIDDLE_GPUS
    if 0 < test.sum() < len(table):
        yield "unseen number of GPUs", ~test, test
