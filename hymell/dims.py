"""Exact polynomials in B (batch), S (new tokens per sequence) and L (tokens already cached).

A size that does not depend on the workload is a plain ``int``; one that does is a `Dim`. Both
support ``+``, ``-``, ``*`` with each other, so a formula written for numbers works on either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

VARIABLES = ("B", "S", "L")

Exponents: TypeAlias = tuple[int, int, int]
Coefficient: TypeAlias = int | Fraction


@dataclass(frozen=True, slots=True)
class Dim:
    """A polynomial in B, S, L with rational coefficients; exact, hashable, comparable.

    ``terms`` holds ((exponent of B, of S, of L), coefficient), sorted, without zero coefficients.
    Build one with `dim` or by arithmetic on `B`, `S` and `L`.
    """

    terms: tuple[tuple[Exponents, Coefficient], ...]

    def __add__(self, other: Number) -> Dim:
        if not isinstance(other, NUMBERS):
            return NotImplemented
        terms = dict(self.terms)
        for exponents, coefficient in as_terms(other):
            terms[exponents] = terms.get(exponents, 0) + coefficient
        return _dim(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim(tuple((exponents, -coefficient) for exponents, coefficient in self.terms))

    def __sub__(self, other: Number) -> Dim:
        if not isinstance(other, NUMBERS):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: Number) -> Dim:
        return -self + other

    def __mul__(self, other: Number) -> Dim:
        if not isinstance(other, NUMBERS):
            return NotImplemented
        terms: dict[Exponents, Coefficient] = {}
        for (b1, s1, l1), c1 in self.terms:
            for (b2, s2, l2), c2 in as_terms(other):
                exponents = (b1 + b2, s1 + s2, l1 + l2)
                terms[exponents] = terms.get(exponents, 0) + c1 * c2
        return _dim(terms)

    __rmul__ = __mul__

    def __truediv__(self, divisor: int) -> Dim:
        return self * Fraction(1, divisor)

    def __call__(self, B: Any = 1, S: Any = 1, L: Any = 0) -> Any:
        """Value at a workload.

        Exact for ints (a non-integer value comes back as a float) and for polynomials, which are
        substituted. With numpy arrays in it the value is computed in float64, element by element:
        int64 would wrap round in silence where a FLOP count passes 9.2e18.
        """
        values = (B, S, L)
        exact = all(isinstance(value, NUMBERS) for value in values)
        total: Any = 0
        for exponents, coefficient in self.terms:
            product: Any = coefficient if exact else float(coefficient)
            for value, exponent in zip(values, exponents, strict=True):
                for _ in range(exponent):
                    product = product * value
            total = total + product
        if isinstance(total, Fraction):
            return int(total) if total.denominator == 1 else float(total)
        return simplify(total) if isinstance(total, Dim) else total

    def degree(self, variable: str) -> int:
        """Highest power of ``variable`` ("B", "S" or "L")."""
        index = VARIABLES.index(variable)
        return max((exponents[index] for exponents, _ in self.terms), default=0)

    def __str__(self) -> str:
        return _format(self)

    def __repr__(self) -> str:
        return f"dim({_format(self)!r})"


Size: TypeAlias = int | Dim
Number: TypeAlias = int | float | Fraction | Dim
#: What a polynomial adds to and multiplies with.
NUMBERS = (int, float, Fraction, Dim)


def _normal(coefficient: Coefficient) -> Coefficient:
    if isinstance(coefficient, Fraction) and coefficient.denominator == 1:
        return int(coefficient)
    return coefficient


def _dim(terms: Mapping[Exponents, Coefficient]) -> Dim:
    return Dim(tuple(sorted((e, _normal(c)) for e, c in terms.items() if c != 0)))


def as_terms(value: Number) -> tuple[tuple[Exponents, Coefficient], ...]:
    """The terms of an int, a Fraction, a float (taken exactly) or a `Dim`."""
    if isinstance(value, Dim):
        return value.terms
    if isinstance(value, float):
        value = _normal(Fraction(value))
    return (((0, 0, 0), value),) if value else ()


B = Dim((((1, 0, 0), 1),))
S = Dim((((0, 1, 0), 1),))
L = Dim((((0, 0, 1), 1),))


def simplify(value: Number) -> Size:
    """A constant polynomial as an ``int``, any other unchanged."""
    if isinstance(value, Dim):
        if not value.terms:
            return 0
        if len(value.terms) == 1 and value.terms[0][0] == (0, 0, 0):
            constant = value.terms[0][1]
            return constant if isinstance(constant, int) else value
        return value
    if isinstance(value, float):
        value = Fraction(value)
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else Dim((((0, 0, 0), value),))
    return value


def from_terms(terms: Mapping[Exponents, Coefficient]) -> Size:
    """The polynomial with these terms, as an ``int`` where it is constant."""
    return simplify(_dim(terms))


def evaluate(value: Any, B: Any = 1, S: Any = 1, L: Any = 0) -> Any:
    """``value`` at a workload when it is a `Dim`; any other value is returned as it is."""
    return value(B, S, L) if isinstance(value, Dim) else value


def whole(size: Size) -> int:
    """A size that must not depend on the workload, as an int; ValueError when it does."""
    if isinstance(size, Dim):
        raise ValueError(f"{size} depends on the workload")
    return size


def _format(value: Dim) -> str:
    parts: list[str] = []
    for exponents, coefficient in sorted(
        value.terms, key=lambda term: (-sum(term[0]), tuple(-e for e in term[0]))
    ):
        factors = [
            name if power == 1 else f"{name}^{power}"
            for name, power in zip(VARIABLES, exponents, strict=True)
            if power
        ]
        magnitude = abs(coefficient)
        if magnitude != 1 or not factors:
            factors.insert(0, str(magnitude))
        sign = "-" if coefficient < 0 else "+"
        parts.append(f"{sign} {'*'.join(factors)}")
    if not parts:
        return "0"
    text = " ".join(parts)
    return text[2:] if text.startswith("+ ") else "-" + text[2:]


_COEFFICIENT = r"\d+(?:/0*[1-9]\d*)?"
_FACTOR = re.compile(rf"(?:([BSL])(?:\^(\d+))?|({_COEFFICIENT}))(?:\s*\*\s*|$)")
_SIGN = re.compile(r"\s*([+-])\s*")


@lru_cache(maxsize=65536)
def dim(text: str | int) -> Size:
    """Parse what ``str(Dim)`` writes, for example ``dim("2*B*S^2 + 1/2*L - 3")``.

    Raises ValueError when the text is not such a polynomial.
    """
    if isinstance(text, int):
        return int(text)
    pieces = _SIGN.split(text.strip())
    # A leading sign leaves an empty piece before it; without one the first term is positive.
    pieces = pieces[1:] if pieces[0] == "" else ["+", *pieces]
    terms: dict[Exponents, Coefficient] = {}
    for sign, term in zip(pieces[::2], pieces[1::2], strict=True):
        exponents, magnitude = _parse_term(term, text)
        signed = -magnitude if sign == "-" else magnitude
        terms[exponents] = terms.get(exponents, 0) + signed
    if not terms:
        raise ValueError(f"not a polynomial in B, S, L: {text!r}")
    return from_terms(terms)


def _parse_term(term: str, text: str) -> tuple[Exponents, Fraction]:
    magnitude = Fraction(1)
    powers = [0, 0, 0]
    position = 0
    while match := _FACTOR.match(term, position):
        variable, power, number = match.groups()
        if variable:
            powers[VARIABLES.index(variable)] += int(power or 1)
        else:
            magnitude *= Fraction(number)
        position = match.end()
        if position == len(term):
            break
    if position != len(term) or not term or term.endswith("*"):
        raise ValueError(f"not a polynomial in B, S, L: {text!r}")
    return (powers[0], powers[1], powers[2]), magnitude
