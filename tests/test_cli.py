"""The command line: every command, every exit status, JSON errors, files, pipes, start-up."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from synthetic_report import MODEL, synthetic_report, too_large, toy_graph, with_unknown

import hymell
from hymell._version import __version__
from hymell.cli import main
from hymell.cli.progress import progress
from hymell.errors import HymellError, TraceError
from hymell.workload import Workload


class FakeApi(SimpleNamespace):
    """Stands where `hymell.api` does, answers with ``answer`` and keeps how it was called."""

    def __init__(self) -> None:
        super().__init__(answer=synthetic_report(), called=[])

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._reply(args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._reply(args, kwargs)

    def _reply(self, args: Any, kwargs: Any) -> Any:
        self.called.append((args, kwargs))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(hymell, "api", fake, raising=False)
    monkeypatch.setitem(sys.modules, "hymell.api", fake)  # type: ignore[arg-type]
    monkeypatch.delenv("HYMELL_DEBUG", raising=False)
    return fake


HEAVY = ("torch", "transformers", "pandas", "huggingface_hub")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_version_of_an_engine_reaches_the_price(api: FakeApi, run: Run) -> None:
    for command in ("report", "kernels", "blocks"):
        status, _, _ = run(command, MODEL, "--engine-version", "0.11.1")
        assert status == 0
        assert api.called[-1][1]["engine_version"] == "0.11.1"
        run(command, MODEL)
        assert api.called[-1][1]["engine_version"] is None


# --- what commands print ---------------------------------------------------------------------


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"hymell {__version__}\n", "")


def test_no_arguments_show_help(run: Run) -> None:
    status, out, _ = run()
    assert status == 0
    for command in ("report", "kernels", "blocks", "ops", "gpus", "models", "cache"):
        assert command in out


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["ops"],
        ["kernels"],
        ["blocks"],
        ["sweetspot"],
        ["compare"],
        ["serve"],
        ["doctor"],
        ["gpus"],
        ["models"],
        ["cache", "info"],
        ["calibrate"],
        ["accuracy"],
        ["data"],
        ["runs", "add"],
        ["runs", "list"],
        ["runs", "remove"],
    ],
    ids=" ".join,
)
def test_every_help_text_has_examples(command: list[str], run: Run) -> None:
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert "Examples:" in out
    assert f"hymell {' '.join(command)}" in out.split("Examples:")[1]


def test_report_passes_every_option_on(api: FakeApi, run: Run) -> None:
    status, out, err = run(
        "report", MODEL, "--gpu", "a100", "--engine", "sglang", "--batch", "4", "--prompt", "10",
        "--engine-version", "0.5",
        "--output", "20", "--dtype", "fp8", "--kv-dtype", "fp8", "--routing-skew", "0.5",
        "--kv-pool-gb", "40", "--price-per-hour", "2.5", "--gco2-per-kwh", "300",
        "--revision", "main", "--trust-remote-code", "--no-cache", "--calibration", "none",
        "--calibrate-with", "runs.csv", "--calibrated", "mine",
        "--tp", "4", "--ep", "2", "--pp", "3", "--microbatches", "2",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.startswith(f"{MODEL}\n")
    ((args, kwargs),) = api.called
    assert args == (MODEL, Workload(4, 10, 20))
    assert kwargs == {
        "gpu": "a100",
        "engine": "sglang",
        "engine_version": "0.5",
        "dtype": "fp8",
        "kv_dtype": "fp8",
        "skew": 0.5,
        "kv_pool_bytes": 40e9,
        "calibration": "none",
        "calibrate_with": Path("runs.csv"),
        "calibrated": "mine",
        "tp": 4,
        "ep": 2,
        "pp": 3,
        "microbatches": 2,
        "price_per_hour": 2.5,
        "gco2_per_kwh": 300.0,
        "revision": "main",
        "trust_remote_code": True,
        "use_cache": False,
        "progress": None,
    }


def test_report_defaults(api: FakeApi, run: Run) -> None:
    assert run("report", MODEL)[0] == 0
    ((args, kwargs),) = api.called
    assert args == (MODEL, Workload(1, 1024, 128))
    assert (kwargs["gpu"], kwargs["engine"], kwargs["dtype"]) == ("h100-sxm", "vllm", None)
    assert kwargs["calibration"] == "auto"
    assert (kwargs["calibrate_with"], kwargs["calibrated"]) == (None, None)
    assert [kwargs[name] for name in ("tp", "ep", "pp", "microbatches")] == [1, 1, 1, 1]
    assert kwargs["trust_remote_code"] is False
    assert kwargs["use_cache"] is True


@pytest.mark.parametrize("command", ["report", "kernels", "blocks"])
@pytest.mark.parametrize("flag", ["--json", "--md", "--csv"])
def test_priced_commands_in_every_format(command: str, flag: str, api: FakeApi, run: Run) -> None:
    status, out, err = run(command, MODEL, flag)
    assert (status, err) == (0, "")
    if flag == "--json":
        assert json.loads(out)["model"] == MODEL
    elif flag == "--md":
        assert out.startswith("# ")
        assert MODEL in out
    else:
        assert (
            len(list(csv.DictReader(io.StringIO(out))))
            == {
                "report": 1,
                "kernels": len(api.answer.kernels),
                "blocks": len(api.answer.blocks),
            }[command]
        )


def test_report_as_json_is_the_report(api: FakeApi, run: Run) -> None:
    _, out, _ = run("report", MODEL, "--json")
    assert json.loads(out) == json.loads(json.dumps(api.answer.to_dict()))


def test_ops_lists_every_op_with_its_cost(api: FakeApi, run: Run) -> None:
    api.answer = toy_graph()
    status, out, _ = run("ops", "toy", "--batch", "2", "--prompt", "5", "--json")
    assert status == 0
    data = json.loads(out)
    assert [op["op"].split(".")[1] for op in data["ops"]] == ["mm", "view", "secret"]
    product, view, secret = data["ops"]
    assert product["inputs"] == ["[B*S, 8] bfloat16", "[8, 16] bfloat16"]
    assert product["outputs"] == ["[B*S, 16] bfloat16"]
    assert product["primitive"] == "gemm"
    assert product["flops"] == 2 * 10 * 8 * 16
    assert product["bytes"] == 2 * (10 * 8 + 8 * 16 + 10 * 16)
    assert (view["primitive"], view["flops"], view["bytes"]) == ("free", 0, 0)
    assert secret["primitive"] == "not registered"
    assert secret["count"] == 3
    assert secret["flops"] is None
    assert secret["bytes"] == 3 * 2 * (10 * 16 + 10 * 16)


def test_ops_in_words(api: FakeApi, run: Run) -> None:
    api.answer = toy_graph()
    status, out, _ = run("ops", "toy")
    assert status == 0
    assert "Prefill: one step at B=1, S=1024, L=0" in out
    assert "not registered" in out
    assert "Decode" not in out


def test_gpus(run: Run) -> None:
    status, out, _ = run("gpus")
    assert status == 0
    assert "rtx-pro-6000-server" in out
    (h100,) = [g for g in json.loads(run("gpus", "--json")[1])["gpus"] if g["name"] == "h100-sxm"]
    assert h100["sources"]
    assert h100["memory_bandwidth_bytes_per_s"] == 3.35e12


def test_models_are_filtered_by_id_name_and_class(run: Run) -> None:
    _, out, _ = run("models", "qwen3-next", "--json")
    names = [model["name"] for model in json.loads(out)["models"]]
    assert names == ["qwen3-next-80b-a3b"]
    by_class = json.loads(run("models", "mixtralfor", "--json")[1])["models"]
    assert {model["architecture"] for model in by_class} == {"MixtralForCausalLM"}
    everything = run("models")[1]
    assert "meta-llama/Meta-Llama-3-8B" in everything


def test_a_model_filter_without_match(run: Run) -> None:
    status, _, err = run("models", "no-such-model")
    assert status == 2
    assert "no known model holds 'no-such-model'" in err


def test_cache_info_and_clear(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hymell import store

    monkeypatch.setenv("HYMELL_CACHE_DIR", str(tmp_path / "graphs"))
    store.put("k" * 64, toy_graph())
    info = json.loads(run("cache", "info", "--json")[1])
    assert info["entries"] == 1
    assert info["path"] == str(tmp_path / "graphs")
    assert json.loads(run("cache", "clear", "--json")[1])["removed"] == 1
    assert "Graphs  0" in run("cache", "info")[1]


# --- how commands end ------------------------------------------------------------------------


def test_what_does_not_fit_is_printed_and_ends_in_1(api: FakeApi, run: Run) -> None:
    api.answer = too_large(synthetic_report())
    status, out, err = run("report", MODEL)
    assert status == 1
    assert "DOES NOT FIT" in out
    assert "needs 813 GB (757 GiB)" in err
    assert "12 GPUs of this size" in err
    status, out, _ = run("report", MODEL, "--json")
    assert status == 1
    assert json.loads(out)["memory"]["fits"] is False


def test_strict_names_what_is_not_understood(api: FakeApi, run: Run) -> None:
    api.answer = with_unknown(synthetic_report())
    assert run("report", MODEL)[0] == 0
    status, out, err = run("report", MODEL, "--strict")
    assert (status, out) == (3, "")
    assert "mylib.secret.default, aten.fft_rfft.default" in err
    status, out, _ = run("report", MODEL, "--strict", "--json")
    assert status == 3
    assert json.loads(out)["error"]["type"] == "NotUnderstoodError"
    api.answer = toy_graph()
    status, _, err = run("ops", "toy", "--strict")
    assert status == 3
    assert "mylib.secret.default" in err


def test_strict_is_silent_when_all_is_understood(api: FakeApi, run: Run) -> None:
    assert run("report", MODEL, "--strict")[0] == 0


def test_bad_input_is_one_sentence_and_2(api: FakeApi, run: Run) -> None:
    api.answer = TraceError("the config has\nno hidden_size; add it")
    assert run("report", MODEL) == (2, "", "hymell: the config has no hidden_size; add it\n")
    status, out, err = run("report", MODEL, "--json")
    assert (status, err) == (2, "")
    assert json.loads(out) == {
        "error": {
            "type": "TraceError",
            "message": "the config has no hidden_size; add it",
            "exit_code": 2,
        }
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report"], "MODEL"),
        (["report", MODEL, "--batch", "many"], "--batch"),
        (["report", MODEL, "--batch", "-1"], "batch must be at least 1"),
        (["report", MODEL, "--prompt", "0"], "prompt must be at least 1"),
        (["report", MODEL, "--output", "999999999999"], "absurd"),
        (["report", MODEL, "--frobnicate"], "--frobnicate"),
        (["report", MODEL, "--md", "--csv"], "--md and --csv"),
        (["ops", MODEL, "--dtype", "int3"], "unknown dtype 'int3'"),
        (["report", MODEL, "--tp", "0"], "tp must be from 1 to 4096, not 0"),
        (["report", MODEL, "--tp", "two"], "--tp"),
        (["kernels", MODEL, "--tp", "4", "--ep", "3"], "ep 3 must divide tp 4"),
        (["blocks", MODEL, "--pp", "-1"], "pp must be from 1 to 4096, not -1"),
        (["report", MODEL, "--microbatches", "2"], "give --pp 2 or more"),
        (["frobnicate"], "frobnicate"),
        (["cache"], "command"),
        (["gpus", "-o", "/no/such/folder/x.md"], "its folder does not exist"),
        (["gpus", "-o", "/"], "it is a folder"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, api: FakeApi, run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words.lower() in err.lower()
    assert "Traceback" not in err
    assert api.called == []
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (2, "")
    assert json.loads(out)["error"]["exit_code"] == 2


def test_json_after_a_double_dash_is_no_flag(run: Run) -> None:
    status, out, err = run("gpus", "--", "--json")
    assert (status, out) == (2, "")
    assert err


def test_a_bug_asks_for_a_report(api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answer = KeyError("surprise")
    status, out, err = run("report", MODEL)
    assert (status, out) == (70, "")
    assert err.count("\n") == 1
    assert "report" in err
    assert "HYMELL_DEBUG=1" in err
    status, out, _ = run("report", MODEL, "--json")
    assert status == 70
    assert json.loads(out)["error"]["type"] == "InternalError"
    monkeypatch.setenv("HYMELL_DEBUG", "1")
    status, _, err = run("report", MODEL)
    assert status == 70
    assert "Traceback" in err


def test_no_traceback_for_bad_input_even_when_debugging(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYMELL_DEBUG", "1")
    api.answer = HymellError("no")
    assert run("report", MODEL) == (2, "", "hymell: no\n")


def test_interrupt_is_130(api: FakeApi, run: Run) -> None:
    api.answer = KeyboardInterrupt()
    status, out, err = run("report", MODEL)
    assert (status, out, err) == (130, "", "hymell: interrupted\n")


# --- files and pipes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start"), [("a.json", "{"), ("a.md", "# "), ("a.csv", "model,"), ("a.txt", MODEL)]
)
def test_output_file_takes_its_format_from_its_suffix(
    name: str, start: str, api: FakeApi, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / name
    status, out, err = run("report", MODEL, "-o", str(file))
    assert (status, out) == (0, "")
    assert str(file) in err
    assert file.read_text(encoding="utf-8").startswith(start)
    assert os.listdir(tmp_path) == [name]


def test_a_flag_beats_the_suffix(api: FakeApi, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    run("report", MODEL, "--json", "--output-file", str(file))
    assert json.loads(file.read_text())["model"] == MODEL


def test_a_failure_keeps_the_file(api: FakeApi, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("precious")
    api.answer = HymellError("no")
    assert run("report", MODEL, "-o", str(file))[0] == 2
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_failed_write_keeps_the_file_and_leaves_nothing(
    api: FakeApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    file.write_text("precious")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = run("report", MODEL, "-o", str(file))
    assert status == 2
    assert "No space left on device" in err
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == ["report.json"]


def test_writing_keeps_mode_and_link(api: FakeApi, run: Run, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("report", MODEL, "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["model"] == MODEL
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_obeys_the_umask(api: FakeApi, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    before = os.umask(0o027)
    try:
        run("report", MODEL, "-o", str(file))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_device_is_written_to(api: FakeApi, run: Run) -> None:
    assert run("report", MODEL, "-o", "/dev/null")[0] == 0
    assert not Path("/dev/null").is_file()


def hymell_process(*arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hymell", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def test_a_reader_that_leaves_is_no_error() -> None:
    process = hymell_process("gpus", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_piped_text_is_plain_and_survives_an_ascii_locale() -> None:
    out, err = hymell_process("gpus", PYTHONIOENCODING="ascii", FORCE_COLOR="").communicate()
    assert err == ""
    assert "\x1b" not in out
    assert out.isascii()
    assert "h100-sxm" in out


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress() as step:
        assert step is None
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("hymell.cli.progress._DELAY_S", 30.0)
    with progress() as step:
        assert step is not None
        step("building the model")
    assert screen.getvalue() == ""


def test_progress_shows_the_step_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("hymell.cli.progress._DELAY_S", 0.0)
    with progress() as step:
        assert step is not None
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
        step("tracing [bold]x")
    assert "tracing [bold]x" in screen.getvalue()


# --- the whole way ---------------------------------------------------------------------------

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a small config whose graph is in a cache of its own."""
    folder = tmp_path_factory.mktemp("cli")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYMELL_CACHE_DIR", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert main(["report", str(config), "-o", str(folder / "first.json")]) == 0
        yield str(config)


def test_a_report_of_a_real_config_follows_the_schema(traced: str, run: Run) -> None:
    status, out, err = run("report", traced, "--json", "--strict")
    assert (status, err) == (0, "")
    schema = Path(__file__).parents[1] / "docs" / "report.schema.json"
    data = json.loads(out)
    Draft202012Validator(json.loads(schema.read_text())).validate(data)
    assert data["parameters"]["total"] == 2 * 64_000 + 64 + 3 * (3 * 64 * 160 + 3 * 64 * 64 + 128)
    for phase in ("prefill", "decode"):
        shares = [b["share_of_time"] for b in data["blocks"] if b["phase"] == phase]
        assert sum(shares) == pytest.approx(1)


def test_kernels_blocks_and_ops_of_a_real_config(traced: str, run: Run) -> None:
    status, out, _ = run("kernels", traced)
    assert status == 0
    assert "LlamaDecoderLayer" in out
    assert "n=160" in out or "n=320" in out
    status, out, _ = run("blocks", traced, "--csv")
    assert status == 0
    assert {row["block"] for row in csv.DictReader(io.StringIO(out))} == {
        "embed",
        "attention",
        "ffn",
        "head",
    }
    status, out, _ = run("ops", traced, "--json", "--strict", "--prompt", "7")
    assert status == 0
    ops = json.loads(out)["ops"]
    assert {op["phase"] for op in ops} == {"prefill", "decode"}
    head = [op for op in ops if op["path"] == "lm_head" and op["flops"]]
    assert [op["flops"] for op in head] == [2 * 64 * 1000, 2 * 64 * 1000]


def test_a_workload_too_large_for_the_gpu_says_what_fits(traced: str, run: Run) -> None:
    status, out, err = run("report", traced, "--gpu", "l4", "--batch", "100000", "--json")
    assert status == 1
    memory = json.loads(out)["memory"]
    assert 0 < memory["max_batch"] < 100_000
    assert str(memory["max_batch"]) in err


def test_a_cached_report_imports_nothing_heavy(traced: str, run: Run) -> None:
    _, expected, _ = run("report", traced)
    code = (
        "import sys\n"
        "from hymell.cli import main\n"
        f"status = main(['report', {traced!r}])\n"
        f"print(status, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"
    assert done.stdout == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "no-such-owner/no-such-model"],
        ["report", "./no/such/folder"],
        ["report", "llama-3-8b", "--gpu", "h1000"],
        ["report", "llama-3-8b", "--engine", "vlm"],
        ["report", "llama-3-8b", "--dtype", "int3"],
        ["report", "llama-3-8b", "--kv-dtype", "int3"],
        ["kernels", "no-such-owner/no-such-model"],
        ["ops", "no-such-owner/no-such-model"],
    ],
    ids=" ".join,
)
def test_real_bad_input_is_one_sentence(
    arguments: list[str], traced: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("hymell: ")
    assert err.count("\n") == 1


def test_starting_up_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from hymell.cli import main\n"
        "status = main(['gpus', '--json', '-o', '/dev/null'])\n"
        f"print(status, [m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


# --- stdout that takes nothing ------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "arguments",
    [("report", "llama-3-8b"), ("report", "llama-3-8b", "--json"), ("--version",), ("gpus",)],
)
def test_a_full_disk_behind_stdout_is_one_sentence(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "hymell", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert found.returncode == 2
    (line,) = found.stderr.strip().splitlines()
    assert "No space left on device" in line


def _with_closed(descriptor: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "$0" -m hymell "$@" {descriptor}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments], capture_output=True, text=True
    )


def test_a_closed_stdout_is_one_sentence_and_no_hindrance_to_a_file(tmp_path: Path) -> None:
    found = _with_closed(">&-", "report", "llama-3-8b")
    assert found.returncode == 2
    assert (
        found.stderr == "hymell: cannot write to stdout: it is closed; name a file with -o FILE\n"
    )
    file = tmp_path / "report.txt"
    assert _with_closed(">&-", "report", "llama-3-8b", "-o", str(file)).returncode == 0
    assert "TTFT" in file.read_text()


def test_a_closed_stderr_hinders_nothing() -> None:
    found = _with_closed("2>&-", "report", "llama-3-8b")
    assert found.returncode == 0
    assert "TTFT" in found.stdout
    assert _with_closed("2>&-", "report", "llama-3-8b", "--gpu", "no-such").returncode == 2
