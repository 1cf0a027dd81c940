"""A user's own runs: the file, what cannot be, offsets, names, the commands, the benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_runs as benchmark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own.energy import EnergyLine, EnergyResult
from own.judge import COUNTS, FACTORS, judged
from own.rows import Configuration, Held

import hymell
from hymell.analysis import own_store
from hymell.analysis.own_checks import least_s
from hymell.analysis.own_fit import fit_offsets, price_runs
from hymell.analysis.own_runs import OwnRun, read_runs
from hymell.cli import complete, main
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.offset_fit import ENERGY_WIDTH, PRIORS, WIDTHS, OffsetFit, energy_factor
from hymell.estimators.offsets import Offsets
from hymell.estimators.predict import deploy, predict_graph, price
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Workload

MODEL = "llama-3-8b"
HEADER = "model,gpu,engine,prompt,output,batch"


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return hymell.trace(MODEL)


@pytest.fixture(scope="module")
def deployed(graph: OpGraph) -> Deployment:
    return deploy(graph, gpu=find_gpu("h100-sxm"), engine=get_engine("vllm"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_store.RUNS_DIR_VARIABLE, str(tmp_path / "kept"))


def plain(graph: OpGraph, batch: int, prompt: int, output: int, **more: Any) -> CostReport:
    return hymell.predict(
        graph, Workload(batch, prompt, output), gpu="h100-sxm", calibration="none", **more
    )


def slower(graph: OpGraph, batch: int, prompt: int, output: int, factor: float) -> OwnRun:
    """A run that took ``factor`` times what is estimated, energy at the estimated power."""
    found = plain(graph, batch, prompt, output)
    assert found.tpot_s is not None
    return OwnRun(
        MODEL, "h100-sxm", "vllm", prompt, output, batch,
        ttft_s=factor * found.ttft_s, tpot_s=factor * found.tpot_s,
    )  # fmt: skip


def written(folder: Path, *lines: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# --- the file --------------------------------------------------------------------------------


def test_units_stand_in_the_columns(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"tp, {HEADER} ,ttft_ms,tpot_ms,latency_s,power_w,dtype",
        "2,Qwen/Qwen3-8B,h100,vllm,1000,11,4,40,9.5,0.135,600,fp8",
        ",Qwen/Qwen3-8B,H100 SXM,vLLM,1000,11,4,,9.5,,,",
    )
    full, short = read_runs(path)
    assert (full.ttft_s, full.tpot_s, full.latency_s) == pytest.approx((0.04, 0.0095, 0.135))
    assert (full.power_w, full.dtype, full.parallel) == (600.0, "fp8", Parallel(2))
    assert (short.gpu, short.engine, short.dtype) == ("h100-sxm", "vllm", "auto")
    assert (short.ttft_s, short.latency_s, short.tp) == (None, None, 1)
    assert short.where.endswith("runs.csv, line 3")


BAD = [
    ([], "empty"),
    ([HEADER + ",tpot_ms"], "no run below"),
    (["model,gpu,engine,prompt,output,tpot_ms", "m,h100,vllm,1,2,3"], "no column batch"),
    ([HEADER, f"{MODEL},h100,vllm,10,10,1"], "no column of a time"),
    ([HEADER + ",tpot_us", f"{MODEL},h100,vllm,10,10,1,5"], "line 1: unknown column 'tpot_us'"),
    ([HEADER + ",tpot_ms,tpot_s", f"{MODEL},h100,vllm,10,10,1,5,5"], "tpot_s stands twice"),
    ([HEADER + ",batch,tpot_s", f"{MODEL},h100,vllm,10,10,1,5,5"], "batch stands twice"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,fast"], "line 2: tpot_ms is 'fast'"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,nan"], "tpot_ms must be above 0"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,-4"], "tpot_ms must be above 0"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,0"], "tpot_ms must be above 0"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10.5,10,1,5"], "prompt is '10.5', not a whole"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,,5"], "line 2: batch is empty"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,0,5"], "batch must be at least 1"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,5,6"], "8 cells under 7 columns"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,10,1,"], "no time was measured"),
    ([HEADER + ",tpot_ms", f"{MODEL},warp9,vllm,10,10,1,5"], "line 2: .*warp9"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,ollama,10,10,1,5"], "line 2: .*ollama"),
    ([HEADER + ",tpot_ms,dtype", f"{MODEL},h100,vllm,10,10,1,5,fp3"], "line 2: .*fp3"),
    ([HEADER + ",tpot_ms,tp", f"{MODEL},h100,vllm,10,10,1,5,0"], "tp must be from 1"),
    ([HEADER + ",tpot_ms", f"{MODEL},h100,vllm,10,1,1,5"], "no time per token after the first"),
    ([HEADER + ",ttft_s,latency_s", f"{MODEL},h100,vllm,10,10,1,2,1"], "longer than the whole"),
    ([HEADER + ",tpot_s,latency_s", f"{MODEL},h100,vllm,10,11,1,1,2"], "10 tokens of 1 s take 10"),
    (
        [HEADER + ",ttft_s,tpot_s,latency_s", f"{MODEL},h100,vllm,10,11,1,1,0.1,3"],
        "latency 3 s is not TTFT",
    ),
    (
        [HEADER + ",tpot_ms,power_w,energy_per_token_j", f"{MODEL},h100,vllm,10,10,1,5,6,7"],
        "give one of energy_per_token_j and power_w",
    ),
    ([HEADER + ",tpot_ms,energy_j", f"{MODEL},h100,vllm,10,10,1,5,6"], "give its latency"),
]


@pytest.mark.parametrize(("lines", "message"), BAD)
def test_a_bad_file_is_refused_in_one_sentence(
    lines: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(HymellError, match=message) as caught:
        read_runs(written(tmp_path, *lines) if lines else _empty(tmp_path))
    assert "\n" not in str(caught.value)


def _empty(folder: Path) -> Path:
    path = folder / "runs.csv"
    path.write_text("", encoding="utf-8")
    return path


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match="cannot read the runs"):
        read_runs(tmp_path / "absent.csv")
    binary = tmp_path / "runs.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HymellError, match="no CSV file in UTF-8"):
        read_runs(binary)


# --- what cannot be --------------------------------------------------------------------------


def test_the_least_step_reads_the_weights_and_does_the_products(deployed: Deployment) -> None:
    one = OwnRun(MODEL, "h100-sxm", "vllm", 100, 10, 1, tpot_s=1.0)
    prefill_s, step_s = least_s(deployed, one)
    board = deployed.gpu
    facts = deployed.graph.facts
    met = facts.weight_bytes - 2 * 128256 * 4096
    assert step_s * board.memory_bandwidth_bytes_per_s == pytest.approx(
        met - board.l2_bytes, rel=1e-3
    )
    many = replace(one, batch=512)
    products = 2 * (met / 2) * 512
    assert least_s(deployed, many)[1] * board.peak("bf16") == pytest.approx(products, rel=0.01)
    body = met / 2 - 128256 * 4096
    long_s = least_s(deployed, replace(one, prompt=4096))[0]
    assert long_s * board.peak("bf16") == pytest.approx(2 * body * 4096, rel=0.01)
    assert prefill_s == pytest.approx(step_s, rel=0.01)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"tpot_s": 0.004}, "TPOT 4 ms is faster than the data sheet of h100-sxm allows"),
        ({"ttft_s": 0.004}, "TTFT 4 ms is faster than the data sheet"),
        ({"latency_s": 0.4}, "latency 400 ms is faster than the data sheet"),
        ({"tpot_s": 9.0}, "is the unit right"),
        ({"latency_s": 1.2, "power_w": 800.0}, "800 W is more than the 700 W"),
        ({"latency_s": 1.2, "energy_j": 900.0}, "750 W is more than the 700 W"),
        ({"latency_s": 1.28, "energy_per_token_j": 8.0}, "800 W is more than the 700 W"),
    ],
)
def test_an_impossible_run_is_refused_by_its_line(
    measured: dict[str, float], message: str, deployed: Deployment
) -> None:
    run = OwnRun(MODEL, "h100-sxm", "vllm", 1024, 128, 1, where="mine.csv, line 7", **measured)
    with pytest.raises(HymellError, match=f"mine.csv, line 7: .*{message}"):
        price_runs(deployed, [run])


def test_an_encoder_decodes_nothing() -> None:
    encoder = deploy(
        hymell.trace("bert-large-uncased"), gpu=find_gpu("h100-sxm"), engine=get_engine("eager")
    )
    run = OwnRun("bert-large-uncased", "h100-sxm", "eager", 128, 8, 1, latency_s=0.02)
    with pytest.raises(HymellError, match="does not generate; its runs have an output of 1"):
        price_runs(encoder, [run])
    assert len(price_runs(encoder, [replace(run, output=1)]).runs) == 1


# --- the fit ---------------------------------------------------------------------------------


def columns(decode_s: list[float], sequences: list[float]) -> dict[str, np.ndarray]:
    ones = np.ones(len(decode_s))
    return dict(zip(PRIORS, (0 * ones, np.array(decode_s), ones, np.array(sequences)), strict=True))


def test_exact_estimates_are_left_alone() -> None:
    given_ = columns([0.01, 0.02], [1, 32])
    found = OffsetFit().fit(given_, given_["decode"]).offsets_
    assert (found.prefill, found.decode) == pytest.approx((1, 1))
    assert (found.step_s, found.sequence_s) == pytest.approx((0, 0))


def test_one_run_is_believed_in_part_and_many_are_believed() -> None:
    one = columns([0.01], [1])
    part = OffsetFit().fit(one, np.array([0.012])).predict(one)[0]
    assert 0.0105 < part < 0.0119
    many = columns([0.01] * 200, [1] * 200)
    whole = OffsetFit().fit(many, np.full(200, 0.012)).predict(many)[0]
    assert whole == pytest.approx(0.012, rel=0.01)


def test_many_runs_tell_a_factor_from_added_time() -> None:
    rng = np.random.default_rng(0)
    decode_s, sequences = rng.uniform(0.005, 0.05, 400), rng.integers(1, 200, 400).astype(float)
    given_ = columns(list(decode_s), list(sequences))
    fitted = OffsetFit().fit(given_, 1.1 * decode_s + 1e-3 + 2e-5 * sequences).offsets_
    assert fitted.decode == pytest.approx(1.1, rel=0.01)
    assert fitted.step_s == pytest.approx(1e-3, rel=0.05)
    assert fitted.sequence_s == pytest.approx(2e-5, rel=0.05)
    assert fitted.prefill == pytest.approx(1)


@settings(max_examples=50)
@given(st.lists(st.floats(0.3, 3), min_size=1, max_size=5))
def test_offsets_are_never_negative_nor_beyond_their_bounds(ratios: list[float]) -> None:
    given_ = columns([0.01 * (1 + at) for at in range(len(ratios))], [1.0] * len(ratios))
    found = OffsetFit().fit(given_, given_["decode"] * np.array(ratios)).offsets_
    assert 0.25 <= found.decode <= 4
    assert min(found.step_s, found.sequence_s) >= 0


def test_the_factor_of_energy_is_drawn_to_one() -> None:
    nothing = np.zeros(0)
    assert energy_factor(nothing, nothing) == 1
    few = energy_factor(np.array([100.0]), np.array([150.0]))
    many = energy_factor(np.full(500, 100.0), np.full(500, 150.0))
    assert 1 < few < many == pytest.approx(1.5, rel=0.01)


# --- how offsets enter a price ---------------------------------------------------------------


OFFSETS = Offsets(prefill=1.2, decode=0.8, step_s=1e-3, sequence_s=1e-5, energy=1.1, rows=1)


def test_offsets_enter_reports_and_arrays_alike(graph: OpGraph) -> None:
    setup: dict[str, Any] = {"gpu": find_gpu("h100-sxm"), "engine": get_engine("vllm")}
    before = predict_graph(graph, Workload(8, 512, 64), **setup)
    after = predict_graph(graph, Workload(8, 512, 64), offsets=OFFSETS, **setup)
    rows = price(graph, [8, 8], 512, 64, offsets=OFFSETS, **setup)
    assert before.tpot_s is not None
    assert after.tpot_s is not None
    assert after.ttft_s == pytest.approx(1.2 * before.ttft_s + 1e-3 + 8e-5)
    assert after.tpot_s == pytest.approx(0.8 * before.tpot_s + 1e-3 + 8e-5)
    assert rows["ttft_s"] == pytest.approx(after.ttft_s)
    assert rows["latency_s"] == pytest.approx(after.latency_s)
    assert rows["energy_j"] == pytest.approx(after.energy_j)
    assert after.prefill.flops == before.prefill.flops
    assert "decode x 0.80" in after.assumptions["own_runs"]


def test_kernels_and_what_is_outside_them_still_add_up(graph: OpGraph) -> None:
    setup: dict[str, Any] = {"gpu": find_gpu("h100-sxm"), "engine": get_engine("vllm")}
    report = predict_graph(graph, Workload(8, 512, 64), offsets=OFFSETS, **setup)
    for phase, cost in (("prefill", report.prefill), ("decode", report.decode)):
        inside = sum(kernel.time_s for kernel in report.kernels if kernel.phase == phase)
        assert cost.overhead_s > 0
        assert inside + cost.overhead_s == pytest.approx(cost.time_s)
        joules = sum(kernel.energy_j for kernel in report.kernels if kernel.phase == phase)
        assert joules < cost.energy_j


def test_no_factor_of_energy_passes_the_power_limit(graph: OpGraph) -> None:
    setup: dict[str, Any] = {"gpu": find_gpu("h100-sxm"), "engine": get_engine("vllm")}
    report = predict_graph(
        graph, Workload(64, 512, 64), offsets=Offsets(decode=0.5, energy=4.0), **setup
    )
    assert report.power_w == pytest.approx(700)


# --- predict ---------------------------------------------------------------------------------


def test_runs_bring_the_estimate_to_what_was_measured(graph: OpGraph) -> None:
    runs = [slower(graph, batch, 512, 64, 1.3) for batch in (1, 4, 16, 64)]
    before = plain(graph, 8, 1024, 32)
    after = plain(graph, 8, 1024, 32, calibrate_with=runs)
    assert before.tpot_s is not None
    assert after.tpot_s is not None
    assert 1.2 < after.tpot_s / before.tpot_s < 1.33
    assert 1.1 < after.ttft_s / before.ttft_s < 1.33
    words = after.assumptions["own_runs"]
    assert words.startswith("offset of your 4 runs (as given): prefill x 1.")
    assert "TPOT 23.1% off before" in words
    assert not any("another configuration" in warning for warning in after.warnings)


def test_errors_after_are_those_on_runs_left_out(graph: OpGraph, deployed: Deployment) -> None:
    runs = [slower(graph, batch, 512, 64, 1.3) for batch in (1, 16)]
    found = fit_offsets(price_runs(deployed, runs), "mine")
    left_out = []
    for mine, other in (runs, runs[::-1]):
        alone = fit_offsets(price_runs(deployed, [other]), "mine")
        tpot_s = price_runs(deployed, [mine]).predicted(alone)["tpot"][0]
        assert mine.tpot_s is not None
        left_out.append(100 * abs(tpot_s / mine.tpot_s - 1))
        assert alone.after is None
    assert found.after is not None
    assert found.after["tpot"] == pytest.approx(np.mean(left_out))


@pytest.mark.parametrize(
    "other",
    [{"gpu": "h200-sxm"}, {"engine": "sglang"}, {"dtype": "fp8"}, {"tp": 2}],
    ids=str,
)
def test_runs_of_another_configuration_change_nothing(
    other: dict[str, Any], graph: OpGraph
) -> None:
    run = replace(slower(graph, 4, 512, 64, 1.3), **other)
    before, after = plain(graph, 8, 512, 64), plain(graph, 8, 512, 64, calibrate_with=[run])
    assert after.latency_s == before.latency_s
    assert "own_runs" not in after.assumptions
    (warning,) = [text for text in after.warnings if text not in before.warnings]
    assert "another configuration" in warning


def test_a_model_is_known_by_all_its_names(graph: OpGraph) -> None:
    run = replace(slower(graph, 4, 512, 64, 1.3), model="meta-llama/Meta-Llama-3-8B")
    assert "own_runs" in plain(graph, 8, 512, 64, calibrate_with=[run]).assumptions
    other = replace(run, model="Qwen/Qwen3-8B")
    assert "own_runs" not in plain(graph, 8, 512, 64, calibrate_with=[other]).assumptions


def test_the_format_of_the_checkpoint_may_be_named(graph: OpGraph) -> None:
    run = replace(slower(graph, 4, 512, 64, 1.3), dtype="bf16")
    assert "own_runs" in plain(graph, 8, 512, 64, calibrate_with=[run]).assumptions


def test_measured_power_moves_energy(graph: OpGraph) -> None:
    run = slower(graph, 4, 512, 64, 1.0)
    before = plain(graph, 4, 512, 64)
    measured = replace(run, power_w=1.2 * before.power_w)
    after = plain(graph, 4, 512, 64, calibrate_with=[measured])
    assert after.latency_s == pytest.approx(before.latency_s)
    assert 1.02 < after.energy_j / before.energy_j < 1.2


def test_sweet_spot_takes_them_too(graph: OpGraph) -> None:
    runs = [slower(graph, batch, 512, 64, 1.3) for batch in (1, 4, 16)]
    grid: dict[str, Any] = {"inputs": [128, 512], "outputs": [64, 256], "calibration": "none"}
    before = hymell.sweet_spot(graph, by="latency", **grid)
    after = hymell.sweet_spot(graph, by="latency", calibrate_with=runs, **grid)
    ratio = after.grid("latency_per_output_token_s") / before.grid("latency_per_output_token_s")
    assert (ratio > 1.1).all()
    assert "own_runs" in after.assumptions


def test_runs_from_python_may_be_spelt_loosely(graph: OpGraph) -> None:
    run = replace(slower(graph, 4, 512, 64, 1.3), gpu="H100", engine="vLLM")
    assert "own_runs" in plain(graph, 8, 512, 64, calibrate_with=[run]).assumptions
    with pytest.raises(HymellError, match="no runs to calibrate with"):
        plain(graph, 8, 512, 64, calibrate_with=[])


# --- names -----------------------------------------------------------------------------------


def test_kept_runs_come_back_and_calibrate(graph: OpGraph, tmp_path: Path) -> None:
    runs = [slower(graph, 1, 512, 64, 1.3), slower(graph, 16, 512, 64, 1.3)]
    saved = hymell.save_runs("mine", runs, calibration="none")
    assert own_store.load("mine") == saved
    assert own_store.saved_names() == ("mine",)
    assert (complete.runs("m"), complete.runs("x")) == (["mine"], [])
    kept = plain(graph, 8, 512, 64, calibrated="mine")
    given_ = plain(graph, 8, 512, 64, calibrate_with=runs)
    assert kept.latency_s == given_.latency_s
    assert "(mine)" in kept.assumptions["own_runs"]
    own_store.remove("mine")
    with pytest.raises(HymellError, match="no runs are kept under 'mine'; there are: none"):
        plain(graph, 8, 512, 64, calibrated="mine")


def test_kept_runs_are_judged_by_the_version_asked_for(graph: OpGraph) -> None:
    runs = [slower(graph, 1, 512, 64, 1.3)]
    older, newest, default = (
        hymell.save_runs(name, runs, engine_version=version).configurations[0].offsets.before
        for name, version in (("older", "2024"), ("newest", "0.11.1"), ("default", None))
    )
    assert older != newest == default


def test_a_name_is_never_written_over(graph: OpGraph) -> None:
    runs = [slower(graph, 1, 512, 64, 1.3)]
    saved = hymell.save_runs("mine", runs, calibration="none")
    before = (own_store.runs_dir() / "mine.json").read_bytes()
    with pytest.raises(HymellError, match="already"):
        hymell.save_runs("mine", runs, calibration="none")
    with pytest.raises(HymellError, match="already"):
        own_store.save(saved)
    assert (own_store.runs_dir() / "mine.json").read_bytes() == before
    assert os.listdir(own_store.runs_dir()) == ["mine.json"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "A", "a b", "x" * 64, "a.json"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(HymellError, match="is no name for runs"):
        own_store.load(name)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"schema_version": 9}', "[" * 100_000),
        '{"schema_version": 1, "name": "mine", "runs": [], "configurations": []}',
    ],
)
def test_a_damaged_file_is_named(content: str) -> None:
    own_store.runs_dir().mkdir(parents=True)
    (own_store.runs_dir() / "mine.json").write_text(content)
    with pytest.raises(HymellError, match="hymell runs remove mine"):
        own_store.load("mine")


@pytest.mark.parametrize("name", ["model", "gpu", "engine", "dtype"])
@pytest.mark.parametrize("value", [None, 3, "", ["llama-3-8b"]])
def test_names_of_a_run_are_words(name: str, value: object) -> None:
    words: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "vllm"}
    with pytest.raises(HymellError, match=f"a run: {name} must be a name"):
        OwnRun(**{**words, name: value}, prompt=64, output=8, batch=1, tpot_s=0.01)


def test_an_offset_that_is_no_number_is_damage(graph: OpGraph) -> None:
    saved = hymell.save_runs("mine", [slower(graph, 1, 512, 64, 1.3)], calibration="none")
    content = saved.to_dict()
    content["configurations"][0]["offsets"]["decode"] = "much"
    (own_store.runs_dir() / "mine.json").write_text(json.dumps(content))
    with pytest.raises(HymellError, match="hymell runs remove mine"):
        own_store.load("mine")


def test_a_folder_that_cannot_be_written_says_so(
    graph: OpGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(own_store.RUNS_DIR_VARIABLE, str(blocked / "below"))
    with pytest.raises(HymellError, match="HYMELL_RUNS_DIR"):
        hymell.save_runs("mine", [slower(graph, 1, 512, 64, 1.3)], calibration="none")


# --- the commands ----------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_add_list_use_remove(run: Run, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEADER + ",ttft_ms,tpot_ms",
        f"{MODEL},h100,vllm,1024,128,1,30,9",
        "meta-llama/Meta-Llama-3-8B,h100,vllm,1024,128,8,,9.6",
    )
    status, out, err = run("runs", "add", "mine", str(path))
    assert (status, err) == (0, "")
    assert "mine" in out
    status, out, _ = run("runs", "list", "--json")
    (record,) = json.loads(out)["runs"]
    assert (record["name"], record["gpu"], record["rows"]) == ("mine", "h100-sxm", 2)
    assert set(record["error_after"]) == {"ttft", "tpot"}
    status, out, _ = run("report", MODEL, "--batch", "4", "--calibrated", "mine")
    assert status == 0
    assert "own runs: offset of your 2 runs (mine)" in out
    status, out, _ = run("report", MODEL, "--gpu", "a100", "--calibrate-with", str(path))
    assert status == 0
    assert "another configuration" in out
    assert run("runs", "remove", "mine")[0] == 0
    assert "none are kept" in run("runs", "list")[1]


@pytest.mark.parametrize("command", ["report", "kernels", "blocks", "sweetspot", "compare"])
def test_every_priced_command_refuses_bad_runs(command: str, run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + ",tpot_ms", f"{MODEL},h100,vllm,1024,128,1,3")
    status, out, err = run(command, MODEL, "--calibrate-with", str(path))
    assert (status, out) == (2, "")
    assert "runs.csv, line 2: TPOT 3 ms is faster than the data sheet" in err
    assert len(err.splitlines()) == 1
    status, _, err = run(command, MODEL, "--calibrated", "nothing")
    assert status == 2
    assert "no runs are kept under 'nothing'" in err


def test_both_ways_at_once_are_refused(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + ",tpot_ms", f"{MODEL},h100,vllm,1024,128,1,9")
    status, _, err = run("report", MODEL, "--calibrate-with", str(path), "--calibrated", "mine")
    assert status == 2
    assert "not both" in err


def test_runs_are_added_under_a_version_that_there_is(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + ",tpot_ms", f"{MODEL},h100,vllm,1024,128,1,9")
    status, _, err = run("runs", "add", "mine", str(path), "--engine-version", "0.6")
    assert status == 2
    assert "no system of vllm 0.6" in err
    assert run("runs", "add", "mine", str(path), "--engine-version", "2024")[0] == 0


def test_refused_runs_are_not_kept(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + ",tpot_ms", f"{MODEL},h100,vllm,1024,128,1,3")
    status, _, err = run("runs", "add", "mine", str(path))
    assert status == 2
    assert "line 2" in err
    assert not own_store.runs_dir().exists()


# --- the benchmark ---------------------------------------------------------------------------


def configuration(model: str, factor: float, seed: int, spread: float = 0.02) -> Configuration:
    """Six runs that take ``factor`` times the estimate, give or take ``spread``."""
    random = np.random.default_rng(seed)
    decode_s, ones = random.uniform(0.005, 0.05, 6), np.ones(6)
    given_ = dict(zip(PRIORS, (0 * ones, decode_s, ones, 8 * ones), strict=True))
    time_s = factor * decode_s * random.uniform(1 - spread, 1 + spread, 6)
    return Configuration("h100-sxm", "vllm", model, 1, model, given_, time_s, decode_s / 2)


def test_benchmark_judges_on_other_runs_and_chooses_on_other_campaigns() -> None:
    far = Held("far", "", tuple(configuration(m, 1.5, at) for at, m in enumerate("ab")), 0)
    near = Held("near", "", tuple(configuration(m, 1.0, at) for at, m in enumerate("cd")), 3)
    result = judged([far, near])
    first, second = result.lines
    assert first.campaign == "far"
    assert first.before[1] == pytest.approx(100 / 3, rel=0.05)
    assert first.after[FACTORS][3] < first.after[FACTORS][1] < first.before[1]
    # Chosen where runs are off by half, or where they are not off at all.
    assert second.widths[FACTORS].factor > first.widths[FACTORS].factor
    assert (first.configurations, first.runs) == (2, 12)
    assert result.too_few == {"far": 0, "near": 3}
    assert first.shared is not None


def test_benchmark_writes_the_page_and_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Held("far", "", tuple(configuration(m, 1.5, at) for at, m in enumerate("ab")), 0)
    near = Held("near", "", tuple(configuration(m, 1.0, at) for at, m in enumerate("cd")), 3)
    errors = {count: (50.0, 20.0 / count) for count in COUNTS}
    line = EnergyLine("MoE", "h100-sxm", "vllm", 2, 12, 0.4, errors, errors)
    monkeypatch.setattr(benchmark, "campaigns", lambda _: [far, near])
    monkeypatch.setattr(benchmark, "judged_energy", lambda: EnergyResult([line], 0.4, {"odd": 7}))
    assert benchmark.main(["--out", str(tmp_path)]) == 0
    page = (tmp_path / "accuracy_own_runs.md").read_text()
    content = json.loads((tmp_path / "accuracy_own_runs.json").read_text())
    first = content["held_out_systems"]["records"][0]
    assert (first["set"], first["rows"], first["calibrating_runs"]) == ("far", 12, 1)
    assert f"| far | h100-sxm | vllm | 2 | 12 | {first['data_sheet']:.1f} |" in page
    assert "20.0 / 10.0 / 6.7" in page
    assert "odd 7" in page
    assert content["reports"]["records"][0]["after"] == 20


def test_the_page_speaks_of_the_widths_that_are_used() -> None:
    text = (Path(__file__).parents[1] / "docs" / "accuracy_own_runs.json").read_text()
    found = json.loads(text)
    assert found["held_out_systems"]["widths"]["shipped"] == WIDTHS
    assert found["reports"]["energy_width"]["shipped"] == ENERGY_WIDTH


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_named(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(separator.join(("model", "gpu", "engine", "prompt", "output", "batch")) + "\n")
    with pytest.raises(HymellError, match="separate them by commas"):
        read_runs(file)
