"""Byte counting shared by every op that is bound by the memory it moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hymell.dims import Size, simplify
from hymell.op_registry.primitives import Gather, Memory, RowReduce

if TYPE_CHECKING:
    from hymell.graph import Op, TensorSpec
    from hymell.op_registry.dataflow import Dataflow, Read


def spec_bytes(spec: TensorSpec) -> Size:
    """Stored bytes of a tensor."""
    return simplify(spec.numel * spec.element_bytes)


def total(values: Iterable[Size]) -> Size:
    """Sum of sizes."""
    result: Size = 0
    for value in values:
        result = simplify(result + value)
    return result


def distinct(reads: Iterable[Read]) -> list[Read]:
    """Each tensor once: reading the same memory in the same shape twice hits the cache."""
    return list(dict.fromkeys(reads))


def bytes_in(op: Op, flow: Dataflow) -> tuple[Size, Size]:
    """(bytes the op reads, weight bytes in them)."""
    reads = distinct(flow.reads[op.id])
    return (
        total(spec_bytes(read.spec) for read in reads),
        total(spec_bytes(read.spec) for read in reads if read.base[0] == "weight"),
    )


def bytes_out(op: Op) -> Size:
    """Bytes the op writes."""
    return total(spec_bytes(spec) for spec in op.outputs)


def elements_out(op: Op) -> Size:
    """Elements the op writes."""
    return total(spec.numel for spec in op.outputs)


def memory_op(op: Op, flow: Dataflow, role: str, flops_per_element: int = 1) -> Memory:
    """An element-wise op or a copy: reads its operands once, writes its outputs once."""
    read, weights = bytes_in(op, flow)
    elements = elements_out(op)
    return Memory(
        role=role,
        elements=elements,
        bytes_read=read,
        bytes_written=bytes_out(op),
        weight_bytes=weights,
        vector_flops=simplify(elements * flops_per_element),
    )


def row_op(
    op: Op, flow: Dataflow, role: str, rows: Size, cols: Size, flops_per_element: int
) -> RowReduce:
    """A reduction over ``cols`` entries for each of ``rows``."""
    read, weights = bytes_in(op, flow)
    return RowReduce(
        role=role,
        rows=rows,
        cols=cols,
        bytes_read=read,
        bytes_written=bytes_out(op),
        weight_bytes=weights,
        vector_flops=simplify(simplify(rows * cols) * flops_per_element),
    )


def reduced(op: Op) -> tuple[Size, Size]:
    """(rows, cols) of a reduction, from its input and output sizes."""
    source = op.inputs[0].spec
    rows = op.outputs[0].numel
    dims = op.attrs.get("dim")
    if op.outputs[0].numel == source.numel or rows == 1:
        dims = [-1] if dims is None and op.outputs[0].numel == source.numel else dims
    if dims is None:
        return 1, source.numel
    cols: Size = 1
    for axis in [dims] if isinstance(dims, int) else dims:
        cols = simplify(cols * source.shape[axis])
    rows = 1
    skipped = {axis % len(source.shape) for axis in ([dims] if isinstance(dims, int) else dims)}
    for axis, size in enumerate(source.shape):
        if axis not in skipped:
            rows = simplify(rows * size)
    return rows, cols


def gather_op(op: Op, flow: Dataflow, table: int, cols: Size) -> Gather:
    """Rows of ``cols`` elements picked from the operand at position ``table``."""
    written = elements_out(op)
    rows = _divide(written, cols)
    weight = flow.weight(op, table)
    spec = weight or op.inputs[table].spec
    return Gather(rows=rows, cols=cols, dtype=spec.dtype, from_weight=weight is not None)


def _divide(numel: Size, cols: Size) -> Size:
    if isinstance(cols, int) and cols > 0:
        if isinstance(numel, int):
            return numel // cols
        return simplify(numel / cols)
    return numel
