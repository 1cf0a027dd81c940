"""Blocks from layers that upstream timed one by one, then those of this machine if any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hymell.errors import HymellError
from hymell.measure import data
from hymell.measure.blocks import read_blocks
from hymell.measure.blocks.table import BLOCK_COLUMNS
from hymell.measure.readers import read
from hymell.measure.table import Table

pytest.importorskip("pyarrow", reason="the readers of parquet need pyarrow")


def write_csv(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def values(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].tolist() for name in columns), strict=True))


def vidur(root: Path, model: str, **layers: list[float]) -> None:
    times = {f"time_stats.{layer}.mean": time for layer, time in layers.items()}
    place = root / f"data/profiling/compute/a40/{model}/mlp.csv"
    write_csv(place, num_tokens=[8, 16], num_tensor_parallel_workers=[1, 2], **times)


def test_vidur_blocks_are_sums_of_their_layers_and_attention_is_said_to_miss(
    tmp_path: Path,
) -> None:
    vidur(
        tmp_path,
        "meta-llama/Llama-2-7b-hf",
        emb=[9.0, 9.0],
        input_layernorm=[0.1, 0.1],
        attn_pre_proj=[0.2, 0.2],
        attn_rope=[0.3, 0.3],
        attn_post_proj=[0.4, 0.4],
        post_attention_layernorm=[0.1, 0.1],
        mlp_up_proj=[0.5, 0.5],
        mlp_act=[0.05, 0.05],
        mlp_down_proj=[0.25, np.nan],
    )
    table = read_blocks(tmp_path)
    assert tuple(table.to_frame().columns) == BLOCK_COLUMNS
    columns = ("block", "tokens", "tp", "time_s", "missing", "zoo")
    assert values(table, *columns) == [
        ("attention", 8, 1, pytest.approx(1.0e-3), "attention", "llama-2-7b"),
        ("attention", 16, 2, pytest.approx(1.0e-3), "attention", "llama-2-7b"),
        # A layer without a time is no layer of 0 s.
        ("ffn", 8, 1, pytest.approx(0.9e-3), "", "llama-2-7b"),
    ]
    members = table.where(block="ffn")["members"].tolist()
    assert members == ["post_attention_layernorm+mlp_up_proj+mlp_act+mlp_down_proj"]


def serving(root: Path, model: str = "meta-llama/Llama-3.1-8B") -> Path:
    folder = root / "profiler/perf/RTX4090" / model / "bf16"
    folder.mkdir(parents=True)
    (folder / "meta.yaml").write_text(f"vllm_version: 0.19.0\nmodel: {model}\nvariant: bf16\n")
    return folder / "tp2"


def test_llmservingsim_attention_meets_the_layers_of_its_tokens(tmp_path: Path) -> None:
    folder = serving(tmp_path)
    layers = [
        "layernorm",
        "qkv_proj",
        "rotary_emb",
        "o_proj",
        "gate_up_proj",
        "act_fn",
        "down_proj",
    ]
    write_csv(
        folder / "dense.csv",
        layer=layers * 2,
        tokens=[4] * 7 + [32] * 7,
        time_us=[1.0] * 7 + [2.0] * 7,
    )
    write_csv(
        folder / "attention.csv",
        prefill_chunk=[32, 0, 32, 48],
        kv_prefill=[64, 0, 0, 0],
        n_decode=[0, 4, 4, 0],
        kv_decode=[0, 128, 256, 0],
        time_us=[10.0, 20.0, 30.0, 40.0],
    )
    table = read_blocks(tmp_path)
    columns = ("block", "phase", "tokens", "batch", "q_len", "kv_len", "time_s")
    assert values(table.where(block="attention"), *columns) == [
        ("attention", "prefill", 32, 1, 32, 96, pytest.approx(18e-6)),
        ("attention", "decode", 4, 4, 1, 129, pytest.approx(24e-6)),
    ]
    ffn = table.where(block="ffn")
    assert values(ffn, "phase", "tokens", "time_s", "tp", "dtype", "gpu") == [
        ("", 4, pytest.approx(4e-6), 2, "bfloat16", "rtx-4090"),
        ("", 32, pytest.approx(8e-6), 2, "bfloat16", "rtx-4090"),
    ]


def test_llmservingsim_blocks_agree_with_the_kernels_of_the_same_files(tmp_path: Path) -> None:
    """Lengths and times have one meaning in both kinds of table."""
    folder = serving(tmp_path)
    write_csv(folder / "dense.csv", layer=["o_proj"], tokens=[4], time_us=[1.0])
    write_csv(
        folder / "attention.csv",
        prefill_chunk=[0],
        kv_prefill=[0],
        n_decode=[4],
        kv_decode=[128],
        time_us=[20.0],
    )
    kernel = read("attention_decode", "rtx-4090", "vllm", root=tmp_path)
    block = read_blocks(tmp_path)
    assert values(block, "batch", "kv_len") == values(kernel, "batch", "kv_len")
    assert block["time_s"].tolist() == [pytest.approx(kernel["time_s"][0] + 1e-6)]


def test_llmservingsim_experts_are_an_ffn_block(tmp_path: Path) -> None:
    folder = serving(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507")
    write_csv(folder / "dense.csv", layer=["layernorm", "o_proj"], tokens=2, time_us=[1.0, 3.0])
    write_csv(folder / "moe.csv", tokens=[2, 64], activated_experts=[16, 64], time_us=[50.0, 60.0])
    table = read_blocks(tmp_path)
    assert values(table, "block", "tokens", "active_experts", "time_s", "members") == [
        ("ffn", 2, 16, pytest.approx(51e-6), "layernorm+experts")
    ]


def test_llmservingsim_v0_decode_holds_a_cache_of_the_whole_batch(tmp_path: Path) -> None:
    folder = tmp_path / "profiler/v0/perf_models/A6000/meta-llama/Llama-3.1-8B/tp1"
    layers = ["input_layernorm", "q_proj", "k_proj", "v_proj", "rope", "o_proj", "attn"]
    write_csv(
        folder / "layers.csv",
        layer_name=layers,
        input=8,
        **{"latency(ns)": [1000, 1000, 1000, 1000, 1000, 1000, 7000]},
    )
    write_csv(
        folder / "attention.csv",
        batch_size=[1, 8, 8],
        prefill_chunk_size=[8, 0, 0],
        kv_cache_size=[40, 800, 4],
        is_prefill=[True, False, False],
        attention_backend="FLASH_ATTENTION",
        **{
            "time_stats.attn_prefill.mean": [0.004, np.nan, np.nan],
            "time_stats.attn_decode.mean": [np.nan, 0.01, 0.02],
        },
    )
    columns = ("phase", "batch", "q_len", "kv_len", "kernel", "time_s")
    assert values(read_blocks(tmp_path), *columns) == [
        ("prefill", 1, 8, 40, "FLASH_ATTENTION", pytest.approx(10e-6)),
        ("decode", 8, 1, 100, "FLASH_ATTENTION", pytest.approx(16e-6)),
        ("prefill", 1, 8, 8, "", pytest.approx(13e-6)),
    ]


def test_v0_layers_without_attention_say_so_and_experts_give_no_block(tmp_path: Path) -> None:
    folder = tmp_path / "profiler/v0/perf_models/H100/mistralai/Mixtral-8x7B-v0.1/tp1"
    layers = ["input_layernorm", "q_proj", "o_proj", "gate", "expert.w1"]
    write_csv(folder / "layers.csv", layer_name=layers, input=8, **{"latency(ns)": 1000})
    table = read_blocks(tmp_path)
    assert values(table, "block", "missing", "time_s") == [
        ("attention", "attention", pytest.approx(3e-6))
    ]


def test_latent_attention_modules_are_attention_blocks_of_their_model(tmp_path: Path) -> None:
    place = tmp_path / "systems/data/h100_sxm/mla/vllm/0.24.0/mla_generation_module_perf.parquet"
    place.parent.mkdir(parents=True)
    columns = {
        "version": ["0.24.0"],
        "kernel_source": "FLASHMLA",
        "model": "deepseek-ai/DeepSeek-V3",
        "mla_dtype": "bfloat16",
        "gemm_type": "fp8_block",
        "kv_cache_dtype": "bfloat16",
        "batch_size": 4,
        "isl": 1,
        "step": 1023,
        "num_heads": 16,
        "tp_size": 8,
        "latency": 0.1,
    }
    pd.DataFrame(columns).to_parquet(place)
    table = read_blocks(tmp_path)
    names = ("block", "phase", "zoo", "tp", "batch", "kv_len", "tokens", "gemm_dtype", "time_s")
    assert values(table, *names) == [
        ("attention", "decode", "deepseek-v3", 8, 4, 1024, 4, "float8_block128", 1e-4)
    ]


def test_no_blocks_is_said_with_where_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match=r"no measured blocks.*docs/data\.md"):
        read_blocks(tmp_path)


def test_real_blocks_take_longer_than_their_weights_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit or a layer that is not there would show: three FFN matrices cross HBM once."""
    try:
        root = data.locate()
    except HymellError as error:
        pytest.skip(f"no measurements on this machine: {error}")
    monkeypatch.setattr("hymell.measure.blocks.READERS", _without_modules())
    table = read_blocks(root)
    for gpu, bandwidth in (("h100-sxm", 3.35e12), ("a40", 696e9)):
        ffn = table.where(source="vidur", gpu=gpu, block="ffn", zoo="llama-2-70b", tp=1.0)
        least = 3 * 8192 * 28672 * 2 / bandwidth
        assert len(ffn) > 100
        assert least <= ffn["time_s"].min() <= 2 * least
    assert set(table["block"]) == {"attention", "ffn"}
    assert (table["members"] != "").all()


def _without_modules() -> tuple[Any, ...]:
    """The readers of layers: modules are as many kernels, and tested as such."""
    from hymell.measure.blocks import READERS, aiconfigurator

    return tuple(reader for reader in READERS if reader is not aiconfigurator)
