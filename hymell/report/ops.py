"""The traced ops of a model, each with what eager PyTorch would pay for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hymell.cost_report import SCHEMA_VERSION
from hymell.graph import Op, OpGraph, Phase, Region, TensorSpec
from hymell.op_registry.engines import get_engine
from hymell.op_registry.kernels import Kernel
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import at
from hymell.report import units
from hymell.report.document import Column, Document, Notes, Section, Table, View
from hymell.workload import Precision, Workload

_COLUMNS = (
    Column("op", "Op", whole=True, code=True),
    Column("path", "Module", whole=True, code=True),
    Column("shapes", "Shapes in -> out", code=True),
    Column("count", "Count", units.count, right=True),
    Column("flops", "FLOPs", units.flops, right=True),
    Column("bytes", "Bytes", units.data, right=True),
    Column("primitive", "Priced as"),
)
NOT_REGISTERED = "not registered"


@dataclass(frozen=True, slots=True)
class _Point:
    """One step of a phase: B sequences, S new tokens each, L tokens in the cache."""

    phase: Phase
    B: int
    S: int
    L: int


def ops_view(
    graph: OpGraph,
    workload: Workload,
    precision: Precision | None = None,
    *,
    skew: float = 0.0,
) -> View:
    """The ops of the prefill and of the first decode step, in the order they ran.

    FLOPs and bytes count all repeats of one step. Raises HymellError when no traced region holds
    the workload.
    """
    records: list[dict[str, Any]] = []
    sections: list[Section] = []
    for point in _points(graph, workload):
        region = graph.region(point.phase, point.B, point.S, point.L)
        kernels = lower(
            region, get_engine("eager"), graph.facts, precision or Precision(), skew=skew
        ).kernels
        rows = _rows(region, kernels, point)
        records += rows
        where = f"{point.phase.capitalize()}: one step at B={point.B}, S={point.S}, L={point.L}"
        sections.append(Table(where, _COLUMNS, tuple(rows)))
    note = "shapes are formulas in B (batch), S (new tokens per sequence), L (tokens cached)"
    sections.append(Notes("", (note, "Count is how many identical layers an op stands for")))
    data = {
        "schema_version": SCHEMA_VERSION,
        "model": graph.facts.name,
        "workload": {"batch": workload.batch, "prompt": workload.prompt},
        "ops": records,
    }
    return View(Document(f"Ops of {graph.facts.name}", tuple(sections)), data, records)


def _points(graph: OpGraph, workload: Workload) -> list[_Point]:
    """The prefill step and the first decode step, as far as the model has them.

    An encoder-decoder model decodes with S the source length and L the tokens generated.
    """
    batch, prompt = workload.batch, workload.prompt
    decode = _Point("decode", batch, 1, prompt)
    if {"encoder", "decoder"} <= set(graph.facts.parts):
        decode = _Point("decode", batch, prompt, 1)
    points = (_Point("prefill", batch, prompt, 0), decode)
    return [point for point in points if point.phase in graph.phases()]


def _rows(region: Region, kernels: Iterable[Kernel], point: _Point) -> list[dict[str, Any]]:
    owner = {op: kernel for kernel in kernels for op in kernel.ops}
    return [_row(op, owner.get(op.id), point) for op in region.ops]


def _row(op: Op, kernel: Kernel | None, point: _Point) -> dict[str, Any]:
    row: dict[str, Any] = {
        "phase": point.phase,
        "id": op.id,
        "op": op.name,
        "path": op.path,
        "module": op.module,
        "part": op.part,
        "inputs": [_shape(operand.spec) for operand in op.inputs],
        "outputs": [_shape(spec) for spec in op.outputs],
        "shapes": f"{_shapes(o.spec for o in op.inputs)} -> {_shapes(op.outputs)}",
        "count": op.repeat,
        "flops": 0,
        "bytes": 0,
        "primitive": "free",
    }
    if kernel is None:
        return row
    row["primitive"] = kernel.primitive.kind if kernel.understood else NOT_REGISTERED
    if op.id == kernel.ops[0]:
        cost = at(kernel.primitive, point.B, point.S, point.L)
        # What an unknown op computes is not known; zero would be a lie.
        row["flops"] = float(cost.flops * kernel.repeat) if kernel.understood else None
        row["bytes"] = float((cost.bytes_read + cost.bytes_written) * kernel.repeat)
    return row


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join(str(size).replace(' ', '') for size in spec.shape)}] {spec.dtype}"


def _shapes(specs: Iterable[TensorSpec]) -> str:
    return " ".join(_shape(spec).partition("]")[0] + "]" for spec in specs) or "-"
