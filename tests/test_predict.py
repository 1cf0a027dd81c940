"""Reports and arrays: consistent with each other, complete, finite, monotone."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from deployments import GRAPHS, H100, PLAIN, SERVING, VOCAB, cache, facts, kernel, region, step
from hypothesis import given, settings
from hypothesis import strategies as st

from hymell.cost_report import CostReport
from hymell.dims import B, L, S
from hymell.errors import HymellError
from hymell.estimators import predict
from hymell.estimators.predict import predict_graph, price
from hymell.graph import Op, Operand, OpGraph, Range, Region, TensorSpec
from hymell.hardware import find_gpu
from hymell.op_registry.kernels import Kernel, Lowered
from hymell.op_registry.primitives import Experts, Memory, Unknown
from hymell.workload import Precision, Workload

WINDOW = 300


@pytest.fixture
def lowers(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Give regions kernels by hand instead of lowering their ops."""

    def install(regions: list[tuple[Region, tuple[Kernel, ...]]], **changes: object) -> OpGraph:
        by_region = [(r, Lowered(k, ())) for r, k in regions]

        def lower(wanted: Region, *_: object, **__: object) -> Lowered:
            return next(found for held, found in by_region if held is wanted)

        monkeypatch.setattr(predict, "lower", lower)
        return OpGraph(facts(**changes), tuple(r for r, _ in regions))

    return install


def bordered() -> list[tuple[Region, tuple[Kernel, ...]]]:
    """Regions split at batch 1, at a window in S and in L, as a traced model has them."""
    copy = kernel(Memory("copy", B, B * 4096, B * 4096), "copy", "ffn", repeat=3)
    found: list[tuple[Region, tuple[Kernel, ...]]] = []
    for batches, more in ((Range(1, 1), ()), (Range(2), (copy,))):
        found += [
            (region("prefill", B=batches, S=lengths), (*step(S, S, WINDOW), *more))
            for lengths in (Range(1, WINDOW), Range(WINDOW + 1))
        ]
        found += [
            (
                region("decode", cache(), B=batches, L=lengths),
                (*step(1, keys), *step(1, L + 1), *more),
            )
            for lengths, keys in ((Range(0, WINDOW - 1), L + 1), (Range(WINDOW), WINDOW))
        ]
    return found


def report(graph: OpGraph, *point: int, **options: object) -> CostReport:
    return predict_graph(
        graph,
        Workload(*point),
        **{"gpu": H100, "engine": SERVING, **options},  # type: ignore[arg-type]
    )


def test_a_report_is_complete_and_adds_up(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers(bordered()), 4, 200, 250)
    assert found.prefill.steps == 1
    assert found.decode.steps == 249
    assert found.ttft_s == found.prefill.time_s
    assert found.tpot_s == pytest.approx(found.decode.time_s / 249)
    assert found.latency_s == pytest.approx(found.prefill.time_s + found.decode.time_s)
    assert found.energy_j == pytest.approx(found.prefill.energy_j + found.decode.energy_j)
    assert found.power_w == pytest.approx(found.energy_j / found.latency_s)
    assert found.tokens_per_s == pytest.approx(4 * 250 / found.latency_s)
    assert found.energy_per_output_token_j == pytest.approx(found.energy_j / 1000)
    assert not found.energy_calibrated
    for phase in ("prefill", "decode"):
        total = getattr(found, phase)
        kernels = [k for k in found.kernels if k.phase == phase]
        blocks = [b for b in found.blocks if b.phase == phase]
        for name in ("flops", "flops_causal", "bytes", "weight_bytes", "launches"):
            assert sum(getattr(k, name) for k in kernels) == pytest.approx(getattr(total, name))
        assert sum(b.share_of_time for b in blocks) == pytest.approx(1)
        assert sum(b.share_of_flops for b in blocks) == pytest.approx(1)
        assert sum(k.share_of_time for k in kernels) == pytest.approx(1)
        assert sum(k.time_s for k in kernels) == pytest.approx(total.time_s - total.overhead_s)
        assert sum(k.energy_j for k in kernels) < total.energy_j
    json.dumps(found.to_dict(), allow_nan=False)


def test_kernels_of_several_regions_are_one_row(lowers) -> None:  # type: ignore[no-untyped-def]
    """Decode crosses the window: the sizes are those that most steps run with."""
    found = report(lowers(bordered()), 4, 290, 200)
    decode = [k for k in found.kernels if k.phase == "decode"]
    assert [k.name for k in decode] == [*("proj", "attention", "residual", "head") * 2, "copy"]
    assert all(k.launches == k.repeat * 199 for k in decode)
    assert [k.sizes["kv_len"] for k in decode if k.name == "attention"] == ["300", "L + 1"]


def test_arrays_equal_reports(lowers) -> None:  # type: ignore[no-untyped-def]
    graph = lowers(bordered())
    points = [(1, 1, 1), (1, 299, 4), (2, 300, 2), (64, 301, 500), (1, 5, 900), (7, 2000, 1)]
    arrays = price(graph, *np.array(points).T, gpu=H100, engine=PLAIN)
    for row, point in enumerate(points):
        alone = report(graph, *point, engine=PLAIN)
        values = {name: array[row] for name, array in arrays.items()}
        assert values["tpot_s"] == pytest.approx(alone.tpot_s or 0.0)
        for name in ("ttft_s", "latency_s", "energy_j", "tokens_per_s"):
            assert values[name] == pytest.approx(getattr(alone, name)), name
        for phase in ("prefill", "decode"):
            for name in ("flops", "flops_causal", "bytes", "weight_bytes", "energy_j", "launches"):
                expected = getattr(getattr(alone, phase), name)
                assert values[f"{phase}_{name}"] == pytest.approx(expected)


def test_arrays_broadcast_and_do_not_depend_on_the_chunks(lowers, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    graph = lowers(bordered())
    lengths = np.arange(1, 101)
    whole = price(graph, [[1], [8]], lengths, 50, gpu=H100, engine=SERVING)
    assert whole["latency_s"].shape == (2, 100)
    monkeypatch.setattr(predict, "CHUNK_ROWS", 7)
    chunked = price(graph, [[1], [8]], lengths, 50, gpu=H100, engine=SERVING)
    for name, values in whole.items():
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values, chunked[name])


@pytest.mark.parametrize("wrong", [0, -3, 1.5, math.nan, 1e12])
def test_arrays_refuse_absurd_workloads(lowers, wrong: float) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(HymellError, match="every prompt must be a whole number"):
        price(lowers(bordered()), 1, [10, wrong], 5, gpu=H100, engine=SERVING)
    with pytest.raises(HymellError, match="no workload"):
        price(lowers(bordered()), [], [], [], gpu=H100, engine=SERVING)


@given(
    point=st.tuples(st.integers(1, 100), st.integers(1, 700), st.integers(1, 700)),
    more=st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 400)),
    plain=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_cost_never_falls_across_borders(
    point: tuple[int, int, int], more: tuple[int, int, int], plain: bool
) -> None:
    larger = tuple(a + b for a, b in zip(point, more, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        regions = bordered()
        by_id = {id(r): Lowered(k, ()) for r, k in regions}
        patch.setattr(predict, "lower", lambda wanted, *_, **__: by_id[id(wanted)])
        graph = OpGraph(facts(), tuple(r for r, _ in regions))
        costs = price(
            graph, *np.array([point, larger]).T, gpu=H100, engine=PLAIN if plain else SERVING
        )
    for name, (less, greater) in costs.items():
        assert math.isfinite(less)
        assert math.isfinite(greater)
        if name not in ("tpot_s", "tokens_per_s", "energy_per_output_token_j"):
            assert greater >= less * (1 - 1e-12), name


def test_one_output_token_has_no_decode(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers(bordered()), 2, 100, 1)
    assert found.tpot_s is None
    assert found.decode.time_s == found.decode.steps == 0
    assert found.latency_s == found.ttft_s


def test_an_encoder_is_priced_without_decode(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers([(region("prefill"), step(S, S))]), 2, 100, 50)
    assert found.tpot_s is None
    assert found.decode.energy_j == 0
    assert any("does not generate" in warning for warning in found.warnings)


def test_money_and_carbon(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers(bordered()), 4, 100, 50, price_per_hour=3.6, gco2_per_kwh=400)
    assert found.cost is not None
    assert found.gco2 is not None
    assert found.cost["per_request"] == pytest.approx(found.latency_s * 1e-3 / 4)
    assert found.cost["per_million_output_tokens"] == pytest.approx(found.latency_s * 5e3 / 1e3)
    assert found.cost["per_million_output_tokens"] == pytest.approx(
        found.latency_s * 1e-3 / 200 * 1e6
    )
    assert found.gco2["per_request"] == pytest.approx(found.energy_j / 3.6e6 * 400 / 4)
    assert report(lowers(bordered()), 4, 100, 50).cost is None


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_below_zero_is_an_error(lowers, rate: float) -> None:  # type: ignore[no-untyped-def]
    graph = lowers(bordered())
    with pytest.raises(HymellError, match="price per hour"):
        report(graph, 1, 1, 1, price_per_hour=rate)
    with pytest.raises(HymellError, match="gCO2"):
        report(graph, 1, 1, 1, gco2_per_kwh=rate)
    with pytest.raises(HymellError, match="skew"):
        report(graph, 1, 1, 1, skew=rate)


def test_beyond_the_context_is_a_warning(lowers) -> None:  # type: ignore[no-untyped-def]
    graph = lowers(bordered())
    assert report(graph, 1, 4000, 96).warnings == ()
    (warning,) = report(graph, 1, 4000, 97).warnings
    assert "4097 tokens" in warning
    assert "4096" in warning


def test_formats_without_units_are_a_warning(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers(bordered()), 1, 10, 10, gpu=find_gpu("v100-sxm-32gb"))
    assert any("no bf16 units" in warning for warning in found.warnings)


def test_assumptions_say_what_a_reader_must_know(lowers) -> None:  # type: ignore[no-untyped-def]
    found = report(lowers(bordered()), 3, 10, 20)
    said = found.assumptions
    assert {"batch", "prompt", "output", "dtype", "engine", "ttft", "energy", "memory"} <= set(said)
    assert "uncalibrated" in said["energy"]
    assert "8192" in said["memory"]
    assert "routing" not in said
    moe = (*step(1, L + 1), kernel(Experts(B, 2, 8, 512, 512), "experts", "moe"))
    graph = lowers([(region("prefill"), step(S, S)), (region("decode"), moe)])
    assert report(graph, 3, 10, 20).assumptions["routing"] == "uniform"
    assert "rank^-1.2" in report(graph, 3, 10, 20, skew=1.2).assumptions["routing"]


@pytest.mark.parametrize(
    ("parts", "source", "said"),
    [
        (("encoder", "decoder"), Range(), "40 source tokens"),
        (("encoder", "decoder"), Range(1, 1), "fixed length"),
        (("vision", "language"), Range(1, 1), "one image per sequence"),
    ],
)
def test_what_the_prompt_means(lowers, parts, source, said) -> None:  # type: ignore[no-untyped-def]
    decode = region("decode", cache(), S=source)
    graph = lowers([(region("prefill"), step(S, S)), (decode, step(1, L + 1))], parts=parts)
    assert said in report(graph, 2, 40, 10).assumptions["prompt"]


def test_unknown_ops_are_listed_with_their_share(lowers) -> None:  # type: ignore[no-untyped-def]
    """An op that nobody registered: named, counted, below full coverage."""
    moved = B * S * 1024
    secret = kernel(
        Unknown("mylib.secret.default", moved, moved), "secret", understood=False, repeat=5
    )
    found = report(lowers([(region("prefill"), (*step(S, S), secret))]), 2, 64, 1)
    ((name, count, share),) = found.coverage.unknown
    assert (name, count) == ("mylib.secret.default", 5)
    assert share == pytest.approx(5 * 2 * 2 * 64 * 1024 / found.prefill.bytes)
    assert not found.coverage.complete
    assert found.coverage.understood_share_of_bytes == pytest.approx(1 - share)
    assert found.coverage.understood_share_of_ops < 1
    assert found.coverage.understood_share_of_flops == 1
    assert report(lowers([(region("prefill"), step(S, S))]), 2, 64, 1).coverage.complete


def test_regimes(lowers) -> None:  # type: ignore[no-untyped-def]
    """Gaps longer than a kernel make it launch-bound, long prompts attention compute-bound."""
    found = report(lowers([(region("prefill"), step(S, S))]), 8, 4000, 1)
    regimes = {k.name: k.regime for k in found.kernels}
    assert regimes["attention"] == "compute"
    assert regimes["residual"] == "memory"
    slow = replace(SERVING, overheads=replace(GRAPHS, gap_s=1e-2))
    found = report(lowers([(region("prefill"), step(S, S))]), 8, 4000, 1, engine=slow)
    assert {k.regime for k in found.kernels} == {"launch"}


def test_a_graph_through_the_real_lowering() -> None:
    """One linear layer and its weight: fp8 weights halve what decode reads."""
    rows = Operand(TensorSpec((B, 512), "bfloat16"), "input")
    weight = Operand(TensorSpec((512, VOCAB), "bfloat16"), "weight", name="w")
    out = TensorSpec((B, VOCAB), "bfloat16")
    first = Op(0, "aten.mm.default", "m.a", "Linear", (rows, weight), (out,), repeat=4)
    back = Operand(TensorSpec((VOCAB, 512), "bfloat16"), "weight", name="v")
    second = Op(
        1,
        "aten.mm.default",
        "m.b",
        "Linear",
        (Operand(out, "op", 0), back),
        (TensorSpec((B, 512), "bfloat16"),),
    )
    ops = (first, second)
    regions = tuple(replace(region(phase), ops=ops) for phase in ("prefill", "decode"))
    graph = OpGraph(facts(), regions)
    plain = report(graph, 1, 100, 11)
    assert plain.decode.flops == 10 * 5 * 2 * 512 * VOCAB
    assert plain.decode.weight_bytes == 10 * 5 * 2 * 512 * VOCAB
    light = report(graph, 1, 100, 11, precision=Precision.of("fp8"))
    assert light.dtype == "float8_e4m3"
    assert light.decode.flops == plain.decode.flops
    assert light.decode.weight_bytes < plain.decode.weight_bytes
    assert light.decode.time_s < plain.decode.time_s
