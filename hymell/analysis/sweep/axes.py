"""What a sweep varies: fields of a model's config and the values each of them takes.

A value is a number, true, false, null, a word (an activation), or arithmetic over other fields of
the architecture (``hq``: the query heads, num_attention_heads; ``num_attention_heads/4``;
``hidden_size/hq``). A range stands for several: ``16..64+16`` steps by 16, ``8..64*2`` doubles,
``4..8`` steps by 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from hymell.analysis.sweep.expressions import Expression, parse
from hymell.errors import HymellError

Plain: TypeAlias = int | float | bool | str | None

#: What may stand for num_attention_heads in values.
QUERY_HEADS = "hq"
_QUERY_HEADS_FIELD = "num_attention_heads"

#: Values of one field; more are taken for a mistake.
MAX_VALUES = 10_000

_RANGE = re.compile(r"(-?[\d.]+(?:e\d+)?)\.\.(-?[\d.]+?(?:e\d+)?)(?:([+*])([\d.]+))?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_KEYWORDS: Mapping[str, Plain] = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an axis: as written, and the plain value or the formula it stands for."""

    text: str
    plain: Plain = None
    formula: Expression | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A config field and its values, in the order they were given."""

    field: str
    values: tuple[Value, ...]


def axes_of(
    asked: Mapping[str, Sequence[Any]],
    fields: Mapping[str, Any],
    config: Mapping[str, Any],
    name: str,
) -> tuple[Axis, ...]:
    """Axes from values by field; ``fields`` are what the config may have, with present values.

    Formulas may name numbers that ``config`` gives and other axes.

    Raises HymellError for a field that the config does not have, for a field without a value, and
    for a value that cannot be read.
    """
    found = []
    named = {*numbers(config), *asked}
    for field, values in asked.items():
        if field not in fields:
            raise HymellError(_unknown(field, fields, name))
        items = [values] if isinstance(values, (str, int, float)) or values is None else values
        read = [value for item in items for value in _read(field, item, fields, named)]
        distinct = tuple(dict.fromkeys(read))
        if not distinct:
            raise HymellError(f"{field}: an empty grid; give at least one value, e.g. {field}=1,2")
        if len(distinct) > MAX_VALUES:
            raise HymellError(f"{field}: {len(distinct)} values; give {MAX_VALUES} at most")
        found.append(Axis(field, distinct))
    return tuple(found)


def parse_set(texts: Sequence[str]) -> dict[str, list[str]]:
    """``FIELD=value,value`` texts as values by field; raises HymellError for other text."""
    asked: dict[str, list[str]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field.strip():
            raise HymellError(
                f"--set {text}: write FIELD=VALUE,VALUE, e.g. num_attention_heads=16,32"
            )
        if field.strip() in asked:
            raise HymellError(f"--set names {field.strip()} twice; give all its values at once")
        asked[field.strip()] = [part.strip() for part in values.split(",") if part.strip()]
    return asked


def architecture(
    base: Mapping[str, Any], axes: Sequence[Axis], choice: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Plain]]:
    """(config, value of each axis) of one choice of values.

    Formulas see the fields as this architecture has them. Raises HymellError for a formula without
    a value, one that is no whole number in the place of one, and lists per layer that cannot follow
    a new number of layers.
    """
    chosen = {axis.field: axis.values[index] for axis, index in zip(axes, choice, strict=True)}
    set_to: dict[str, Plain] = {f: v.plain for f, v in chosen.items() if v.formula is None}
    waiting = {field: value for field, value in chosen.items() if value.formula is not None}
    names = {**numbers(base), **set_to}
    while waiting:
        ready = [
            f for f, v in waiting.items() if v.formula and not (_needs(v.formula) & set(waiting))
        ]
        if not ready:
            cycle = " and ".join(sorted(waiting))
            raise HymellError(f"the values of {cycle} follow from each other; give one as a number")
        for field in ready:
            formula = waiting.pop(field).formula
            assert formula is not None
            set_to[field] = names[field] = _result(field, formula, names)
    config = _with_layers(base, set_to)
    for field, plain in set_to.items():
        _put(config, field, plain)
    return config, {axis.field: set_to[axis.field] for axis in axes}


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a config and of the configs in it that hold a number, the latter with a dot."""
    found: dict[str, Any] = {}
    for field, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{field}.{inner}": v for inner, v in numbers(value).items()}
        elif isinstance(value, (int, float)):
            found[field] = value
    return found


def _needs(formula: Expression) -> set[str]:
    return {_QUERY_HEADS_FIELD if name == QUERY_HEADS else name for name in formula.names}


def _result(field: str, formula: Expression, names: Mapping[str, Any]) -> Plain:
    value = formula.value({**names, QUERY_HEADS: names.get(_QUERY_HEADS_FIELD)})
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not float(value).is_integer():
        raise HymellError(f"{field}: {formula.text} is {value:g}, not a whole number")
    return int(value)


def _read(field: str, item: Any, fields: Mapping[str, Any], named: set[str]) -> Iterator[Value]:
    if not isinstance(item, str):
        if item is not None and not isinstance(item, (int, float)):
            raise HymellError(f"{field}: {item!r} is no value; give numbers, words or formulas")
        yield Value(str(item), item)
        return
    text = item.strip()
    if text.lower() in _KEYWORDS:
        yield Value(text, _KEYWORDS[text.lower()])
    elif match := _RANGE.fullmatch(text):
        for step in _range(field, text, match):
            yield Value(str(step), step)
    elif (number := _number(text)) is not None:
        yield Value(text, number)
    elif _WORD.fullmatch(text) and text not in named and text != QUERY_HEADS:
        if isinstance(fields.get(field), (int, float)):
            raise HymellError(
                f"{field}={text}: {text} is neither a number nor a field of the config; "
                f"give e.g. {fields[field]} or {QUERY_HEADS} (as many as query heads)"
            )
        yield Value(text, text)
    else:
        yield Value(text, formula=parse(text, {*named, QUERY_HEADS}, f"the value of {field}"))


def _range(field: str, text: str, match: re.Match[str]) -> list[int | float]:
    ends = [_number(part) for part in (match[1], match[2], match[4] or "1")]
    known = [end for end in ends if end is not None]
    if len(known) != len(ends):
        raise HymellError(f"{field}={text}: write a range as 16..64+16, 8..64*2 or 4..8")
    low, high, step = known
    multiply = match[3] == "*"
    if high < low or (multiply and (step <= 1 or low <= 0)) or step <= 0:
        raise HymellError(f"{field}={text}: the range has no end; write it upwards, e.g. 8..64*2")

    found = list(islice(_steps(low, high, step, multiply), MAX_VALUES + 1))
    if len(found) > MAX_VALUES:
        raise HymellError(f"{field}={text}: more than {MAX_VALUES} values; take a larger step")
    return found


def _steps(
    low: int | float, high: int | float, step: int | float, multiply: bool
) -> Iterator[int | float]:
    value = low
    while value <= high:
        yield value
        value = value * step if multiply else value + step


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None


def _put(config: dict[str, Any], field: str, value: Plain) -> None:
    """Set a field, a dotted one in a copy of the config that holds it."""
    head, dot, rest = field.partition(".")
    if not dot:
        config[field] = value
        return
    inner = dict(config.get(head) or {})
    _put(inner, rest, value)
    config[head] = inner


def _with_layers(base: Mapping[str, Any], set_to: Mapping[str, Plain]) -> dict[str, Any]:
    """A copy of the config whose lists of one entry per layer fit its new number of layers."""
    config = dict(base)
    for field, plain in set_to.items():
        head, _, rest = field.rpartition(".")
        if rest not in _LAYER_COUNTS or not isinstance(plain, int):
            continue
        part = config
        for key in head.split(".") if head else ():
            part[key] = dict(part.get(key) or {})
            part = part[key]
        before = part.get(rest)
        for key, value in list(part.items()):
            lists = isinstance(value, list) and isinstance(before, int) and len(value) == before > 0
            named = f"{head}.{key}" if head else key
            if lists and named not in set_to:
                part[key] = _stretched(key, value, plain)
    return config


_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def _stretched(key: str, per_layer: Sequence[Any], layers: int) -> list[Any]:
    """A list per layer for another number of layers: its shortest pattern goes on."""
    for period in range(1, len(per_layer) // 2 + 1):
        if all(value == per_layer[i % period] for i, value in enumerate(per_layer)):
            return [per_layer[i % period] for i in range(layers)]
    raise HymellError(
        f"{key} names every layer without a pattern; it cannot follow {layers} layers: "
        "leave the number of layers as it is"
    )


def _unknown(field: str, fields: Mapping[str, Any], name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(field, list(fields), 2, 0.6)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"it has {', '.join(sorted(fields)[:12])}, ..."
    )
    return f"the config of {name} has no field {field}; {hint}"
