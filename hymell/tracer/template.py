"""A concrete trace taken apart into structure and numbers, and numbers turned into formulas.

Two traces of one regime have the same `Flat.structure` (ops, dataflow, dtypes, layers, every
attribute that is not a whole number) and differ in `Flat.numbers` alone: sizes of tensors and
whole-number attributes, in one fixed order. A `Template` is the structure with a formula in the
place of each number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TypeAlias

from hymell.dims import Exponents, Size, evaluate, from_terms
from hymell.errors import TraceError
from hymell.graph import Attr, Op, Operand, Range, Region, StateSpec, TensorSpec
from hymell.graph_json import canonical_attrs

#: (B, S, L)
Point: TypeAlias = tuple[int, int, int]

_NUMBER = "#"


@dataclass(frozen=True, slots=True)
class Flat:
    """A concrete region apart; ``structure`` holds one entry per op, then layers, then state."""

    region: Region
    structure: tuple[Hashable, ...]
    numbers: tuple[int, ...]


def flatten(region: Region) -> Flat:
    """Take a concrete region apart; raises HymellError for an attribute of an unknown type."""
    ops = tuple(replace(op, attrs=canonical_attrs(op)) for op in region.ops)
    region = replace(region, ops=ops)
    numbers: list[int] = []
    structure: list[Hashable] = [_flatten_op(op, numbers) for op in ops]
    structure.append(region.layers)
    structure.extend(_flatten_state(state, numbers) for state in region.state)
    return Flat(region, tuple(structure), tuple(numbers))


def _flatten_op(op: Op, numbers: list[int]) -> Hashable:
    inputs = tuple(
        [
            (o.kind, o.op, o.index, o.name, _flatten_spec(o.spec, op.name, numbers))
            for o in op.inputs
        ]
    )
    outputs = tuple([_flatten_spec(spec, op.name, numbers) for spec in op.outputs])
    attrs = tuple([(name, _flatten_attr(op.attrs[name], numbers)) for name in sorted(op.attrs)])
    return op.id, op.name, op.path, op.module, inputs, outputs, attrs, op.repeat, op.part


def _flatten_state(state: StateSpec, numbers: list[int]) -> Hashable:
    spec = _flatten_spec(state.spec, state.name, numbers)
    return state.kind, state.name, state.path, spec, state.repeat, state.window


def _flatten_spec(spec: TensorSpec, owner: str, numbers: list[int]) -> Hashable:
    for size in spec.shape:
        if not isinstance(size, int):
            raise TraceError(f"{owner}: a concrete trace has the size {size} in place of a number")
        numbers.append(int(size))
    return spec.dtype, len(spec.shape)


def _flatten_attr(value: Attr, numbers: list[int]) -> Hashable:
    if isinstance(value, tuple):
        return tuple([_flatten_attr(item, numbers) for item in value])
    if isinstance(value, int) and not isinstance(value, bool):
        numbers.append(value)
        return _NUMBER
    # With its type, because 1.0 and True would compare equal; as text, because nan would not.
    return type(value).__name__, repr(value)


@dataclass(frozen=True, slots=True)
class Template:
    """The structure of ``flat`` with formula ``formulas[places[i]]`` in place of number ``i``."""

    flat: Flat
    formulas: tuple[Size, ...]
    places: tuple[int, ...]

    def reproduces(self, flat: Flat, point: Point) -> bool:
        """True when the formulas at ``point`` give exactly the trace ``flat``."""
        return flat.structure == self.flat.structure and self._numbers(point) == flat.numbers

    def explain(self, flat: Flat, point: Point) -> str:
        """The first difference between the formulas at ``point`` and the trace ``flat``."""
        if flat.structure != self.flat.structure:
            return first_difference(self.flat, flat)
        for place, predicted, seen, label in zip(
            self.places, self._numbers(point), flat.numbers, _labels(flat.region), strict=True
        ):
            if predicted != seen:
                formula = self.formulas[place]
                return f"{label} is {seen}, the formula {formula} gives {predicted}"
        return "there is no difference"

    def region(self) -> Region:
        """The region with formulas, for every B, S and L."""
        sizes = iter([self.formulas[place] for place in self.places])
        concrete = self.flat.region
        return replace(
            concrete,
            ops=tuple([_fill_op(op, sizes) for op in concrete.ops]),
            state=tuple([replace(s, spec=_fill_spec(s.spec, sizes)) for s in concrete.state]),
        )

    def _numbers(self, point: Point) -> tuple[int, ...]:
        values = [evaluate(formula, *point) for formula in self.formulas]
        return tuple([values[place] for place in self.places])


def concrete(region: Region, B: int, S: int, L: int) -> Region:
    """The region as a trace at one workload point would give it: every formula evaluated."""

    def size(value: Attr) -> Attr:
        return tuple(map(size, value)) if isinstance(value, tuple) else evaluate(value, B, S, L)

    def spec(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(size(spec.shape), spec.dtype)

    ops = tuple(
        replace(
            op,
            inputs=tuple(replace(operand, spec=spec(operand.spec)) for operand in op.inputs),
            outputs=tuple(map(spec, op.outputs)),
            attrs={name: size(value) for name, value in op.attrs.items()},
        )
        for op in region.ops
    )
    return replace(
        region,
        ops=ops,
        state=tuple(replace(state, spec=spec(state.spec)) for state in region.state),
        B=Range(B, B),
        S=Range(S, S),
        L=Range(L, L),
    )


def fit(points: Sequence[Point], flats: Sequence[Flat], basis: Sequence[Exponents]) -> Template:
    """The formulas over ``basis`` that go through the numbers of all ``flats``, exactly.

    As many points as basis monomials, all of one structure; the points must determine the
    polynomial (a ZeroDivisionError says they do not).
    """
    solver = _inverse([[_monomial(e, point) for e in basis] for point in points])
    denominator = lcm(*(c.denominator for row in solver for c in row))
    rows = [[int(c * denominator) for c in row] for row in solver]
    formulas: dict[tuple[int, ...], int] = {}
    sizes: list[Size] = []
    places: list[int] = []
    for values in zip(*(flat.numbers for flat in flats), strict=True):
        place = formulas.setdefault(values, len(sizes))
        if place == len(sizes):
            sizes.append(_solve(values, rows, denominator, basis))
        places.append(place)
    return Template(flats[0], tuple(sizes), tuple(places))


def _solve(
    values: Sequence[int],
    rows: Sequence[Sequence[int]],
    denominator: int,
    basis: Sequence[Exponents],
) -> Size:
    first = values[0]
    if all(value == first for value in values):
        return first
    return from_terms(
        {
            exponents: Fraction(sum(a * v for a, v in zip(row, values, strict=True)), denominator)
            for exponents, row in zip(basis, rows, strict=True)
        }
    )


def _monomial(exponents: Exponents, point: Point) -> int:
    product = 1
    for value, exponent in zip(point, exponents, strict=True):
        product *= value**exponent
    return product


def _inverse(matrix: list[list[int]]) -> list[list[Fraction]]:
    """Gauss-Jordan elimination in exact fractions."""
    n = len(matrix)
    rows = [
        [Fraction(value) for value in row] + [Fraction(i == j) for j in range(n)]
        for i, row in enumerate(matrix)
    ]
    for column in range(n):
        pivot = max(range(column, n), key=lambda r: abs(rows[r][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = 1 / rows[column][column]
        rows[column] = [value * scale for value in rows[column]]
        for r in range(n):
            factor = rows[r][column]
            if r != column and factor:
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[n:] for row in rows]


def _fill_op(op: Op, sizes: Iterator[Size]) -> Op:
    inputs = tuple([_fill_operand(operand, sizes) for operand in op.inputs])
    outputs = tuple([_fill_spec(spec, sizes) for spec in op.outputs])
    filled = {name: _fill_attr(op.attrs[name], sizes) for name in sorted(op.attrs)}
    attrs = {name: filled[name] for name in op.attrs}
    return replace(op, inputs=inputs, outputs=outputs, attrs=attrs)


def _fill_operand(operand: Operand, sizes: Iterator[Size]) -> Operand:
    return replace(operand, spec=_fill_spec(operand.spec, sizes))


def _fill_spec(spec: TensorSpec, sizes: Iterator[Size]) -> TensorSpec:
    return TensorSpec(tuple([next(sizes) for _ in spec.shape]), spec.dtype)


def _fill_attr(value: Attr, sizes: Iterator[Size]) -> Attr:
    if isinstance(value, tuple):
        return tuple([_fill_attr(item, sizes) for item in value])
    if isinstance(value, int) and not isinstance(value, bool):
        return next(sizes)
    return value


# What differs, in words


def first_difference(one: Flat, other: Flat) -> str:
    """Name the first place where the structures of two traces differ."""
    ops, others = one.region.ops, other.region.ops
    for op, seen, a, b in zip(ops, others, one.structure, other.structure, strict=False):
        if a != b:
            here, there = _describe(op, seen), _describe(seen, op)
            return f"op {op.id} is {here} in one trace, {there} in another"
    if len(ops) != len(others):
        longer = ops if len(ops) > len(others) else others
        extra = longer[min(len(ops), len(others))]
        return f"{_where(extra)} runs in one trace and not in another"
    if one.region.layers != other.region.layers:
        return "the ops group into other layers"
    return "the kept state is another one"


def _where(op: Op) -> str:
    return f"{op.name} ({op.path})" if op.path else op.name


def _describe(op: Op, other: Op) -> str:
    """An op in the words that tell it from ``other``."""
    if (op.name, op.path) != (other.name, other.path):
        return _where(op)
    if op.attrs != other.attrs:
        differing = {k: v for k, v in op.attrs.items() if other.attrs.get(k, ...) != v}
        return f"{_where(op)} with {differing or 'no further attributes'}"
    if op.repeat != other.repeat:
        return f"{_where(op)} in {op.repeat} layers"
    inputs = ", ".join(f"{o.kind} {o.name or o.op} {o.spec.shape}" for o in op.inputs)
    return f"{_where(op)} on ({inputs})"


def _labels(region: Region) -> Iterator[str]:
    """What each number of a flat region is, in its order."""
    for op in region.ops:
        for kind, specs in (
            ("input", [operand.spec for operand in op.inputs]),
            ("output", op.outputs),
        ):
            for i, spec in enumerate(specs):
                for d in range(len(spec.shape)):
                    yield f"{_where(op)}: dim {d} of {kind} {i}"
        for name in sorted(op.attrs):
            numbers: list[int] = []
            _flatten_attr(op.attrs[name], numbers)
            for _ in numbers:
                yield f"{_where(op)}: attribute {name}"
    for state in region.state:
        for d in range(len(state.spec.shape)):
            yield f"state {state.name} ({state.path}): dim {d}"
