"""Byte counting shared by every op that is bound by the memory it moves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from hymell.dims import Dim, Size, as_terms, from_terms, simplify
from hymell.op_registry.primitives import Gather, Memory, RowReduce

if TYPE_CHECKING:
    from hymell.graph import Op, TensorSpec
    from hymell.op_registry.dataflow import Dataflow, Read


@lru_cache(maxsize=65536)
def numel(spec: TensorSpec) -> Size:
    """Elements of a tensor; the few shapes of a model recur in every layer, hence the cache."""
    return spec.numel


@lru_cache(maxsize=65536)
def spec_bytes(spec: TensorSpec) -> Size:
    """Stored bytes of a tensor."""
    return simplify(numel(spec) * spec.element_bytes)


@lru_cache(maxsize=65536)
def times(size: Size, factor: Size) -> Size:
    """Product of two sizes."""
    return simplify(size * factor)


def total(values: Iterable[Size]) -> Size:
    """Sum of sizes."""
    number = 0
    dims: list[Dim] = []
    for value in values:
        if isinstance(value, Dim):
            dims.append(value)
        else:
            number += value
    if not dims:
        return number
    if len(dims) == 1 and not number:
        return dims[0]
    terms = dict(as_terms(number))
    for size in dims:
        for exponents, coefficient in size.terms:
            terms[exponents] = terms.get(exponents, 0) + coefficient
    return from_terms(terms)


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
    return total(numel(spec) for spec in op.outputs)


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
        vector_flops=times(elements, flops_per_element),
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
        vector_flops=times(times(rows, cols), flops_per_element),
    )


def reduced(op: Op) -> tuple[Size, Size]:
    """(rows, cols) of a reduction, from its input and output sizes."""
    source = op.inputs[0].spec
    elements, rows = numel(source), numel(op.outputs[0])
    dims = op.attrs.get("dim")
    if dims is None:
        if rows != elements:
            return 1, elements
        dims = -1
    reduced_axes = {axis % max(len(source.shape), 1) for axis in _listed(dims)}
    cols: Size = 1
    rows = 1
    for axis, size in enumerate(source.shape):
        if axis in reduced_axes:
            cols = times(cols, size)
        else:
            rows = times(rows, size)
    return rows, cols


def _listed(dims: int | Iterable[int]) -> Iterable[int]:
    return [dims] if isinstance(dims, int) else dims


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
