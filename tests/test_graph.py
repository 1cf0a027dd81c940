"""The graph: JSON round trips, refusals, regions, and the FX view."""

from __future__ import annotations

import json
import math
import operator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.dims import Dim, Size, dim
from hymell.errors import HymellError, UnsupportedError
from hymell.graph import (
    FORMAT_VERSION,
    Feed,
    Layer,
    ModelFacts,
    Op,
    Operand,
    OpGraph,
    Range,
    Region,
    StateSpec,
    TensorSpec,
    consumers,
)
from hymell.graph_json import canonical, canonical_attr, dump

FACTS = ModelFacts(
    name="tiny",
    model_type="llama",
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    parameters=1000,
    active_parameters=900,
    weight_bytes=2000.0,
    weight_bytes_by_dtype={"bfloat16": 2000.0},
    max_context=4096,
    parts=("model", "vision"),
    notes=("a note",),
)


def spec(*shape: Size | str, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(tuple(dim(s) if isinstance(s, str) else s for s in shape), dtype)


def small_region() -> Region:
    """Embedding, a matmul, a split in two, attention and a norm that reads a cache."""
    hidden = spec("B", "S", 64)
    ops = (
        Op(
            0,
            "aten.embedding.default",
            "model.embed",
            "Embedding",
            (
                Operand(spec(512, 64), "weight", name="model.embed.weight"),
                Operand(spec("B", "S", dtype="int64"), "input", name="input_ids"),
            ),
            (hidden,),
        ),
        Op(
            1,
            "aten.mm.default",
            "model.layers.0.qkv",
            "Linear",
            (
                Operand(hidden, "op", 0),
                Operand(spec(64, 128), "weight", name="model.layers.0.qkv.weight"),
            ),
            (spec("B", "S", 128),),
            repeat=4,
        ),
        Op(
            2,
            "aten.split.Tensor",
            "model.layers.0",
            "Layer",
            (Operand(spec("B", "S", 128), "op", 1),),
            (hidden, hidden),
            {"split_size": 64, "dim": -1, "bounds": (0, dim("S"))},
            repeat=4,
        ),
        Op(
            3,
            "hymell.attention",
            "model.layers.0",
            "Layer",
            (
                Operand(hidden, "op", 2, 0),
                Operand(hidden, "op", 2, 1),
                Operand(spec("B", 4, "L", 16), "state", name="kv.0"),
                Operand(spec(dtype="float32"), "constant"),
            ),
            (hidden,),
            {"causal": True, "scale": 0.25, "window": None},
            repeat=4,
        ),
        Op(
            4,
            "hymell.scan.mamba",
            "model.layers.0.embed",
            "Mixer",
            (
                Operand(hidden, "op", 3),
                Operand(spec(512, 64), "weight", name="model.embed.weight"),
                Operand(spec(dtype="float32"), "constant"),
            ),
            (hidden,),
        ),
    )
    layers = (
        Layer(
            "model.layers.0",
            "Layer",
            1,
            5,
            tuple(f"model.layers.{i}" for i in range(4)),
            (Feed(0, 0, (((0, 0), 1), ((3, 0), 3))),),
        ),
    )
    state = (StateSpec("kv", "kv.0", "model.layers.0", spec("B", 4, "L", 16), 4, window=128),)
    return Region("decode", ops, layers, state, Range(1, None), Range(1, 1), Range(0, 127))


def small_graph() -> OpGraph:
    region = small_region()
    beyond = replace(region, L=Range(128))
    prefill = replace(region, phase="prefill", S=Range(), L=Range(0, 0))
    return OpGraph(FACTS, (prefill, region, beyond), {"torch": "2.13.0"})


# JSON


def test_round_trip() -> None:
    graph = small_graph()
    assert OpGraph.from_json(graph.to_json()) == graph
    assert OpGraph.from_json(graph.to_json().encode()) == graph


def test_equal_ops_are_stored_once() -> None:
    document = dump(small_graph())
    assert len(document["ops"]) == len(small_region().ops)
    assert [len(region["ops"]) for region in document["regions"]] == [5, 5, 5]


def test_equal_numbers_of_other_types_stay_apart() -> None:
    region = small_region()
    values = (1, 1.0, True, "1", None)
    ops = tuple(replace(region.ops[0], id=i, attrs={"x": v}) for i, v in enumerate(values))
    loaded = OpGraph.from_json(OpGraph(FACTS, (replace(region, ops=ops),)).to_json())
    assert [(type(op.attrs["x"]), op.attrs["x"]) for op in loaded.regions[0].ops] == [
        (type(v), v) for v in values
    ]


names = st.text(max_size=8)
sizes = st.one_of(
    st.integers(0, 2**40),
    st.sampled_from([dim("B"), dim("2*B*S"), dim("1/2*L - 3"), dim("B*S^2 + L")]),
)
specs = st.builds(
    TensorSpec,
    st.lists(sizes, max_size=3).map(tuple),
    st.sampled_from(["bfloat16", "float32", "int64"]),
)
whole = st.integers(-1, 50)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), sizes
)
attributes = st.dictionaries(
    names, st.recursive(scalars, lambda v: st.lists(v, max_size=2), max_leaves=4), max_size=2
)
operands = st.builds(
    Operand,
    specs,
    st.sampled_from(["op", "weight", "input", "state", "constant"]),
    whole,
    whole,
    names,
)
ops = st.builds(
    Op,
    whole,
    names,
    names,
    names,
    st.lists(operands, max_size=2).map(tuple),
    st.lists(specs, max_size=2).map(tuple),
    attributes,
    whole,
    names,
)
feeds = st.builds(
    Feed,
    whole,
    whole,
    st.lists(st.tuples(st.tuples(whole, whole), whole), max_size=2).map(tuple),
)
layers = st.builds(
    Layer,
    names,
    names,
    whole,
    whole,
    st.lists(names, max_size=2).map(tuple),
    st.lists(feeds, max_size=1).map(tuple),
)
states = st.builds(StateSpec, names, names, names, specs, whole, st.none() | whole)
ranges = st.builds(Range, whole, st.none() | whole)
regions = st.builds(
    Region,
    st.sampled_from(["prefill", "decode"]),
    st.lists(ops, max_size=3).map(tuple),
    st.lists(layers, max_size=1).map(tuple),
    st.lists(states, max_size=1).map(tuple),
    ranges,
    ranges,
    ranges,
)
finite = st.floats(allow_nan=False)
of_annotation = {
    "str": names,
    "int": whole,
    "float": finite,
    "int | None": st.none() | whole,
    "str | None": st.none() | names,
    "Mapping[str, float]": st.dictionaries(names, finite, max_size=2),
    "Mapping[str, str]": st.dictionaries(names, names, max_size=2),
    "tuple[str, ...]": st.lists(names, max_size=2).map(tuple),
}
facts = st.builds(ModelFacts, **{f.name: of_annotation[str(f.type)] for f in fields(ModelFacts)})
graphs = st.builds(
    OpGraph,
    facts,
    st.lists(regions, max_size=2).map(tuple),
    st.dictionaries(names, names, max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(graphs)
def test_any_graph_round_trips_in_its_one_form(graph: OpGraph) -> None:
    loaded = OpGraph.from_json(graph.to_json())
    assert loaded == canonical(graph)
    assert canonical(loaded) == loaded
    assert loaded.to_json() == graph.to_json()


def test_attributes_have_one_form() -> None:
    constant = dim("B") - dim("B") + 3  # type: ignore[operator]
    assert canonical_attr([1, [2.5, constant]]) == (1, (2.5, 3))
    assert canonical_attr(float("nan")) is math.nan
    assert isinstance(canonical_attr([dim("S")])[0], Dim)


def test_attribute_that_json_cannot_hold_is_named() -> None:
    region = small_region()
    op = replace(region.ops[1], attrs={"device": object()})
    graph = OpGraph(FACTS, (replace(region, ops=(op,)),))
    with pytest.raises(HymellError, match=r"'device' of op aten\.mm\.default .*object"):
        graph.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no .format."),
        ("null", "no .format."),
        ("{}", "no .format."),
        ('{"format": "other"}', "no .format."),
        ('{"format": "hymell.graph", "version": 999}', "format version 999"),
        ('{"format": "hymell.graph"}', "format version None"),
        (f'{{"format": "hymell.graph", "version": {FORMAT_VERSION}}}', "damaged: 'specs' is miss"),
    ],
)
def test_what_is_no_graph_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(HymellError, match=message):
        OpGraph.from_json(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in inner:
        found.append((*path, key))
        if isinstance(item, (dict, list)):
            found.extend(places(item, (*path, key)))
    return found


DOCUMENT = small_graph().to_json()
PLACES = places(json.loads(DOCUMENT))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(PLACES),
    st.sampled_from([None, -1, 10**6, 1.5, "B +", "x", [], {}, [[]], {"$": 3}, {"$": "?"}, "gone"]),
)
def test_a_damaged_graph_is_refused_or_well_formed(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(DOCUMENT)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    if value == "gone":
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    try:
        graph = OpGraph.from_json(json.dumps(document))
    except HymellError:
        return
    assert OpGraph.from_json(graph.to_json()) == graph


# The graph itself


def test_region_of_a_point() -> None:
    graph = small_graph()
    assert graph.region("decode", 3, 1, 127) is graph.regions[1]
    assert graph.region("decode", 3, 1, 128) is graph.regions[2]
    assert graph.region("prefill", 8, 4096, 0) is graph.regions[0]
    assert graph.phases() == ("prefill", "decode")


def test_point_outside_every_region_is_named() -> None:
    graph = small_graph()
    with pytest.raises(HymellError, match=r"no traced decode region holds B=1, S=2, L=5"):
        graph.region("decode", 1, 2, 5)
    with pytest.raises(HymellError, match="tiny has no prefill phase"):
        OpGraph(FACTS, graph.of_phase("decode")).region("prefill")


def test_consumers() -> None:
    readers = consumers(small_region().ops)
    assert [op.id for op in readers[2]] == [3]
    assert 4 not in readers


def test_numel_and_bytes() -> None:
    tensor = spec("B", "S", 64)
    assert tensor.numel == dim("64*B*S")
    assert spec(3, 5).numel == 15
    assert tensor.numel * tensor.element_bytes == dim("128*B*S")
    assert spec().numel == 1


# The FX view


@pytest.fixture(scope="module")
def fx_graph() -> Any:
    pytest.importorskip("torch")
    return small_graph().to_fx("decode", B=2, S=1, L=100)


def test_fx_nodes(fx_graph: Any) -> None:
    import torch

    kinds = [node.op for node in fx_graph.nodes]
    assert kinds == ["placeholder"] * 6 + ["call_function"] * 7 + ["output"]
    calls = [node for node in fx_graph.nodes if node.op == "call_function"]
    assert calls[0].target is torch.ops.aten.embedding.default
    assert calls[1].target is torch.ops.aten.mm.default
    assert [call.target for call in calls[3:5]] == [operator.getitem] * 2
    assert calls[1].args[0] is calls[0]
    assert calls[5].args[:2] == tuple(calls[3:5])
    fx_graph.lint()


def test_fx_placeholders_are_distinct_tensors(fx_graph: Any) -> None:
    placeholders = [node for node in fx_graph.nodes if node.op == "placeholder"]
    assert [node.target for node in placeholders] == [
        "model_embed_weight",
        "input_ids",
        "model_layers_0_qkv_weight",
        "kv_0",
        "constant",
        "constant_1",
    ]
    assert [node.meta["op"] for node in placeholders] == [
        "weight",
        "input",
        "weight",
        "state",
        "constant",
        "constant",
    ]
    assert len(placeholders[0].users) == 2


def test_fx_meta(fx_graph: Any) -> None:
    import torch

    nodes = {node.name: node for node in fx_graph.nodes}
    state = nodes["kv_0"].meta
    assert state["shape"] == (2, 4, 100, 16)
    assert state["dims"] == (dim("B"), 4, dim("L"), 16)
    assert nodes["input_ids"].meta["dtype"] is torch.int64
    split = next(node for node in fx_graph.nodes if node.meta["op"] == "aten.split.Tensor").meta
    assert split["shape"] == ((2, 1, 64), (2, 1, 64))
    assert split["dims"][0] == (dim("B"), dim("S"), 64)
    assert split["attrs"] == {"split_size": 64, "dim": -1, "bounds": (0, 1)}
    assert (split["module_path"], split["module_class"]) == ("model.layers.0", "Layer")
    assert (split["repeat"], split["part"]) == (4, "model")
    item = nodes["getitem"].meta
    assert item["shape"] == (2, 1, 64)
    assert item["dtype"] is torch.bfloat16
    assert all(
        {"shape", "dtype", "dims", "module_path", "module_class", "repeat", "part", "attrs"}
        <= node.meta.keys()
        for node in fx_graph.nodes
    )


def test_fx_output_is_what_no_op_reads(fx_graph: Any) -> None:
    output = next(node for node in fx_graph.nodes if node.op == "output")
    assert output.args[0].meta["op"] == "hymell.scan.mamba"


def test_fx_code_prints(fx_graph: Any) -> None:
    source = fx_graph.python_code("self").src
    assert "torch.ops.aten.mm.default" in source
    assert "hymell_tracer_fx_attention" in source


def test_fx_composites_say_that_they_do_not_run(fx_graph: Any) -> None:
    attention = next(n for n in fx_graph.nodes if n.meta["op"] == "hymell.attention")
    with pytest.raises(UnsupportedError, match=r"hymell\.attention .*cannot be executed"):
        attention.target(*attention.args)


def test_fx_unknown_ops_and_formats() -> None:
    pytest.importorskip("torch")
    from hymell.tracer.fx import composite, to_fx

    region = small_region()
    op = Op(
        0,
        "nowhere.thing.default",
        "",
        "",
        (
            Operand(spec(4, dtype="nvfp4"), "weight", name="a.b"),
            Operand(spec(4), "weight", name="a_b"),
        ),
        (),
    )
    graph = to_fx(replace(region, ops=(op,)))
    first, second, call, output = graph.nodes
    assert (first.target, second.target) == ("a_b", "a_b_1")
    assert first.meta["dtype"] == "nvfp4"
    assert call.target is composite
    assert output.args == ((),)
    assert call.args == (first, second)


def test_fx_broken_dataflow_is_named() -> None:
    pytest.importorskip("torch")
    from hymell.tracer.fx import to_fx

    region = small_region()
    with pytest.raises(HymellError, match=r"op 1 aten\.mm\.default reads output 0 of op 0"):
        to_fx(replace(region, ops=region.ops[1:]))
