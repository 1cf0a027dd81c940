"""sitar-lab/NeuSight: whole transformers in PyTorch eager mode, float32 without tensor cores.

Read from the tidy table, which adds what peers predict, or from a clone:
``scripts/asplos/label/GPU/MODEL-MODE-LENGTH-BATCH[-OPTION].json``, in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hymell.errors import HymellError
from hymell.measure.e2e import names
from hymell.measure.e2e.layout import RunFile, common, tidy_tables
from hymell.measure.readers.layout import find_folders

SOURCE = "sitar-lab/NeuSight"

_SET = "neusight"
_WITHHELD = "h100-sxm"
_PEERS = ("neusight", "roofline", "habitat", "micro")


def files(root: Path) -> Iterator[RunFile]:
    """The tidy table, or where there is none the labels of a clone."""
    tables = list(tidy_tables(root, SOURCE, {_SET: table}))
    yield from tables
    if not tables:
        for folder in find_folders(root, "scripts/asplos/label"):
            yield RunFile(folder, _SET, SOURCE, labels)


def table(path: Path) -> pd.DataFrame:
    """Runs and the peers' predictions of them."""
    rows = common(path)
    peers = {f"p_{peer}_s": rows[f"p_{peer}"] / 1e3 for peer in _PEERS}
    rows = _runs(rows, rows["phase"].eq("train"), rows["option"].fillna("")).assign(**peers)
    held = (rows["gpu"] == _WITHHELD) & (rows["drop"] == "")
    rows.loc[held, "drop"] = "withheld"
    return rows


def labels(folder: Path) -> pd.DataFrame:
    """The same runs as upstream wrote them, without predictions."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        try:
            model, mode, length, batch, *option = path.stem.split("-")
            time = json.loads(path.read_text(encoding="utf-8"))["e2e_latency"]
        except (ValueError, KeyError) as error:
            raise HymellError(
                f"{path} is not a NeuSight label ({error!r}); fetch it again"
            ) from error
        found.append(
            {
                "model": model,
                "zoo": names.zoo(model),
                "gpu": names.gpu(path.parent.name),
                "mode": mode,
                "option": "".join(option),
                "batch": int(batch),
                "prompt": int(length),
                "latency_ms": time,
            }
        )
    rows = pd.DataFrame(found).assign(dtype="float32", output=0, n_gpus=1, drop="")
    return _runs(rows, rows["mode"].eq("train"), rows["option"])


def _runs(rows: pd.DataFrame, training: pd.Series, option: pd.Series) -> pd.DataFrame:
    """A forward pass is a prefill; ``fusion`` is PyTorch with fused operators."""
    rows = rows.assign(
        library="pytorch",
        version="2.1.0",
        engine=option.eq("fusion").map({True: "compile", False: "eager"}),
        ttft_s=rows["latency_ms"] / 1e3,
    )
    rows.loc[training, "drop"] = "training"
    return rows
