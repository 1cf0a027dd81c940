"""A region at one workload point as a `torch.fx.Graph`, the form that PyTorch users know.

The graph describes: it can be walked, printed, searched and linted. It is no program to run: ops
of repeated layers stand in it once, and composites have no implementation.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import fx

from hymell.errors import HymellError, UnsupportedError
from hymell.graph import Op, Operand, Region, Size, TensorSpec
from hymell.tracer.template import concrete


def attention(*tensors: Any) -> NoReturn:
    """Stands for ``hymell.attention``; raises UnsupportedError when called."""
    raise _not_a_program("hymell.attention")


def experts(*tensors: Any) -> NoReturn:
    """Stands for ``hymell.experts``; raises UnsupportedError when called."""
    raise _not_a_program("hymell.experts")


def scan(*tensors: Any) -> NoReturn:
    """Stands for every ``hymell.scan.<kind>``; raises UnsupportedError when called."""
    raise _not_a_program("hymell.scan")


def composite(*tensors: Any) -> NoReturn:
    """Stands for any other op that torch does not know; raises UnsupportedError when called."""
    raise _not_a_program("this op")


_STAND_INS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "experts": experts,
    "scan": scan,
}


def to_fx(region: Region, B: int = 1, S: int = 1, L: int = 0) -> fx.Graph:
    """The ops of a region at a workload point as an FX graph that passes ``lint``.

    One placeholder per distinct model input, weight and state, one per use of a constant; one
    ``call_function`` per op, on its tensor operands, with a ``getitem`` for each of several
    outputs; the output node returns every tensor that no op reads, in order.

    ``meta`` of each node holds ``shape`` (ints) and ``dtype`` (a ``torch.dtype``, or hymell's name
    of a format that torch lacks), both as tuples where a node stands for several tensors; ``dims``
    (the shape with its formulas, likewise), ``module_path``, ``module_class``, ``repeat``, ``part``
    and ``attrs`` (evaluated); ``op`` is hymell's name of the op, or of the operand's kind.

    Raises HymellError when an op reads an output that no earlier op makes.
    """
    graph = fx.Graph()
    now = concrete(region, B, S, L)
    sources = _add_placeholders(graph, region, now)
    made: dict[tuple[int, int], fx.Node] = {}
    for op, at_point in zip(region.ops, now.ops, strict=True):
        arguments = tuple(
            _produced(made, op, operand)
            if operand.kind == "op"
            else sources[_source_key(operand, op.id, position)]
            for position, operand in enumerate(op.inputs)
        )
        node = graph.call_function(_target(op.name), arguments)
        node.meta = {
            **_tensor_meta(op.outputs, at_point.outputs, single=len(op.outputs) == 1),
            **_place_meta(op.name, op.path, op.module, op.repeat, op.part, dict(at_point.attrs)),
        }
        for index, (spec, size) in enumerate(zip(op.outputs, at_point.outputs, strict=True)):
            made[op.id, index] = (
                node if len(op.outputs) == 1 else _add_item(graph, node, index, spec, size)
            )
    _add_output(graph, region, made)
    graph.lint()
    return graph


def _add_placeholders(
    graph: fx.Graph, region: Region, now: Region
) -> dict[tuple[str, ...], fx.Node]:
    nodes: dict[tuple[str, ...], fx.Node] = {}
    taken: set[str] = set()
    for op, at_point in zip(region.ops, now.ops, strict=True):
        for position, operand in enumerate(op.inputs):
            key = _source_key(operand, op.id, position)
            if operand.kind == "op" or key in nodes:
                continue
            node = graph.placeholder(_identifier(operand.name or operand.kind, taken))
            path = operand.name.rpartition(".")[0] if operand.kind == "weight" else ""
            node.meta = {
                **_tensor_meta([operand.spec], [at_point.inputs[position].spec], single=True),
                **_place_meta(operand.kind, path, "", 1, op.part, {}),
            }
            nodes[key] = node
    return nodes


def _source_key(operand: Operand, op: int, position: int) -> tuple[str, ...]:
    """What makes an operand one placeholder: its name; a constant has none and stands alone."""
    if operand.name:
        return operand.kind, operand.name
    return operand.kind, str(op), str(position)


def _produced(made: dict[tuple[int, int], fx.Node], op: Op, operand: Operand) -> fx.Node:
    node = made.get((operand.op, operand.index))
    if node is None:
        raise HymellError(
            f"op {op.id} {op.name} reads output {operand.index} of op {operand.op}, "
            "which no earlier op of the region makes"
        )
    return node


def _add_item(
    graph: fx.Graph, node: fx.Node, index: int, spec: TensorSpec, at_point: TensorSpec
) -> fx.Node:
    item = graph.call_function(operator.getitem, (node, index))
    item.meta = {**node.meta, **_tensor_meta([spec], [at_point], single=True)}
    return item


def _add_output(graph: fx.Graph, region: Region, made: dict[tuple[int, int], fx.Node]) -> None:
    leaves = tuple(node for node in made.values() if not node.users)
    node = graph.output(leaves[0] if len(leaves) == 1 else leaves)
    part = region.ops[-1].part if region.ops else "model"
    keys = ("shape", "dtype", "dims")
    tensors = {
        key: leaves[0].meta[key] if len(leaves) == 1 else tuple(leaf.meta[key] for leaf in leaves)
        for key in keys
    }
    node.meta = {**tensors, **_place_meta("output", "", "", 1, part, {})}


def _tensor_meta(
    specs: Iterable[TensorSpec], at_point: Iterable[TensorSpec], *, single: bool
) -> dict[str, Any]:
    dims: list[tuple[Size, ...]] = [spec.shape for spec in specs]
    shapes = [spec.shape for spec in at_point]
    dtypes = [_dtype(spec.dtype) for spec in specs]
    if single:
        return {"shape": shapes[0], "dtype": dtypes[0], "dims": dims[0]}
    return {"shape": tuple(shapes), "dtype": tuple(dtypes), "dims": tuple(dims)}


def _place_meta(
    op: str, path: str, module: str, repeat: int, part: str, attrs: dict[str, Any]
) -> dict[str, Any]:
    return {
        "op": op,
        "module_path": path,
        "module_class": module,
        "repeat": repeat,
        "part": part,
        "attrs": attrs,
    }


def _target(name: str) -> Callable[..., Any]:
    """The ``torch.ops`` overload of an op's name, or the function that stands for a composite."""
    namespace, _, rest = name.partition(".")
    if namespace == "hymell":
        return _STAND_INS.get(rest.partition(".")[0], composite)
    packet, _, overload = rest.partition(".")
    try:
        packets = getattr(torch.ops, namespace)
        target: Callable[..., Any] = getattr(getattr(packets, packet), overload or "default")
    except (AttributeError, RuntimeError):
        return composite
    return target


def _dtype(name: str) -> Any:
    torch_name = "float8_e4m3fn" if name == "float8_e4m3" else name
    dtype = getattr(torch, torch_name, None)
    return dtype if isinstance(dtype, torch.dtype) else name


def _identifier(name: str, taken: set[str]) -> str:
    """A Python identifier for a placeholder, used once."""
    plain = re.sub(r"\W", "_", name)
    plain = plain if plain.isidentifier() else f"_{plain}"
    unique, count = plain, 0
    while unique in taken:
        count += 1
        unique = f"{plain}_{count}"
    taken.add(unique)
    return unique


def _not_a_program(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} has no implementation: an FX graph made by hymell describes what a model runs "
        "and cannot be executed"
    )
