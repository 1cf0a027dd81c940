"""ai-dynamo/aiconfigurator: multi-head latent attention with its projections, as one module.

Whether the norm before it is inside is not stated. Heads are those of one rank, so ``tp`` is the
model's heads over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.measure.blocks.table import framed
from hymell.measure.e2e import names
from hymell.measure.readers import aiconfigurator, read
from hymell.zoo import find

_MODULES = {"mla_prefill_module": "prefill", "mla_decode_module": "decode"}


def blocks(root: Path) -> Iterator[pd.DataFrame]:
    """The module tables below ``root``, filtered as all kernels are."""
    found = {
        (op, file.gpu, file.library, file.version)
        for file in aiconfigurator.files(root)
        for op in file.ops
        if op in _MODULES
    }
    for op, gpu, library, version in sorted(found):
        rows = read(op, gpu, library, version, root=root, source=aiconfigurator.SOURCE).to_frame()
        zoo = rows["model"].map(names.zoo)
        yield framed(
            rows.assign(
                zoo=zoo,
                block="attention",
                phase=_MODULES[op],
                tp=zoo.map(_heads) / rows["heads"],
                tokens=rows["batch"] * rows["q_len"],
                members="module",
            )
        )


def _heads(zoo: str) -> float:
    known = find(zoo) if zoo else None
    return float("nan") if known is None else float(known.config["num_attention_heads"])
