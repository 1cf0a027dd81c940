"""Small arithmetic that users write: constraints on a row and values that follow from others.

Text is parsed by Python's own parser and walked by a short list of node kinds: numbers, names that
are given, arithmetic, comparisons, and / or / not, and min, max, abs of such. Nothing else runs: no
attribute, no index, no other call, no text.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np

from hymell.errors import HymellError

_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Final[Mapping[type, Callable[[Any], Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: np.logical_not,
}
_COMPARE: Final[Mapping[type, Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
    "abs": abs,
}

#: Longer text is taken for a mistake; it also bounds how deep the walk can go.
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression and the names it needs. Make one with `parse`."""

    text: str
    names: frozenset[str]
    _body: ast.expr = field(repr=False, compare=False)

    def value(self, names: Mapping[str, Any]) -> Any:
        """Its value, a number or, where ``names`` has arrays, an array.

        Raises HymellError for a name without a number, and for a number divided by zero.
        """
        with self._errors(names), np.errstate(all="ignore"):
            return _value(self._body, names)

    def violation(self, names: Mapping[str, Any]) -> float:
        """How far a condition on numbers is from being met, relative to its sides; 0 where it is.

        Raises HymellError as `value`.
        """
        with self._errors(names):
            return _violation(self._body, names)

    @contextmanager
    def _errors(self, names: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError:
            raise HymellError(f"{self.text!r} divides by zero") from None
        except (TypeError, KeyError, OverflowError):
            missing = sorted(name for name in self.names if names.get(name) is None)
            why = f"{missing[0]} has no number" if missing else "its numbers do not fit together"
            raise HymellError(f"{self.text!r} has no value here: {why}") from None

    @property
    def is_condition(self) -> bool:
        """True where the value is a truth: a comparison, or comparisons joined."""
        return _is_condition(self._body)


def parse(text: str, known: frozenset[str] | set[str], what: str) -> Expression:
    """Parse text whose names are among ``known``; ``what`` says in errors what it is.

    Raises HymellError for anything else than such arithmetic.
    """
    if len(text) > _LONGEST:
        raise HymellError(f"{what} is longer than {_LONGEST} characters; write it shorter")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise HymellError(
            f"{what} {text!r} cannot be read; write arithmetic and comparisons, "
            "e.g. params_b < 9 and tpot_ms <= 20"
        ) from None
    names: set[str] = set()
    _check(body, text, what, names)
    unknown = sorted(names - known)
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], sorted(known), 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        raise HymellError(f"{what} {text!r} has the unknown name {unknown[0]}; {hint}")
    return Expression(text.strip(), frozenset(names), body)


def _check(node: ast.expr, text: str, what: str, names: set[str]) -> None:
    """Collect names; raise HymellError for a node that is not on the list."""
    children: list[ast.expr]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return
    if isinstance(node, ast.Name):
        names.add(node.id)
        return
    if isinstance(node, ast.Attribute):
        # A dotted field of a nested config, as in text_config.hidden_size.
        dotted = _dotted(node)
        if dotted is not None:
            names.add(dotted)
            return
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        children = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        children = [node.operand]
    elif isinstance(node, ast.BoolOp):
        children = node.values
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and _called(node) is not None:
        children = node.args
    else:
        part = ast.get_source_segment(text.strip(), node) or text
        raise HymellError(
            f"{what} {text!r}: {part!r} is not allowed; "
            "use numbers, names, + - * / // %, comparisons, and, or, not, min, max, abs"
        )
    for child in children:
        _check(child, text, what, names)


def _called(node: ast.Call) -> Callable[..., Any] | None:
    """The function of a call such as min(a, b); None for any other call."""
    if not isinstance(node.func, ast.Name) or node.keywords:
        return None
    name, count = node.func.id, len(node.args)
    return _CALLS.get(name) if (count == 1 if name == "abs" else count > 1) else None


def _dotted(node: ast.expr) -> str | None:
    """``a.b`` as text where it is names and dots alone."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return names[_dotted(node) or ""]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return reduce(join, [_value(part, names) for part in node.values])
    if isinstance(node, ast.Compare):
        pairs = [_COMPARE[type(op)](a, b) for op, a, b in _comparisons(node, names)]
        return reduce(np.logical_and, pairs)
    assert isinstance(node, ast.Call)
    function = _called(node)
    assert function is not None
    return function(*(_value(part, names) for part in node.args))


def _comparisons(
    node: ast.Compare, names: Mapping[str, Any]
) -> Iterator[tuple[ast.cmpop, Any, Any]]:
    """The pairs of a chained comparison: a < b <= c is two."""
    values = [_value(part, names) for part in (node.left, *node.comparators)]
    yield from zip(node.ops, values, values[1:], strict=False)


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(_is_condition(part) for part in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_condition(node.operand)
    return isinstance(node, ast.Compare)


def _violation(node: ast.expr, names: Mapping[str, Any]) -> float:
    if isinstance(node, ast.BoolOp):
        parts = [_violation(part, names) for part in node.values]
        return max(parts) if isinstance(node.op, ast.And) else min(parts)
    if isinstance(node, ast.Compare):
        return max(_missed(op, a, b) for op, a, b in _comparisons(node, names))
    return 0.0 if _value(node, names) else 1.0


def _missed(op: ast.cmpop, a: Any, b: Any) -> float:
    if _COMPARE[type(op)](a, b):
        return 0.0
    gap = abs(float(a) - float(b)) / max(abs(float(a)), abs(float(b)), 1e-300)
    # A strict comparison of equal sides is missed by the least amount.
    return max(gap, 1e-9) if math.isfinite(gap) else 1.0
