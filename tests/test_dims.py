"""Polynomials: arithmetic agrees with evaluation, text round trips, numpy, exactness."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.dims import B, Dim, L, S, dim, evaluate, from_terms, simplify

quick = settings(max_examples=40, deadline=None)
exponents = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
coefficients = st.one_of(
    st.integers(-(10**12), 10**12),
    st.fractions(min_value=-1000, max_value=1000, max_denominator=64),
)
points = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))


def polynomial(terms: dict[tuple[int, int, int], int | Fraction]) -> Dim:
    """A `Dim` by arithmetic alone; a constant stays one."""
    total = Dim(())
    for powers, coefficient in terms.items():
        product = total * 0 + coefficient
        for variable, power in zip((B, S, L), powers, strict=True):
            for _ in range(power):
                product = product * variable
        total = total + product
    return total


polynomials = st.dictionaries(exponents, coefficients, max_size=5).map(polynomial)


def exact(value: Dim, point: tuple[int, int, int]) -> Fraction:
    """The value by the definition of a polynomial, as a fraction."""
    b, s, length = point
    return sum((Fraction(c) * b**i * s**j * length**k for (i, j, k), c in value.terms), Fraction(0))


@quick
@given(polynomials, polynomials, points)
def test_arithmetic_agrees_with_evaluation(p: Dim, q: Dim, at: tuple[int, int, int]) -> None:
    assert exact(p + q, at) == exact(p, at) + exact(q, at)
    assert exact(p - q, at) == exact(p, at) - exact(q, at)
    assert exact(p * q, at) == exact(p, at) * exact(q, at)
    assert exact(-p, at) == -exact(p, at)
    assert exact(p / 7, at) == exact(p, at) / 7


@quick
@given(polynomials, st.one_of(st.integers(), st.fractions()), points)
def test_numbers_on_either_side(p: Dim, n: int | Fraction, at: tuple[int, int, int]) -> None:
    assert exact(n + p, at) == exact(p + n, at) == exact(p, at) + n
    assert exact(n - p, at) == n - exact(p, at)
    assert exact(n * p, at) == exact(p * n, at) == exact(p, at) * n


@quick
@given(polynomials, polynomials, polynomials)
def test_ring_laws(p: Dim, q: Dim, r: Dim) -> None:
    assert p + q == q + p
    assert p * q == q * p
    assert p * (q + r) == p * q + p * r
    assert (p + q) + r == p + (q + r)
    assert simplify(p - p) == 0
    assert hash(p + q) == hash(q + p)


@quick
@given(polynomials, points)
def test_value_is_exact_for_ints(p: Dim, at: tuple[int, int, int]) -> None:
    expected = exact(p, at)
    value = p(*at)
    if expected.denominator == 1:
        assert value == expected
        assert isinstance(value, int)
    else:
        assert value == float(expected)


@quick
@given(polynomials)
def test_text_round_trip(p: Dim) -> None:
    assert dim(str(p)) == simplify(p)
    assert repr(p) == f"dim({str(p)!r})"


@quick
@given(polynomials)
def test_terms_have_one_form(p: Dim) -> None:
    assert list(p.terms) == sorted(p.terms)
    assert all(c != 0 for _, c in p.terms)
    assert not any(isinstance(c, Fraction) and c.denominator == 1 for _, c in p.terms)
    assert from_terms(dict(p.terms)) == simplify(p)


@quick
@given(polynomials, st.lists(points, min_size=1, max_size=5))
def test_numpy_agrees_with_ints(p: Dim, at: list[tuple[int, int, int]]) -> None:
    b, s, length = (np.array(column) for column in zip(*at, strict=True))
    values = np.broadcast_to(p(b, s, length), b.shape)
    for value, point in zip(values, at, strict=True):
        magnitude = sum(
            abs(Fraction(c)) * point[0] ** i * point[1] ** j * point[2] ** k
            for (i, j, k), c in p.terms
        )
        assert abs(Fraction(float(value)) - exact(p, point)) <= Fraction(1, 10**12) * magnitude


def test_numpy_ints_do_not_wrap_round() -> None:
    flops = 32768 * 80 * B * S * S
    assert flops(np.array([256]), np.array([10**6]))[0] == pytest.approx(6.7108864e20)
    assert (B * S)(np.array([65536], dtype=np.int32), np.int32(65536))[0] == 2**32


def test_numpy_exact_where_float64_is() -> None:
    tokens = B * S + L
    values = tokens(np.array([1, 2]), 1024, np.array([0, 7]))
    assert values.tolist() == [1024, 2055]


@quick
@given(polynomials, points, points)
def test_substitution_of_formulas(
    p: Dim, at: tuple[int, int, int], shift: tuple[int, int, int]
) -> None:
    moved = p(B + shift[0], S + shift[1], L + shift[2])
    to = (at[0] + shift[0], at[1] + shift[1], at[2] + shift[2])
    value = moved if isinstance(moved, Dim) else Dim(()) + moved
    assert exact(value, at) == exact(p, to)


def test_floats_count_as_the_fractions_they_are() -> None:
    weight_bytes = B * 0.5625
    assert weight_bytes == B * Fraction(9, 16)
    assert str(0.5 * S + 1.0) == "1/2*S + 1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2 * B * S * S + L / 2 - 3, "2*B*S^2 + 1/2*L - 3"),
        (-B, "-B"),
        (B - B, "0"),
        (S * L - B, "S*L - B"),
        (-L / 3 - B * S, "-B*S - 1/3*L"),
    ],
)
def test_text(value: Dim, text: str) -> None:
    assert str(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("+ B", B), ("2 * B*3", 6 * B), ("B^0", 1), ("B*B", B * B), ("0*B", 0)],
)
def test_parse_forms(text: str, value: Dim | int) -> None:
    assert dim(text) == value


NO_POLYNOMIALS = """
x | 2* | *B | B^-1 | B^ | B^1/2 | 1/0*B | 2 3 | B B | 2B | --B | +-3 | B + | 1.5*B | 1e3 | (B) | b
| B**2 | B//2
"""


@pytest.mark.parametrize("text", ["", " ", *(t.strip() for t in NO_POLYNOMIALS.split("|"))])
def test_what_is_no_polynomial(text: str) -> None:
    with pytest.raises(ValueError, match="not a polynomial"):
        dim(text)


def test_sizes_are_ints_where_constant() -> None:
    assert dim(5) == 5
    assert type(dim(True)) is int
    assert simplify(B - B + 4) == 4
    assert simplify(Fraction(6, 3)) == 2
    assert evaluate("same") == "same"
    assert evaluate(B * S, 3, 5) == 15


def test_degree() -> None:
    value = B * S * S + L
    assert [value.degree(v) for v in "BSL"] == [1, 2, 1]
    assert Dim(()).degree("B") == 0


def test_foreign_operands_are_refused() -> None:
    with pytest.raises(TypeError):
        B + "1"  # type: ignore[operator]
    with pytest.raises(TypeError):
        [1] * B  # type: ignore[operator]
