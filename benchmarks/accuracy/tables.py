"""Which tables are judged, and on which data sheet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from hymell.estimators.level1.device import Device
from hymell.hardware import load_gpu
from hymell.measure.operators import OPERATORS, Rows, rows_of

#: In the order of the page; the first table of an op is the one that is drawn.
GPUS = (
    "h100-sxm",
    "h200-sxm",
    "a100-sxm-80gb",
    "b200-sxm",
    "l40s",
    "a40",
    "rtx-a6000",
    "rtx-3090",
    "rtx-4090",
    "rtx-pro-6000-server",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "l4",
    "t4",
    "v100-pcie-32gb",
)
LIBRARIES = ("vllm", "trtllm", "sglang", "pytorch")

#: Boards that hymell has no data sheet of, and whose stands for it (docs/estimators/row_ops.md).
SHEETS = {"v100-pcie-32gb": "v100-sxm-32gb"}


def device_of(gpu: str) -> Device:
    """What the forms know of a board."""
    return Device.of(load_gpu(SHEETS.get(gpu, gpu)))


def tables(
    gpus: Iterable[str], ops: Collection[str], root: Path
) -> Iterator[tuple[str, str, Rows]]:
    """GPU, library and rows of every table that an estimator is fitted on, of ``ops`` or of all.

    What a library borrows counts once, for the first that does.
    """
    for gpu in gpus:
        seen = set()
        for library in LIBRARIES:
            for operator in OPERATORS:
                if ops and operator.op not in ops:
                    continue
                for rows in rows_of(operator, gpu, library, root):
                    key = (operator.op, rows.library, rows.version, rows.dtype, rows.variant)
                    if key not in seen:
                        seen.add(key)
                        yield gpu, library, rows
