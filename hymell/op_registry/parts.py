"""Parts of tensors: what one of several GPUs holds, and along which axis.

A tensor's part is a `Fraction` of it. Heads of keys and values, or groups of a state-space model,
that are fewer than the GPUs are held by several of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd
from typing import TypeAlias

from hymell.dims import Dim, Size, evaluate, simplify
from hymell.graph import Op, TensorSpec
from hymell.op_registry.dataflow import SAMPLE
from hymell.op_registry.memory_ops import numel

#: Runs of a tensor's split axis, as (share of the tensor, part that one GPU holds of the run).
Pieces: TypeAlias = tuple[tuple[Fraction, Fraction], ...]
#: (op, output index).
Made: TypeAlias = tuple[int, int]

WHOLE: Pieces = ((Fraction(1), Fraction(1)),)


def part(pieces: Pieces) -> Fraction:
    """What one GPU holds of the whole tensor."""
    return sum((share * held for share, held in pieces), Fraction(0))


@dataclass(frozen=True, slots=True)
class Split:
    """What one of several GPUs holds of each tensor; all of it where a tensor is absent.

    ``made``: of each op's outputs; ``weights``: by name; ``states``: of the cache an op reads, by
    (op, operand). ``partial``: ops whose results are sums over the GPUs; ``statistics``: norms over
    split rows, which exchange one number per row; ``gathered``: products whose columns are
    collected, with a GPU's part of them (logits). ``heads``: numbers of heads and groups, by which
    an axis is recognised.
    """

    made: dict[Made, Pieces] = field(default_factory=dict)
    weights: dict[str, Fraction] = field(default_factory=dict)
    states: dict[tuple[int, int], Fraction] = field(default_factory=dict)
    partial: set[int] = field(default_factory=set)
    statistics: set[int] = field(default_factory=set)
    gathered: dict[int, Fraction] = field(default_factory=dict)
    heads: set[int] = field(default_factory=set)

    def of(self, op: Op, position: int) -> Fraction:
        """The part of an operand that one GPU holds."""
        operand = op.inputs[position]
        if operand.kind == "op":
            return part(self.made.get((operand.op, operand.index), WHOLE))
        if operand.kind == "weight":
            return self.weights.get(operand.name, Fraction(1))
        return self.states.get((op.id, position), Fraction(1))

    def out(self, op: Op, index: int) -> Fraction:
        """The part of an output that one GPU makes."""
        if op.id in self.gathered:
            return self.gathered[op.id]
        return part(self.made.get((op.id, index), WHOLE))


def content(size: Size) -> int:
    """The largest whole number that divides a size whatever the workload; 0 where there is none."""
    if not isinstance(size, Dim):
        return size
    coefficients = [c for _, c in size.terms]
    if not all(isinstance(c, int) for c in coefficients):
        return 0
    return gcd(*(int(c) for c in coefficients))


def divided(size: Size, held: Fraction) -> bool:
    """True when ``held`` of an axis is a whole number of entries."""
    return content(size) > 1 and (content(size) * held).denominator == 1


def split_axis(spec: TensorSpec, held: Fraction, heads: Iterable[int]) -> int | None:
    """The axis of which a GPU holds a part: one that counts heads, else the last that divides."""
    places = [i for i, size in enumerate(spec.shape) if divided(size, held)]
    counted = [i for i in places if content(spec.shape[i]) in heads]
    return counted[0] if counted else places[-1] if places else None


def share_of(a: TensorSpec, b: TensorSpec) -> Fraction:
    """Elements of ``a`` over those of ``b``."""
    return Fraction(evaluate(numel(a), *SAMPLE)) / Fraction(evaluate(numel(b), *SAMPLE))


def scaled(
    spec: TensorSpec, held: Fraction, heads: Iterable[int], axis: int | None = None
) -> TensorSpec:
    """A tensor of which one GPU holds a part; along ``axis``, or the one `split_axis` finds.

    Where no axis divides (a padded vocabulary, runs of several kinds), the last one is rounded.
    """
    if held == 1 or not spec.shape:
        return spec
    place = split_axis(spec, held, heads) if axis is None else axis
    if place is None:
        place = max(range(len(spec.shape)), key=lambda i: content(spec.shape[i]))
    shape = list(spec.shape)
    size = shape[place]
    shape[place] = (
        -(-size * held.numerator // held.denominator)
        if isinstance(size, int)
        else simplify(size * held)
    )
    return TensorSpec(tuple(shape), spec.dtype)
