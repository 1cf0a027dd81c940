"""Graphs as compact JSON and back: equal tensors, operands, attributes and ops are stored once.

A region refers to its ops by their place in a table, an op to its operands, and so on; regions of
one model share most of their ops, so a graph stays small and loads in a few milliseconds.
Polynomials are written as their formulas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, cast, get_args

from hymell.dims import Dim, Size, dim, simplify
from hymell.errors import HymellError
from hymell.graph import (
    FORMAT_VERSION,
    PHASES,
    Attr,
    Feed,
    Layer,
    ModelFacts,
    Op,
    Operand,
    OpGraph,
    Phase,
    Range,
    Region,
    Source,
    StateSpec,
    TensorSpec,
)

FORMAT_NAME = "hymell.graph"

Json: TypeAlias = Any
Row: TypeAlias = list[Json]

_SOURCES: tuple[Source, ...] = get_args(Source)
#: Under these keys a JSON object stands for a polynomial or a float that JSON cannot write.
_POLYNOMIAL = "$"
_FLOAT = "$f"


def canonical_attr(value: Attr) -> Attr:
    """The one form of an attribute that JSON keeps: sequences as tuples, constant `Dim`s as ints.

    Raises TypeError for anything but None, bool, int, float, str, `Dim` and sequences of them.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # One shared nan object: containers compare by identity first, so such graphs stay equal.
        return math.nan if math.isnan(value) else float(value)
    if isinstance(value, Dim):
        return simplify(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(canonical_attr, value))
    raise TypeError(f"a {type(value).__name__} is not a number, text, formula or list of them")


def canonical_attrs(op: Op) -> dict[str, Attr]:
    """An op's attributes in their one form; raises HymellError naming what cannot be stored."""
    attrs: dict[str, Attr] = {}
    for name, value in op.attrs.items():
        try:
            attrs[str(name)] = canonical_attr(value)
        except TypeError as error:
            where = f"{op.name} ({op.path})" if op.path else op.name
            raise HymellError(
                f"attribute {name!r} of op {where} cannot be stored in a graph: {error}"
            ) from None
    return attrs


def canonical(graph: OpGraph) -> OpGraph:
    """The same graph with every attribute and size in its one form.

    ``load(json.dumps(dump(graph)))`` equals ``canonical(graph)``; a traced graph is already so.
    """
    regions = tuple(
        replace(
            region,
            ops=tuple(_canonical_op(op) for op in region.ops),
            state=tuple(replace(state, spec=_canonical_spec(state.spec)) for state in region.state),
        )
        for region in graph.regions
    )
    return replace(graph, regions=regions)


def _canonical_op(op: Op) -> Op:
    return replace(
        op,
        inputs=tuple(replace(operand, spec=_canonical_spec(operand.spec)) for operand in op.inputs),
        outputs=tuple(map(_canonical_spec, op.outputs)),
        attrs=canonical_attrs(op),
    )


def _canonical_spec(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(tuple(map(simplify, spec.shape)), spec.dtype)


# Writing


@dataclass(slots=True)
class _Table:
    """Rows stored once each, known by their place."""

    rows: list[Row] = field(default_factory=list)
    places: dict[Any, int] = field(default_factory=dict)

    def add(self, key: Any, row: Row) -> int:
        place = self.places.setdefault(key, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        return place


@dataclass(slots=True)
class _Writer:
    specs: _Table = field(default_factory=_Table)
    operands: _Table = field(default_factory=_Table)
    attrs: _Table = field(default_factory=_Table)
    ops: _Table = field(default_factory=_Table)

    def spec(self, spec: TensorSpec) -> int:
        row = [spec.dtype, *map(_size_json, spec.shape)]
        return self.specs.add(tuple(row), row)

    def operand(self, operand: Operand) -> int:
        row = [
            self.spec(operand.spec),
            _SOURCES.index(operand.kind),
            operand.op,
            operand.index,
            operand.name,
        ]
        return self.operands.add(tuple(row), row)

    def attributes(self, op: Op) -> int:
        row = [[name, _attr_json(value)] for name, value in canonical_attrs(op).items()]
        # Keyed by its text, because 1, 1.0 and True are one key of a dict.
        return self.attrs.add(json.dumps(row), row)

    def op(self, op: Op) -> int:
        row: Row = [
            op.id,
            op.name,
            op.path,
            op.module,
            [self.operand(operand) for operand in op.inputs],
            [self.spec(spec) for spec in op.outputs],
            self.attributes(op),
            op.repeat,
            op.part,
        ]
        return self.ops.add((*row[:4], tuple(row[4]), tuple(row[5]), *row[6:]), row)

    def region(self, region: Region) -> dict[str, Json]:
        return {
            "phase": region.phase,
            **{axis: [bounds.lo, bounds.hi] for axis, bounds in _axes(region)},
            "ops": [self.op(op) for op in region.ops],
            "layers": [_layer_json(layer) for layer in region.layers],
            "state": [
                [s.kind, s.name, s.path, self.spec(s.spec), s.repeat, s.window]
                for s in region.state
            ],
        }


def dump(graph: OpGraph) -> dict[str, Json]:
    """A graph as a JSON document (plain dicts, lists, strings and numbers).

    Raises HymellError when an op has an attribute that JSON cannot hold.
    """
    writer = _Writer()
    regions = [writer.region(region) for region in graph.regions]
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "versions": dict(graph.versions),
        "facts": {f.name: _plain(getattr(graph.facts, f.name)) for f in fields(ModelFacts)},
        "specs": writer.specs.rows,
        "operands": writer.operands.rows,
        "attrs": writer.attrs.rows,
        "ops": writer.ops.rows,
        "regions": regions,
    }


def _axes(region: Region) -> tuple[tuple[str, Range], ...]:
    return ("B", region.B), ("S", region.S), ("L", region.L)


def _size_json(size: Size) -> int | str:
    size = simplify(size)
    return str(size) if isinstance(size, Dim) else int(size)


def _attr_json(value: Attr) -> Json:
    if isinstance(value, tuple):
        return [_attr_json(item) for item in value]
    if isinstance(value, Dim):
        return {_POLYNOMIAL: str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def _layer_json(layer: Layer) -> Row:
    return [
        layer.path,
        layer.module,
        layer.start,
        layer.stop,
        list(layer.paths),
        [
            [feed.op, feed.index, [[op, index, count] for (op, index), count in feed.producers]]
            for feed in layer.feeds
        ],
    ]


def _plain(value: Any) -> Json:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


# Reading


def load(text: str | bytes) -> OpGraph:
    """The graph that `dump` wrote as JSON text.

    Raises HymellError when the text is not JSON, not a graph, damaged, or of another format
    version.
    """
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise HymellError("this is not a hymell graph: the text is not valid JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise HymellError(
            f'this is not a hymell graph: it has no "format": "{FORMAT_NAME}"; '
            "write one with OpGraph.to_json"
        )
    if document.get("version") != FORMAT_VERSION:
        raise HymellError(
            f"this hymell graph has format version {document.get('version')!r}, "
            f"this hymell reads version {FORMAT_VERSION}; trace the model again"
        )
    try:
        return _read_graph(document)
    except KeyError as error:
        raise HymellError(f"this hymell graph is damaged: {error} is missing") from None
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise HymellError(f"this hymell graph is damaged: {error}") from None


def _read_graph(document: Mapping[str, Json]) -> OpGraph:
    specs = [_read_spec(row) for row in document["specs"]]
    operands = [_read_operand(specs, row) for row in document["operands"]]
    attrs = [{_text(name): _read_attr(value) for name, value in row} for row in document["attrs"]]
    ops = [_read_op(specs, operands, attrs, row) for row in document["ops"]]
    regions = tuple(_read_region(specs, ops, row) for row in document["regions"])
    facts = {
        f.name: _FACT_READERS[cast(str, f.type)](document["facts"][f.name])
        for f in fields(ModelFacts)
    }
    versions = {_text(name): _text(version) for name, version in document["versions"].items()}
    return OpGraph(ModelFacts(**facts), regions, versions)


def _read_spec(row: Row) -> TensorSpec:
    dtype, *shape = row
    sizes = tuple([size if type(size) is int else dim(_text(size)) for size in shape])
    return TensorSpec(sizes, _text(dtype))


def _read_operand(specs: list[TensorSpec], row: Row) -> Operand:
    spec, kind, op, index, name = row
    if not (type(op) is int is type(index) and type(name) is str and kind >= 0 and spec >= 0):
        raise ValueError(f"{row} is not an operand")
    return Operand(specs[spec], _SOURCES[kind], op, index, name)


def _read_op(
    specs: list[TensorSpec], operands: list[Operand], attrs: list[dict[str, Attr]], row: Row
) -> Op:
    number, name, path, module, inputs, outputs, attributes, repeat, part = row
    if (
        not (type(number) is int is type(repeat))
        or not (type(name) is str is type(path))
        or not (type(module) is str is type(part))
        or min(inputs, default=0) < 0
        or min(outputs, default=0) < 0
        or attributes < 0
    ):
        raise ValueError(f"{row} is not an op")
    return Op(
        number,
        name,
        path,
        module,
        tuple([operands[place] for place in inputs]),
        tuple([specs[place] for place in outputs]),
        attrs[attributes],
        repeat,
        part,
    )


def _read_region(specs: list[TensorSpec], ops: list[Op], row: Mapping[str, Json]) -> Region:
    if row["phase"] not in PHASES:
        raise ValueError(f"{row['phase']!r} is not a phase")
    if min(row["ops"], default=0) < 0:
        raise ValueError("an op has a negative place")
    return Region(
        cast(Phase, row["phase"]),
        tuple([ops[place] for place in row["ops"]]),
        tuple(map(_read_layer, row["layers"])),
        tuple([_read_state(specs, state) for state in row["state"]]),
        *(_read_range(row[axis]) for axis in ("B", "S", "L")),
    )


def _read_range(row: Row) -> Range:
    lo, hi = row
    return Range(_whole(lo), _optional(_whole)(hi))


def _read_layer(row: Row) -> Layer:
    path, module, start, stop, paths, feeds = row
    return Layer(
        _text(path),
        _text(module),
        _whole(start),
        _whole(stop),
        _texts(paths),
        tuple([_read_feed(feed) for feed in feeds]),
    )


def _read_feed(row: Row) -> Feed:
    op, index, producers = row
    return Feed(
        _whole(op),
        _whole(index),
        tuple([((_whole(o), _whole(i)), _whole(count)) for o, i, count in producers]),
    )


def _read_state(specs: list[TensorSpec], row: Row) -> StateSpec:
    kind, name, path, spec, repeat, window = row
    if _whole(spec) < 0:
        raise ValueError(f"{row} is not a state")
    return StateSpec(
        _text(kind),
        _text(name),
        _text(path),
        specs[spec],
        _whole(repeat),
        _optional(_whole)(window),
    )


def _read_attr(value: Json) -> Attr:
    if isinstance(value, list):
        return tuple([_read_attr(item) for item in value])
    if isinstance(value, dict):
        ((key, text),) = value.items()
        if key == _POLYNOMIAL:
            return dim(_text(text))
        if key == _FLOAT:
            return canonical_attr(float(_text(text)))
        raise ValueError(f"{value} is not an attribute")
    return value


def _text(value: Json) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not text")
    return value


def _whole(value: Json) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _number(value: Json) -> int | float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is not a number")
    return cast("int | float", value)


def _texts(values: Iterable[Json]) -> tuple[str, ...]:
    if type(values) is not list:
        raise ValueError(f"{values!r} is not a list")
    return tuple([_text(value) for value in values])


def _numbers(values: Mapping[str, Json]) -> dict[str, float]:
    return {_text(name): _number(value) for name, value in values.items()}


def _optional(read: Callable[[Json], Any]) -> Callable[[Json], Any]:
    return lambda value: None if value is None else read(value)


#: How each kind of `ModelFacts` field is read, by its annotation.
def _texts_by_name(value: Json) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in value.items()}


_FACT_READERS: dict[str, Callable[[Json], Any]] = {
    "str": _text,
    "int": _whole,
    "float": _number,
    "int | None": _optional(_whole),
    "str | None": _optional(_text),
    "Mapping[str, float]": _numbers,
    "Mapping[str, str]": _texts_by_name,
    "tuple[str, ...]": _texts,
}
