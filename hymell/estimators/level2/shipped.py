"""Block corrections as files: one JSON per GPU and library, weights of the nets beside it.

Shipped ones lie in ``hymell/hardware/blocks/GPU/LIBRARY.json``; `benchmarks/blocks.py` writes them
where they are nearer to blocks that they were not fitted on than the sum of level 1 is. They hold
for the GPU and the library that were measured, over that pair's calibration, and are carried to no
other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hymell.hardware
from hymell.errors import DAMAGED, HymellError
from hymell.estimators.level2.correction import BlockCorrection
from hymell.estimators.mlp import Mlp

SCHEMA_VERSION: Final = 1

#: Where shipped corrections lie.
FOLDER = Path(hymell.hardware.__file__).parent / "blocks"

#: Block (attention, ffn), what is in it (`BLOCK_FORMS`), phase.
Key = tuple[str, str, str]

#: Attention with heads of its own, or latent; FFNs without experts, or with.
BLOCK_FORMS: Final = ("heads", "latent", "dense", "experts")


@dataclass(frozen=True)
class BlockEntry:
    """A correction of one form of block in one phase, and what is known of it.

    ``source`` and ``version`` say whose measurements, ``models`` and ``rows`` how many. ``mape``
    and ``sum_mape`` are the mean absolute errors in % on what was left out (``left_out``), of this
    and of the sum of level 1. ``norm``: the norm before the block was timed with it.
    """

    block: str
    form: str
    phase: str
    source: str
    version: str
    models: tuple[str, ...]
    rows: int
    left_out: str
    mape: float
    sum_mape: float
    norm: bool
    correction: BlockCorrection

    @property
    def key(self) -> Key:
        """Block, form, phase."""
        return self.block, self.form, self.phase

    @property
    def prefix(self) -> str:
        """Name of its arrays."""
        return "/".join(self.key)

    def describe(self) -> str:
        """Whose measurements they are and how far off, in words for a report."""
        what = {"latent": "latent attention", "heads": "attention"}.get(self.form, self.form)
        return (
            f"{what} in {self.phase}: level 2, fitted on {self.rows} blocks of {self.source} "
            f"({self.version}), {self.mape:.1f}% off on an unseen {self.left_out}, "
            f"{self.sum_mape:.1f}% without"
        )


@dataclass(frozen=True)
class BlockEstimates:
    """The corrections of one GPU and library, by key."""

    gpu: str
    library: str
    entries: Mapping[Key, BlockEntry]

    def find(self, key: Key) -> BlockEntry | None:
        """The entry of a key, None where the sum of level 1 stands."""
        return self.entries.get(key)


@cache
def shipped_blocks(gpu: str, library: str) -> BlockEstimates | None:
    """The shipped corrections of a GPU and library, None where there are none; errors as `load`."""
    file = FOLDER / gpu / f"{library}.json"
    return load(file) if file.is_file() else None


def load(file: Path) -> BlockEstimates:
    """Corrections from their file. Raises HymellError for one that is damaged."""
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {content['schema_version']}")
        arrays = _arrays(file.with_suffix(".safetensors"))
        entries = [_entry(item, arrays) for item in content["entries"]]
        gpu, library = str(content["gpu"]), str(content["library"])
        return BlockEstimates(gpu, library, {entry.key: entry for entry in entries})
    except DAMAGED as error:
        raise HymellError(
            f"{file} holds no block corrections of this version ({type(error).__name__}: {error}); "
            "write it anew with benchmarks/blocks.py"
        ) from None


def _arrays(file: Path) -> Mapping[str, NDArray[np.float32]]:
    if not file.is_file():
        return {}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            names = list(tensors.keys())
            return {name: tensors.get_tensor(name).astype(np.float32) for name in names}
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _entry(item: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]]) -> BlockEntry:
    key = str(item["block"]), str(item["form"]), str(item["phase"])
    if key[1] not in BLOCK_FORMS:
        raise ValueError(f"{key[1]!r} is no form of a block")
    with_net = item["fitted"]["stage"] == "net"
    net = Mlp.from_arrays(arrays, "/".join(key)) if with_net else None
    return BlockEntry(
        *key,
        source=str(item["source"]),
        version=str(item["version"]),
        models=tuple(str(model) for model in item["models"]),
        rows=int(item["rows"]),
        left_out=str(item["left_out"]),
        mape=float(item["mape"]),
        sum_mape=float(item["sum_mape"]),
        norm=bool(item["norm"]),
        correction=BlockCorrection.from_dict(item["fitted"], net),
    )


def save(gpu: str, library: str, entries: Sequence[BlockEntry], file: Path) -> None:
    """Write corrections; weights in half precision, as calibrations keep them."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "gpu": gpu,
        "library": library,
        "entries": [_item(entry) for entry in entries],
    }
    arrays: dict[str, NDArray[Any]] = {}
    for entry in entries:
        if entry.correction.net_ is not None:
            for name, values in entry.correction.net_.to_arrays(entry.prefix).items():
                layer = name.rpartition(".")[2][0] in "wb"
                arrays[name] = values.astype(np.float16) if layer else values
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = file.with_suffix(".safetensors")
    # Weights first: a reader that finds the new JSON then finds its weights too.
    if arrays:
        from safetensors.numpy import save_file

        save_file(arrays, weights)
        weights.chmod(0o644)
    else:
        weights.unlink(missing_ok=True)
    file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _item(entry: BlockEntry) -> dict[str, Any]:
    return {
        "block": entry.block,
        "form": entry.form,
        "phase": entry.phase,
        "source": entry.source,
        "version": entry.version,
        "models": list(entry.models),
        "rows": entry.rows,
        "left_out": entry.left_out,
        "mape": round(entry.mape, 2),
        "sum_mape": round(entry.sum_mape, 2),
        "norm": entry.norm,
        "fitted": entry.correction.to_dict(),
    }
