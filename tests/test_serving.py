"""A server under load: arrivals, the scheduler against a clock of its own, prices, the command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving as benchmark
from hypothesis import given, settings
from hypothesis import strategies as st

import hymell
from hymell.analysis.arrivals import Arrival, arrivals_of, poisson, read_arrivals
from hymell.analysis.scheduler import Limits, Run, simulate
from hymell.cli import main
from hymell.errors import HymellError
from hymell.estimators.level3.system import System
from hymell.estimators.level3.terms import MULTIPLIERS
from hymell.estimators.predict import deploy
from hymell.estimators.rollup import decode_totals, prefill_totals
from hymell.estimators.step_prices import UNEVEN, Batch, Curve, Surface, price_steps
from hymell.graph import OpGraph
from hymell.hardware import load_gpu
from hymell.measure.location import locate
from hymell.op_registry.engines import get_engine
from hymell.workload import Workload

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return hymell.trace(CONFIG)


# --- arrivals --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_arrivals() -> None:
    one = poisson(5.0, 400, 100, 10, seed=3)
    assert one == poisson(5.0, 400, 100, 10, seed=3)
    assert one != poisson(5.0, 400, 100, 10, seed=4)
    assert one[0].arrival_s == 0
    gaps = np.diff([a.arrival_s for a in one])
    assert gaps.mean() == pytest.approx(0.2, rel=0.15)
    assert gaps.std() == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize(
    ("rate", "requests", "seed", "says"),
    [
        (0.0, 5, 0, "rate"),
        (float("nan"), 5, 0, "rate"),
        (1.0, 0, 0, "requests"),
        (1, 1, -1, "seed"),
    ],
)
def test_loads_that_are_none(rate: float, requests: int, seed: int, says: str) -> None:
    with pytest.raises(HymellError, match=says):
        poisson(rate, requests, 10, 10, seed)


def test_arrivals_from_a_file_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("output,arrival_s,prompt,user\n7,2.5,30,x\n\n8,0.5,40,y\n")
    assert arrivals_of(file) == (Arrival(0.5, 40, 8), Arrival(2.5, 30, 7))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column arrival_s, prompt, output"),
        ("arrival_s,prompt\n1,2\n", "no column output"),
        ("arrival_s,prompt,output\n1,two,3\n", "line 2: give numbers"),
        ("arrival_s,prompt,output\n1,2\n", "line 2: give numbers"),
        ("arrival_s,prompt,output\n-1,2,3\n", "line 2: an arrival must be at 0 s or later"),
        ("arrival_s,prompt,output\n1,0,3\n", "line 2: prompt must be at least 1"),
        ("arrival_s,prompt,output\n", "no requests"),
    ],
)
def test_files_that_hold_no_arrivals(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(HymellError, match=says):
        arrivals_of(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match="cannot read the arrivals"):
        read_arrivals(tmp_path / "none.csv")


# --- the scheduler ---------------------------------------------------------------------------


class Clock:
    """A second per step; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Batch, ...]] = []

    def step(self, batches: Sequence[Batch]) -> float:
        self.asked.append(tuple(batches))
        return 1.0


def limits(seqs: int = 8, tokens: int = 100, pool: float = 1e9) -> Limits:
    return Limits(seqs, tokens, pool, float)


def times(run: Run) -> list[tuple[float, float]]:
    return [(s.first_token_s, s.finish_s) for s in run.served]


def test_one_request_takes_its_prefill_and_a_step_per_token() -> None:
    clock = Clock()
    run = simulate([Arrival(2.0, 250, 4)], limits(), clock)
    assert [b[0].chunks for b in clock.asked[:3]] == [[(100, 0)], [(100, 100)], [(50, 200)]]
    assert times(run) == [(5.0, 8.0)]
    assert run.served[0].ttft_s == 3.0
    assert run.served[0].tpot_s == 1.0
    assert [b[0].context for b in clock.asked[3:]] == [250, 251, 252]


def test_decode_goes_first_and_prompts_take_what_is_left() -> None:
    clock = Clock()
    simulate([Arrival(0.0, 60, 10), Arrival(0.5, 150, 2)], limits(), clock)
    second = clock.asked[1][0]
    assert (second.sequences, second.chunks) == (1, [(99, 0)])
    third = clock.asked[2][0]
    assert (third.sequences, third.chunks) == (1, [(51, 99)])


def test_no_more_run_than_allowed() -> None:
    run = simulate([Arrival(0.0, 10, 3)] * 3, limits(seqs=1), Clock())
    assert times(run) == [(1.0, 3.0), (4.0, 6.0), (7.0, 9.0)]
    assert run.mean_running == 1.0


def test_a_prompt_waits_for_room_for_all_of_it() -> None:
    run = simulate([Arrival(0.0, 48, 3), Arrival(0.0, 48, 3)], limits(pool=95.0), Clock())
    assert times(run) == [(1.0, 3.0), (4.0, 6.0)]
    assert run.preemptions == 0
    assert run.peak_kv_share == pytest.approx(64 / 95)


def test_the_last_admitted_gives_way_and_computes_anew() -> None:
    clock = Clock()
    run = simulate([Arrival(0.0, 32, 40), Arrival(0.0, 32, 40)], limits(pool=100.0), clock)
    assert run.preemptions >= 1
    assert run.served[0].finish_s < run.served[1].finish_s
    again = [c for b in clock.asked for c in b[0].chunks if c[0] > 32]
    # Its prompt and the tokens that it had made.
    assert again
    assert again[0][1] == 0


def test_replicas_share_the_requests() -> None:
    clock = Clock()
    run = simulate([Arrival(0.0, 10, 5)] * 4, limits(seqs=2), clock, replicas=2)
    assert all(len(batches) == 2 for batches in clock.asked)
    assert {s.finish_s for s in run.served} == {5.0}
    assert run.mean_running == 4.0


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(HymellError, match=r"80 \+ 41 tokens needs more than the KV pool"):
        simulate([Arrival(0.0, 80, 41)], limits(pool=100.0), Clock())


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=12
    ),
    st.integers(1, 5),
    st.integers(1, 64),
)
@settings(max_examples=60, deadline=None)
def test_everybody_is_served_in_full(
    asked: list[tuple[float, int, int]], seqs: int, tokens: int
) -> None:
    requests = arrivals_of(asked)
    clock = Clock()
    run = simulate(requests, limits(seqs, tokens, pool=160.0), clock)
    assert [s.request for s in run.served] == list(requests)
    for served in run.served:
        assert served.request.arrival_s < served.first_token_s <= served.finish_s
    assert all(0 < batch.tokens <= tokens for batches in clock.asked for batch in batches)
    assert all(b.sequences + len(b.chunks) <= seqs for batches in clock.asked for b in batches)
    assert run.peak_kv_share <= 1


# --- prices ----------------------------------------------------------------------------------


def test_curves_are_linear_between_points_and_flat_beyond() -> None:
    curve = Curve([1.0, 3.0], [10.0, 20.0])
    assert [curve(x) for x in (0, 1, 2, 3, 9)] == [10, 10, 15, 20, 20]
    surface = Surface([1.0, 2.0], [curve, Curve([1.0, 3.0], [30.0, 40.0])])
    assert [surface(r, 2) for r in (0, 1, 1.5, 2, 5)] == [15, 15, 25, 35, 35]


def test_steps_cost_what_a_report_says(graph: OpGraph) -> None:
    model = deploy(graph, gpu=load_gpu("h100-sxm"), engine=get_engine("vllm"))
    prices = price_steps(model, 512, 64, 2048)
    B, L = np.array([32.0]), np.array([1024.0])
    decode = decode_totals(model, B, L, np.array([2.0])).time_s[0]
    assert prices.step([Batch(32, 1024, 1024, [])]) == pytest.approx(decode, rel=0.02)
    prefill = prefill_totals(model, np.array([1.0]), np.array([512.0])).time_s[0]
    # A step of a server replays graphs up to 512 tokens, a report's prefill waits for the host.
    host_s = prefill - prices.step([Batch(0, 0, 0, [(512, 0)])])
    assert 0 <= host_s < 1e-3


def test_a_slow_host_of_a_system_holds_steps_up(graph: OpGraph) -> None:
    model = deploy(graph, gpu=load_gpu("h100-sxm"), engine=get_engine("vllm"))
    kernels = dict.fromkeys(MULTIPLIERS, 1.0)
    host = {"prefill_launch_s": 4e-4, "decode_launch_s": 1e-4}
    slow = replace(model, system=_system(kernels | host))
    B, L = np.array([32.0]), np.array([1024.0])
    decode = decode_totals(slow, B, L, np.array([2.0]))
    assert decode.time_s > 2 * decode.kernel_s
    prices = price_steps(slow, 1024, 64, 2048)
    assert prices.step([Batch(32, 1024, 1024, [])]) == pytest.approx(decode.time_s[0])
    prefill = prefill_totals(slow, np.array([1.0]), np.array([1024.0])).time_s[0]
    assert prices.step([Batch(0, 0, 0, [(1024, 0)])]) == pytest.approx(prefill)


def _system(coefficients: Mapping[str, float]) -> System:
    return System("vllm", "h100-sxm", "1", "a test", coefficients, 9, ("a", "b"), 5.0, 9.0)


def test_chunks_add_up_to_the_prompt_and_uneven_batches_cost_more(graph: OpGraph) -> None:
    model = deploy(graph, gpu=load_gpu("h100-sxm"), engine=get_engine("vllm"))
    prices = price_steps(model, 4096, 64, 4096)
    whole = prices.prompt_s(4096)
    parts = [prices._chunk_s((1024, held)) for held in range(0, 4096, 1024)]
    assert sum(parts) == pytest.approx(whole, rel=1e-9)
    assert parts == sorted(parts)
    even = prices.step([Batch(32, 1000, 1000, [])])
    uneven = prices.step([Batch(32, 1000, 4000, [])])
    more = prices.decode_s(32, 4000) - prices.decode_s(32, 1000)
    assert uneven - even == pytest.approx(UNEVEN * more)


def test_what_cannot_be_served_says_so(graph: OpGraph) -> None:
    requests = [Arrival(0.0, 10, 10)]
    with pytest.raises(HymellError, match="eager runs one batch to its end"):
        hymell.serve(graph, engine="eager", arrivals=requests)
    with pytest.raises(HymellError, match="encodes its prompt apart"):
        hymell.serve("t5-small", arrivals=requests)
    with pytest.raises(HymellError, match="does not generate"):
        hymell.serve("bert-base-uncased", arrivals=requests)
    with pytest.raises(HymellError, match="max_num_seqs must be at least 1"):
        hymell.serve(graph, arrivals=requests, max_num_seqs=0)
    with pytest.raises(HymellError, match="max_num_batched_tokens must be at least 1"):
        hymell.serve(graph, arrivals=requests, max_num_batched_tokens=0)
    with pytest.raises(HymellError, match="leaves no room for a KV cache on t4"):
        hymell.serve("llama-3-8b", gpu="t4", dtype="fp16", arrivals=requests)


# --- the whole -------------------------------------------------------------------------------


def test_an_idle_server_is_as_fast_as_a_report(graph: OpGraph) -> None:
    found = hymell.serve(graph, rate=1e-3, requests=3, prompt=512, output=64, calibration="none")
    report = hymell.predict(graph, Workload(1, 512, 64), calibration="none")
    assert found.tpot is not None
    assert report.tpot_s is not None
    assert found.tpot.mean_s == pytest.approx(report.tpot_s, rel=0.03)
    assert found.mean_running == 1.0


def test_more_load_takes_longer(graph: OpGraph) -> None:
    slow, fast = (
        hymell.serve(graph, rate=rate, requests=64, max_num_seqs=16, calibration="none")
        for rate in (1.0, 1e4)
    )
    assert slow.tpot is not None
    assert fast.tpot is not None
    assert fast.ttft.p99_s > 2 * slow.ttft.p99_s
    assert fast.tpot.mean_s > slow.tpot.mean_s
    assert fast.output_tokens_per_s > 5 * slow.output_tokens_per_s
    assert fast.mean_running <= 16


def test_exchanges_take_as_much_longer_as_asked(graph: OpGraph) -> None:
    requests = [Arrival(0.0, 200, 20)]
    once, twice, thrice = (
        hymell.serve(graph, arrivals=requests, tp=2, exchanges=x).duration_s for x in (1, 2, 3)
    )
    assert once < twice
    assert thrice - twice == pytest.approx(twice - once, rel=1e-6)
    alone = [hymell.serve(graph, arrivals=requests, exchanges=x).duration_s for x in (1, 3)]
    assert alone[0] == alone[1]
    with pytest.raises(HymellError, match="not -1"):
        hymell.serve(graph, arrivals=requests, exchanges=-1)


def test_the_version_of_an_engine_prices_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    requests = [Arrival(0.0, 200, 20)]
    older, newest, default = (
        hymell.serve("llama-3-8b", arrivals=requests, engine_version=version).duration_s
        for version in ("2024", "0.11.1", None)
    )
    assert older != newest == default
    with pytest.raises(HymellError, match="leave the version out"):
        hymell.serve("olmoe-1b-7b", ep=2, arrivals=requests, engine_version="2024")
    status, _, err = run_cli(capsys, "gpt2", "--engine-version", "0.6")
    assert status == 2
    assert "no system of vllm 0.6" in err


def test_replicas_of_experts_are_served() -> None:
    requests = [Arrival(0.1 * i, 200, 20) for i in range(12)]
    found = hymell.serve("olmoe-1b-7b", ep=2, arrivals=requests)
    assert found.parallel["gpus"] == 2
    assert len(found.requests) == 12


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["serve", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_prints_every_format(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    asked = (str(file), "--rate", "20", "--requests", "12", "--prompt", "64", "--output", "8")
    status, text, _ = run_cli(capsys, *asked)
    assert status == 0
    for word in ("TTFT", "TPOT", "P99", "KV pool", "Preemptions", "per second"):
        assert word in text
    _, as_json, _ = run_cli(capsys, *asked, "--json")
    data = json.loads(as_json)
    assert len(data["requests"]) == 12
    assert data["ttft"]["mean_s"] == pytest.approx(np.mean([r["ttft_s"] for r in data["requests"]]))
    _, as_csv, _ = run_cli(capsys, *asked, "--csv")
    rows = list(csv.DictReader(io.StringIO(as_csv)))
    assert [float(r["ttft_s"]) for r in rows] == [r["ttft_s"] for r in data["requests"]]
    _, markdown, _ = run_cli(capsys, *asked, "--md")
    assert "| TPOT |" in markdown


def test_a_file_of_arrivals_excludes_a_rate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("arrival_s,prompt,output\n0,10,1\n")
    status, _, err = run_cli(capsys, "gpt2", "--arrivals", str(file), "--rate", "3")
    assert status == 2
    assert "leave out --rate" in err
    status, text, _ = run_cli(capsys, "gpt2", "--arrivals", str(file))
    assert status == 0
    assert "TPOT" not in text.split("Latencies")[0]


# --- the benchmark ---------------------------------------------------------------------------


def test_the_page_and_the_records_agree() -> None:
    docs = Path(benchmark.ROOT) / "docs"
    found = json.loads((docs / "accuracy_serving.json").read_text())
    assert (docs / "accuracy_serving.md").read_text() == benchmark.page(found)
    assert {record["estimator"] for record in found} == {
        benchmark.SHEET,
        benchmark.PLAIN,
        benchmark.COMM,
    }


def test_a_measured_run_is_replayed() -> None:
    try:
        locate()
    except HymellError as error:
        pytest.skip(str(error))
    run = next(r for r in benchmark.load() if "RTX" in r.name.upper() and not r.exchanges)
    found = benchmark.served(run)
    assert len(found.requests) == len(run.rows)
    kept = json.loads((Path(benchmark.ROOT) / "docs" / "accuracy_serving.json").read_text())
    written = next(
        r
        for r in kept
        if r["run"] == run.name and r["estimator"] == benchmark.PLAIN and r["set"].endswith("TPOT")
    )
    assert found.tpot is not None
    assert found.tpot.mean_s == pytest.approx(written["predicted_mean_s"], rel=0.02)
