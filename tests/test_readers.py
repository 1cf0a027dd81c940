"""Readers: each upstream layout in miniature, then the measurements of this machine if any."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hymell.errors import HymellError
from hymell.hardware import load_gpu
from hymell.measure import data
from hymell.measure.readers import measured_files, read, tallies
from hymell.measure.readers.filters import POWER_REASONS, REASONS
from hymell.measure.table import DIMS, Table, column_names

pytest.importorskip("pyarrow", reason="the readers of parquet need pyarrow")


def write_parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_parquet(path)
    return path


def write_csv(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def gemm_table(path: Path, **changed: Any) -> Path:
    columns = {
        "version": "0.24.0",
        "kernel_source": "default",
        "gemm_dtype": ["bfloat16", "bfloat16", "fp8"],
        "m": [1, 128, 128],
        "n": 256,
        "k": 512,
        "latency": [0.002, 0.004, 0.003],
    }
    return write_parquet(path, **(columns | changed))


def aic(root: Path, place: str) -> Path:
    return root / "systems/data" / f"{place}_perf.parquet"


# -- the table


def test_a_table_is_taken_apart_by_mask_and_by_value(tmp_path: Path) -> None:
    gemm_table(aic(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm"))
    table = read("gemm", "h100", "vllm", root=tmp_path)
    assert len(table.where(dtype="bfloat16", m=1)) == 1
    assert table.take(table["m"] > 1)["time_s"].tolist() == [4e-6, 3e-6]
    assert tuple(table.to_frame().columns) == column_names("gemm")
    with pytest.raises(HymellError, match="no column 'rows'"):
        table.where(rows=1)


def test_every_op_has_sizes_and_units_of_its_own() -> None:
    for op in DIMS:
        assert len(set(column_names(op))) == len(column_names(op)), op


# -- aiconfigurator


@pytest.mark.parametrize(
    "place",
    [
        "aiconfigurator/systems/data/h100_sxm/gemm/vllm/0.24.0",
        "aiconfigurator/aic-core/src/aiconfigurator_core/systems/data/h100_sxm/gemm/vllm/0.24.0",
        "src/aiconfigurator/systems/data/h100_sxm/vllm/0.24.0",
        "systems/data/h100_sxm/gemm/vllm/0.24.0",
    ],
)
def test_aiconfigurator_is_found_in_a_data_folder_and_in_clones(tmp_path: Path, place: str) -> None:
    gemm_table(tmp_path / place / "gemm_perf.parquet")
    (found,) = measured_files(tmp_path)
    assert (found.gpu, found.library, found.version) == ("h100-sxm", "vllm", "0.24.0")
    table = read("gemm", "h100-sxm", "vllm", "0.24.0", "fp8", tmp_path)
    assert table["time_s"].tolist() == [pytest.approx(3e-6)]
    assert table["dtype"].tolist() == ["float8_e4m3"]
    assert not table["sustained"].any()
    assert np.isnan(table["power_w"]).all()


def test_gemm_drops_empty_products_and_copies_and_averages_repeats(tmp_path: Path) -> None:
    gemm_table(
        aic(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm"),
        gemm_dtype="bfloat16",
        m=[0, 8, 8, 8, 8, 16],
        latency=[0.001, 0.002, 0.002, 0.004, 0.009, 0.0],
        kernel_source=["a", "a", "a", "a", "b", "a"],
    )
    table = read("gemm", "h100", "vllm", root=tmp_path)
    assert table["time_s"].tolist() == [pytest.approx(3e-6), pytest.approx(9e-6)]
    assert table["repeats"].tolist() == [2, 1]
    assert table["spread"].tolist() == [pytest.approx(2 / 3), 0.0]
    (tally,) = table.tallies
    assert tally.rows_in == 6
    assert tally.dropped == {
        "size_below_one": 1,
        "exact_copy": 1,
        "repeat": 1,
        "time_not_positive": 1,
    }
    assert tally.rows == 2


def test_rows_of_another_version_are_left_out_unless_all_are(tmp_path: Path) -> None:
    gemm_table(
        aic(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm"), version=["0.24.0", "0.24.0", "0.25.dev"]
    )
    gemm_table(aic(tmp_path, "h100_sxm/gemm/vllm/0.19.0/gemm"), version="0.19.0+local")
    assert len(read("gemm", "h100", "vllm", "0.24.0", root=tmp_path)) == 2
    old = read("gemm", "h100", "vllm", "0.19.0", root=tmp_path)
    assert old["version"].tolist() == ["0.19.0"] * 3


def test_power_is_blanked_where_its_label_is_not_the_kernels(tmp_path: Path) -> None:
    gemm_table(
        aic(tmp_path, "h200_sxm/gemm/vllm/0.22.0/gemm"),
        gemm_dtype="bfloat16",
        m=[1, 2, 3],
        latency=[0.054, 1.0, 1.0],
        power=[700.0, 130.0, 500.0],
    )
    table = read("gemm", "h200", "vllm", root=tmp_path)
    np.testing.assert_array_equal(table["power_w"], [np.nan, np.nan, 500.0])
    assert table["sustained"].all()
    (tally,) = table.tallies
    assert tally.power_unusable == {"power_short": 1, "power_idle": 1}
    assert (tally.rows, tally.power_rows) == (3, 1)


def attention_columns(**changed: Any) -> dict[str, Any]:
    columns = {
        "version": "0.24.0",
        "kernel_source": "fa3",
        "batch_size": 2,
        "isl": 64,
        "num_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "step": [0],
        "latency": 0.5,
    }
    return columns | changed


def test_attention_lengths_hold_the_new_tokens(tmp_path: Path) -> None:
    place = "l40s/attention/vllm/0.24.0"
    write_parquet(aic(tmp_path, f"{place}/context_attention"), **attention_columns(window_size=128))
    write_parquet(
        aic(tmp_path, f"{place}/generation_attention"), **attention_columns(isl=1, step=[1023])
    )
    prefill = read("attention_prefill", "l40s", "vllm", root=tmp_path)
    assert row(prefill, "q_len", "kv_len", "heads", "kv_heads", "window") == [64, 64, 8, 2, 128]
    assert prefill["kv_dtype"].tolist() == ["float8_e4m3"]
    decode = read("attention_decode", "l40s", "vllm", root=tmp_path)
    assert row(decode, "batch", "q_len", "kv_len", "window", "time_s") == [2, 1, 1024, 0, 5e-4]


def test_encoder_attention_has_a_key_head_per_query_head(tmp_path: Path) -> None:
    columns = attention_columns()
    for name in ("num_key_value_heads", "kv_cache_dtype", "step"):
        del columns[name]
    columns["latency"] = [0.5]
    write_parquet(aic(tmp_path, "l40s/encoder_attention/vllm/0.24.0/encoder_attention"), **columns)
    table = read("encoder_attention", "l40s", "vllm", root=tmp_path)
    assert row(table, "kv_heads", "kv_len") == [8, 64]


def test_mla_ranks_with_equal_heads_are_repeats_whatever_the_cut(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "version": "1.0.0",
        "kernel_source": "default",
        "mla_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "num_heads": 16,
        "batch_size": 4,
        "isl": 32,
        "tp_size": [4, 8],
        "step": 0,
        "latency": [0.1, 0.3],
    }
    place = "a100_sxm/mla/trtllm/1.0.0"
    write_parquet(aic(tmp_path, f"{place}/context_mla"), **columns)
    module = columns | {"model": "m", "gemm_type": "fp8_block", "isl": 1, "step": 7}
    write_parquet(aic(tmp_path, f"{place}/mla_generation_module"), **module)
    kernel = read("mla_prefill", "a100", "trtllm", root=tmp_path)
    assert row(kernel, "heads", "kv_len", "time_s", "repeats") == [16, 32, pytest.approx(2e-4), 2]
    whole = read("mla_decode_module", "a100", "trtllm", root=tmp_path)
    assert row(whole, "kv_len", "gemm_dtype", "model") == [8, "float8_block128", "m"]


def test_moe_tells_gated_experts_and_the_skew_of_the_routing(tmp_path: Path) -> None:
    write_parquet(
        aic(tmp_path, "b200_sxm/moe/trtllm/1.3/moe"),
        version="1.3",
        kernel_source=["cutlass", "moe_nongated", "cutlass"],
        moe_dtype="nvfp4",
        num_tokens=64,
        hidden_size=4096,
        inter_size=[1536, 1000, 2688],
        topk=[8, 8, 22],
        num_experts=[128, 128, 512],
        moe_tp_size=2,
        moe_ep_size=4,
        distribution=["balanced", "power_law_1.2", "power_law_1.01"],
        latency=0.2,
    )
    table = read("moe", "b200", "trtllm", root=tmp_path)
    assert table["gated"].tolist() == [1, 0, 0]
    assert table["skew"].tolist() == [0, 1.2, 1.01]
    assert row(table.take(np.array([0])), "tokens", "intermediate", "tp", "ep") == [64, 1536, 2, 4]


def test_scans_and_their_convolution_are_ops_of_their_own(tmp_path: Path) -> None:
    write_parquet(
        aic(tmp_path, "h100_sxm/linear_attention/vllm/0.24.0/gdn"),
        version="0.24.0",
        kernel_source=["causal_conv1d_fn", "chunk_gated_delta_rule", "chunk_gated_delta_rule"],
        phase="context",
        batch_size=2,
        seq_len=128,
        num_tokens=256,
        d_model=[1024, 1024, 2048],
        d_conv=4,
        num_k_heads=16,
        head_k_dim=128,
        num_v_heads=32,
        head_v_dim=64,
        latency=[0.1, 0.2, 0.4],
    )
    scan = read("gdn", "h100", "vllm", root=tmp_path)
    assert row(scan, "heads", "groups", "key_dim", "value_dim") == [32, 16, 128, 64]
    assert row(scan, "repeats", "time_s") == [2, pytest.approx(3e-4)]
    conv = read("conv1d", "h100", "vllm", root=tmp_path)
    assert row(conv, "channels", "width", "family") == [2 * 16 * 128 + 32 * 64, 4, "gdn"]


def test_message_sizes_become_bytes(tmp_path: Path) -> None:
    write_parquet(
        aic(tmp_path, "h100_sxm/comm/nccl/2.29.2/nccl"),
        version="2.29.2",
        kernel_source="NCCL",
        op_name=["all_reduce", "alltoall"],
        nccl_dtype=["half", "int8"],
        num_gpus=8,
        message_size=1024,
        latency=0.02,
    )
    write_parquet(
        aic(tmp_path, "h100_sxm/comm/vllm/0.24.0/custom_allreduce"),
        version="0.24.0",
        kernel_source=["vLLM_custom_graph"],
        op_name="all_reduce",
        allreduce_dtype="bfloat16",
        num_gpus=2,
        message_size=128,
        latency=0.004,
    )
    assert row(read("all_reduce", "h100", "nccl", root=tmp_path), "message_bytes") == [2048]
    assert row(read("all_to_all", "h100", "nccl", root=tmp_path), "message_bytes") == [1024]
    custom = read("custom_all_reduce", "h100", "vllm", root=tmp_path)
    assert row(custom, "message_bytes", "n_gpus") == [256, 2]


def test_a_git_lfs_pointer_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = aic(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm")
    path.parent.mkdir(parents=True)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(HymellError, match="git lfs pull"):
        read("gemm", "h100", "vllm", root=tmp_path)


# -- Vidur


def vidur_table(path: Path, *, gated: bool = True, layers: Iterable[str] = ()) -> Path:
    times = {f"time_stats.{layer}.mean": [0.05, 0.07] for layer in layers}
    sizes = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}
    rest = {"vocab_size": 128256, "use_gated_mlp": gated, "num_tokens": 100}
    return write_csv(path, **times, **sizes, **rest, num_tensor_parallel_workers=[1, 4])


def test_vidur_layers_become_sharded_shapes(tmp_path: Path) -> None:
    layers = ("attn_pre_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_rope", "emb")
    place = tmp_path / "vidur/data/profiling/compute/h100/meta/model/mlp.csv"
    vidur_table(place, layers=(*layers, "input_layernorm"))
    gemm = read("gemm", "h100", "vidur", root=tmp_path)
    shapes = zip(gemm["kernel"], gemm["m"], gemm["n"], gemm["k"], strict=True)
    assert set(shapes) == {
        ("attn_pre_proj", 100, 6144, 4096),
        ("attn_pre_proj", 100, 1536, 4096),
        ("mlp_up_proj", 100, 28672, 4096),
        ("mlp_up_proj", 100, 7168, 4096),
        ("mlp_down_proj", 100, 4096, 14336),
        ("mlp_down_proj", 100, 4096, 3584),
    }
    # A norm is not cut by parallelism: the two rows are one shape measured twice.
    norm = read("rms_norm", "h100", "vidur", root=tmp_path)
    assert row(norm, "rows", "cols", "repeats", "time_s") == [100, 4096, 2, pytest.approx(6e-5)]
    act = read("pointwise", "h100", "vidur", root=tmp_path)
    assert act["kind"].tolist() == ["silu_mul", "silu_mul"]
    assert act["cols"].tolist() == [14336, 3584]
    assert read("rope", "h100", "vidur", root=tmp_path)["heads"].tolist() == [32, 8]
    assert read("embedding", "h100", "vidur", root=tmp_path)["vocab"].tolist() == [128256, 32064]


def test_vidur_without_a_gate_means_layer_norm_and_gelu(tmp_path: Path) -> None:
    place = tmp_path / "data/profiling/compute/a40/microsoft/phi-2/mlp.csv"
    vidur_table(place, gated=False, layers=("input_layernorm", "mlp_act", "mlp_up_proj"))
    assert len(read("layer_norm", "a40", "vidur", root=tmp_path)) == 1
    assert set(read("pointwise", "a40", "vidur", root=tmp_path)["kind"]) == {"gelu"}
    assert read("gemm", "a40", "vidur", root=tmp_path)["n"].tolist() == [14336, 3584]


def test_vidur_collectives_stay_within_a_machine_and_copies_are_dropped(tmp_path: Path) -> None:
    network = tmp_path / "data/profiling/network"
    for gpu in ("a100", "h100"):
        write_csv(
            network / f"{gpu}_pairwise_nvlink/send_recv.csv",
            **{"time_stats.send_recv.mean": [0.01, 0.5]},
            num_workers=2,
            size=2048,
            collective="send_recv",
            devices_per_node=[2, 1],
        )
    table = read("send_recv", "a100", "vidur", root=tmp_path)
    assert row(table, "message_bytes", "n_gpus", "fabric") == [2048, 2, "pairwise_nvlink"]
    dropped = {tally.gpu: tally.dropped for tally in tallies(tmp_path)}
    assert dropped == {"a100-sxm-80gb": {"crosses_nodes": 1}, "h100-sxm": {"copied_file": 2}}


# -- NeuSight


def test_neusight_products_are_turned_to_our_letters(tmp_path: Path) -> None:
    folder = tmp_path / "scripts/asplos/data/dataset"
    common = {"Device": ["NVIDIA L4", "Tesla V100-PCIE-32GB"], "Kernel Name": "k<a, b>"}
    product = {"M": 96, "N": 128, "K": 256, "Latency": 2.0}
    write_csv(folder / "test/linear.csv", OPName="linear", B=2, **common, **product)
    write_csv(folder / "test/bmm.csv", OPName="bmm", B=12, **common, **product)
    write_csv(folder / "train/softmax.csv", OPName="softmax", B=64, H=512, Latency=1.0, **common)
    linear = read("gemm", "l4", "pytorch", root=tmp_path)
    assert row(linear, "m", "n", "k", "dtype", "time_s") == [192, 256, 128, "float32", 2e-3]
    bmm = read("batched_gemm", "v100-pcie-32gb", "pytorch", root=tmp_path)
    assert row(bmm, "batch", "m", "n", "k") == [12, 96, 256, 128]
    assert row(read("softmax", "l4", "pytorch", root=tmp_path), "rows", "cols") == [64, 512]


def test_neusight_elementwise_counts_the_tensors_read(tmp_path: Path) -> None:
    write_csv(
        tmp_path / "scripts/asplos/data/dataset/test/elem.csv",
        OPName=["add", "addu", "relu"],
        Device="NVIDIA L4",
        B=64,
        H=512,
        Latency=1.0,
        **{"Kernel Name": "k"},
    )
    table = read("pointwise", "l4", "pytorch", root=tmp_path)
    assert dict(zip(table["kind"], table["reads"], strict=True)) == {"add": 2, "addu": 1, "relu": 1}


# -- LLMServingSim


def serving_folder(root: Path, model: str = "meta-llama/Llama-3.1-8B") -> Path:
    folder = root / "profiler/perf/RTX4090" / model / "bf16"
    folder.mkdir(parents=True)
    lines = ("vllm_version: 0.19.0", "gpu: NVIDIA GeForce RTX 4090", f"model: {model}")
    (folder / "meta.yaml").write_text("\n".join((*lines, "variant: bf16", "nested:", "  gpu: no")))
    return folder


def test_llmservingsim_takes_the_sizes_of_the_model_it_names(tmp_path: Path) -> None:
    folder = serving_folder(tmp_path)
    layers = ["qkv_proj", "gate_up_proj", "layernorm", "act_fn", "made_up"]
    for tp in (1, 2):
        write_csv(folder / f"tp{tp}/dense.csv", layer=layers, tokens=16, time_us=30.0)
    write_csv(folder / "tp1/per_sequence.csv", layer=["lm_head"], sequences=4, time_us=100.0)
    gemm = read("gemm", "rtx-4090", "vllm", "0.19.0", "bf16", tmp_path)
    assert set(zip(gemm["m"], gemm["n"], gemm["k"], strict=True)) == {
        (16, 6144, 4096),
        (16, 3072, 4096),
        (16, 28672, 4096),
        (16, 14336, 4096),
        (4, 128256, 4096),
    }
    norm = read("rms_norm", "rtx-4090", "vllm", root=tmp_path)
    assert row(norm, "rows", "cols", "repeats", "time_s") == [16, 4096, 1, pytest.approx(3e-5)]
    assert norm.tallies[0].dropped == {"exact_copy": 1}


def test_llmservingsim_attention_is_split_by_what_the_step_holds(tmp_path: Path) -> None:
    folder = serving_folder(tmp_path)
    write_csv(
        folder / "tp1/attention.csv",
        prefill_chunk=[32, 0, 32],
        kv_prefill=[64, 0, 0],
        n_decode=[0, 8, 4],
        kv_decode=[0, 128, 256],
        time_us=[10.0, 20.0, 30.0],
    )
    prefill = read("attention_prefill", "rtx-4090", "vllm", root=tmp_path)
    assert row(prefill, "batch", "q_len", "kv_len", "heads") == [1, 32, 96, 32]
    decode = read("attention_decode", "rtx-4090", "vllm", root=tmp_path)
    assert row(decode, "batch", "q_len", "kv_len", "kv_heads") == [8, 1, 129, 8]
    mixed = read("attention_mixed", "rtx-4090", "vllm", root=tmp_path)
    assert row(mixed, "q_len", "kv_len", "decode_batch", "decode_kv_len") == [32, 32, 4, 257]


def test_llmservingsim_experts_state_how_many_are_active(tmp_path: Path) -> None:
    folder = serving_folder(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507")
    write_csv(folder / "tp1/moe.csv", tokens=[2], activated_experts=16, time_us=50.0)
    table = read("moe", "rtx-4090", "vllm", root=tmp_path)
    assert row(table, "experts", "top_k", "intermediate", "active_experts") == [128, 8, 768, 16]
    assert np.isnan(table["skew"]).all()


def test_a_model_of_unknown_sizes_is_counted_and_left_out(tmp_path: Path) -> None:
    folder = serving_folder(tmp_path, "nobody/nothing")
    write_csv(folder / "tp1/dense.csv", layer=["o_proj"], tokens=16, time_us=30.0)
    (tally,) = tallies(tmp_path)
    assert (tally.rows_in, tally.rows, tally.dropped) == (1, 0, {"unknown_model": 1})


def test_llmservingsim_v0_reads_nanoseconds_and_a_cache_of_the_whole_batch(tmp_path: Path) -> None:
    folder = tmp_path / "profiler/v0/perf_models/A6000/meta-llama/Llama-3.1-8B/tp2"
    write_csv(
        folder / "layers.csv",
        layer_name=["q_proj", "gate", "attn"],
        input=64,
        kv_cache=0,
        tp_size=2,
        **{"latency(ns)": [5000, 6000, 7000]},
    )
    write_csv(
        folder / "attention.csv",
        batch_size=[1, 8, 64],
        prefill_chunk_size=[32, 0, 0],
        kv_cache_size=[96, 800, 32],
        is_prefill=[True, False, False],
        attention_backend="FLASH_ATTENTION",
        **{
            "time_stats.attn_prefill.mean": [0.004, np.nan, np.nan],
            "time_stats.attn_decode.mean": [np.nan, 0.01, 0.02],
        },
    )
    gemm = read("gemm", "rtx-a6000", "llmservingsim", root=tmp_path)
    assert row(gemm, "m", "n", "k", "time_s") == [64, 2048, 4096, pytest.approx(5e-6)]
    assert gemm.tallies[0].dropped == {"several_kernels": 1}
    prefill = read("attention_prefill", "rtx-a6000", "llmservingsim", root=tmp_path)
    lengths = zip(prefill["kernel"], prefill["q_len"], prefill["kv_len"], strict=True)
    assert set(lengths) == {("attn", 64, 64), ("FLASH_ATTENTION", 32, 96)}
    decode = read("attention_decode", "rtx-a6000", "llmservingsim", root=tmp_path)
    assert row(decode, "batch", "kv_len", "heads", "time_s") == [8, 100, 16, pytest.approx(1e-5)]
    assert decode.tallies[0].dropped == {"size_below_one": 1}


# -- what a user meets


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    gemm_table(aic(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm"))
    with pytest.raises(HymellError, match=r"there are: h100-sxm vllm 0\.24\.0"):
        read("gemm", "h200", "vllm", root=tmp_path)
    with pytest.raises(HymellError, match="none of this op"):
        read("moe", "h100", "vllm", root=tmp_path)
    with pytest.raises(HymellError, match="there are: bfloat16, float8_e4m3"):
        read("gemm", "h100", "vllm", dtype="nvfp4", root=tmp_path)
    with pytest.raises(HymellError, match="has no such rows"):
        read("conv1d", "h100", "trtllm", root=only_a_scan(tmp_path))
    with pytest.raises(HymellError, match="no reader gives op 'gem'"):
        read("gem", "h100", "vllm", root=tmp_path)


def test_the_data_folder_is_the_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYMELL_DATA", str(tmp_path))
    assert data.locate() == tmp_path
    monkeypatch.setenv("HYMELL_DATA", str(tmp_path / "absent"))
    with pytest.raises(HymellError, match="set HYMELL_DATA to a folder"):
        data.locate()


def test_the_summary_is_sorted_and_adds_up(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.24.0"):
        gemm_table(aic(tmp_path, f"h100_sxm/gemm/vllm/{version}/gemm"), m=[0, 1, 1])
    found = data.summary(tmp_path)
    assert [(tally.version, tally.dtype) for tally in found] == [
        ("0.24.0", "bfloat16"),
        ("0.24.0", "float8_e4m3"),
        ("0.9.0", "bfloat16"),
        ("0.9.0", "float8_e4m3"),
    ]
    for tally in found:
        assert tally.rows_in == tally.rows + sum(tally.dropped.values())


# -- the measurements of this machine


@pytest.fixture(scope="module")
def measurements() -> Path:
    try:
        return data.locate()
    except HymellError as error:
        pytest.skip(f"no measurements on this machine: {error}")


def test_real_gemms_reach_the_data_sheet_and_never_pass_it(measurements: Path) -> None:
    """A factor of 1000 in a unit, or m, n and k of another meaning, would show here."""
    table = read("gemm", "h100", "vllm", "0.24.0", "bf16", measurements)
    rate = 2 * table["m"] * table["n"] * table["k"] / table["time_s"]
    peak = load_gpu("h100-sxm").peak("bf16")
    assert 0.6 * peak < rate.max() <= peak


def test_real_decode_attention_moves_bytes_at_a_believable_rate(measurements: Path) -> None:
    table = read("attention_decode", "h100", "vllm", "0.24.0", "bf16", measurements)
    table = table.where(kv_dtype="bfloat16", window=0)
    moved = 4 * table["batch"] * table["kv_len"] * table["kv_heads"] * table["head_dim"]
    bandwidth = load_gpu("h100-sxm").memory_bandwidth_bytes_per_s
    # Only what is far larger than the L2 has to come from HBM.
    rate = (moved / table["time_s"])[moved > 1e9]
    assert 0.7 * bandwidth < rate.max() <= bandwidth


def test_real_rows_all_have_a_place_and_a_reason(measurements: Path) -> None:
    for op, gpu, library in (
        ("gemm", "h100-sxm", "trtllm"),
        ("moe", "h200-sxm", "vllm"),
        ("conv1d", "l40s", "sglang"),
        ("all_reduce", "b200-sxm", "nccl"),
        ("rms_norm", "a40", "vidur"),
        ("softmax", "v100-pcie-32gb", "pytorch"),
        ("attention_decode", "rtx-a6000", "llmservingsim"),
        ("attention_mixed", "rtx-pro-6000-server", "vllm"),
    ):
        table = read(op, gpu, library, root=measurements)
        assert 0 < len(table) == sum(tally.rows for tally in table.tallies)
        assert (table["time_s"] > 0).all()
        for tally in table.tallies:
            assert tally.rows_in == tally.rows + sum(tally.dropped.values())
            assert set(tally.dropped) <= set(REASONS)
            assert set(tally.power_unusable) <= set(POWER_REASONS)


def only_a_scan(root: Path) -> Path:
    """A table that might hold convolutions and holds none."""
    columns = {"batch_size": 1, "seq_len": 64, "d_conv": 4, "nheads": 8, "head_dim": 64}
    write_parquet(
        aic(root, "h100_sxm/linear_attention/trtllm/1.3/mamba2"),
        version=["1.3"],
        kernel_source="mamba_chunk_scan_combined",
        phase="context",
        d_state=128,
        n_groups=8,
        chunk_size=128,
        latency=0.1,
        **columns,
    )
    assert row(read("mamba2", "h100", "trtllm", root=root), "key_dim", "chunk") == [128, 128]
    return root


def row(table: Table, *names: str) -> list[Any]:
    """The named columns of a table that must have one row."""
    assert len(table) == 1
    return [table[name][0] for name in names]
