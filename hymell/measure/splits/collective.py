"""What is held out of the tables of collectives, and which tables there are.

Upstream measured powers of two. Every other size is held out, so that each one judged lies an
octave from what was fitted; so are the largest sizes, and the middle number of GPUs as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymell.measure.table import Table

Mask = NDArray[np.bool_]
#: (name, rows to fit on, rows to judge on)
Split = tuple[str, Mask, Mask]

#: log2 of the sizes from which "largest" counts: 128 MiB.
_LARGEST_LOG2: Final = 27
_MIDDLE_GPUS: Final = 4


class Target(NamedTuple):
    """One table to fit; ``kernel`` "" takes all rows."""

    op: str
    gpu: str
    library: str
    version: str
    dtype: str
    kernel: str = ""


_NCCL: Final = (
    ("h100-sxm", "2.29.2"),
    ("h100-sxm", "2.27.3"),
    ("h200-sxm", "2.29.2"),
    ("a100-sxm-80gb", "2.27.3"),
    ("b200-sxm", "2.29.2"),
    ("b200-sxm", "2.27.3"),
    ("l40s", "2.27.3"),
)
_VLLM_VERSIONS: Final = (
    ("a100-sxm-80gb", "0.14.0"),
    ("b200-sxm", "0.24.0"),
    ("h100-sxm", "0.24.0"),
    ("h200-sxm", "0.24.0"),
)

TARGETS: Final = (
    *(
        Target(op, gpu, "nccl", version, "float16")
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for gpu, version in _NCCL
    ),
    *(
        Target("custom_all_reduce", gpu, "vllm", version, "bfloat16", kernel)
        for gpu, version in _VLLM_VERSIONS
        for kernel in ("vLLM_custom_graph", "vLLM_custom_eager")
    ),
    *(
        Target("custom_all_reduce", gpu, "trtllm", "1.3.0rc20", "bfloat16")
        for gpu in ("b200-sxm", "h100-sxm", "h200-sxm", "l40s")
    ),
)


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
