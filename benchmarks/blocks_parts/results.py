"""What came out for each cell: records, where the largest errors are, what ships."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import hymell
from blocks_parts.judge import (
    ANALYTICAL,
    ESTIMATORS,
    OURS,
    SHEET,
    SUM,
    Held,
    Source,
    abroad,
    corrected,
    held_out,
)
from blocks_parts.layers import Layers, priceable
from blocks_parts.level1 import Stack
from blocks_parts.modules import Modules, newest
from hymell.errors import HymellError
from hymell.estimators.level2.shipped import BlockEntry

Record = dict[str, Any]

#: Plain sums have seen no block at all.
_PLAIN: Final = (SHEET, ANALYTICAL, SUM)

#: GPUs in the order in which they lend level 1 to a GPU that was left out.
_NEAR: Final = ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "a40", "b200-sxm", "l40s")


@dataclass(frozen=True)
class Result:
    """One cell: a stack's blocks of one kind and phase.

    ``stages``: the stage chosen for each hold-out and the errors that it was chosen by; ``worst``:
    (dimension, value, rows, MAPE, bias) of level 2; ``models`` of upstream.
    """

    source: str
    gpu: str
    library: str
    version: str
    block: str
    phase: str
    note: str
    models: Sequence[str]
    records: Sequence[Record]
    stages: Mapping[str, Any]
    worst: Sequence[tuple[str, str, int, float, float]]


@dataclass(frozen=True)
class Left:
    """Blocks that could not be judged, and why."""

    source: str
    gpu: str
    what: str
    rows: int
    why: str


@dataclass
class Cell:
    """A source of blocks with what is said of it."""

    source: Source
    rows: pd.DataFrame
    note: str

    @property
    def first(self) -> Any:
        return self.rows.iloc[0]

    @property
    def family(self) -> tuple[str, ...]:
        """Cells of one family differ in the GPU alone."""
        first = self.first
        return first["source"], first["library"], first["block"], first["phase"], self.note


def cells(rows: pd.DataFrame, folder: Path) -> tuple[list[Cell], list[Left]]:
    """Every cell that more than one group can be left out of, and what is in none."""
    made: list[Cell] = []
    left: list[Left] = []
    for (source, gpu, library), mine in rows.groupby(["source", "gpu", "library"], sort=True):
        stack = Stack(source, gpu, library)
        if source == "aiconfigurator":
            chosen = newest(mine)
            older = len(mine) - len(chosen)
            why = "older versions, other formats of activations, models of the same shape"
            left.append(Left(source, gpu, f"modules, {library}", older, why))
            for _, part in chosen.groupby("phase", sort=True):
                made.append(Cell(Modules(stack, part), part, "latent, one module"))
            continue
        for (block, phase, missing), part in mine.groupby(["block", "phase", "missing"], sort=True):
            what = f"{block} {phase}".strip()
            kept, why_not = priceable(stack, part, folder)
            for model, why in why_not.items():
                count = int((part["model"] == model).sum())
                left.append(Left(source, gpu, f"{what}, {model}", count, why))
            layers = Layers(stack, kept, folder) if len(kept) else None
            if layers is None or len(layers.names) < 2:
                why = "one model only: without it nothing is left to fit level 1 to"
                if len(kept):
                    left.append(Left(source, gpu, what, len(kept), why))
                continue
            note = f"without the {missing} kernel" if missing else "all kernels"
            made.append(Cell(layers, kept, note))
    return made, left


def judged(cell: Cell, every: Sequence[Cell], folder: Path) -> Result:
    """Every figure of a cell; known ones come from ``folder``."""
    others = [c for c in every if c.family == cell.family and c.source.stack != cell.source.stack]
    others.sort(key=lambda c: _NEAR.index(c.first["gpu"]))
    first = cell.first
    words = (*cell.family[:4], first["gpu"], cell.note)
    name = "-".join(str(w).replace(" ", "_").replace(",", "") for w in words if w)
    name = f"{name}-{_state(cell)}"
    by = "unseen heads" if isinstance(cell.source, Modules) else "unseen model"
    parts = [_kept(folder / f"{name}.json", lambda: _part(cell, held_out(cell.source), by))]
    if others:
        homes = "-".join(other.first["gpu"] for other in others)
        sources = [other.source for other in others]
        parts.append(
            _kept(
                folder / f"{name}-from-{homes}.json",
                lambda: _part(cell, abroad(cell.source, sources), "unseen GPU"),
            )
        )
    return Result(
        source=first["source"],
        gpu=first["gpu"],
        library=first["library"],
        version=first["version"],
        block=first["block"],
        phase=first["phase"],
        note=cell.note,
        models=sorted(cell.rows["model"].unique()),
        records=[record for part in parts for record in part["records"]],
        stages={name: found for part in parts for name, found in part["stages"].items()},
        worst=parts[0]["worst"],
    )


def _part(cell: Cell, held: Held, split: str) -> dict[str, Any]:
    """What is kept of one kind of hold-out."""
    return {
        "records": list(_records(cell, held, split)),
        "stages": {split: {name: asdict(choice) for name, choice in held.choices.items()}},
        "worst": list(_worst(held)),
    }


def _kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not file.is_file():
        made = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made), encoding="utf-8")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


#: What the figures follow from, within the package and among these parts.
_CODE: Final = (
    "estimators/level1",
    "estimators/level2/correction.py",
    "estimators/level2/sums.py",
    "estimators/mlp.py",
    "estimators/training.py",
    "estimators/queries.py",
    "estimators/fitted.py",
    "op_registry",
    "hardware/calibrations",
    "hardware/gpus",
)
_PARTS: Final = ("judge", "layers", "level1", "modules", "truth")


def _state(cell: Cell) -> str:
    """Of the rows and of everything that the figures follow from."""
    rows = cell.rows.drop(columns="file")
    found = hashlib.sha256(rows.to_csv(index=False).encode())
    package = Path(hymell.__file__).parent
    for name in _CODE:
        place = package / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".json", ".safetensors"):
                found.update(path.name.encode() + path.read_bytes())
    for name in _PARTS:
        found.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return found.hexdigest()[:12]


def _records(cell: Cell, held: Held, split: str) -> Iterator[Record]:
    first = cell.first
    phase = f", {first['phase']}" if first["phase"] else ""
    for name in ESTIMATORS:
        percent = held.percent(name)
        size = np.abs(percent)
        figures = {
            "mape": size.mean(),
            "median": np.median(size),
            "p90": np.percentile(size, 90),
            "max": size.max(),
            "bias": percent.mean(),
        }
        yield {
            "set": f"{first['source']} {first['version']}: {first['block']}{phase}, {cell.note}",
            "gpu": first["gpu"],
            "library": first["library"],
            "op": f"block {first['block']}",
            "dtype": "/".join(sorted(cell.rows["gemm_dtype"].unique())),
            "estimator": name,
            "split": split if name not in _PLAIN or split == "unseen model" else "all blocks",
            "hold_out": split,
            "rows": len(percent),
            **{name: round(float(value), 2) for name, value in figures.items()},
            "models": len(np.unique(held.groups)),
        }


def _worst(held: Held) -> Iterator[tuple[str, str, int, float, float]]:
    percent = pd.Series(held.percent(OURS))
    labels = held.labels
    bins = [0, 16, 64, 256, 1024, 4096, np.inf]
    tokens = pd.cut(
        labels["tokens"],
        bins,
        labels=["1-16", "17-64", "65-256", "257-1024", "1025-4096", "over 4096"],
    )
    found = {
        "left out": pd.Series(held.groups),
        "tp": "tp " + labels["tp"].astype(int).astype(str),
        "tokens": tokens.astype(str) + " tokens",
    }
    if labels["kv_len"].notna().all():
        keys = pd.cut(
            labels["kv_len"],
            [0, 256, 2048, 16384, np.inf],
            labels=["up to 256", "257-2048", "2049-16384", "over 16384"],
        )
        found["context"] = keys.astype(str) + " tokens attended to"
    if labels["gemm_dtype"].nunique() > 1:
        formats = labels["gemm_dtype"] + " weights, " + labels["kv_dtype"] + " cache"
        found["formats"] = formats
    for name, values in found.items():
        size = percent.abs().groupby(values.to_numpy()).mean()
        key = str(size.idxmax())
        mine = percent[values.to_numpy() == key]
        yield name, key, len(mine), float(size.max()), float(mine.mean())


def shippable(cell: Cell, result: Result) -> BlockEntry | None:
    """The correction of a cell fitted on all of it, where it is nearer to what was left out.

    Only of a module: layers that were timed one by one have none of what a correction would add,
    and their libraries are no engine's, or measured too few models.
    """
    if not isinstance(cell.source, Modules):
        return None
    split = next(iter(result.stages))
    mine = {r["estimator"]: r["mape"] for r in result.records if r["hold_out"] == split}
    train, owner = cell.source.learnt()
    choice, made = corrected(train, owner, cell.source.bound)
    if choice.stage == "sum" or mine[OURS] >= mine[SUM]:
        return None
    return BlockEntry(
        block=result.block,
        form="latent",
        phase=result.phase,
        source="aiconfigurator's modules",
        version=f"{result.gpu}, {result.library} {result.version}",
        models=tuple(result.models),
        rows=len(train),
        left_out="quarter of the numbers of heads",
        mape=mine[OURS],
        sum_mape=mine[SUM],
        norm=False,
        correction=made,
    )


def no_results() -> HymellError:
    """Where a run was asked for blocks that nobody measured."""
    return HymellError("no measured blocks of what was asked for: see --only in --help")
