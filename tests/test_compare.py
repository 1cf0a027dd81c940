"""`hymell compare`: differences, their intervals, where they come from, conditions, the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn
from synthetic_report import synthetic_report

import hymell
from hymell.analysis.compare import OUTSIDE, Condition, broken, compare_reports
from hymell.cli import main
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.report.compare_plot import bars, draw
from hymell.workload import Workload

MODELS = ("llama-3-8b", "qwen3-8b")


def slower(report: CostReport, factor: float, **fields: Any) -> CostReport:
    """The same report with every time multiplied."""
    phases = {
        name: replace(getattr(report, name), time_s=getattr(report, name).time_s * factor)
        for name in ("prefill", "decode")
    }
    return replace(
        report,
        ttft_s=report.ttft_s * factor,
        tpot_s=None if report.tpot_s is None else report.tpot_s * factor,
        latency_s=report.latency_s * factor,
        blocks=tuple(replace(b, time_s=b.time_s * factor) for b in report.blocks),
        kernels=tuple(replace(k, time_s=k.time_s * factor) for k in report.kernels),
        **phases,
        **fields,
    )


def within(report: CostReport, share: float) -> CostReport:
    """The report with intervals of its times that reach so far down and up."""
    names = ("ttft_s", "tpot_s", "latency_s")
    values = {name: getattr(report, name) for name in names}
    return replace(
        report, intervals={n: (v / (1 + share), v * (1 + share)) for n, v in values.items()}
    )


@pytest.mark.parametrize(
    ("factor", "share", "verdict"),
    [
        (1.30, 0.1, "more"),
        (0.70, 0.1, "less"),
        (1.10, 0.1, "no difference"),
    ],
)
def test_a_difference_has_to_leave_the_intervals(factor: float, share: float, verdict: str) -> None:
    base = within(synthetic_report(), share)
    other = within(slower(synthetic_report(), factor), share)
    found = {d.quantity: d for d in compare_reports({"a": base, "b": other}).differences}
    ttft = found["ttft_s"]
    assert ttft.verdict == verdict
    assert ttft.ratio == pytest.approx(factor)
    # Two errors of one size, neither knowing of the other.
    assert ttft.high is not None
    assert math.log(ttft.high / factor) == pytest.approx(math.sqrt(2) * math.log(1 + share))


def test_without_intervals_estimates_are_undecided_and_sizes_are_not() -> None:
    base = synthetic_report()
    memory = replace(base.memory, total_bytes=base.memory.total_bytes * 0.9)
    other = slower(base, 3.0, memory=memory, intervals={})
    base = replace(base, intervals={})
    found = {d.quantity: d for d in compare_reports({"a": base, "b": other}).differences}
    assert found["ttft_s"].verdict == "undecided"
    assert found["memory_bytes"].verdict == "less"
    assert "cost_per_million_output_tokens" not in found or base.cost is not None


@pytest.mark.parametrize("name", ["by_block", "by_kernel"])
def test_steps_add_up_to_what_latency_and_energy_differ_by(name: str) -> None:
    base = hymell.predict(MODELS[0], Workload(4, 512, 32))
    other = hymell.predict(MODELS[1], Workload(4, 512, 32))
    steps = getattr(compare_reports({"a": base, "b": other}), name)
    added_s = sum(step.added_s for step in steps)
    added_j = sum(step.added_j for step in steps)
    assert added_s == pytest.approx(other.latency_s - base.latency_s)
    assert added_j == pytest.approx(other.energy_j - base.energy_j)
    assert {step.part for step in steps} > {OUTSIDE}
    sizes = [abs(step.added_s) for step in steps]
    assert sizes == sorted(sizes, reverse=True)


def test_one_case_and_different_workloads_are_refused() -> None:
    report = synthetic_report()
    with pytest.raises(HymellError, match="nothing to compare"):
        compare_reports({"a": report})
    longer = replace(report, workload={**report.workload, "prompt": 7})
    with pytest.raises(HymellError, match="one workload"):
        compare_reports({"a": report, "b": longer})


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("tpot_s > 1.05 * baseline", True),
        ("tpot_s>1.2*baseline", False),
        ("tpot_s >= baseline", True),
        ("tpot_s > baseline * 1.05", True),
        ("ttft_s < 1e-9", False),
        ("memory_bytes <= baseline", True),
    ],
)
def test_conditions(text: str, met: bool) -> None:
    base = synthetic_report()
    found = compare_reports({"a": base, "b": slower(base, 1.1)})
    assert bool(broken(found, [Condition.parse(text)])) is met


@pytest.mark.parametrize(
    "text", ["tpot > 3", "tpot_s = 3", "tpot_s > x", "tpot_s > 1..5", "tpot_s > 2 * 3", ""]
)
def test_a_condition_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(HymellError, match="condition"):
        Condition.parse(text)


def test_a_condition_on_a_figure_that_is_missing_is_refused() -> None:
    base = replace(synthetic_report(), cost=None)
    found = compare_reports({"a": base, "b": base})
    with pytest.raises(HymellError, match="a price"):
        broken(found, [Condition.parse("cost_per_million_output_tokens > 1")])


def test_small_steps_are_added_up_and_the_picture_is_drawn() -> None:
    base = hymell.predict(MODELS[0], Workload(1, 256, 16))
    other = hymell.predict(MODELS[1], Workload(1, 256, 16))
    found = compare_reports({"a": base, "b": other})
    drawn = bars(list(found.by_kernel))
    assert sum(added for _, added in drawn) == pytest.approx(other.latency_s - base.latency_s)
    assert draw(found, ".svg").startswith(b"<?xml")


def test_every_combination_is_a_case_named_by_what_varies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["compare", "llama-3-8b", "--gpu", "h100-sxm,l40s", "--engine", "vllm,trtllm"]
    assert main([*asked, "--json", "--price-per-hour", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    labels = [case["label"] for case in data["cases"]]
    assert labels == ["h100-sxm, vllm", "h100-sxm, trtllm", "l40s, vllm", "l40s, trtllm"]
    assert data["baseline"] == labels[0]
    assert {d["quantity"] for d in data["differences"]} >= {
        "tpot_s",
        "memory_bytes",
        "cost_per_million_output_tokens",
    }
    found = hymell.compare("llama-3-8b", Workload(), gpus=["h100-sxm", "l40s"])
    assert found.labels == ("h100-sxm", "l40s")
    assert found.reports[0].to_dict() == hymell.predict("llama-3-8b", Workload()).to_dict()


def test_a_guard_fails_with_status_1_and_the_page_is_printed_all_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "where.png"
    asked = ["compare", *MODELS, "--fail-if", "latency_s > 0.5 * baseline", "--plot", str(plot)]
    assert main(asked) == 1
    printed = capsys.readouterr()
    assert "qwen3-8b: latency_s is" in printed.err
    assert "Where qwen3-8b differs, by block" in printed.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["compare", *MODELS, "--fail-if", "latency_s > 5 * baseline", "--csv"]) == 0
    assert "latency_s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["llama-3-8b"], "nothing to compare"),
        (["llama-3-8b", "llama-3-8b"], "name each model once"),
        (["llama-3-8b", "--gpu", "h100-sxm,h100-sxm"], "named twice"),
        (["llama-3-8b", "--gpu", ","], "at least one GPU"),
        (["llama-3-8b", "--gpu", "h100-sxm,h9000"], "unknown GPU 'h9000'"),
        ([*MODELS, "--fail-if", "tpot > 1"], "cannot read the condition"),
        ([*MODELS, "--plot", "where.txt"], "a plot is a"),
        ([*MODELS, "--plot", "nowhere/where.png"], "its folder does not exist"),
        ([*MODELS, "--engine-version", "0.6"], "no system of vllm 0.6"),
        ([*MODELS, "--calibrated", "nothing"], "no runs are kept under 'nothing'"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    asked: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *asked]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""


# --- revisions and quantised checkpoints, through the hub ---------------------------------------

BASE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


#: Weights of the matrices of a layer: query and output, key and value, feed-forward.
LINEAR = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["compare", *arguments, "--no-cache", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_two_revisions_of_one_repo(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    old = hub.publish("org/m", {"config.json": BASE})
    hub.publish("org/m", {"config.json": BASE | {"num_hidden_layers": 32}})
    found = compared(capsys, f"org/m@{old}", "org/m@main")
    labels = [case["label"] for case in found["cases"]]
    assert labels == [f"org/m@{old}", "org/m@main"]
    differences = {d["quantity"]: d for d in found["differences"]}
    layer = LINEAR + 2 * 4096  # two norms
    memory = differences["memory_bytes"]
    assert memory["verdict"] == "more"
    cache = 24 * 2 * 1024 * 2 * (1024 + 128 - 1)  # nothing follows the last token
    assert memory["value"] - memory["baseline"] == pytest.approx(24 * layer * 2 + cache)
    assert differences["tpot_s"]["ratio"] > 1.1
    steps = {(step["phase"], step["part"]) for step in found["by_block"]}
    assert {("decode", "attention"), ("decode", "ffn")} <= steps


def test_a_guard_between_revisions(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    old = hub.publish("org/m", {"config.json": BASE})
    hub.publish("org/m", {"config.json": BASE | {"num_hidden_layers": 32}})
    guard = ("--fail-if", "tpot_s > 1.05 * baseline", "--no-cache")
    assert main(["compare", f"org/m@{old}", "org/m@main", *guard]) == 1
    assert "org/m@main: tpot_s is" in capsys.readouterr().err
    assert main(["compare", "org/m@main", f"org/m@{old}", *guard]) == 0


def test_a_revision_that_is_not_there(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    hub.publish("org/m", {"config.json": BASE})
    assert main(["compare", "org/m@main", "org/m@v9"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "v9" in line


def test_a_base_and_its_quantised_checkpoint(
    hub: HubStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.publish("org/m", {"config.json": BASE})
    hub.publish("org/m-FP8", {"config.json": BASE | {"quantization_config": FP8}})
    found = compared(capsys, "org/m", "org/m-FP8")
    formats = [case["assumptions"]["dtype"] for case in found["cases"]]
    assert formats[0].startswith("weights bfloat16")
    assert formats[1].startswith("weights fp8")
    differences = {d["quantity"]: d for d in found["differences"]}
    assert differences["memory_bytes"]["verdict"] == "less"
    weights = [case["memory"]["weights_bytes"] for case in found["cases"]]
    # Linear layers of 8 blocks lose a byte per weight; embeddings, head and norms keep both.
    assert weights[0] - weights[1] == pytest.approx(8 * LINEAR, rel=0.01)
    assert differences["tpot_s"]["ratio"] < 1
