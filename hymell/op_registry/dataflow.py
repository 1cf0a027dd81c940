"""Who really reads what: views resolved to their memory, in-place writes followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hymell.dims import Size, evaluate
from hymell.dtypes import BITS, math_format
from hymell.graph import ModelFacts, Op, Operand, TensorSpec
from hymell.op_registry.memory_ops import numel
from hymell.op_registry.registry import functional, is_in_place
from hymell.op_registry.views import is_view

#: (kind, op id or -1, output index, name) of the memory a tensor lives in.
Base = tuple[str, int, int, str]

#: Ops that make the same values in fresh memory.
_COPIES = frozenset(("aten.clone", "aten.contiguous", "aten._to_copy"))

#: Sizes are compared at this point: no common factor with anything a config holds.
SAMPLE = (3, 10007, 20011)


@dataclass(frozen=True, slots=True)
class Read:
    """One distinct tensor an op reads: its memory, and the part of it (``spec``) the op sees."""

    base: Base
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Resolved reads and dependencies of a region's ops.

    ``reads[op]``: what it reads, one entry per operand that is really read; ``depends[op]``: ids
    of the compute ops whose results it needs; ``bases[op, index]``: memory of each output;
    ``quantized_math``: data-sheet row of GEMMs by the stored format of their weights; a format
    that is absent is weight-only.
    """

    ops: tuple[Op, ...]
    reads: tuple[tuple[Read, ...], ...]
    depends: tuple[frozenset[int], ...]
    bases: dict[tuple[int, int], Base]
    model_dtype: str
    quantized_math: Mapping[str, str]

    def base(self, op: Op, position: int) -> Base:
        """Memory of the operand at ``position``."""
        return self.resolve(op.inputs[position])

    def resolve(self, operand: Operand) -> Base:
        """Memory that an operand lives in."""
        if operand.kind == "op":
            return self.bases[operand.op, operand.index]
        return (operand.kind, -1, 0, operand.name)

    def weight(self, op: Op, position: int) -> TensorSpec | None:
        """The stored spec of the weight behind an operand, or None (see `weight_operand`)."""
        found = self.weight_operand(op, position)
        return found.spec if found else None

    def weight_operand(self, op: Op, position: int) -> Operand | None:
        """The weight behind an operand, through views, in-place changes and copies, or None.

        A copy in another format is what is read. A constant matrix counts: it is stored as well.
        """
        operand = op.inputs[position]
        copied: TensorSpec | None = None
        while operand.kind == "op":
            maker = self.ops[operand.op]
            if functional(maker.name) in _COPIES and not is_in_place(maker.name):
                copied = copied or maker.outputs[0]
            elif not is_view(maker.name) and not is_in_place(maker.name):
                return None
            if not maker.inputs:
                return None
            operand = maker.inputs[0]
        if operand.kind not in ("weight", "constant"):
            return None
        if copied is None or numel(copied) != numel(operand.spec):
            return operand
        return replace(operand, spec=copied)

    def math(self, a_dtype: str, b_dtype: str) -> str:
        """Data-sheet row in which an (a, b) product runs."""
        if BITS[b_dtype] >= 16 or b_dtype in ("bool", "uint8"):
            return math_format(a_dtype)
        return self.quantized_math.get(b_dtype) or math_format(a_dtype)


def analyse(ops: Sequence[Op], facts: ModelFacts) -> Dataflow:
    """Resolve a region's ops; ids must be their positions."""
    bases: dict[tuple[int, int], Base] = {}
    stored: dict[Base, TensorSpec] = {}
    writers: dict[Base, list[int]] = {}
    reads: list[tuple[Read, ...]] = []
    depends: list[frozenset[int]] = []

    def resolve(operand: Operand) -> Base:
        if operand.kind == "op":
            return bases[operand.op, operand.index]
        return (operand.kind, -1, 0, operand.name)

    for op in ops:
        resolved = [resolve(operand) for operand in op.inputs]
        for base, operand in zip(resolved, op.inputs, strict=True):
            if base[0] != "op":
                stored.setdefault(base, operand.spec)
        if is_view(op.name) and op.inputs:
            for index in range(len(op.outputs)):
                bases[op.id, index] = resolved[0]
            reads.append(())
            depends.append(frozenset(writers.get(resolved[0], ())))
            continue
        in_place = is_in_place(op.name) and bool(op.inputs)
        overwrites = in_place and functional(op.name) in ("aten.copy", "aten.fill", "aten.zero")
        seen = list(zip(resolved, op.inputs, strict=True))[1 if overwrites else 0 :]
        reads.append(
            tuple(Read(base, _smaller(operand.spec, stored[base])) for base, operand in seen)
        )
        needed = {w for base in resolved for w in writers.get(base, ())}
        depends.append(frozenset(needed))
        for index in range(len(op.outputs)):
            made: Base = ("op", op.id, index, "")
            if in_place and index == 0:
                made = resolved[0]
            bases[op.id, index] = made
            stored.setdefault(made, op.outputs[index])
            writers.setdefault(made, []).append(op.id)
    return Dataflow(
        tuple(ops), tuple(reads), tuple(depends), bases, facts.dtype, facts.quantized_math
    )


def _smaller(seen: TensorSpec, stored: TensorSpec) -> TensorSpec:
    """An expanded view reads no more than what is stored."""
    if seen.shape == stored.shape:
        return seen
    return stored if at_sample(numel(stored)) < at_sample(numel(seen)) else seen


@lru_cache(maxsize=65536)
def at_sample(value: Size | float) -> float:
    """A size at the comparison point."""
    return float(evaluate(value, *SAMPLE))
