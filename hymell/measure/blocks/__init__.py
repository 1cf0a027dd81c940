"""Attention and FFN blocks as others measured them, layer by layer: the truth of level 2.

A reader is a module with ``blocks(root)``. Block times are sums of layers that upstream timed one
by one, or of one module; gaps between launches are not in them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hymell.errors import HymellError
from hymell.measure.blocks import aiconfigurator, llmservingsim, vidur
from hymell.measure.blocks.table import BLOCK, BLOCK_COLUMNS, NUMBERS
from hymell.measure.location import locate
from hymell.measure.table import Table

__all__ = ["read_blocks"]

READERS = (vidur, llmservingsim, aiconfigurator)


def read_blocks(root: Path | None = None) -> Table:
    """Every block below ``root`` (default: `locate`), in the columns of `table.BLOCK_COLUMNS`.

    A block with a layer that was not timed is left out. ``table.where(block="ffn", gpu="a40")``
    picks rows. Raises HymellError where there is no folder of measurements, or no block in it.
    """
    folder = locate() if root is None else root
    frames = [frame for reader in READERS for frame in reader.blocks(folder)]
    if not frames:
        raise HymellError(f"no measured blocks in {folder} (docs/data.md says where to get some)")
    rows = pd.concat(frames, ignore_index=True)
    rows = rows[rows["time_s"] > 0]
    columns = {
        name: rows[name].to_numpy(dtype=np.float64 if name in NUMBERS else object)
        for name in BLOCK_COLUMNS
    }
    return Table(BLOCK, columns)
