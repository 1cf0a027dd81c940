"""Polynomials and regions from concrete traces: synthetic models first, then real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.dims import dim
from hymell.errors import HymellError, TraceError
from hymell.graph import (
    Layer,
    ModelFacts,
    Op,
    Operand,
    OpGraph,
    Phase,
    Range,
    Region,
    StateSpec,
    TensorSpec,
)
from hymell.tracer.fit import fit_regions
from hymell.tracer.template import concrete, flatten

PREFILL = frozenset("BS")
DECODE = frozenset("BL")

Attrs = Mapping[str, Any]


@dataclass
class Model:
    """A synthetic tracer: sizes, attributes, op names and state by plain functions of B, S, L."""

    size: Callable[[int, int, int], int] = lambda B, S, L: B * S
    attrs: Callable[[int, int, int], Attrs] = lambda B, S, L: {}
    names: Callable[[int, int, int], tuple[str, ...]] = lambda B, S, L: ("mm", "add")
    state: Callable[[int, int, int], int] = lambda B, S, L: L
    layers: Callable[[int, int, int], int] = lambda B, S, L: 2
    traced: list[tuple[int, int, int]] = field(default_factory=list)

    def __call__(self, B: int, S: int, L: int) -> Region:
        assert (B, S, L) not in self.traced, "a point is traced once"
        self.traced.append((B, S, L))
        spec = TensorSpec((self.size(B, S, L), 64), "bfloat16")
        ops = tuple(
            Op(
                i,
                f"aten.{name}.default",
                f"model.{i}",
                "Linear",
                (Operand(spec, "op", i - 1) if i else Operand(spec, "input", name="x"),),
                (spec,),
                self.attrs(B, S, L),
            )
            for i, name in enumerate(self.names(B, S, L))
        )
        paths = tuple(f"layers.{i}" for i in range(self.layers(B, S, L)))
        kv = StateSpec("kv", "kv.0", "layers.0", TensorSpec((B, self.state(B, S, L)), "bfloat16"))
        return Region("prefill", ops, (Layer("layers.0", "Layer", 0, 1, paths),), (kv,))


def bounds(region: Region) -> tuple[tuple[int, int | None], ...]:
    return tuple((axis.lo, axis.hi) for axis in (region.B, region.S, region.L))


def assert_tiles(regions: tuple[Region, ...], phase: Phase) -> None:
    """Every point near a bound lies in exactly one region."""
    near = [
        sorted({v for r in regions for edge in edges(r) for v in around(edge[axis])})
        for axis in range(3)
    ]
    if phase == "prefill":
        near[2] = [0]
    elif {(region.S.lo, region.S.hi) for region in regions} == {(1, 1)}:
        near[1] = [1]
    for point in product(*near):
        if point[0] >= 1 and point[1] >= 1 and point[2] >= (1 if phase == "decode" else 0):
            assert sum(region.contains(*point) for region in regions) == 1, point


def edges(region: Region) -> list[tuple[int, int, int]]:
    axes = (region.B, region.S, region.L)
    far = tuple(10**6 if axis.hi is None else axis.hi for axis in axes)
    return [(axes[0].lo, axes[1].lo, axes[2].lo), (far[0], far[1], far[2])]


def around(value: int) -> tuple[int, int, int]:
    return value - 1, value, value + 1


def assert_exact(
    regions: tuple[Region, ...], model: Model, points: list[tuple[int, int, int]]
) -> None:
    """The regions give what a fresh trace gives."""
    for point in set(points):
        (region,) = [r for r in regions if r.contains(*point)]
        fitted, fresh = flatten(concrete(region, *point)), flatten(Model.__call__(model, *point))
        assert (fitted.structure, fitted.numbers) == (fresh.structure, fresh.numbers), point


def fresh(model: Model) -> Model:
    return Model(model.size, model.attrs, model.names, model.state, model.layers)


def fit_and_check(
    model: Model,
    phase: Phase,
    varies: frozenset[str],
    points: list[tuple[int, int, int]],
    **options: Any,
) -> tuple[Region, ...]:
    regions = fit_regions(model, phase, varies=varies, **options)
    assert_exact(regions, fresh(model), points)
    if "B" in varies and (phase == "prefill" or "L" in varies):
        assert_tiles(regions, phase)
    return regions


PREFILL_POINTS = [(1, 1, 0), (1, 77, 0), (2, 1, 0), (4, 1000, 0), (64, 131072, 0)]
DECODE_POINTS = [(1, 1, 1), (2, 1, 1), (1, 1, 5), (64, 1, 100_000)]


# Plain models


def test_plain_prefill_is_one_region_of_five_traces() -> None:
    model = Model()
    (region,) = fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS)
    assert len(model.traced) == 5
    assert bounds(region) == ((1, None), (1, None), (0, 0))
    assert region.ops[0].outputs[0].shape == (dim("B*S"), 64)


def test_plain_decode_is_one_region_of_five_traces() -> None:
    model = Model(size=lambda B, S, L: B * (L + 1), attrs=lambda B, S, L: {"end": L + 1})
    (region,) = fit_and_check(model, "decode", DECODE, DECODE_POINTS)
    assert len(model.traced) == 5
    assert bounds(region) == ((1, None), (1, 1), (1, None))
    assert region.ops[1].attrs == {"end": dim("L + 1")}
    assert region.state[0].spec.shape == (dim("B"), dim("L"))


def test_numbers_of_every_kind_are_fitted_and_the_rest_is_kept() -> None:
    model = Model(
        attrs=lambda B, S, L: {
            "slice": [0, [S - 1, B * S]],
            "dim": -1,
            "scale": 0.125,
            "causal": True,
            "kind": "silu",
            "window": None,
            "fill": float("-inf"),
            "nothing": float("nan"),
        }
    )
    (region,) = fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS)
    attrs = dict(region.ops[0].attrs)
    assert attrs.pop("nothing") != attrs
    assert attrs == {
        "slice": (0, (dim("S - 1"), dim("B*S"))),
        "dim": -1,
        "scale": 0.125,
        "causal": True,
        "kind": "silu",
        "window": None,
        "fill": float("-inf"),
    }
    assert list(region.ops[0].attrs) == list(model.attrs(1, 1, 0))


def test_squares_join_where_needed() -> None:
    model = Model(size=lambda B, S, L: B * S * S // 1 + S * (S + 1) // 2)
    (region,) = fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS)
    assert region.ops[0].outputs[0].shape[0] == dim("B*S^2 + 1/2*S^2 + 1/2*S")
    model = Model(size=lambda B, S, L: B * L * L + 7)
    (region,) = fit_and_check(model, "decode", DECODE, DECODE_POINTS)
    assert region.ops[0].outputs[0].shape[0] == dim("B*L^2 + 7")
    model = Model(size=lambda B, S, L: B * B)
    (region,) = fit_and_check(model, "decode", DECODE, DECODE_POINTS)
    assert region.ops[0].outputs[0].shape[0] == dim("B^2")


def test_encoder_decoder_decode_varies_in_source_and_cache() -> None:
    model = Model(
        size=lambda B, S, L: B * S + 3 * L, attrs=lambda B, S, L: {"keys": S, "cached": B * L}
    )
    points = [(1, 1, 1), (3, 500, 7), (1, 2, 9999), (8, 1, 1)]
    (region,) = fit_and_check(model, "decode", frozenset("BSL"), points)
    assert bounds(region) == ((1, None), (1, None), (1, None))
    model = Model(size=lambda B, S, L: B * S * L + S * S)
    fit_and_check(model, "decode", frozenset("BSL"), points)


def test_what_does_not_vary_is_open_or_fixed_by_its_meaning() -> None:
    image = Model(size=lambda B, S, L: 196 * B, state=lambda B, S, L: 1)
    (region,) = fit_regions(image, "prefill", varies=frozenset("B"))
    assert bounds(region) == ((1, None), (1, None), (0, 0))
    recurrent = Model(size=lambda B, S, L: B, state=lambda B, S, L: 16)
    (region,) = fit_regions(recurrent, "decode", varies=frozenset("B"))
    assert bounds(region) == ((1, None), (1, 1), (0, None))
    fixed = Model()
    (region,) = fit_regions(fixed, "prefill", varies=frozenset())
    assert bounds(region) == ((1, 1), (1, None), (0, 0))
    assert fixed.traced == [(1, 1, 0)]


# Regimes


def test_batch_of_one_is_its_own_region_where_it_differs() -> None:
    model = Model(names=lambda B, S, L: ("mm", "add") if B == 1 else ("mm", "clone", "add"))
    regions = fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS)
    assert [bounds(r)[0] for r in regions] == [(1, 1), (2, None)]
    assert [len(r.ops) for r in regions] == [2, 3]


def test_prompt_of_one_token_is_its_own_region_where_it_differs() -> None:
    model = Model(names=lambda B, S, L: ("mm",) if S == 1 else ("mm", "add"))
    regions = fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS)
    assert [bounds(r)[1] for r in regions] == [(1, 1), (2, None)]


def test_short_prompts_differ_one_by_one() -> None:
    model = Model(names=lambda B, S, L: ("mm", "pad", "add") if S in (2, 3) else ("mm", "add"))
    regions = fit_and_check(
        model, "prefill", PREFILL, [(b, s, 0) for b in (1, 2) for s in range(1, 9)]
    )
    assert {bounds(r)[1] for r in regions} == {(1, 1), (2, 3), (4, None)}


def test_decode_never_looks_at_an_empty_cache() -> None:
    model = Model(names=lambda B, S, L: ("mm", "cat") if L else ("mm",))
    (region,) = fit_and_check(model, "decode", DECODE, DECODE_POINTS)
    assert bounds(region)[2] == (1, None)
    assert all(L >= 1 for _, _, L in model.traced)


@pytest.mark.parametrize("window", [4, 16, 40, 128, 1024, 4096, 8192])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_window_boundary_is_found_exactly(window: int, shift: int) -> None:
    edge = window + shift
    near = [(b, s, 0) for b in (1, 3) for s in range(max(1, window - 4), window + 5)]
    model = Model(size=lambda B, S, L: B * min(S, edge), state=lambda B, S, L: S)
    regions = fit_and_check(
        model, "prefill", PREFILL, [*PREFILL_POINTS, *near], boundaries_S=(window,)
    )
    assert len(regions) == 2
    # At S = edge both formulas hold.
    assert regions[0].S.hi in (edge - 1, edge)
    assert len(model.traced) <= (16 if window > 100 else 20)


def test_window_in_decode_and_two_windows() -> None:
    model = Model(size=lambda B, S, L: B * min(L, 127), attrs=lambda B, S, L: {"far": min(L, 1023)})
    near = [(b, 1, w + d) for b in (1, 2) for w in (128, 1024) for d in range(-4, 4)]
    regions = fit_and_check(
        model, "decode", DECODE, [*DECODE_POINTS, *near], boundaries_L=(128, 1024)
    )
    assert len(regions) == 3


def test_unlisted_boundary_is_found() -> None:
    for edge in (39, 45, 300, 3000):
        model = Model(size=lambda B, S, L, edge=edge: B * min(S, edge))
        near = [(b, s, 0) for b in (1, 2, 9) for s in range(edge - 3, edge + 4)]
        fit_and_check(model, "prefill", PREFILL, [*PREFILL_POINTS, *near])


def test_boundary_that_changes_nothing_makes_no_region() -> None:
    model = Model()
    assert len(fit_and_check(model, "prefill", PREFILL, PREFILL_POINTS, boundaries_S=(128,))) == 1
    assert len(model.traced) == 5


def test_special_corner_needs_both_variables() -> None:
    model = Model(names=lambda B, S, L: ("mm",) if (B, S) == (1, 1) else ("mm", "add"))
    fit_and_check(model, "prefill", PREFILL, [(b, s, 0) for b in (1, 2, 3) for s in (1, 2, 3, 99)])


def test_grid_that_straddles_other_ops_is_cut() -> None:
    model = Model(names=lambda B, S, L: ("mm",) if S < 45 else ("mm", "add"))
    regions = fit_and_check(
        model, "prefill", PREFILL, [(b, s, 0) for b in (1, 4) for s in (44, 45)]
    )
    assert [bounds(r)[1] for r in regions] == [(1, 44), (45, None)]


def test_limit_is_never_passed() -> None:
    model = Model()
    (region,) = fit_regions(model, "prefill", varies=PREFILL, boundaries_S=(4096,), limit=512)
    assert max(point[1] for point in model.traced) == 512
    assert Range(1, None) == region.S
    model = Model()
    fit_regions(model, "decode", varies=DECODE, limit=40)
    assert max(point[2] for point in model.traced) == 40


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([0, 1]),
    st.sampled_from([0, 1, 3]),
    st.integers(2, 6000),
    st.lists(st.integers(2, 6000), max_size=2),
    st.tuples(*[st.integers(-50, 50)] * 4),
)
def test_any_mixture_of_regimes(
    special_B: int, special_S: int, edge: int, hints: list[int], c: tuple[int, int, int, int]
) -> None:
    def names(B: int, S: int, L: int) -> tuple[str, ...]:
        return ("mm",) + ("clone",) * (special_B < B) + ("pad",) * (special_S < S) + ("add",)

    model = Model(
        size=lambda B, S, L: c[0] + c[1] * B + c[2] * B * min(S, edge) + c[3] * S, names=names
    )
    near = [(b, max(1, edge + d), 0) for b in (1, 2, 5) for d in (-2, -1, 0, 1, 2)]
    low = [(b, s, 0) for b in (1, 2, 3) for s in (1, 2, 3, 4, 5)]
    fit_and_check(
        model, "prefill", PREFILL, [*PREFILL_POINTS, *near, *low], boundaries_S=(edge, *hints)
    )


# What cannot be fitted


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Model(size=lambda B, S, L: -(-S // 64) * 64),
            r"aten\.mm\.default \(model\.0\): dim 0 of input 0 is \d+, the formula .* gives",
        ),
        (
            Model(names=lambda B, S, L: ("mm",) + ("add",) * (S // 3)),
            r"aten\.add\.default \(model\.\d+\) runs in one trace and not in another \(B=2, S=37",
        ),
        (
            Model(attrs=lambda B, S, L: {"scale": 1 / S}),
            r"op 0 is aten\.mm\.default \(model\.0\) with {'scale': 0\.\d+} in one trace",
        ),
        (
            Model(names=lambda B, S, L: (("mm", "add"), ("mm", "sub"))[S % 2]),
            r"op 1 is aten\.(sub|add)\.default \(model\.1\) in one trace, aten\.",
        ),
        (Model(layers=lambda B, S, L: S), "the ops group into other layers"),
        (
            Model(state=lambda B, S, L: S % 16),
            r"state kv\.0 \(layers\.0\): dim 1 is \d+, the formula",
        ),
    ],
)
def test_what_is_not_polynomial_is_named(model: Model, message: str) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        fit_regions(fresh(model), "prefill", varies=PREFILL)
    assert str(raised.value).startswith("prefill: sizes do not follow one polynomial")


def test_loop_over_the_sequences_of_a_batch_fails_early() -> None:
    model = Model(names=lambda B, S, L: ("mm",) * B)
    with pytest.raises(TraceError, match=r"aten\.mm\.default \(model\.\d\) runs in one trace"):
        fit_regions(model, "prefill", varies=PREFILL)
    assert len(model.traced) <= 10


def test_formulas_in_a_concrete_trace_are_refused() -> None:
    model = Model(size=lambda B, S, L: dim("B"))  # type: ignore[arg-type,return-value]
    with pytest.raises(TraceError, match="has the size B in place of a number"):
        fit_regions(model, "prefill", varies=PREFILL)


def test_attributes_that_no_graph_can_hold_are_named() -> None:
    model = Model(attrs=lambda B, S, L: {"device": object()})
    with pytest.raises(HymellError, match=r"'device' of op aten\.mm\.default \(model\.0\)"):
        fit_regions(model, "prefill", varies=PREFILL)


def test_errors_of_the_trace_pass_through() -> None:
    def trace(B: int, S: int, L: int) -> Region:
        raise TraceError("the model broke")

    with pytest.raises(TraceError, match="the model broke"):
        fit_regions(trace, "prefill", varies=PREFILL)


# Real models

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(model_type: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    from hymell.tracer.build import build_model

    return build_model(AutoConfig.for_model(model_type, **TINY, **changes))


def traced(
    model: Any, phase: Phase, made: list[tuple[int, int, int]], window: int | None = None
) -> tuple[Region, ...]:
    from hymell.tracer.concrete import trace_once

    def trace(B: int, S: int, L: int) -> Region:
        made.append((B, S, L))
        return trace_once(model, phase, B, S, L)

    hints = () if window is None else (window,)
    varies = PREFILL if phase == "prefill" else DECODE
    return fit_regions(trace, phase, varies=varies, boundaries_S=hints, boundaries_L=hints)


@pytest.mark.parametrize(
    ("model_type", "window", "most"),
    [("llama", None, 10), ("mistral", 32, 40), ("bloom", None, 30)],
)
def test_real_model_is_exact_at_points_never_fitted(
    model_type: str, window: int | None, most: int
) -> None:
    from hymell.tracer.concrete import trace_once

    changes = {} if window is None else {"sliding_window": window}
    model = tiny_model(model_type, **changes)
    made: list[tuple[int, int, int]] = []
    regions = (*traced(model, "prefill", made, window), *traced(model, "decode", made, window))
    assert len(made) <= most
    graph = OpGraph(FACTS, regions)
    assert OpGraph.from_json(graph.to_json()) == graph
    for phase, N, B in product(("prefill", "decode"), (1, 2, 30, 31, 32, 33, 2048), (1, 4)):
        S, L = (N, 0) if phase == "prefill" else (1, N)
        fitted = flatten(concrete(graph.region(phase, B, S, L), B, S, L))
        seen = flatten(trace_once(model, phase, B, S, L))
        assert (fitted.structure, fitted.numbers) == (seen.structure, seen.numbers), (
            phase,
            B,
            S,
            L,
        )


def test_real_model_as_fx_graph() -> None:
    model = tiny_model("llama")
    graph = OpGraph(FACTS, traced(model, "prefill", []))
    fx_graph = graph.to_fx("prefill", B=2, S=16)
    calls = [node for node in fx_graph.nodes if node.op == "call_function"]
    assert len(calls) >= len(graph.regions[0].ops)
    down = next(
        n
        for n in calls
        if n.meta["module_path"].endswith("layers.0.mlp.down_proj")
        and n.meta["op"] == "aten.mm.default"
    )
    assert down.meta["shape"] == (32, 64)
    assert down.meta["dims"] == (dim("B*S"), 64)
    assert down.meta["repeat"] == 3
    assert down.meta["module_class"] == "Linear"
    assert {node.meta["op"] for node in fx_graph.nodes if node.op == "placeholder"} >= {
        "weight",
        "input",
    }


FACTS = ModelFacts("tiny", "tiny", "Tiny", "bfloat16", 1, 1, 2.0, {"bfloat16": 2.0})
