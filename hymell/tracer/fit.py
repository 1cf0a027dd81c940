"""From a few concrete traces to regions whose every size is an exact polynomial.

The space of B >= 1, S >= 1, L >= 0 is one box at first (L >= 1 in decode, which follows a prompt).
A box is fitted on a small grid well inside it, where nothing special
happens, and checked exactly at points that were not fitted: its low corner (B = 1, S = 1, where
models take shortcuts), one two tokens above (shorter than a convolution) and a far one (where
windows clip). These points are the hold-out, too: a term outside the basis shows there.

When a check fails, squares join the basis if a third grid value asks for them (a mask is S*S; RWKV
broadcasts its state to B*B in transformers). Else the box is cut where the formulas stop being
right, found by bisection, next to the config's window sizes first, and each half is fitted afresh.
At the end neighbours are merged where one's formulas give every trace made in the other. The boxes
tile the space by construction.

A plain decoder needs 5 traces in prefill and 5 in decode; a special
B = 1 adds about 6 per phase, a window about 9. A point is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TypeAlias

from hymell.dims import VARIABLES, Exponents
from hymell.errors import TraceError
from hymell.graph import Phase, Range, Region
from hymell.tracer.template import Flat, Point, Template, first_difference, fit, flatten

Trace: TypeAlias = Callable[[int, int, int], Region]
#: Bounds of B, S and L.
Box: TypeAlias = tuple[Range, Range, Range]

_B, _S, _L = range(3)

#: Grid values of each axis, in the order they are used: without common factors, so that no two
#: products of them coincide; odd and even, so that parity shows; above the conv kernels and below
#: the windows in use, and no usual head count. B stays at the smallest values that are not special.
_GRID: tuple[tuple[int, int, int], ...] = ((2, 3, 5), (37, 54, 71), (41, 58, 79))
#: Where an unbounded axis is checked unless a boundary lies further: beyond the windows in use,
#: and small enough in S that a loop over tokens or chunks which nothing captured still ends.
_FAR: Point = (7, 4099, 32771)
#: What marks sizes that no polynomial per regime describes (padding to a multiple, loops over S).
_MAX_PIECES = 16
_MAX_TRACES = 160


def fit_regions(
    trace: Trace,
    phase: Phase,
    *,
    varies: frozenset[str],
    boundaries_S: Sequence[int] = (),
    boundaries_L: Sequence[int] = (),
    limit: int | None = None,
) -> tuple[Region, ...]:
    """The regions of one phase, with polynomials for sizes and whole-number attributes.

    ``trace(B, S, L)`` gives a concrete region (sizes are ints); it is called once per point.
    ``varies`` names the variables that the model follows; the others stay at B = 1, S = 1, L = 0.
    ``boundaries_S`` and ``boundaries_L`` are sizes at which behaviour may change (windows, chunks);
    each is only a hint: the change is looked for at W-2 .. W+1 and no cut is made without one.
    ``limit`` is the largest S or L worth tracing (the model's context, where a larger input fails);
    formulas are taken to hold beyond it.

    The regions tile B >= 1, S >= 1, L >= 0 without overlap, with these exceptions, by meaning:
    a prefill starts from an empty cache, so L is 0 unless it varies; a decode step has one new
    token, so S is 1 unless it varies (as the source length of an encoder-decoder); B is 1 where it
    does not vary, as a module traced on fixed inputs says nothing of other batches. Otherwise a
    variable that does not vary (the L of a model with recurrent state only) may take any value.

    Raises TraceError naming the op, its path and the sizes seen when the sizes are not polynomials
    on at most 16 regions or when a batch above one is special; whatever ``trace`` raises passes.
    """
    search = _Search(
        trace,
        phase,
        tuple(name in varies for name in VARIABLES),
        ((), _hints(boundaries_S, limit), _hints(boundaries_L, limit)),
        limit,
    )
    lengths = [Range(0, None)] if "L" in varies else [Range(0, 0)]
    if phase == "decode" and "L" in varies:
        # A decode step always follows a prompt; without a cached token other ops would run.
        lengths = [Range(1, None)]
    B = Range(1, None) if "B" in varies else Range(1, 1)
    S = Range(1, None) if "S" in varies else Range(1, 1)
    pieces = _merge(search, [piece for L in lengths for piece in _fit_box(search, (B, S, L))])
    open_S = phase == "prefill" and "S" not in varies
    open_L = phase == "decode" and "L" not in varies
    return tuple(
        replace(
            template.region(),
            phase=phase,
            B=box[_B],
            S=Range(1, None) if open_S else box[_S],
            L=Range(0, None) if open_L else box[_L],
        )
        for box, template in sorted(pieces, key=lambda piece: _low_corner(piece[0]))
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """What the search knows: the traces made so far and where to look."""

    trace: Trace
    phase: Phase
    varies: tuple[bool, ...]
    hints: tuple[tuple[int, ...], ...]
    limit: int | None
    flats: dict[Point, Flat] = field(default_factory=dict)
    cuts: list[str] = field(default_factory=list)

    def flat(self, point: Point) -> Flat:
        """The trace at a point; each is made once."""
        known = self.flats.get(point)
        if known is None:
            if len(self.flats) >= _MAX_TRACES:
                raise self.failure()
            known = self.flats[point] = flatten(self.trace(*point))
        return known

    def holds(self, template: Template, point: Point) -> bool:
        """True when the formulas give exactly the trace at a point."""
        return template.reproduces(self.flat(point), point)

    def cut(self, reason: str) -> None:
        """Note why a box is cut; raises TraceError when that happens too often."""
        self.cuts.append(reason)
        if len(self.cuts) >= _MAX_PIECES:
            raise self.failure()

    def failure(self) -> TraceError:
        """Says that the sizes follow no polynomials, with the first difference met."""
        first, last = self.cuts[0], self.cuts[-1]
        seen = first if first == last else f"{first}; then {last}"
        return TraceError(
            f"{self.phase}: sizes do not follow one polynomial in B, S, L per regime, "
            f"after {len(self.flats)} traces: {seen}"
        )

    def far(self, axis: int, bounds: Range) -> int:
        """The largest value of an axis that is traced within bounds."""
        if bounds.hi is not None:
            return bounds.hi
        far = max(_FAR[axis], bounds.lo + 101, *(hint + 211 for hint in self.hints[axis]))
        if axis == _B or self.limit is None:
            return far
        return max(min(far, self.limit), bounds.lo)


Piece: TypeAlias = tuple[Box, Template]


def _hints(boundaries: Sequence[int], limit: int | None) -> tuple[int, ...]:
    """Boundaries that traces can reach, in order."""
    return tuple(sorted({b for b in boundaries if b > 1 and (limit is None or b < limit)}))


def _low_corner(box: Box) -> Point:
    return box[_B].lo, box[_S].lo, box[_L].lo


def _fit_box(search: _Search, box: Box) -> list[Piece]:
    """Formulas for a box, which is cut where one set of formulas does not do."""
    grid = [_grid(search, axis, box[axis]) for axis in (_B, _S, _L)]
    basis = _basis(grid, 1, 1)
    low, near, high = _low_corner(box), _near_corner(box, grid), _high_corner(search, box, grid)
    template = _from_corners(search, grid, basis, (low, near, high))
    if template is not None:
        return [(box, template)]
    points = [_at(grid, exponents) for exponents in basis]
    odd = _odd_one(search, points)
    if odd is not None:
        return _cut_by_structure(search, box, points[0], odd)
    template = fit(points, [search.flat(point) for point in points], basis)
    failed = next((p for p in (low, near, high) if not search.holds(template, p)), None)
    if failed is not None:
        template = _with_squares(search, template, grid, failed)
    for bad in (low, near):
        if not search.holds(template, bad):
            return _cut(search, box, template, points[0], bad, (_B, _S, _L))
    if not search.holds(template, high):
        return _cut(search, box, template, low, high, (_S, _L, _B))
    return [(box, template)]


def _from_corners(
    search: _Search,
    grid: Sequence[Sequence[int]],
    basis: Sequence[Exponents],
    checks: tuple[Point, Point, Point],
) -> Template | None:
    """The common case with two traces less: fit the low and the far corner, hold out the near one.

    None when that does not do; every trace made here serves the full grid as well. For B times one
    other variable: the corners give the line at the lowest B, two grid points the line at another,
    and a third B shows an error at any of the four, as long as the held-out length is a fifth one.
    """
    low, held_out, high = checks
    if len(basis) != 4 or len(grid[_B]) < 2 or low[_B] != high[_B] or low[_B] in grid[_B]:
        return None
    points = [*(_at(grid, exponents) for exponents in basis if exponents[_B] == 0), low, high]
    if held_out[1:] in [point[1:] for point in points]:
        return None
    if _odd_one(search, points) is not None:
        return None
    template = fit(points, [search.flat(point) for point in points], basis)
    return template if search.holds(template, held_out) else None


def _near_corner(box: Box, grid: Sequence[Sequence[int]]) -> Point:
    """A point two steps above the low corner, with another batch."""
    _, S, L = (bounds.lo + 2 if bounds.lo + 2 in bounds else bounds.lo for bounds in box)
    return grid[_B][min(1, len(grid[_B]) - 1)], S, L


def _high_corner(search: _Search, box: Box, grid: Sequence[Sequence[int]]) -> Point:
    """The far point of a box, with a batch that was not fitted where there is one.

    A low B is such a batch (squares of B would show there); it keeps the point one step away from
    the low corner, so that a mismatch names its axis without further traces.
    """
    low_B = box[_B].lo
    fitted = low_B in grid[_B]
    B = min(_FAR[_B], search.far(_B, box[_B])) if fitted else low_B
    return max(B, low_B), search.far(_S, box[_S]), search.far(_L, box[_L])


def _grid(search: _Search, axis: int, bounds: Range) -> list[int]:
    """Up to three values of an axis inside the bounds and between two boundaries.

    The stretch between boundaries is the first that has room, so that a box which is cut keeps
    its grid, and with it the traces made there.
    """
    far = search.far(axis, bounds)
    starts = [bounds.lo, *(h for h in search.hints[axis] if bounds.lo < h <= far), far + 1]
    stretches = [(a, b - 1) for a, b in pairwise(starts)]
    roomy = [s for s in stretches if s[1] - s[0] >= _GRID[axis][-1] + 2]
    lo, hi = roomy[0] if roomy else max(stretches, key=lambda s: s[1] - s[0])
    # The usual values where they fit, else the same distances from the start.
    start = 0 if lo <= _GRID[axis][0] // 2 + 1 else lo
    usual = [start + value for value in _GRID[axis]]
    if usual[-1] <= hi:
        return usual
    n = hi - lo + 1
    inner = [lo + n // 3, lo + 2 * n // 3, lo + n // 2, lo + 1, hi, lo]
    return list(dict.fromkeys(value for value in inner if lo <= value <= hi))[:3]


def _basis(grid: Sequence[Sequence[int]], batch: int, lengths: int) -> list[Exponents]:
    """Powers of B up to ``batch``, times monomials in S and L of total degree up to ``lengths``.

    Fewer where the grid has too few values to tell them apart. No model multiplies S by L before
    an attention op, which is kept whole; so S*L comes with the squares. The exponents also name
    the grid point of each monomial: such grids determine the polynomial (Newton interpolation on
    a lower set).
    """
    B, S, L = (range(len(values)) for values in grid)
    return [(b, s, l_) for b, s, l_ in product(B, S, L) if b <= batch and s + l_ <= lengths]


def _at(grid: Sequence[Sequence[int]], exponents: Exponents) -> Point:
    b, s, length = exponents
    return grid[_B][b], grid[_S][s], grid[_L][length]


def _with_squares(
    search: _Search, template: Template, grid: Sequence[Sequence[int]], failed: Point
) -> Template:
    """The formulas with squares in the basis, if the grid shows that they are needed.

    Not so where other ops run at the failed point: there the box has to be cut first.
    """
    if search.flat(failed).structure != template.flat.structure:
        return template
    batch, lengths = (
        2 if any(not search.holds(template, _at(grid, e)) for e in square) else 1
        for square in (
            [e for e in _basis(grid, 2, 0) if e[_B] == 2],
            [e for e in _basis(grid, 0, 2) if e[_S] + e[_L] == 2],
        )
    )
    basis = _basis(grid, batch, lengths)
    points = [_at(grid, exponents) for exponents in basis]
    if _odd_one(search, points) is not None:
        return template
    return fit(points, [search.flat(point) for point in points], basis)


def _odd_one(search: _Search, points: Sequence[Point]) -> Point | None:
    """The first point whose trace has another structure than the first's."""
    structure = search.flat(points[0]).structure
    return next((p for p in points if search.flat(p).structure != structure), None)


def _cut_by_structure(search: _Search, box: Box, one: Point, other: Point) -> list[Piece]:
    """Cut a box between two grid points that do not run the same ops."""
    reference = search.flat(one)
    reason = (
        f"{first_difference(reference, search.flat(other))} ({_named(one)} and {_named(other)})"
    )

    def same(point: Point) -> bool:
        return search.flat(point).structure == reference.structure

    return _cut_where(search, box, same, one, other, (_B, _S, _L), reason)


def _cut(
    search: _Search, box: Box, template: Template, good: Point, bad: Point, order: Sequence[int]
) -> list[Piece]:
    """Cut a box between a point where the formulas hold and one where they do not."""
    reason = f"{template.explain(search.flat(bad), bad)} ({_named(bad)})"

    def holds(point: Point) -> bool:
        return search.holds(template, point)

    return _cut_where(search, box, holds, good, bad, order, reason)


def _cut_where(
    search: _Search,
    box: Box,
    holds: Callable[[Point], bool],
    good: Point,
    bad: Point,
    order: Sequence[int],
    reason: str,
) -> list[Piece]:
    """Find the axis and the place where ``holds`` turns false, cut there, fit both halves."""
    search.cut(reason)
    axis, start = _first_bad_step(holds, good, bad, order)
    last = _last_good(
        lambda value: holds(_moved(start, axis, value)),
        start[axis],
        bad[axis],
        search.hints[axis],
    )
    below = last if start[axis] < bad[axis] else last - 1
    if axis == _B and below > 1:
        # Only a batch of one is special; ops that change with B beyond it loop over sequences.
        raise search.failure()
    bounds = box[axis]
    lower = _replaced(box, axis, Range(bounds.lo, below))
    upper = _replaced(box, axis, Range(below + 1, bounds.hi))
    return [*_fit_box(search, lower), *_fit_box(search, upper)]


def _first_bad_step(
    holds: Callable[[Point], bool], good: Point, bad: Point, order: Sequence[int]
) -> tuple[int, Point]:
    """Walk from a good point to a bad one, an axis at a time; the step that turns bad.

    Returns its axis and the good point before it. The last step needs no test.
    """
    steps = [axis for axis in order if good[axis] != bad[axis]]
    current = good
    for axis in steps[:-1]:
        following = _moved(current, axis, bad[axis])
        if not holds(following):
            return axis, current
        current = following
    return steps[-1], current


def _last_good(holds: Callable[[int], bool], good: int, bad: int, hints: Sequence[int]) -> int:
    """The last value from ``good`` towards ``bad`` that holds, by bisection.

    Values next to a boundary are tried first; towards a low bad value small steps up from it, as
    special cases sit at 0 and 1.
    """
    untried = {value for hint in hints for value in (hint - 2, hint + 1, hint + 2)}
    step = 1
    while abs(good - bad) > 1:
        low, high = min(good, bad), max(good, bad)
        near = [value for value in untried if low < value < high]
        if near:
            value = min(near, key=lambda v: abs(v - good))
            untried.discard(value)
        elif bad < good and bad + step < good:
            value = bad + step
            step *= 2
        else:
            value = (low + high) // 2
        if holds(value):
            good = value
        else:
            bad = value
    return good


def _merge(search: _Search, pieces: list[Piece]) -> list[Piece]:
    """Join neighbours where the formulas of one give every trace made in the other."""
    merged = list(pieces)
    while True:
        pair = next(
            (
                (i, j, union)
                for i, j in product(range(len(merged)), repeat=2)
                if i != j
                and (union := _union(merged[i][0], merged[j][0])) is not None
                and _covers(search, merged[i][1], merged[j][0])
            ),
            None,
        )
        if pair is None:
            return merged
        i, j, union = pair
        kept = [piece for k, piece in enumerate(merged) if k not in (i, j)]
        merged = [*kept, (union, merged[i][1])]


def _covers(search: _Search, template: Template, box: Box) -> bool:
    """True when the formulas give every trace made in a box."""
    return all(
        template.reproduces(flat, point)
        for point, flat in search.flats.items()
        if all(value in bounds for value, bounds in zip(point, box, strict=True))
    )


def _union(one: Box, other: Box) -> Box | None:
    """The box that two boxes make together, or None when they make none."""
    differing = [axis for axis in (_B, _S, _L) if one[axis] != other[axis]]
    if len(differing) != 1:
        return None
    axis = differing[0]
    lower, upper = sorted((one[axis], other[axis]), key=lambda bounds: bounds.lo)
    if lower.hi is None or lower.hi + 1 != upper.lo:
        return None
    return _replaced(one, axis, Range(lower.lo, upper.hi))


def _replaced(box: Box, axis: int, bounds: Range) -> Box:
    B, S, L = (bounds if i == axis else old for i, old in enumerate(box))
    return B, S, L


def _moved(point: Point, axis: int, value: int) -> Point:
    B, S, L = (value if i == axis else old for i, old in enumerate(point))
    return B, S, L


def _named(point: Point) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(VARIABLES, point, strict=True))
