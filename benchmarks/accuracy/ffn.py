"""A dense FFN as the sum of its level-1 kernels, on a model that was not fitted on.

Vidur timed up (and gate) projection, activation and down projection of the layers of several
models. GEMM and activation are fitted on the same GPU's rows without any shape of one model, of its
attention projections neither; their sum is compared with the sum of that model's measured times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accuracy.records import Record, kept, record
from accuracy.tables import device_of
from hymell.estimators.level1.form import Array
from hymell.measure.judging import ROOFLINE_LAUNCH_S, Effort, fingerprint, fit, pick, score
from hymell.measure.operators import OPERATORS, Rows, rows_of
from hymell.measure.readers import vidur
from hymell.measure.table import Table, dims

OP = "ffn"
GPUS = ("h100-sxm", "a100-sxm-80gb", "a40")

_LIBRARY = "vidur"
_ACTIVATION = "mlp_act"
_PARTS = ("mlp_up_proj", _ACTIVATION, "mlp_down_proj")
#: What makes the shape of a product and of an activation, whatever the number of tokens.
_SHAPE = {"gemm": ("n", "k"), "pointwise": ("cols", "reads")}


@dataclass(frozen=True)
class Model:
    """One model's layers: tables of its FFN's kernels, row by row the same layer, and all shapes.

    ``shapes``: op to the shapes of every product and activation of the model.
    """

    name: str
    parts: tuple[Table, ...]
    shapes: dict[str, set[tuple[float, ...]]]

    @property
    def time_s(self) -> Array:
        """Measured, all kernels of a layer."""
        total: Array = np.sum([part["time_s"] for part in self.parts], axis=0)
        return total


def models(gpu: str, root: Path) -> Iterator[Model]:
    """The models that Vidur measured on a GPU."""
    for file in vidur.files(root):
        if file.gpu != gpu or not file.ops.issuperset(_SHAPE):
            continue
        parts: dict[str, Table] = {}
        shapes: dict[str, set[tuple[float, ...]]] = {op: set() for op in _SHAPE}
        for part in file.load(file.path):
            layer = str(part.frame["kernel"].iloc[0])
            if part.op not in _SHAPE or (part.op == "pointwise" and layer != _ACTIVATION):
                continue
            frame = part.frame.assign(source=file.source, library=file.library)
            frame = frame.astype(dict.fromkeys(dims(part.op), np.float64))
            table = Table(part.op, {str(name): frame[name].to_numpy() for name in frame})
            shapes[part.op].update(_shapes(table))
            parts[layer] = table
        name = "/".join(file.path.parts[-3:-1])
        yield Model(name, tuple(parts[layer] for layer in _PARTS), shapes)


def judge_ffn(gpu: str, root: Path, effort: Effort, cache: Path) -> Iterator[Record]:
    """Errors of the sum on each model in turn; nothing on a GPU that Vidur did not measure."""
    known = {operator.op: operator for operator in OPERATORS}
    fitted_on = {
        op: next(
            (
                rows
                for rows in rows_of(known[op], gpu, _LIBRARY, root)
                if rows.library == _LIBRARY and (op == "gemm" or rows.kernel == _ACTIVATION)
            ),
            None,
        )
        for op in _SHAPE
    }
    tables = {op: rows for op, rows in fitted_on.items() if rows is not None}
    if len(tables) < len(_SHAPE):
        return
    for model in models(gpu, root):
        split = f"unseen model {model.name}"
        train = {op: ~seen(rows.table, model.shapes[op]) for op, rows in tables.items()}
        marks = (
            fingerprint(rows, effort, (OP, train[op], ~train[op])) for op, rows in tables.items()
        )
        name = "-".join((model.name.replace("/", "_"), *marks))
        judge = partial(_judge, gpu, model, split, tables, train, effort)
        yield from kept(cache / f"{name}.json", judge)


def seen(table: Table, shapes: set[tuple[float, ...]]) -> NDArray[np.bool_]:
    """Which rows have one of these shapes."""
    return np.array([shape in shapes for shape in _shapes(table)], dtype=bool)


def _shapes(table: Table) -> Iterator[tuple[float, ...]]:
    columns = (table[name].tolist() for name in _SHAPE[table.op])
    return zip(*columns, strict=True)


def _judge(
    gpu: str,
    model: Model,
    split: str,
    tables: dict[str, Rows],
    train: dict[str, NDArray[np.bool_]],
    effort: Effort,
) -> Iterator[Record]:
    device = device_of(gpu)
    sums = {name: np.zeros(len(model.time_s)) for name in ("roofline", "analytical", "corrected")}
    for op, rows in tables.items():
        made = fit(
            rows.forms[0],
            device,
            pick(rows.dims, train[op]),
            rows.table["time_s"][train[op]],
            effort,
            rows.operator.recipe,
            rows.groups()[train[op]],
        )
        for part in model.parts:
            if part.op == op:
                sizes = rows.operator.function("dims")(part)
                sums["roofline"] += made.form.floor_s(sizes, device) + ROOFLINE_LAUNCH_S
                sums["analytical"] += made.predict(sizes, corrected=False).time_s
                sums["corrected"] += made.predict(sizes).time_s
    gemm = tables["gemm"]
    table = {
        "set": f"{gemm.source} {gemm.version}",
        "gpu": gpu,
        "library": gemm.library,
        "op": OP,
        "dtype": gemm.dtype,
    }
    for name, predicted in sums.items():
        yield record(table, score(split, name, predicted, model.time_s).to_dict())
