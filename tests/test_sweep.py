"""Sweeps: values and constraints, the grid, sample and search, backends, the file, the command."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hymell
from hymell.analysis.sweep.axes import Value, architecture, axes_of, parse_set
from hymell.analysis.sweep.expressions import parse
from hymell.analysis.sweep.pareto import objectives_of, pareto_front
from hymell.analysis.sweep.points import picked
from hymell.analysis.sweep.result import SweepResult, reasons
from hymell.cli import main
from hymell.errors import HymellError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
VALUES: dict[str, list[Any]] = {"num_attention_heads": [4, 8], "num_key_value_heads": [2, "hq", 3]}


@pytest.fixture(scope="module")
def found() -> SweepResult:
    return hymell.sweep(CONFIG, VALUES, gpu=["h100-sxm", "l40s"], batch=[1, 16], output=[1, 64])


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


# --- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 2 * b", 11),
        ("a / b", 0.75),
        ("a // b % 2", 0),
        ("-a < b <= 4", True),
        ("a < b and not b < a", True),
        ("a > b or a == 3", True),
        ("min(a, b, 2) + max(a, b) + abs(-1)", 7),
    ],
)
def test_expressions_have_the_value_that_python_gives(text: str, value: float) -> None:
    names = {"a": 3, "b": 4}
    assert parse(text, {"a", "b"}, "it").value(names) == value
    columns = {"a": np.array([3, 3]), "b": np.array([4, 4])}
    assert (parse(text, {"a", "b"}, "it").value(columns) == [value, value]).all()


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.__class__",
        "(lambda: 1)()",
        "[a for a in b]",
        "a[0]",
        "'text'",
        "a if b else 1",
        "2 ** 10000000",
        "exec(a)",
        "min(*a)",
        "a := 3",
        "a <",
        "a" * 400,
        "(" * 250,
    ],
)
def test_nothing_but_arithmetic_is_read(text: str) -> None:
    with pytest.raises(HymellError, match=r"^it "):
        parse(text, {"a", "b", "a.b"}, "it")


def test_an_unknown_name_is_named_with_the_nearest() -> None:
    with pytest.raises(HymellError, match=r"unknown name param_b; did you mean params_b\?"):
        parse("param_b < 9", {"params_b", "tpot_s"}, "the constraint")


def test_a_value_that_cannot_be_had_says_why() -> None:
    with pytest.raises(HymellError, match="divides by zero"):
        parse("1 / a", {"a"}, "it").value({"a": 0})
    with pytest.raises(HymellError, match="a has no number"):
        parse("1 + a", {"a"}, "it").value({"a": None})


@given(a=st.floats(-1e6, 1e6), b=st.floats(-1e6, 1e6))
def test_a_violation_is_positive_where_the_condition_fails(a: float, b: float) -> None:
    for text in ("a < b", "a <= b", "a > b", "a == b", "a != b", "a < b and a > 0", "not a < b"):
        condition = parse(text, {"a", "b"}, "it")
        names = {"a": a, "b": b}
        assert (condition.violation(names) > 0) == (not condition.value(names))


# --- values --------------------------------------------------------------------------------------


def texts(*values: Any) -> list[str]:
    (axis,) = axes_of({"hidden_size": list(values)}, CONFIG, CONFIG, "it")
    return [value.text for value in axis.values]


def test_ranges_stand_for_their_values() -> None:
    assert texts("4..8") == ["4", "5", "6", "7", "8"]
    assert texts("16..64+16", "16") == ["16", "32", "48", "64"]
    assert texts("8..70*2") == ["8", "16", "32", "64"]


@pytest.mark.parametrize("value", ["8..4", "1..2+0", "0..8*2", "1..100000", "8..64*1"])
def test_a_range_without_an_end_is_refused(value: str) -> None:
    with pytest.raises(HymellError, match="hidden_size="):
        texts(value)


def made(values: dict[str, list[Any]], *choice: int) -> dict[str, Any]:
    axes = axes_of(values, {**CONFIG, "head_dim": None}, CONFIG, "it")
    return architecture(CONFIG, axes, choice)[0]


def test_formulas_see_the_architecture_they_are_in() -> None:
    values = {
        "num_attention_heads": [16],
        "num_key_value_heads": ["hq"],
        "head_dim": ["hidden_size/hq*2"],
    }
    config = made(values, 0, 0, 0)
    assert (config["num_key_value_heads"], config["head_dim"]) == (16, 32)
    assert CONFIG["num_attention_heads"] == 8
    assert made({"intermediate_size": ["4*hidden_size"]}, 0)["intermediate_size"] == 1024


def test_formulas_that_have_no_whole_value_are_reasons() -> None:
    with pytest.raises(HymellError, match=r"head_dim: hidden_size/3 is 85\.3333, not a whole"):
        made({"head_dim": ["hidden_size/3"]}, 0)
    with pytest.raises(HymellError, match="follow from each other"):
        made({"hidden_size": ["intermediate_size"], "intermediate_size": ["hidden_size"]}, 0, 0)


def test_lists_per_layer_follow_the_number_of_layers() -> None:
    base = {**CONFIG, "num_hidden_layers": 4, "layer_types": ["a", "b"] * 2, "other": [1, 2]}
    axes = axes_of({"num_hidden_layers": [7]}, base, base, "it")
    config, _ = architecture(base, axes, (0,))
    assert config["layer_types"] == ["a", "b", "a", "b", "a", "b", "a"]
    assert config["other"] == [1, 2]
    base["layer_types"] = ["a", "b", "b", "b"]
    with pytest.raises(HymellError, match="layer_types names every layer without a pattern"):
        architecture(base, axes, (0,))


def test_nested_fields_are_set_in_a_copy() -> None:
    base = {"model_type": "x", "text_config": {"hidden_size": 8, "num_hidden_layers": 2}}
    fields = {"text_config.hidden_size": 8}
    axes = axes_of({"text_config.hidden_size": [16]}, fields, base, "it")
    config, values = architecture(base, axes, (0,))
    assert config["text_config"] == {"hidden_size": 16, "num_hidden_layers": 2}
    assert values == {"text_config.hidden_size": 16}
    assert base["text_config"]["hidden_size"] == 8


def test_other_values_and_texts() -> None:
    fields = {"tie_word_embeddings": False, "hidden_act": "silu"}
    axes = axes_of(
        parse_set(["tie_word_embeddings=true,false", "hidden_act=gelu"]), fields, {}, "it"
    )
    assert axes[0].values == (Value("true", True), Value("false", False))
    assert axes[1].values == (Value("gelu", "gelu"),)
    for text in ("hidden_size", "=4"):
        with pytest.raises(HymellError, match="write FIELD=VALUE"):
            parse_set([text])
    with pytest.raises(HymellError, match="twice"):
        parse_set(["a=1", "a=2"])


# --- the table -----------------------------------------------------------------------------------


def test_rows_are_what_predict_says(found: SweepResult) -> None:
    """The sweep's graph is that of `hymell.trace`, its prices those of `hymell.predict`."""
    assert found.points == 4 * 2 * 2 * 2
    for index in (0, 9, 22, found.points - 1):
        row = found.row(index)
        config = {**CONFIG, **{name: row[name] for name in VALUES}}
        workload = hymell.Workload(row["batch"], row["prompt"], row["output"])
        report = hymell.predict(config, workload, gpu=row["gpu"])
        assert row["parameters"] == report.parameters["total"]
        assert row["memory_bytes"] == pytest.approx(report.memory.total_bytes)
        assert row["fits"] == report.memory.fits
        assert row["tpot_s"] == pytest.approx(report.tpot_s or 0.0, rel=1e-3)
        for name in (
            "ttft_s",
            "latency_s",
            "tokens_per_s",
            "energy_j",
            "energy_per_output_token_j",
        ):
            assert row[name] == pytest.approx(getattr(report, name), rel=1e-3)


def test_architectures_that_are_none_are_counted_with_the_reason(found: SweepResult) -> None:
    (skipped,) = found.skipped
    assert skipped.count == 2
    assert "num_key_value_heads 3 does not divide num_attention_heads 4" in skipped.example
    assert (found.architectures, found.asked) == (4, 6)
    assert [s.count for s in reasons(["a 1", "b", "a 2"])] == [2, 1]


def test_hq_means_as_many_as_query_heads(found: SweepResult) -> None:
    pairs = {(r["num_attention_heads"], r["num_key_value_heads"]) for r in found.rows()}
    assert pairs == {(4, 2), (4, 4), (8, 2), (8, 8)}


def test_constraints_and_contexts_keep_rows_out_of_the_front() -> None:
    result = hymell.sweep(
        CONFIG,
        {"hidden_size": [128, 256]},
        prompt=[64, 8000],
        constraints=("parameters > 1000000 and batch < 2",),
        batch=[1, 2],
    )
    rows = result.rows()
    assert all(r["in_context"] == (r["prompt"] + r["output"] <= 4096) for r in rows)
    wanted = [r["parameters"] > 1_000_000 and r["batch"] < 2 and r["in_context"] for r in rows]
    assert [r["feasible"] for r in rows] == wanted
    assert 0 < sum(wanted) < len(wanted)
    assert all(rows[i]["feasible"] for i in result.front)


@given(
    st.lists(st.tuples(*[st.integers(0, 4)] * 4, st.booleans()).map(list), min_size=1, max_size=40),
    st.sampled_from([("tpot",), ("tpot", "throughput"), ("tpot", "throughput", "energy")]),
)
def test_the_front_has_the_rows_that_nothing_beats(
    points: list[list[int]], names: tuple[str, ...]
) -> None:
    a, b, c, prompt, feasible = (np.array(values) for values in zip(*points, strict=True))
    columns = {
        "tpot_s": a,
        "tokens_per_s": b,
        "energy_j": c,
        "feasible": feasible.astype(bool),
        "prompt": prompt // 2,
        "output": np.ones_like(a),
    }
    costs = np.stack([a, -b, c], axis=1)[:, : len(names)]
    front = pareto_front(columns, objectives_of(names))

    def beaten(i: int) -> bool:
        peers = columns["feasible"] & (columns["prompt"] == columns["prompt"][i])
        no_worse = (costs <= costs[i]).all(axis=1) & (costs < costs[i]).any(axis=1)
        return bool((peers & no_worse).any())

    def described(rows: Any) -> list[tuple[int, ...]]:
        return sorted({(int(columns["prompt"][i]), *map(int, costs[i])) for i in rows})

    wanted = [int(i) for i in np.flatnonzero(feasible) if not beaten(int(i))]
    assert described(front) == described(wanted)
    assert len(front) == len(described(front))


def test_effects_compare_equals(found: SweepResult) -> None:
    effects = {(e.axis, e.value): e for e in found.effects}
    own = effects["num_key_value_heads", "2"]
    assert own.is_reference
    assert set(own.ratios.values()) == {1.0}
    rows = [r for r in found.rows() if r["output"] > 1]
    key = ("num_attention_heads", "gpu", "engine", "batch", "prompt", "output")
    two = {tuple(r[k] for k in key): r for r in rows if r["num_key_value_heads"] == 2}
    many = [r for r in rows if r["num_key_value_heads"] == r["num_attention_heads"]]
    logs = [np.log(r["tpot_s"] / two[tuple(r[k] for k in key)]["tpot_s"]) for r in many]
    assert effects["num_key_value_heads", "hq"].ratios["tpot_s"] == pytest.approx(
        np.exp(np.mean(logs))
    )
    assert effects["num_key_value_heads", "3"].points == 0


def test_least_and_pareto_pick_rows(found: SweepResult) -> None:
    best = found.least("energy_per_output_token_j", {"gpu": "l40s"})
    rows = [r for r in found.rows() if r["gpu"] == "l40s"]
    assert best["energy_per_output_token_j"] == min(r["energy_per_output_token_j"] for r in rows)
    with pytest.raises(ValueError, match=r"empty|arg"):
        found.least("tpot_s", {"gpu": "none"})
    assert found.pareto() == [found.row(i) for i in found.front]
    assert len(found.pareto("params")) == 2  # one for each output length


def test_a_sample_is_a_part_of_the_grid_and_its_seed_repeats_it() -> None:
    values = {"hidden_size": ["64..512+64"], "intermediate_size": [256, 512]}
    one, same, other = (hymell.sweep(CONFIG, values, sample=4, seed=s) for s in (1, 1, 2))
    assert one.asked == one.architectures == 4
    assert one.rows() == same.rows()
    assert one.rows() != other.rows()
    assert one.seed == 1


# --- the search ----------------------------------------------------------------------------------


def searched(**how: Any) -> SweepResult:
    values = {"num_hidden_layers": ["1..4"], "num_key_value_heads": [2, 4, 3]}
    return hymell.sweep(
        CONFIG, values, batch=[1, 4, 16], optimize=("tpot", "energy_per_token"), trials=40, **how
    )


def test_a_search_is_seeded_and_heeds_constraints() -> None:
    one, same = searched(seed=3), searched(seed=3)
    assert one.rows() == same.rows()
    assert one.mode == "search"
    assert one.points + sum(s.count for s in one.skipped) == one.asked == 40
    assert searched(seed=4).rows() != one.rows()
    bound = searched(seed=3, constraints=("num_hidden_layers > 3",))
    assert all(bound.row(i)["num_hidden_layers"] == 4 for i in bound.front)
    deep = [sum(r["num_hidden_layers"] > 3 for r in s.rows()) for s in (bound, one)]
    assert deep[0] > 2 * deep[1]


def test_a_search_finds_the_front_of_a_small_grid() -> None:
    grid = hymell.sweep(CONFIG, {"num_hidden_layers": ["1..4"]}, batch=[1, 4, 16])
    best = hymell.sweep(
        CONFIG,
        {"num_hidden_layers": ["1..4"]},
        batch=[1, 4, 16],
        optimize=("tpot", "energy_per_token"),
        trials=40,
    )
    names = ("tpot_s", "energy_per_output_token_j", "num_hidden_layers", "batch")
    wanted, got = ([tuple(r[n] for n in names) for r in s.pareto()] for s in (grid, best))
    assert np.array(got) == pytest.approx(np.array(wanted))


# --- backends ------------------------------------------------------------------------------------


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return json.loads(json.dumps(rows))  # type: ignore[no-any-return]


def test_processes_give_the_same_table(found: SweepResult) -> None:
    two = hymell.sweep(
        CONFIG, VALUES, gpu=["h100-sxm", "l40s"], batch=[1, 16], output=[1, 64], workers=2
    )
    assert two.rows() == found.rows()
    assert two.skipped == found.skipped


def test_a_ray_cluster_of_two_nodes_gives_the_same_table() -> None:
    script = Path(__file__).with_name("sweep_script.py")
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(CONFIG), json.dumps(VALUES)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["nodes"] == 2
    here = hymell.sweep(CONFIG, VALUES, batch=[1, 4])
    assert answer["rows"] == comparable(here.rows())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_backends_that_cannot_be_had_say_so() -> None:
    for how, word in (
        ({"backend": "dask"}, "the backend is local or ray"),
        ({"workers": 0}, "workers must be 1 or more"),
        ({"address": "127.0.0.1:1"}, "add --backend ray"),
        ({"backend": "ray", "address": f"127.0.0.1:{free_port()}"}, "no Ray cluster answers at"),
        ({"backend": "ray", "address": "nonsense"}, "is not HOST:PORT"),
    ):
        with pytest.raises(HymellError, match=word):
            hymell.sweep(CONFIG, {"hidden_size": [128]}, **how)  # type: ignore[arg-type]


# --- the file ------------------------------------------------------------------------------------


def written(file: Path, values: dict[str, list[Any]] | None = None, **how: Any) -> SweepResult:
    return hymell.sweep(CONFIG, values or VALUES, batch=[1, 16], out=file, **how)


def test_the_file_has_the_rows_and_reads_back(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    file = tmp_path / "sweep.parquet"
    first = written(file)
    table = pq.read_table(file)
    assert table.to_pylist() == comparable(first.rows())
    assert table.column_names == list(first.columns)
    assert not file.with_name("sweep.parquet.parts").exists()
    again = written(file)
    assert again.resumed == again.asked == 6
    assert again.rows() == first.rows()
    assert again.skipped == first.skipped


def test_a_file_of_another_sweep_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "sweep.parquet"
    written(file)
    before = file.read_bytes()
    with pytest.raises(HymellError, match="holds another sweep"):
        written(file, {"hidden_size": [128]})
    assert file.read_bytes() == before
    assert written(file, {"hidden_size": [128]}, overwrite=True).asked == 1
    file.write_text("something else")
    with pytest.raises(HymellError, match="no Parquet file"):
        written(file)


def test_an_error_half_way_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-C: the second call prices what is missing and nothing twice."""
    from hymell.api import sweeping

    file = tmp_path / "sweep.parquet"
    whole = written(tmp_path / "whole.parquet")
    trace = sweeping.trace_architecture
    traced: list[int] = []

    def interrupted(name: str, quant: Any, config: dict[str, Any]) -> Any:
        if len(traced) == 2:
            raise KeyboardInterrupt
        traced.append(config["num_key_value_heads"])
        return trace(name, quant, config)

    from hymell.analysis.sweep import points

    points._GRAPHS.clear()
    monkeypatch.setattr(sweeping, "trace_architecture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(file)
    assert len(traced) == 2
    monkeypatch.setattr(sweeping, "trace_architecture", trace)
    resumed = written(file)
    assert resumed.resumed >= 2
    assert resumed.rows() == whole.rows()
    assert resumed.skipped == whole.skipped


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path, config_file: Path) -> None:
    file = tmp_path / "sweep.parquet"
    command = [
        *(sys.executable, "-m", "hymell", "sweep", str(config_file)),
        *("--set", "hidden_size=64..12800+64", "--batch", "1,2", "--out", str(file), "--csv"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "sweep.parquet.parts"
    deadline = time.monotonic() + 240
    while not list(parts.glob("part-*.parquet")) and time.monotonic() < deadline:
        assert process.poll() is None, "the sweep ended before it could be killed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(parts.glob("part-*.parquet"))
    assert not file.exists()
    short = [*command[:5], "--set", "hidden_size=64..12800+64", *command[7:]]
    assert short == command
    from hymell.analysis.sweep import run as runner

    kept = sum(len(_done(part)) for part in parts.glob("part-*.parquet"))
    assert kept > 0
    calls: list[int] = []
    original = runner.task_of

    def counted(plan: Any, number: int, *rest: Any) -> Any:
        calls.append(number)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(plan, number, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "task_of", counted)
        assert main(command[3:]) == 130
    assert calls[0] == kept


def _done(part: Path) -> list[Any]:
    import pyarrow.parquet as pq

    return list(json.loads(pq.read_schema(part).metadata[b"hymell.sweep"])["done"])


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path: Path, config_file: Path) -> None:
    """The kernel refuses files above a size, as a full disk would refuse them at some point."""
    file = tmp_path / "sweep.parquet"
    code = (
        "import resource, signal, sys\n"
        "from hymell.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["sweep", str(config_file), "--set", "hidden_size=64,128", "--out", str(file)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"hymell: cannot write '{file}': ")
    assert "make room and run the same command again" in line
    assert not file.exists()
    assert main(arguments) == 0
    assert file.exists()


def test_a_disk_that_fills_up_while_merging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hymell.analysis.sweep.parquet import Table

    file = tmp_path / "sweep.parquet"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_merge", full)
        with pytest.raises(HymellError, match="No space left on device; what is done is kept in"):
            written(file)
    assert written(file).resumed == 6


# --- the command ---------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["sweep", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_command_shows_front_effects_and_reasons(run: Run, config_file: Path) -> None:
    status, out, err = run(
        str(config_file),
        *("--set", "num_attention_heads=4,8", "--set", "num_key_value_heads=2,hq,3"),
        *("--gpu", "h100-sxm,l40s", "--batch", "1,16"),
    )
    assert status == 0
    assert not err
    for text in (
        "Pareto front",
        "What each value changes",
        "Skipped, by reason",
        "does not divide",
    ):
        assert text in out


def test_json_and_csv_have_the_rows(run: Run, config_file: Path) -> None:
    arguments = (str(config_file), "--set", "num_key_value_heads=1,2", "--batch", "1,4")
    _, out, _ = run(*arguments, "--json")
    data = json.loads(out)
    assert data["points"] == 4
    assert data["objectives"] == ["tpot_s", "energy_per_output_token_j"]
    _, out, _ = run(*arguments, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [r["num_key_value_heads"] for r in rows] == ["1", "1", "2", "2"]
    assert {"tpot_s", "memory_bytes", "fits"} <= set(rows[0])


def test_intervals_are_those_of_a_report(run: Run) -> None:
    _, out, _ = run("llama-3-8b", "--set", "num_key_value_heads=8", "--batch", "1,64", "--csv")
    for row in csv.DictReader(io.StringIO(out)):
        report = hymell.predict("llama-3-8b", hymell.Workload(int(row["batch"]), 1024, 128))
        for name in ("ttft_s", "tpot_s", "latency_s", "energy_j"):
            low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
            assert low <= float(row[name]) <= high
            ends = report.intervals[name]
            # Kernels of sizes beyond their tables widen those of a report alone.
            if (
                "kernels' time on sizes beyond"
                in report.accuracy.get(name, report.accuracy["tpot_s"]).note
            ):
                assert ends[0] < low * 1.001
                assert ends[1] > high * 0.999
            else:
                assert (low, high) == pytest.approx(ends, rel=1e-3)


def test_an_interval_that_nobody_measured_is_empty(run: Run, config_file: Path) -> None:
    arguments = (str(config_file), "--engine", "compile")
    assert hymell.predict(str(config_file), engine="compile").intervals == {}
    _, out, _ = run(*arguments, "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["tpot_s_low"] == row["energy_j_high"] == ""
    _, out, _ = run(*arguments, "--json")
    assert json.loads(out)["front"][0]["tpot_s_low"] is None


def test_a_plot_that_cannot_be_drawn_loses_no_answer(
    run: Run, config_file: Path, tmp_path: Path
) -> None:
    nothing = ("--constraint", "tpot_ms < 0", "--plot", str(tmp_path / "front.png"))
    status, out, err = run(str(config_file), *nothing)
    assert status == 2
    assert "no point of the sweep is feasible" in err
    assert "Points" in out


def test_the_plot_is_drawn(run: Run, config_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "front.png"
    status, _, _ = run(
        str(config_file), "--set", "num_key_value_heads=1,2", "--batch", "1,4", "--plot", str(file)
    )
    assert status == 0
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--set", "num_atention_heads=4"), "no field num_atention_heads; did you mean"),
        (("--set", "hidden_size="), "an empty grid"),
        (("--batch", ","), "--batch is empty"),
        (("--batch", "x"), "give whole numbers"),
        (("--batch", "0"), "batch must be at least 1"),
        (("--gpu", "no-such"), "no-such"),
        (("--engine", "no-such"), "no-such"),
        (("--set", "num_key_value_heads=3,5"), "none of the 2 architectures can be priced"),
        (("--set", "hidden_size=abc"), "neither a number nor a field"),
        (("--constraint", "params_b"), "compares nothing"),
        (("--constraint", "import os"), "cannot be read"),
        (("--optimize", "speed"), "no objective"),
        (("--sample", "0"), "sample must be 1 or more"),
        (("--backend", "ray", "--address", "127.0.0.1:1"), "no Ray cluster answers"),
        (("--set", "num_key_value_heads=3"), "the architecture cannot be priced: "),
        (("--out", "/no/such/folder/x.parquet"), "its folder does not exist"),
        (("--out", "points.csv"), "a table is a .parquet file"),
        (("--html", "/no/such/folder/x.html"), "its folder does not exist"),
        (("--plot", "front.txt"), "a plot is a"),
        (("--plot", "front.png", "--pareto", "tpot"), "a plot needs two objectives"),
        (("--set", "hidden_size=1..10000", "--set", "vocab_size=1..10000"), "--sample"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    run: Run, config_file: Path, arguments: tuple[str, ...], word: str
) -> None:
    status, out, err = run(str(config_file), *arguments)
    assert status == 2
    assert not out
    (line,) = err.strip().splitlines()
    assert line.startswith("hymell: ")
    assert word in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(run: Run, config_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    status, _, err = run(str(config_file), "--out", str(folder / "x.parquet"))
    assert status == 2
    assert "Permission denied" in err


def test_a_file_in_the_place_of_the_parts(run: Run, config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet.parts").write_text("in the way")
    status, _, err = run(str(config_file), "--out", str(tmp_path / "x.parquet"))
    assert status == 2
    assert "cannot write" in err


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, config_file: Path) -> None:
    file = tmp_path / "sweep.parquet"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "hymell", "sweep", str(config_file)),
            *("--set", "hidden_size=64..12800+64", "--out", str(file)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    parts = tmp_path / "sweep.parquet.parts"
    deadline = time.monotonic() + 240
    while not list(parts.glob("part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not out
    assert f"what is done is kept in {file}.parts: run the same command again" in err
    assert "Traceback" not in err
    assert list(parts.glob("part-*.parquet"))


def test_picked_is_one_point(found: SweepResult) -> None:
    from hymell.analysis.sweep.points import Setup

    setup = Setup(("a", "b"), ("x",), (1, 2), (3,), (4, 5))
    assert setup.rows == 8
    assert picked(setup, (1, 0, 1, 0, 0)) == Setup(("b",), ("x",), (2,), (3,), (4,))
