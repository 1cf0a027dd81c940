"""Level-1 estimators of the library that timed the blocks, fitted without the shapes of models.

Vidur's and LLMServingSim's rows are the truth of blocks and of kernels at once: what prices a
block of one model has seen no kernel of that model's shapes, on any parallelism, in any model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hymell.estimators.fitted import scaled
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.mlp import Mlp
from hymell.hardware import load_gpu
from hymell.measure.judging import Effort, fingerprint, fit, pick
from hymell.measure.location import locate
from hymell.measure.operators import FEWEST_ROWS, OPERATORS, Rows, rows_of
from hymell.measure.readers import measured_files
from hymell.measure.table import dims

#: Two dozen fits per GPU: fewer rows and one net of the products, rows' forms without a correction.
EFFORT: Final = Effort(rows=10_000, epochs=60, seeds=(0, 1))
_CORRECTED: Final = ("gemm", "attention_prefill", "attention_decode")

#: What makes the shape of a kernel, whatever the number of tokens.
_SHAPE: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("n", "k"),
    "rms_norm": ("cols",),
    "layer_norm": ("cols",),
    "pointwise": ("cols", "reads"),
    "rope": ("heads", "kv_heads", "head_dim"),
    "attention_prefill": ("heads", "kv_heads", "head_dim"),
    "attention_decode": ("heads", "kv_heads", "head_dim"),
}

#: Log error of a form at its priors, where no shape of another model is there to fit it to.
_PRIOR_SPREAD: Final = 0.6

Shapes = Mapping[str, frozenset[tuple[float, ...]]]
#: Estimators by op and the kernel's (layer's) name upstream, "" for all others of the op.
Fitted = Mapping[tuple[str, str], Level1]


@dataclass(frozen=True)
class Stack:
    """Who timed the layers: one library of one source on one GPU."""

    source: str
    gpu: str
    library: str

    @property
    def device(self) -> Device:
        return Device.of(load_gpu(self.gpu))


@cache
def tables(stack: Stack) -> tuple[Rows, ...]:
    """The rows of every op of `_SHAPE`, one entry per kernel where the op's are told apart."""
    operators = {operator.op: operator for operator in OPERATORS}
    found: list[Rows] = []
    for op in _SHAPE:
        found += [
            rows
            for rows in rows_of(operators[op], stack.gpu, stack.library)
            if rows.library == stack.library and rows.source == stack.source
        ]
    return tuple(found)


@cache
def shapes(stack: Stack, model: str) -> Shapes:
    """The shapes of a model's kernels, by op, in every file that upstream wrote of it."""
    found: dict[str, set[tuple[float, ...]]] = {op: set() for op in _SHAPE}
    for file in measured_files(locate()):
        if (file.source, file.gpu) != (stack.source, stack.gpu) or model not in str(file.path):
            continue
        for part in file.load(file.path):
            if part.op in _SHAPE and len(part.frame):
                frame = part.frame.astype(dict.fromkeys(dims(part.op), np.float64))
                rows = frame[list(_SHAPE[part.op])].drop_duplicates()
                found[part.op].update(rows.itertuples(index=False, name=None))
    return {op: frozenset(each) for op, each in found.items()}


def fitted(stack: Stack, models: frozenset[str], folder: Path) -> Fitted:
    """Every estimator of a stack, fitted without the shapes of ``models``; kept in ``folder``."""
    made: dict[tuple[str, str], Level1] = {}
    for rows in tables(stack):
        op = rows.operator.op
        unseen = set().union(*(shapes(stack, model)[op] for model in models))
        columns = (rows.table[name].tolist() for name in _SHAPE[op])
        train = np.array([shape not in unseen for shape in zip(*columns, strict=True)])
        made[op, rows.kernel] = _fit(stack, rows, train, folder)
    return made


def _fit(stack: Stack, rows: Rows, train: NDArray[np.bool_], folder: Path) -> Level1:
    form, device = rows.forms[0], stack.device
    if train.sum() < FEWEST_ROWS:
        return Level1.at_priors(form, device, _PRIOR_SPREAD)
    name = fingerprint(rows, EFFORT, ("level 1", train, ~train)).replace(" ", "_")
    file = folder / f"{name}.json"
    if file.is_file():
        return _read(file, device)
    made = fit(
        form,
        device,
        pick(rows.dims, train),
        rows.measured[train],
        EFFORT,
        rows.operator.recipe,
        corrected=rows.operator.op in _CORRECTED,
    )
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"fitted": made.to_dict(), "arrays": {}}
    if made.correction_ is not None:
        arrays = made.correction_.to_arrays("net")
        content["arrays"] = {name: values.tolist() for name, values in arrays.items()}
    file.write_text(json.dumps(content), encoding="utf-8")
    return made


def _read(file: Path, device: Device) -> Level1:
    content = json.loads(file.read_text(encoding="utf-8"))
    form = catalog.find(content["fitted"]["op"], content["fitted"]["form"])
    assert form is not None
    arrays = {name: np.array(v, dtype=np.float32) for name, v in content["arrays"].items()}
    net = Mlp.from_arrays(arrays, "net") if arrays else None
    return Level1.from_dict(content["fitted"], form, device, net)


def transferred(there: Fitted, stack: Stack) -> Fitted:
    """Estimators of another GPU scaled to this one, without their corrections."""
    return {key: scaled(made, stack.device, corrected=False) for key, made in there.items()}


def copies(stack: Stack) -> float:
    """How many copies of the weights were in flight when the products were timed."""
    products = next(rows for rows in tables(stack) if rows.operator.op == "gemm")
    return float(products.dims["copies"][0])
