"""PyTorch eager in float32: the work of written-out attention, its fit, the shipped multipliers."""

from __future__ import annotations

import json
from pathlib import Path

import eager as benchmark
import numpy as np
import pandas as pd
import pytest

import hymell
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.eager import (
    FILE,
    Eager,
    EagerHalf,
    in_eager,
    load_eager,
    save_eager,
    shipped_eager,
)
from hymell.estimators.level3.eager import TERMS, EagerFit, EagerForm, Work, pass_work
from hymell.estimators.level3.eager_host import HostFit
from hymell.estimators.predict import deploy
from hymell.hardware import load_gpu
from hymell.op_registry.engines import get_engine
from hymell.op_registry.primitives import Attention, Gemm
from hymell.workload import Precision, Workload

FP32 = Precision.of("float32")


@pytest.fixture(scope="module")
def graph() -> hymell.OpGraph:
    return hymell.trace("gpt2", logits_to_keep=0)


def deployed(graph: hymell.OpGraph, gpu: str, engine: str = "eager") -> Deployment:
    return deploy(graph, gpu=load_gpu(gpu), engine=get_engine(engine), precision=FP32)


def test_work_counts_every_pair_of_tokens(graph: hymell.OpGraph) -> None:
    model = deployed(graph, "v100-pcie-32gb")
    one = pass_work(model, np.array([2.0]), np.array([512.0]))
    layers, heads, width, n = 12, 12, 768, 512
    pairs = 2 * heads * n * n * layers
    assert one.bmm_s[0] == pytest.approx(4 * pairs * 64 / 14e12)
    weights = layers * 12 * width**2 + 50257 * width
    assert one.gemm_s[0] == pytest.approx(2 * weights * 2 * n / 14e12, rel=1e-6)
    # Eight passes over the scores, and less than as much again for everything else.
    assert 1 < one.memory_s[0] / (8 * 4 * pairs / 900e9) < 3
    assert not one.matrix[0]
    assert not one.low[0]


def test_fused_operators_pass_over_fewer_scores(graph: hymell.OpGraph) -> None:
    sizes = np.array([8.0]), np.array([1024.0])
    eager = pass_work(deployed(graph, "t4"), *sizes)
    fused = pass_work(deployed(graph, "t4", "compile"), *sizes)
    assert fused.memory_s[0] < 0.7 * eager.memory_s[0]
    assert fused.gemm_s[0] == pytest.approx(eager.gemm_s[0], rel=1e-6)


def test_engines_with_fused_attention_are_refused(graph: hymell.OpGraph) -> None:
    with pytest.raises(HymellError, match="vllm is one kernel"):
        pass_work(deployed(graph, "t4", "vllm"), np.ones(1), np.ones(1))


def made_up(rows: int) -> Work:
    rng = np.random.default_rng(5)
    gemm_s, bmm_s, memory_s = rng.uniform(0.1, 1.0, (3, rows))
    matrix = np.arange(rows) % 3 == 0
    low = np.arange(rows) % 3 == 1
    return Work(gemm_s, bmm_s, memory_s, np.full(rows, 500.0), matrix, low, np.ones(rows))


def test_known_multipliers_are_found_again() -> None:
    work, truth = made_up(60), {"gemm": 1.1, "bmm": 2.2, "memory": 1.3, "low_power": 0.7}
    truth |= {"matrix_gemm": 1.6, "matrix_bmm": 3.4}
    columns = work.columns(EagerForm())
    time_s = sum(truth[name] * columns[name] for name in columns)
    group = np.array(["a", "b", "c"] * 20)
    fit = EagerFit(width=100.0).fit(work, time_s, group)
    assert fit.multipliers_ == pytest.approx(truth, rel=0.01)
    assert fit.predict(work) == pytest.approx(time_s, rel=0.01)


def test_the_host_bounds_small_passes() -> None:
    work = made_up(6)
    fit = EagerFit().fit(work, np.ones(6), np.array(["a"] * 6))
    assert (fit.predict(work, host_s_per_launch=1.0) == 500.0).all()


@pytest.mark.parametrize("time_s", [[], [0.0], [np.nan]])
def test_runs_without_a_time_are_refused(time_s: list[float]) -> None:
    with pytest.raises(HymellError, match="measured runs"):
        EagerFit().fit(made_up(len(time_s)), np.array(time_s), np.array(["a"] * len(time_s)))


def test_reports_in_float32_say_whose_runs_price_them(graph: hymell.OpGraph) -> None:
    workload = Workload(8, 1024, 1)
    plain = hymell.predict(
        graph, workload, gpu="t4", engine="eager", dtype="fp32", calibration="none"
    )
    priced = hymell.predict(graph, workload, gpu="t4", engine="eager", dtype="fp32")
    assert "NeuSight" in priced.assumptions["kernels"]
    assert "GPUs and models left out" in priced.assumptions["kernels"]
    assert 1.5 < priced.ttft_s / plain.ttft_s < 3
    assert sum(k.time_s for k in priced.kernels) == pytest.approx(
        priced.prefill.time_s - priced.prefill.overhead_s
    )


def test_other_engines_and_choices_keep_their_prices(graph: hymell.OpGraph) -> None:
    eager, t4 = get_engine("eager"), load_gpu("t4")
    priced, engine = in_eager(None, graph, t4, eager, "auto", FP32)
    assert isinstance(priced, Eager)
    assert engine.overheads.host_s_per_launch > eager.overheads.host_s_per_launch
    half, _ = in_eager(None, graph, t4, eager, "auto", Precision.of("float16"))
    assert isinstance(half, EagerHalf)
    quantised, plain = in_eager(None, graph, t4, eager, "auto", Precision.of("int8"))
    assert quantised is None
    assert plain == eager
    assert in_eager(None, graph, t4, eager, "none", FP32) == (None, eager)
    compiled = get_engine("compile")
    assert in_eager(None, graph, t4, compiled, "auto", FP32) == (None, compiled)


def test_small_batches_wait_for_the_host(graph: hymell.OpGraph) -> None:
    system = shipped_eager()
    assert system is not None
    report = hymell.predict(graph, Workload(1, 64, 16), engine="eager", dtype="fp16")
    assert report.tpot_s is not None
    launches = report.decode.launches / report.decode.steps
    assert report.tpot_s == pytest.approx(launches * system.host.host_s, rel=0.1)
    assert "ML.ENERGY" in report.assumptions["engine"]
    assert "ML.ENERGY" in report.assumptions["kernels"]


def test_known_host_costs_are_found_again() -> None:
    rng = np.random.default_rng(2)
    kernel_s, launches = rng.uniform(0.01, 0.1, 40), rng.uniform(500, 3000, 40)
    time_s = np.maximum(1.4 * kernel_s, 25e-6 * launches)
    fit = HostFit().fit(kernel_s, launches, time_s, np.arange(40).astype(str))
    assert fit.coefficients_ == pytest.approx({"kernels": 1.4, "host_s": 25e-6}, rel=0.1)
    with pytest.raises(HymellError, match="measured runs"):
        HostFit().fit(kernel_s[:0], launches[:0], time_s[:0], np.array([], dtype=str))


def test_attention_stays_with_the_data_sheet() -> None:
    system = shipped_eager()
    assert system is not None
    gpu = load_gpu("t4")
    priced = Eager(gpu, system)
    fused = Attention(1, 512, 512, 12, 12, 64, 64, dtype="float32", math="fp32")
    assert priced.time(fused, gpu).time_s == priced.fallback.time(fused, gpu).time_s
    assert priced.origin(fused, gpu).calibration == ""
    dense = Gemm(4096, 4096, 4096, 1, "float32", "float32", "float32", "fp32")
    factor = priced.time(dense, gpu).time_s / priced.fallback.time(dense, gpu).time_s
    assert factor == pytest.approx(system.products(gpu))
    assert priced.origin(dense, gpu).calibrated


def test_shipped_multipliers_are_near_the_data_sheet() -> None:
    system = shipped_eager()
    assert system is not None
    assert system.mape < system.composed_mape
    for gpu in system.gpus:
        assert 0.8 < system.products(load_gpu(gpu)) < 4
        assert 1 < system.memory(load_gpu(gpu)) < 2
    # A board that nobody measured is priced as one of its kind.
    assert system.products(load_gpu("a40")) == system.multipliers["sheet"]["gemm"]


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    system = shipped_eager()
    assert system is not None
    save_eager(system, tmp_path / "eager.json")
    assert load_eager(tmp_path / "eager.json") == system


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 9),
        ("rows", "many"),
        ("sheet", {"gemm": {"value": 1.0}}),
        ("slowness", {"t4": -1}),
        ("host", {"rows": 3}),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, key: str, value: object) -> None:
    content = json.loads(FILE.read_bytes()) | {key: value}
    file = tmp_path / "eager.json"
    file.write_text(json.dumps(content))
    with pytest.raises(HymellError, match=r"eager\.json holds no multipliers"):
        load_eager(file)


def test_every_multiplier_says_what_it_multiplies() -> None:
    for content in json.loads(FILE.read_bytes())["sheet"].values():
        assert content["meaning"] in {term.meaning for term in TERMS.values()}


def test_a_held_out_figure_sees_neither_its_gpu_nor_its_model() -> None:
    labels = pd.DataFrame(
        [(g, m) for g in ("a40", "mi210", "mi250", "t4") for m in ("x", "y", "z")] * 2,
        columns=["gpu", "zoo"],
    )
    work = made_up(len(labels))
    time_s = np.random.default_rng(1).uniform(1.0, 3.0, len(labels))

    def told(times: np.ndarray) -> np.ndarray:
        runs = benchmark.Runs(labels.assign(time_s=times), work, times, times)
        return benchmark.Judge(runs, measured=False).held_out(runs)[0]

    before = told(time_s)
    # MI210 and MI250 are one die.
    own = (labels["gpu"].isin(["mi210", "mi250"]) | (labels["zoo"] == "x")).to_numpy()
    after = told(np.where(own, 5 * time_s, time_s))
    judged = ((labels["gpu"] == "mi210") & (labels["zoo"] == "x")).to_numpy()
    assert (after[judged] == before[judged]).all()
    assert (after[~own] != before[~own]).any()


def test_the_records_of_the_page_are_those_of_the_json() -> None:
    docs = benchmark.ROOT / "docs"
    records = json.loads((docs / "accuracy_eager.json").read_text())
    page = (docs / "accuracy_eager.md").read_text()
    row = {r["estimator"]: r for r in records if r["gpu"] == "all" and "neusight" in r["set"]}
    whole = next(line for line in page.splitlines() if line.startswith("| all | "))
    shown = [cell.strip() for cell in whole.split("|")[3:-1]]
    every = {
        r["estimator"]: f"{r['mape']:.1f}"
        for r in records
        if r["gpu"] == "all" and r["set"] == "neusight: eager"
    }
    order = [benchmark.BARE, benchmark.COMPOSED, benchmark.UNSEEN, benchmark.MEASURED]
    assert shown == [every[name] for name in (*order, benchmark.KNOWN, "NeuSight")]
    assert row[benchmark.UNSEEN]["split"] == "unseen model and GPU"
