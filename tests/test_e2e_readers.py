"""Readers of whole-model runs: each tidy table in miniature, then those of this machine if any."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hymell.errors import HymellError
from hymell.hardware import load_gpu
from hymell.measure import data
from hymell.measure.e2e import names, read_runs, run_files
from hymell.measure.e2e.bounds import Run, bound
from hymell.measure.e2e.filters import POWER_REASONS, REASONS
from hymell.measure.e2e.table import RUN_COLUMNS
from hymell.measure.table import Table
from hymell.zoo import find

COMMON = {
    "source": "x",
    "model": "llama-3-8b",
    "gpu": "H100",
    "framework": "vLLM",
    "dtype": "fp16",
    "tp": 1,
    "batch": 1,
    "input_len": 128,
    "output_len": 128,
    "phase": "e2e",
    "latency_ms": 1000.0,
    "energy_j": np.nan,
    "power_w": np.nan,
}


def write(root: Path, name: str, **columns: Any) -> Path:
    path = root / "e2e" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = [value for value in columns.values() if isinstance(value, list)]
    index = range(len(lists[0]) if lists else 1)
    pd.DataFrame(COMMON | columns, index=index).to_csv(path, index=False)
    return path


def dropped(table: Table) -> dict[str, int]:
    """Rows left out by reason, which with the rows kept must be the rows read."""
    counts: dict[str, int] = {}
    for tally in table.tallies:
        for reason, n in tally.dropped.items():
            counts[reason] = counts.get(reason, 0) + n
    assert sum(tally.rows_in for tally in table.tallies) == len(table) + sum(counts.values())
    assert set(counts) <= set(REASONS)
    return counts


def values(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].tolist() for name in columns), strict=True))


# -- names


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("vLLM", ("vllm", "unknown", "vllm")),
        ("vllm-0.19.0", ("vllm", "0.19.0", "vllm")),
        ("TensorRT-LLM-0.5", ("trtllm", "0.5", "trtllm")),
        ("trtllm-1.2.0rc6.post2", ("trtllm", "1.2.0rc6.post2", "trtllm")),
        ("HF-eager(FastChat)", ("pytorch", "FastChat", "eager")),
        ("llama.cpp-2024-05", ("llama.cpp", "2024-05", "")),
        ("Deepspeed-MII", ("deepspeed-mii", "unknown", "")),
        ("another", ("another", "unknown", "")),
    ],
)
def test_a_framework_is_a_library_a_version_and_an_engine(
    upstream: str, expected: tuple[str, str, str]
) -> None:
    assert names.library(upstream) == expected


def test_every_mapped_model_is_one_of_the_zoo() -> None:
    for upstream in names._MODELS:
        assert names.zoo(upstream), upstream
    assert names.zoo("decilm-7b") == ""


# -- what all sets share


def test_a_bound_is_weights_over_bandwidth_and_products_over_the_peak() -> None:
    gpu, known = load_gpu("h100-sxm"), find("llama-3-8b")
    assert known is not None
    assert known.parameters is not None
    body = known.parameters - 2 * 128256 * 4096
    one = bound(Run("llama-3-8b", "h100-sxm", "float16", 1, 1, 4096, 4096))
    assert one is not None
    assert one.prefill_s == pytest.approx(2 * body * 4096 / gpu.peak("fp16"))
    cache = 4096 * 131072
    read = 2 * (body + 128256 * 4096) + cache
    assert one.step_s == pytest.approx(read / gpu.memory_bandwidth_bytes_per_s)
    four = bound(Run("llama-3-8b", "h100-sxm", "float16", 4, 1, 4096, 4096))
    assert four is not None
    assert four.step_s == pytest.approx(one.step_s / 4)


@pytest.mark.parametrize(
    "unknown", [{"zoo": ""}, {"gpu": "amd-mi355x"}, {"dtype": "w1a1"}, {"n_gpus": float("nan")}]
)
def test_there_is_no_bound_without_its_facts(unknown: dict[str, Any]) -> None:
    facts = {"zoo": "llama-3-8b", "gpu": "h100-sxm", "dtype": "float16", "n_gpus": 1.0}
    assert bound(Run(**(facts | unknown), batch=1, prompt=1, context=1)) is None


def test_hybrid_models_are_bound_by_their_weights_alone() -> None:
    """Their few attention layers must not count as if every layer had a cache."""
    short, long = (
        bound(Run("nemotron-nano-9b-v2", "h100-sxm", "bfloat16", 1, 64, 1, context))
        for context in (1, 100_000)
    )
    assert short is not None
    assert long is not None
    assert short.step_s == long.step_s


def test_what_no_gpu_can_do_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "llamacpp_xdai", phase="decode", latency_ms=[3.0, 6.0, 0.0, np.nan])
    table = read_runs("llamacpp_xdai", tmp_path)
    assert table["tpot_s"].tolist() == [6e-3]
    assert dropped(table) == {"faster_than_data_sheet": 1, "not_finite": 2}


def test_only_tables_with_a_reader_are_opened(tmp_path: Path) -> None:
    write(tmp_path, "argonne_ttft", phase="prefill", output_len=1)
    (tmp_path / "e2e/holdout.sealed").mkdir()
    write(tmp_path, "holdout")
    assert [file.set for file in run_files(tmp_path)] == ["argonne_ttft"]
    table = read_runs(root=tmp_path)
    assert tuple(table.to_frame().columns) == RUN_COLUMNS
    assert values(table, "set", "ttft_s", "context") == [("argonne_ttft", 1.0, 128.5)]


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match="no end-to-end measurements"):
        read_runs(root=tmp_path)
    write(tmp_path, "argonne_ttft")
    with pytest.raises(HymellError, match=r"no end-to-end set 'argonne'.*there are: argonne_ttft"):
        read_runs("argonne", tmp_path)


def test_the_summary_of_the_data_lists_runs_beside_kernels(tmp_path: Path) -> None:
    write(tmp_path, "argonne_power", kv_fill=[0.1, 2.0], power_w=300.0, energy_j=300.0)
    (tally,) = data.summary(tmp_path)
    assert (tally.source, tally.op, tally.rows_in, tally.rows) == (
        "argonne_power",
        "whole_model",
        2,
        1,
    )
    assert (tally.dropped, tally.power_rows) == ({"kv_overflow": 1}, 1)


def test_the_docs_word_every_reason_as_the_code_does() -> None:
    page = (Path(__file__).parents[1] / "docs/data.md").read_text(encoding="utf-8")
    for name, why in {**REASONS, **POWER_REASONS}.items():
        assert f"| `{name}` | {why} |" in page


# -- by source


def argonne(root: Path, **columns: Any) -> Table:
    write(root, "argonne_e2e", n_rep=1, spread=0.0, **({"kv_fill": 0.1} | columns))
    return read_runs("argonne_e2e", root)


def test_argonne_runs_that_overflow_stop_early_or_route_alike_are_left_out(tmp_path: Path) -> None:
    table = argonne(
        tmp_path,
        model=["decilm-7b", "decilm-7b", "decilm-7b", "mixtral-8x7b", "llama-2-7b"],
        framework=["vLLM", "vLLM", "vLLM", "TensorRT-LLM", "vLLM"],
        tp=[1, 1, 1, 4, 1],
        input_len=[512, 1024, 2048, 128, 128],
        output_len=[512, 1024, 2048, 128, 128],
        latency_ms=[3e3, 6e3, 50.0, 5e3, 9e3],
        kv_fill=[0.1, 0.1, 0.1, 0.1, 1.5],
    )
    assert table["latency_s"].tolist() == [3.0, 6.0]
    assert dropped(table) == {"early_stop": 1, "degenerate_routing": 1, "kv_overflow": 1}


def test_argonne_mistral_is_left_out_only_where_its_truth_is_off(tmp_path: Path) -> None:
    table = argonne(
        tmp_path,
        model="mistral-7b",
        gpu=["H100", "H100", "GH200", "H100"],
        framework=["vLLM", "vLLM", "vLLM", "TensorRT-LLM"],
        batch=[32, 16, 32, 32],
        latency_ms=3e3,
    )
    assert dropped(table) == {"mistral_large_batch": 1}
    assert values(table, "gpu", "library", "batch") == [
        ("h100-sxm", "vllm", 16),
        ("gh200", "vllm", 32),
        ("h100-sxm", "trtllm", 32),
    ]


def test_argonne_lengths_of_the_grid_are_no_early_stops(tmp_path: Path) -> None:
    write(
        tmp_path,
        "argonne_grid_a100",
        gpu="A100-40",
        input_len=[128, 256],
        output_len=[256, 128],
        latency_ms=[3600.0, 1800.0],
    )
    table = read_runs("argonne_grid_a100", tmp_path)
    assert table["gpu"].tolist() == ["a100-sxm-40gb"] * 2
    assert not dropped(table)


def test_argonne_power_that_does_not_move_is_blanked_and_its_time_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        "argonne_power",
        framework="TensorRT-LLM",
        gpu=["H100", "H100", "GH200"],
        batch=[1, 16, 16],
        power_w=[413.0, 449.0, 446.0],
        energy_j=[413.0, 449.0, 446.0],
    )
    table = read_runs("argonne_power", tmp_path)
    np.testing.assert_array_equal(table["power_w"], [413.0, np.nan, 446.0])
    np.testing.assert_array_equal(table["energy_j"], [413.0, np.nan, 446.0])
    assert [t.power_unusable for t in table.tallies] == [{"power_flat": 1}, {}]


def splitwise(root: Path, check: Iterable[float], prompts: Iterable[int]) -> Table:
    rows = [
        COMMON
        | {
            "model": "llama-2-70b",
            "gpu": "A100-80",
            "framework": "vLLM-2023",
            "tp": 2,
            "input_len": prompt,
            "phase": phase,
            "latency_ms": time,
            "n_rep": 5,
            "cv": {"prefill": 0.01, "decode": 0.03}.get(phase),
            "e2e_check": agreement,
            "energy_j": 3000.0 if phase == "e2e" else None,
            "power_w": 500.0 if phase == "e2e" else None,
        }
        for agreement, prompt in zip(check, prompts, strict=True)
        for phase, time in (("prefill", 2000.0), ("decode", 60.0), ("e2e", 9620.0))
    ]
    (root / "e2e").mkdir()
    pd.DataFrame(rows).to_csv(root / "e2e/splitwise.csv", index=False)
    return read_runs("splitwise", root)


def test_splitwise_phases_stand_in_one_row_and_must_add_up(tmp_path: Path) -> None:
    table = splitwise(tmp_path, (1.001, 3.5, 0.97, 1.0), (512, 1024, 2048, 8192))
    measured = values(table, "prompt", "ttft_s", "tpot_s", "latency_s", "repeats", "spread")
    assert measured == [(512, 2.0, 0.06, 9.62, 5, 0.03), (8192, 2.0, 0.06, 9.62, 5, 0.03)]
    assert dropped(table) == {"joined": 8, "parts_do_not_add_up": 2}
    np.testing.assert_array_equal(table["energy_j"], [3000.0, np.nan])
    assert table.tallies[0].power_unusable == {"power_of_another_window": 1}


def mlenergy(root: Path, name: str, **columns: Any) -> Table:
    usual = {"phase": "decode", "latency_ms": 50.0, "energy_j": 0.2, "task": "gpqa", "tput": 900.0}
    write(root, name, **(usual | {"input_len": np.nan, "framework": "vLLM-0.11.1"} | columns))
    return read_runs(name, root)


def test_mlenergy_3_says_how_gpus_share_a_model(tmp_path: Path) -> None:
    table = mlenergy(
        tmp_path,
        "mlenergy_v3",
        model_id=["Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-Coder-480B-A35B-Instruct"],
        model="qwen3",
        tp=[2, 8],
        epar=[2, 8],
        dpar=[1, 8],
        lb_out=300.0,
        power_w=[900.0, 5000.0],
        batch=[8.0, 64.0],
    )
    assert values(table, "zoo", "n_gpus", "tp", "ep", "dp") == [
        ("qwen3-30b-a3b-2507", 2, 2, 2, 1),
        ("qwen3-coder-480b-a35b", 8, 1, 8, 8),
    ]
    assert values(table, "tpot_s", "energy_per_token_j", "throughput") == [(0.05, 0.2, 900.0)] * 2
    assert np.isnan(table["energy_j"]).all()
    # The prompt is typical of the task; answers in flight are the long ones.
    assert values(table, "prompt", "prompt_stated", "context") == [(250, False, 400)] * 2


def test_mlenergy_2_is_without_pipelines_and_power_over_the_limit(tmp_path: Path) -> None:
    table = mlenergy(
        tmp_path,
        "mlenergy_v2",
        framework="vLLM-0.5",
        model=["llama-3-8b", "llama-3-8b", "llama-3-405b"],
        tp=[1, 1, 8],
        pp=[1, 1, 2],
        power_w=[699.0, 701.0, 5000.0],
    )
    assert values(table, "power_w", "version") == [(699.0, "0.5")]
    assert dropped(table) == {"power_above_tdp": 1, "pipeline_cut": 1}


def test_wilkins_has_no_cache_and_a_layer_on_one_gpu_at_a_time(tmp_path: Path) -> None:
    write(
        tmp_path,
        "wilkins_grid_a100",
        model="falcon-40b",
        gpu="A100-40",
        framework="HF-eager use_cache=False",
        tp=3,
        maxout=[16, 32],
        output_len=[16, 31],
        latency_ms=60e3,
        energy_j=900.0,
        power_w=300.0,
    )
    table = read_runs("wilkins_grid_a100", tmp_path)
    assert values(table, "n_gpus", "tp", "pp", "kv_cache", "engine", "output") == [
        (3, 1, 3, False, "eager", 31)
    ]
    assert dropped(table) == {"short_output": 1}


def silicon(root: Path, **columns: Any) -> Table:
    usual = {
        "model": "minimax-m2.5",
        "framework": "vllm-0.19.0",
        "backend": "vllm",
        "gpu": "b200_sxm",
        "dtype": "fp8",
        "moe_dtype": "fp8",
        "phase": "tpot",
        "latency_ms": 20.0,
        "ttft_ms": 100.0,
        "batch": 8.0,
        "concurrency": 8.0,
        "adp": 1.0,
        "moe_tp": 1.0,
        "moe_ep": 1.0,
        "sub": "inferencemax_csv",
    }
    write(root, "aic_silicon", **(usual | columns))
    return read_runs("aic_silicon", root)


def test_silicon_counts_the_gpus_that_the_name_of_a_run_states(tmp_path: Path) -> None:
    table = silicon(
        tmp_path,
        id=["x_c8_tp8_ep8_1", "x_c8_tp4_0_ep1_0_2", "x_c8_tp2_ep2_3"],
        tp=[64.0, 4.0, 1.0],
        moe_tp=[8.0, 4.0, 2.0],
        moe_ep=[8.0, 1.0, 2.0],
        adp=[1.0, 1.0, 4.0],
        latency_ms=[20.0, 21.0, 22.0],
    )
    assert values(table, "n_gpus", "tp", "ep", "dp") == [(8, 8, 8, 1), (4, 4, 1, 1), (2, 1, 2, 2)]
    assert table["queued"].all()


def test_fp8_is_what_the_published_checkpoint_stores(tmp_path: Path) -> None:
    table = silicon(
        tmp_path,
        id=[f"x_c8_tp8_ep1_{k}" for k in range(4)],
        tp=8.0,
        model=["minimax-m2.5", "zhipuai/GLM-5", "llama-3-70b", "qwen3-32b"],
        moe_dtype=["fp8", "fp8_block", "fp8", "nvfp4"],
        dtype=["fp8", "fp8", "fp8", "nvfp4"],
    )
    assert values(table, "zoo", "dtype") == [
        ("minimax-m2", "float8_block128"),
        ("glm-5", "float8_block128"),
        ("llama-3-70b", "float8_e4m3"),
        ("qwen3-32b", "nvfp4"),
    ]
    v3 = mlenergy(
        tmp_path,
        "mlenergy_v3",
        model_id=[
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
            "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
            "meta-llama/Llama-3.1-405B-Instruct-FP8",
        ],
        model="m",
        dtype="fp8",
        tp=8,
        epar=8,
        dpar=1,
        lb_out=300.0,
        power_w=900.0,
        batch=[8.0, 16.0, 32.0],
    )
    assert list(v3["dtype"]) == ["float8_block128", "float8_block128", "float8_e4m3"]


def test_silicon_refuses_what_it_cannot_tell_apart(tmp_path: Path) -> None:
    table = silicon(
        tmp_path,
        sub=["inferencemax_db"] * 3 + ["nv_gap"] * 2 + ["inferencemax_csv"],
        id=["a_cfg1", "b_cfg2", "c_cfg3", "d_c8_tp2_epnone_1", "e_c_tp2_epnone_2", "f_tp72_ep1_1"],
        tp=[4.0, 2.0, 4.0, 2.0, 2.0, 72.0],
        moe_tp=[2.0, 1.0, 4.0, 1.0, 1.0, 72.0],
        moe_ep=[2.0, 4.0, 1.0, 1.0, 1.0, 1.0],
        adp=[1.0, 2.0, 1.0, np.nan, np.nan, 1.0],
        batch=[8.0, 8.0, 8.0, 4.0, 8.0, 8.0],
        concurrency=[8.0, 8.0, 8.0, 8.0, np.nan, 8.0],
        latency_ms=[20.0, 21.0, 22.0, 23.0, 24.0, 25.0],
    )
    # Two replicas of tp 2 answer eight requests, four each.
    assert values(table, "n_gpus", "tp", "dp", "batch") == [(4, 4, 1, 8), (4, 2, 2, 8)]
    assert dropped(table) == {
        "parallelism_unclear": 2,
        "batch_not_stated": 1,
        "several_machines": 1,
    }


def test_silicon_merges_repeats_and_drops_copies_and_what_does_not_fit(tmp_path: Path) -> None:
    table = silicon(
        tmp_path,
        model=["gpt-oss-120b"] * 3 + ["llama-3-70b"],
        dtype=["nvfp4"] * 3 + ["fp8"],
        gpu="h200_sxm",
        tp=[8.0, 8.0, 8.0, 1.0],
        id=["x_tp8_ep1_1", "x_tp8_ep1_2", "x_tp8_ep1_3", "y_tp1_ep1_4"],
        output_len=[128, 128, 128, 8192],
        latency_ms=[10.0, 10.0, 12.0, 30.0],
        concurrency=[4.0, 4.0, 4.0, 512.0],
    )
    assert values(table, "dtype", "tpot_s", "repeats") == [("mxfp4", pytest.approx(11e-3), 2)]
    assert table["spread"].tolist() == [pytest.approx(2 / 11)]
    assert dropped(table) == {"exact_copy": 1, "repeat": 1, "kv_overflow": 1}


def test_neusight_keeps_forward_passes_and_what_peers_say_of_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        "neusight",
        model="bert_large",
        gpu=["NVIDIA_L4", "NVIDIA_L4", "NVIDIA_L4", "NVIDIA_H100_80GB_HBM3"],
        framework="pytorch-eager-hf",
        dtype="fp32",
        output_len=0,
        phase=["prefill", "prefill", "train", "prefill"],
        option=[None, "fusion", "dp4", "fusion"],
        **{f"p_{peer}": 900.0 for peer in ("neusight", "roofline", "habitat", "micro")},
    )
    table = read_runs("neusight", tmp_path)
    assert values(table, "zoo", "engine", "ttft_s", "p_habitat_s") == [
        ("bert-large-classifier", "eager", 1.0, 0.9),
        ("bert-large-classifier", "compile", 1.0, 0.9),
    ]
    assert dropped(table) == {"training": 1, "withheld": 1}


def test_a_clone_of_neusight_gives_the_same_runs(tmp_path: Path) -> None:
    folder = tmp_path / "NeuSight/scripts/asplos/label/Tesla_T4"
    folder.mkdir(parents=True)
    for name in (
        "gpt2_large-inf-1024-4",
        "gpt2_large-train-1024-1",
        "gpt2_large-inf-1024-8-fusion",
    ):
        (folder / f"{name}.json").write_text(json.dumps({"e2e_latency": 2500.0}))
    table = read_runs("neusight", tmp_path)
    assert values(table, "gpu", "zoo", "batch", "prompt", "engine", "ttft_s") == [
        ("t4", "gpt2-large", 4, 1024, "eager", 2.5),
        ("t4", "gpt2-large", 8, 1024, "compile", 2.5),
    ]
    assert dropped(table) == {"training": 1}
    (folder / "gpt2_large-inf-1024-4.json").write_text("{}")
    with pytest.raises(HymellError, match="not a NeuSight label"):
        read_runs("neusight", tmp_path)


def test_requests_of_a_server_stand_in_one_row_each(tmp_path: Path) -> None:
    write(
        tmp_path,
        "llmservingsim_bench",
        model="Llama-3.1-8B",
        gpu="RTXPRO6000",
        framework="vLLM-0.19.0",
        dtype="bfloat16",
        batch=np.nan,
        tp=1,
        dp=2,
        phase=["ttft_serving", "tpot_serving"] * 2,
        request_id=["r0", "r0", "r1", "r1"],
        arrival=[50.0, 50.0, 50.5, 50.5],
        latency_ms=[100.0, 30.0, 200.0, 31.0],
        max_num_seqs=128,
    )
    table = read_runs("llmservingsim_bench", tmp_path)
    assert values(table, "ttft_s", "tpot_s", "arrival_s", "n_gpus", "dp") == [
        (0.1, 0.03, 0.0, 2, 2),
        (0.2, 0.031, 0.5, 2, 2),
    ]
    assert set(table["run"]) == {"rtx-pro-6000-server Llama-3.1-8B tp1 dp2 max 128"}
    assert dropped(table) == {"joined": 2}


# -- the measurements of this machine


@pytest.fixture(scope="module")
def runs() -> Table:
    try:
        return read_runs()
    except HymellError as error:
        pytest.skip(f"no end-to-end measurements on this machine: {error}")


def test_real_rows_all_have_a_place_and_a_reason(runs: Table) -> None:
    assert dropped(runs)
    kept = {tally.source: tally.rows for tally in runs.tallies}
    assert set(kept) == set(runs["set"])
    for tally in runs.tallies:
        assert set(tally.power_unusable) <= set(POWER_REASONS)


def test_real_runs_are_believable(runs: Table) -> None:
    """A factor of 1000 in a unit, or a column of another meaning, would show here."""
    frame = runs.to_frame()
    assert frame["n_gpus"].between(1, 8).all()
    assert (frame["n_gpus"] == frame["tp"] * frame["pp"] * frame["dp"]).all()
    assert (frame["tpot_s"].dropna().between(1e-3, 1.0)).all()
    powered = frame[frame["power_w"].notna()]
    assert (powered["power_w"] / powered["n_gpus"]).between(20, 1100).all()
    whole = powered[powered["energy_j"].notna()]
    assert np.allclose(whole["energy_j"], whole["power_w"] * whole["latency_s"], rtol=0.01)
    single = frame[frame["set"].eq("argonne_e2e") & frame["batch"].eq(1) & frame["n_gpus"].eq(1)]
    per_token = single["latency_s"] / single["output"]
    assert per_token.between(4e-3, 25e-3).all()


def test_real_gpus_that_are_withheld_stay_so(runs: Table) -> None:
    frame = runs.to_frame()
    assert not ((frame["set"] == "neusight") & (frame["gpu"] == "h100-sxm")).any()
