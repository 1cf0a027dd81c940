"""The sweet spot: its closed form, the grid, the region, traffic, the command, the benchmark."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweet_spot as benchmark
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

import hymell
from hymell.analysis.length_form import fit_length_form, fit_relative
from hymell.analysis.sweet_spot import LENGTHS, SweetSpot
from hymell.analysis.traffic import Request, parse_request, read_traffic, traffic_of
from hymell.cli import main
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.measure.location import locate

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


@pytest.fixture(scope="module")
def found(graph: OpGraph) -> SweetSpot:
    return hymell.sweet_spot(graph, batch=64, calibration="none")


# --- the closed form -------------------------------------------------------------------------


def grid(*lengths: float) -> tuple[np.ndarray, np.ndarray]:
    i, o = np.meshgrid(np.array(lengths, float), np.array(lengths, float), indexing="ij")
    return i.reshape(-1), o.reshape(-1)


def test_the_form_finds_the_coefficients_it_was_made_with() -> None:
    i, o = grid(64, 256, 1024, 4096)
    form = fit_length_form(i, o, 2.0 + 0.01 * i / o + 3e-5 * (i + o / 2))
    assert (form.per_output, form.per_input, form.per_context) == pytest.approx((2.0, 0.01, 3e-5))
    assert form.max_error < 1e-9
    assert form.points == 16
    assert form.cost(100, [10, 20]) == pytest.approx([2.1 + 3e-5 * 105, 2.05 + 3e-5 * 110])


def test_best_output_is_where_the_form_is_least() -> None:
    i, o = grid(64, 256, 1024, 4096)
    form = fit_length_form(i, o, 2.0 + 0.01 * i / o + 3e-5 * (i + o / 2))
    outputs = np.arange(1, 20_000)
    for length in (1, 100, 5000):
        least = outputs[np.argmin(form.cost(length, outputs))]
        assert form.best_output(length) == pytest.approx(least, abs=1)
    flat = fit_length_form(i, o, 2.0 + 0.01 * i / o)
    assert np.isinf(flat.best_output([1, 2])).all()


def test_too_few_points_are_refused() -> None:
    two = np.ones(2)
    with pytest.raises(HymellError, match="at least 3"):
        fit_length_form(two, two, two)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_coefficients_are_those_of_a_solver(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    terms, costs = random.random((20, size)) * 10.0 ** random.integers(-4, 4, size), None
    costs = terms @ random.standard_normal(size) + terms.sum(axis=1) + 1e-3
    costs = np.abs(costs) + 1e-3
    held = fit_relative(terms, costs)
    scale = np.linalg.norm(terms / costs[:, None], axis=0)
    expected = nnls(terms / costs[:, None] / scale, np.ones(20))[0] / scale
    assert (held >= 0).all()
    assert held * scale == pytest.approx(expected * scale, abs=1e-7)


# --- the grid --------------------------------------------------------------------------------


def test_cells_cost_what_reports_say(graph: OpGraph, found: SweetSpot) -> None:
    assert found.inputs == found.outputs == LENGTHS
    assert len(found.cells) == len(LENGTHS) ** 2
    for cell in (found.cells[0], found.cells[12], found.minimum):
        report = hymell.predict(
            graph, hymell.Workload(64, cell.input, cell.output), calibration="none"
        )
        assert cell.energy_per_output_token_j == pytest.approx(report.energy_per_output_token_j)
        assert cell.latency_per_output_token_s == pytest.approx(report.latency_s / cell.output)
        assert cell.fits == report.memory.fits


def test_minimum_and_region(found: SweetSpot) -> None:
    energy = found.grid("energy_per_output_token_j")
    assert found.minimum.energy_per_output_token_j == energy.min()
    assert found.minimum in found.cells
    assert (found.grid("in_region") == (energy <= 1.1 * energy.min())).all()
    assert 1 < found.grid("in_region").sum() < energy.size
    # Short answers to long prompts are dear, and so are the longest answers: a true minimum.
    assert energy[-1, 0] > 2 * energy.min()
    assert found.minimum.output not in (LENGTHS[0], LENGTHS[-1])


def test_the_form_is_close_to_the_grid(found: SweetSpot) -> None:
    assert found.energy_form.mape < 5
    assert found.latency_form.mape < 5
    i, o = np.meshgrid(found.inputs, found.outputs, indexing="ij")
    energy = found.grid("energy_per_output_token_j")
    errors = 100 * np.abs(found.energy_form.cost(i, o) / energy - 1)
    assert errors.mean() == pytest.approx(found.energy_form.mape)
    assert errors.max() == pytest.approx(found.energy_form.max_error)


def test_best_outputs_are_the_least_of_their_rows(found: SweetSpot) -> None:
    energy = found.grid("energy_per_output_token_j")
    assert [best.input for best in found.best_outputs] == list(LENGTHS)
    for row, best in zip(energy, found.best_outputs, strict=True):
        assert best.energy_per_output_token_j == row.min()
        assert best.output == LENGTHS[int(row.argmin())]
        assert best.form_output == pytest.approx(found.energy_form.best_output(best.input))


def test_by_latency_is_least_in_latency(graph: OpGraph) -> None:
    found = hymell.sweet_spot(
        graph, by="latency", within=0.5, inputs=[128, 16], outputs=[1, 100, 1000]
    )
    latency = found.grid("latency_per_output_token_s")
    assert found.inputs == (16, 128)
    assert found.minimum.latency_per_output_token_s == latency.min()
    assert (found.grid("in_region") == (latency <= 1.5 * latency.min())).all()


def test_what_cannot_run_takes_no_part(graph: OpGraph) -> None:
    # 4 layers of 4 KV heads of 128: 8192 bytes a token, 20 GB for 256 sequences of 10,000.
    found = hymell.sweet_spot(graph, gpu="t4", batch=256, inputs=[64, 4096, 8190])
    fits, in_context = found.grid("fits"), found.grid("in_context")
    assert fits[0, 0]
    assert not fits[1, -1]
    assert (in_context == (np.add.outer([64, 4096, 8190], LENGTHS) <= 8192)).all()
    possible = fits & in_context
    assert not (found.grid("in_region") & ~possible).any()
    assert found.energy_form.points == possible.sum() < possible.size
    assert [best.input for best in found.best_outputs] == [64, 4096]
    assert any("do not fit the GPU" in warning for warning in found.warnings)
    assert any("longer than the model was made for" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"by": "price"}, "by energy or by latency, not by 'price'"),
        ({"within": -0.1}, "within 0 to 1000%"),
        ({"within": float("nan")}, "within 0 to 1000%"),
        ({"inputs": []}, "inputs: give at least one length"),
        ({"outputs": [0, 4]}, "outputs: must be at least 1"),
        ({"outputs": [1.5]}, "outputs: must be a whole number"),
        ({"inputs": range(1, 1001), "outputs": range(1, 1001)}, "1,000,000 pairs"),
        ({"inputs": [9000]}, "made for 8192 tokens"),
        ({"inputs": [64], "outputs": [64]}, "only 1 of the pairs of lengths can run"),
        ({"batch": 100_000}, "no pair of lengths"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": 3, "pp": 2, "microbatches": 2}, "cannot be cut into 2"),
        ({"traffic": []}, "the traffic holds no requests"),
        ({"traffic": [(0, 1)]}, "prompt must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, Any], words: str, graph: OpGraph) -> None:
    with pytest.raises(HymellError, match=words):
        hymell.sweet_spot(graph, **arguments)


def test_a_model_that_does_not_generate_has_none() -> None:
    with pytest.raises(HymellError, match="does not generate tokens"):
        hymell.sweet_spot("bert-base-uncased")


# --- traffic ---------------------------------------------------------------------------------


def test_traffic_at_the_minimum_has_nothing_to_save(graph: OpGraph, found: SweetSpot) -> None:
    best = found.minimum
    at_best = hymell.sweet_spot(
        graph, batch=64, calibration="none", traffic=[(best.input, best.output, 7.0)]
    )
    cost = at_best.traffic
    assert cost is not None
    assert (cost.requests, cost.pairs, cost.in_region) == (7.0, 1, 1.0)
    assert [move.energy_saved for move in cost.moves] == pytest.approx([0.0] * 3)


def test_traffic_is_weighted_by_output_tokens(graph: OpGraph) -> None:
    requests = [(4096, 64, 3.0), (64, 512, 1.0)]
    found = hymell.sweet_spot(graph, batch=64, traffic=requests)
    cost, energy = found.traffic, found.grid("energy_per_output_token_j")
    assert cost is not None
    long, short = energy[LENGTHS.index(4096), 0], energy[0, LENGTHS.index(512)]
    tokens = np.array([3 * 64, 512]) / (3 * 64 + 512)
    now = tokens @ [long, short]
    assert cost.energy_per_output_token_j == pytest.approx(now)
    assert cost.mean_input == pytest.approx((3 * 4096 + 64) / 4)
    assert cost.in_region == pytest.approx(tokens[1])
    same_prompt, region, minimum = cost.moves
    least = energy.min(axis=1)
    assert same_prompt.energy_per_output_token_j == pytest.approx(
        tokens @ [least[LENGTHS.index(4096)], least[0]]
    )
    assert minimum.energy_per_output_token_j == pytest.approx(energy.min())
    assert minimum.energy_saved == pytest.approx(1 - energy.min() / now)
    # The short request is in the region and stays; the long one ends in it.
    assert tokens @ [energy.min(), short] <= region.energy_per_output_token_j
    assert region.energy_per_output_token_j <= tokens @ [1.1 * energy.min(), short]


def test_impossible_traffic_is_counted(graph: OpGraph) -> None:
    found = hymell.sweet_spot(graph, traffic=[(9000, 100, 1.0), (100, 300, 1.0)])
    assert found.traffic is not None
    assert found.traffic.impossible == pytest.approx(0.25)


@pytest.mark.parametrize(
    "text",
    [
        "input,output,weight\n100,20,1\n300,5,2.5\n100,20,1\n",
        "\ufeffid, Output ,WEIGHT,Input\na,20,2,100\n\nb,5,2.5,300\n",
        "100,20,2\n300,5,2.5\n",
        "100,20\n100,20,\n300,5,2.5\n",
    ],
)
def test_traffic_files(text: str, tmp_path: Path) -> None:
    file = tmp_path / "traffic.csv"
    file.write_text(text, encoding="utf-8")
    assert traffic_of(file) == (Request(100, 20, 2.0), Request(300, 5, 2.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no requests"),
        ("input,output\n", "holds no requests"),
        ("prompt,output\n1,2\n", "has no column input"),
        ("1,2\n3\n", "line 2: give numbers: input,output"),
        ("1,2\n3,x\n", "line 2: give numbers"),
        ("1,2\n3,4,0\n", "line 2: the weight of a request must be above 0"),
        ("1,2\n3,4,nan\n", "line 2: the weight of a request must be above 0"),
        ("input,output\n1,2\n0,4\n", "line 3: prompt must be at least 1"),
        ("1,2\n3,4,5,6\n", "line 2: give numbers"),
    ],
)
def test_bad_traffic_files_name_the_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "traffic.csv"
    file.write_text(text)
    with pytest.raises(HymellError, match=words):
        traffic_of(file)


def test_traffic_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match="No such file"):
        read_traffic(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HymellError, match="it is no CSV file"):
        read_traffic(tmp_path / "binary.csv")


def test_requests_of_the_command_line() -> None:
    assert parse_request("512:128") == Request(512, 128)
    assert parse_request("512:128:2.5") == Request(512, 128, 2.5)
    with pytest.raises(HymellError, match="--mix 512: give IN:OUT"):
        parse_request("512")


# --- the command -----------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(("sweetspot", str(config), "--batch", "64", *arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_command_in_words(run: Run) -> None:
    status, out, err = run("--mix", "4096:64:3", "--mix", "64:512", "--within", "25")
    assert (status, err) == (0, "")
    assert out.startswith("Sweet spot of ")
    for words in ("Energy per output token", "Latency per output token", "within 25%", "moved to"):
        assert words in out
    marks = out.split("Energy per output token")[1].split("Latency per output token")[0]
    assert marks.count("J min") == 1
    assert marks.count("J +") == int(out.split("Within 25%")[1].split(" of ")[0]) - 1


def test_command_in_other_formats(run: Run) -> None:
    data = json.loads(run("--json", "--mix", "100:100")[1])
    assert set(data) == set(SweetSpot.__dataclass_fields__)
    assert data["minimum"] in data["cells"]
    assert data["traffic"]["pairs"] == 1
    rows = list(csv.DictReader(io.StringIO(run("--csv")[1])))
    assert len(rows) == len(LENGTHS) ** 2
    assert float(rows[0]["energy_per_output_token_j"]) == pytest.approx(
        data["cells"][0]["energy_per_output_token_j"]
    )
    page = run("--md")[1]
    assert page.startswith("# Sweet spot of ")
    assert "| Input | out 64 |" in page


def test_command_takes_lengths_and_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "traffic.csv"
    file.write_text("100,20\n")
    status, out, _ = run(
        "--inputs", "100, 10", "--outputs", "7,70", "--json",
        "--traffic", str(file), "--mix", "100:20",
    )  # fmt: skip
    data = json.loads(out)
    assert status == 0
    assert (data["inputs"], data["outputs"]) == ([10, 100], [7, 70])
    assert (data["traffic"]["requests"], data["traffic"]["pairs"]) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--inputs", "1,x"], "--inputs 1,x: give whole numbers"),
        (["--outputs", ","], "outputs: give at least one length"),
        (["--by", "money"], "by energy or by latency"),
        (["--mix", "1:2:3:4"], "give IN:OUT"),
        (["--plot", "a.txt"], "a plot is a .png, .svg, .pdf file"),
        (["--plot", "/no/such/folder/a.png"], "its folder does not exist"),
        (["--prompt", "5"], "--prompt"),
        (["--tp", "0"], "tp must be from 1"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words in err
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (2, "")
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")]
)
def test_plot(name: str, start: bytes, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, out, _ = run("--plot", str(tmp_path / name), "--mix", "5000:10", "--json")
    assert status == 0
    assert json.loads(out)["traffic"]
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_needs_a_grid(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, _, err = run("--plot", str(tmp_path / "a.png"), "--outputs", "64")
    assert status == 2
    assert "at least two inputs and two outputs" in err
    assert not (tmp_path / "a.png").exists()


def test_a_plot_without_matplotlib(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run("--plot", str(tmp_path / "a.png"))
    assert status == 2
    assert "pip install 'hymell[plots]'" in err


# --- the benchmark ---------------------------------------------------------------------------


def made(cost: Callable[[np.ndarray, np.ndarray], np.ndarray], **changes: Any) -> benchmark.Grid:
    i, o = grid(32, 128, 512, 2048)
    plain: dict[str, Any] = {
        "set": "wilkins_grid_a100", "model": "made", "gpus": 1, "input": i, "output": o, "asked": o,
        "cost": cost(i, o),
    }  # fmt: skip
    return benchmark.Grid(**{**plain, **changes})


def cached(i: np.ndarray, o: np.ndarray) -> np.ndarray:
    return o * (3 + 0.01 * i / o + 1e-4 * (i + o / 2))


def uncached(i: np.ndarray, o: np.ndarray) -> np.ndarray:
    squares = i * i * o + i * o * o + o**3 / 3
    return 3 * o + 1e-2 * o * (i + o / 2) + 1e-6 * squares


@pytest.mark.parametrize(
    ("form", "cost"),
    [
        (benchmark.CACHE, cached),
        (benchmark.SWEETSPOT, cached),
        (benchmark.STEPS, uncached),
        (benchmark.INTERACTION, lambda i, o: i + 2 * o + 3 * i * o),
        (benchmark.PLAIN, lambda i, o: i + 2 * o),
    ],
)
def test_a_form_that_is_true_predicts_lengths_that_it_never_saw(form: str, cost: Any) -> None:
    errors = benchmark.left_out(made(cost), benchmark.FORMS[form])
    assert set(errors) == {"nothing", "input length", "output length"}
    for each in errors.values():
        assert np.abs(each).max() < 1e-6


def test_a_floor_of_power_1_is_the_closed_form() -> None:
    errors = benchmark.left_out(made(uncached), benchmark.step_floor(1.0))
    assert max(np.abs(each).max() for each in errors.values()) < 1e-4


def test_left_out_lengths_are_unseen() -> None:
    spoiled = made(lambda i, o: np.where(i == 512, 10, 1) * cached(i, o))
    errors = benchmark.left_out(spoiled, benchmark.FORMS[benchmark.CACHE])
    held = errors["input length"][spoiled.input == 512]
    assert held == pytest.approx(np.full(4, -90.0))


def test_the_power_of_a_model_is_chosen_on_others() -> None:
    grids = [made(cached, model=name, gpus=gpus) for name, gpus in
             (("a", 1), ("b", 1), ("c", 3), ("d", 4))]  # fmt: skip
    mape = {(g.model, power): 5.0 for g in grids for power in benchmark.POWERS}
    mape["a", 1.5] = mape["b", 1.25] = mape["d", 2.0] = 1.0
    chosen = [benchmark.best_power(g, mape, grids) for g in grids]
    assert chosen[:3] == [1.25, 1.5, 2.0]


def test_published_grids_reach_their_goals() -> None:
    try:
        folder = locate()
    except HymellError as error:
        pytest.skip(str(error))
    if not (folder / "e2e" / "argonne_grid_a100.csv").is_file():
        pytest.skip(f"no end-to-end sets in {folder}")
    read = {
        name: benchmark.read_grids(name, cost, folder) for name, cost in benchmark.COSTS.items()
    }
    (argonne,), counted = read["argonne_grid_a100"]
    assert counted == "argonne_grid_a100: 36 rows, 36 kept"
    ours = benchmark.left_out(argonne, benchmark.FORMS[benchmark.CACHE])
    assert benchmark.mean_mape(benchmark.judged(argonne, benchmark.CACHE, ours)) <= 0.2
    wilkins, counted = read["wilkins_grid_a100"]
    assert "422 rows, 106 dropped" in counted
    assert set(np.concatenate([g.asked for g in wilkins])) == {32, 64, 128, 256, 512, 1024}
    assert sum(len(g.cost) for g in wilkins) == 316


def test_the_page_has_every_goal_and_model() -> None:
    grids = [
        made(cached, set="argonne_grid_a100", model="a"),
        *(made(uncached, model=name, gpus=gpus) for name, gpus in
          (("b", 1), ("c", 1), ("d", 2), ("e", 2))),
    ]  # fmt: skip
    records, kept = benchmark.judge(grids)
    page = benchmark.page(records, kept, grids, ["12 rows of which 3"])
    for goal in benchmark.GOALS:
        assert f"| {goal.what} |" in page
    assert "12 rows of which 3" in page
    for model in "abcde":
        assert f"| {model} |" in page
    assert "| yes |" in page


def test_the_benchmark_without_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYMELL_DATA", str(tmp_path))
    assert benchmark.main(["-o", str(tmp_path / "page.md")]) == 2
    assert "there are: none" in capsys.readouterr().err
