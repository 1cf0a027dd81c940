"""Data sheets, the checks on them, and the way from a loose name to one of them."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hymell.errors import HymellError
from hymell.hardware import FORMATS, Gpu, find_gpu, gpu_names, list_gpus, load_gpu, read_gpu_file

GIB = 1024**3
MIB = 1024**2
DOCS = Path(__file__).parent.parent / "docs" / "hardware.md"
NAMES = gpu_names()


def sheet(name: str) -> dict[str, Any]:
    """A built-in data sheet as a JSON-ready dict, free to be spoilt."""
    data: dict[str, Any] = json.loads(json.dumps(load_gpu(name).to_dict()))
    return data


def write(folder: Path, data: object, name: str = "mine.json") -> str:
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------- the data


def test_the_gpus_that_must_be_there() -> None:
    wanted = [
        "h100-sxm",
        "h100-pcie",
        "h100-nvl",
        "h200-sxm",
        "gh200",
        "a100-sxm-40gb",
        "a100-sxm-80gb",
        "a100-pcie-40gb",
        "a100-pcie-80gb",
        "a40",
        "rtx-a6000",
        "l40s",
        "l4",
        "v100-sxm-32gb",
        "v100-sxm-16gb",
        "t4",
        "b200-sxm",
        "gb200",
        "b300-sxm",
        "rtx-4090",
        "rtx-3090",
        "rtx-pro-6000",
        "mi300x",
        "cpu",
    ]
    assert set(wanted) <= set(NAMES)
    assert [gpu.name for gpu in list_gpus()] == sorted(NAMES)


# Typed apart from the JSON files, to catch slips there: bf16 (fp16 before Ampere) FLOP/s dense,
# memory bandwidth, memory GiB, TDP, SMs, L2 MiB.
FIGURES = {
    "h100-sxm": (989.4e12, 3.35e12, 80, 700, 132, 50),
    "h100-pcie": (756.5e12, 2.039e12, 80, 350, 114, 50),
    "h100-nvl": (835.5e12, 3.938e12, 94, 400, 132, 60),
    "h200-sxm": (989.4e12, 4.8e12, 141, 700, 132, 60),
    "gh200": (989.4e12, 4.0e12, 96, 900, 132, 60),
    "a100-sxm-40gb": (312e12, 1.555e12, 40, 400, 108, 40),
    "a100-sxm-80gb": (312e12, 2.039e12, 80, 400, 108, 40),
    "a100-pcie-40gb": (312e12, 1.555e12, 40, 250, 108, 40),
    "a100-pcie-80gb": (312e12, 1.935e12, 80, 300, 108, 40),
    "a40": (149.7e12, 696e9, 48, 300, 84, 6),
    "rtx-a6000": (154.8e12, 768e9, 48, 300, 84, 6),
    "l40s": (362.05e12, 864e9, 48, 350, 142, 96),
    "l4": (121e12, 300e9, 24, 72, 58, 48),
    "v100-sxm-32gb": (125e12, 900e9, 32, 300, 80, 6),
    "v100-sxm-16gb": (125e12, 900e9, 16, 300, 80, 6),
    "t4": (65e12, 320e9, 16, 70, 40, 4),
    "b200-sxm": (2.25e15, 7.7e12, 180, 1000, 148, 126.5),
    "gb200": (2.5e15, 8.0e12, 186, 1200, 152, 129.25),
    "b300-sxm": (2.25e15, 7.7e12, 270, 1100, 148, 126.5),
    "rtx-4090": (165.2e12, 1008e9, 24, 450, 128, 72),
    "rtx-3090": (71e12, 936e9, 24, 350, 82, 6),
    "rtx-pro-6000": (503.8e12, 1792e9, 96, 600, 188, 128),
    "rtx-pro-6000-server": (467.8e12, 1597e9, 96, 600, 188, 128),
    "mi300x": (1307.4e12, 5.3e12, 192, 750, 304, 32),
    "mi210": (181e12, 1638.4e9, 64, 300, 104, 8),
    "mi250": (181e12, 1638.4e9, 64, 280, 104, 8),
    "mi100": (92.3e12, 1228.8e9, 32, 300, 120, 8),
    "p100-pcie-16gb": (18.7e12, 732e9, 16, 250, 56, 4),
    "v100-pcie-32gb": (112e12, 900e9, 32, 250, 80, 6),
}


@pytest.mark.parametrize("name", FIGURES)
def test_data_sheet_figures(name: str) -> None:
    flops, bandwidth, memory_gib, tdp_w, sms, l2_mib = FIGURES[name]
    gpu = load_gpu(name)
    half = "bf16" if "bf16" in gpu.peak_flops else "fp16"
    assert gpu.peak(half) == flops
    assert gpu.memory_bandwidth_bytes_per_s == bandwidth
    assert gpu.memory_bytes == memory_gib * GIB
    assert gpu.tdp_w == tdp_w
    assert gpu.sm_count == sms
    assert gpu.l2_bytes == l2_mib * MIB


@pytest.mark.parametrize(
    ("name", "dtype", "rate"),
    [
        ("h100-sxm", "fp8", 1978.9e12),
        ("h100-sxm", "tf32", 494.7e12),
        ("h100-sxm", "fp32", 66.9e12),
        ("a100-sxm-80gb", "tf32", 156e12),
        ("a100-sxm-80gb", "int8", 624e12),
        ("a100-sxm-80gb", "fp32", 19.5e12),
        ("l40s", "fp8", 733e12),
        ("t4", "int8", 130e12),
        ("t4", "int4", 260e12),
        ("b200-sxm", "fp4", 9e15),
        ("gb200", "nvfp4", 10e15),
        ("b300-sxm", "nvfp4", 14e15),
        ("b300-sxm", "int8", 153.5e12),
        ("mi300x", "fp8", 2614.9e12),
        ("rtx-4090", "fp8", 330.3e12),
        ("rtx-3090", "int8", 284e12),
    ],
)
def test_rates_of_other_formats(name: str, dtype: str, rate: float) -> None:
    assert load_gpu(name).peak(dtype) == rate


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("v100-sxm-32gb", "bf16"),
        ("v100-sxm-32gb", "tf32"),
        ("v100-sxm-16gb", "int8"),
        ("t4", "bf16"),
        ("t4", "fp8"),
        ("a100-sxm-80gb", "fp8"),
        ("a40", "fp8"),
        ("h100-sxm", "fp4"),
        ("h200-sxm", "int4"),
        ("l40s", "fp4"),
        ("mi300x", "fp4"),
        ("cpu", "fp8"),
    ],
)
def test_units_the_hardware_lacks_have_no_rate(name: str, dtype: str) -> None:
    with pytest.raises(HymellError, match=f"has no {dtype} units"):
        load_gpu(name).peak(dtype)


@pytest.mark.parametrize("name", NAMES)
class TestEverySheet:
    def test_name_is_the_file_name(self, name: str) -> None:
        assert load_gpu(name).name == name

    def test_figures_are_plausible(self, name: str) -> None:
        gpu = load_gpu(name)
        assert 70 <= gpu.tdp_w <= 1400
        assert 7 * GIB < gpu.memory_bytes < 1024 * GIB
        assert 190e9 < gpu.memory_bandwidth_bytes_per_s < 10e12
        assert 1e9 < (gpu.boost_clock_hz or 0) < 4e9
        assert 0.4e9 < (gpu.base_clock_hz or 1e9) < (gpu.boost_clock_hz or 0)
        assert 2 * MIB <= gpu.l2_bytes <= 256 * MIB
        assert 4e12 <= gpu.peak("fp32") <= 200e12
        if gpu.idle_power_w is not None:
            assert 0.02 * gpu.tdp_w < gpu.idle_power_w < 0.4 * gpu.tdp_w

    def test_visible_memory_is_a_little_less_than_marketed(self, name: str) -> None:
        gpu = load_gpu(name)
        if gpu.visible_memory_bytes is not None:
            assert 0.93 * gpu.memory_bytes < gpu.visible_memory_bytes <= gpu.memory_bytes

    def test_formats_relate_as_the_hardware_does(self, name: str) -> None:
        gpu = load_gpu(name)
        peaks = gpu.peak_flops
        if gpu.vendor != "generic" and "bf16" in peaks:
            # The first CDNA multiplied bf16 at half the rate of fp16.
            assert peaks["fp16"] == peaks["bf16"] * (2 if gpu.architecture == "CDNA" else 1)
        if gpu.vendor != "generic" and "tf32" in peaks:
            # GeForce halves tf32 with the rest: tf32 is half of bf16 on every GPU that has both.
            assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=0.02)
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)
        if "fp4" in peaks:
            assert 1.9 < peaks["fp4"] / peaks["fp8"] < 3.2
        assert peaks["fp32"] < max(peaks.values())

    def test_ridge_point_is_that_of_a_tensor_processor(self, name: str) -> None:
        gpu = load_gpu(name)
        half, note = gpu.compute_dtype("fp16")
        # Pascal's inference boards compute 16-bit numbers in fp32.
        assert (note is None) == (name != "p4")
        ridge = gpu.peak(half) / gpu.memory_bandwidth_bytes_per_s
        assert 20 < ridge < 550

    def test_fp32_is_cores_times_clock(self, name: str) -> None:
        """Plain fp32 = units x FMA lanes x 2 x boost; a rate with sparsity or tf32 would fail."""
        gpu = load_gpu(name)
        if gpu.vendor == "generic":
            lanes, clock = 32, gpu.base_clock_hz  # two AVX-512 FMA of 16 lanes, no turbo
        elif gpu.architecture in ("Volta", "Turing") or gpu.compute_capability in (
            (6, 0),
            (8, 0),
        ):
            lanes, clock = 64, gpu.boost_clock_hz
        else:
            lanes, clock = 128, gpu.boost_clock_hz
        assert clock is not None
        assert gpu.peak("fp32") == pytest.approx(gpu.sm_count * lanes * 2 * clock, rel=0.03)

    def test_every_figure_has_a_source(self, name: str) -> None:
        gpu = load_gpu(name)
        data = gpu.to_dict()
        described = {"name", "display_name", "vendor", "architecture", "compute_capability"}
        figures = {key for key, value in data.items() if value is not None}
        figures -= described | {"aliases", "sources"}
        named = {field for source in gpu.sources for field in source.fields}
        assert named <= set(data)
        assert figures <= named
        for source in gpu.sources:
            assert source.url is None or re.fullmatch(r"https://\S+", source.url)

    def test_json_round_trip(self, name: str, tmp_path: Path) -> None:
        assert read_gpu_file(write(tmp_path, sheet(name))) == load_gpu(name)

    def test_hash_pickle_and_frozen(self, name: str) -> None:
        gpu = load_gpu(name)
        assert pickle.loads(pickle.dumps(gpu)) == gpu
        assert hash(gpu) == hash(pickle.loads(pickle.dumps(gpu)))
        with pytest.raises(AttributeError):
            gpu.tdp_w = 1.0  # type: ignore[misc]

    def test_resolves_from_its_own_names(self, name: str) -> None:
        gpu = load_gpu(name)
        for text in (name, name.upper(), name.replace("-", "_"), gpu.display_name, *gpu.aliases):
            assert find_gpu(text).name == name


#: Dense 16-bit FLOP per SM and clock, by compute capability (architecture papers): of Tensor Cores,
#: and on Pascal of what runs 16-bit numbers there.
TENSOR_FLOP_PER_CLOCK = {
    (6, 0): 256,
    (6, 1): 256,
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 1024,
}


@pytest.mark.parametrize("name", [gpu.name for gpu in list_gpus() if gpu.vendor == "NVIDIA"])
def test_tensor_rate_is_units_times_clock(name: str) -> None:
    """A rate with sparsity would be twice too high."""
    gpu = load_gpu(name)
    assert gpu.compute_capability is not None
    assert gpu.boost_clock_hz is not None
    expected = gpu.sm_count * TENSOR_FLOP_PER_CLOCK[gpu.compute_capability] * gpu.boost_clock_hz
    if "GeForce" in gpu.display_name:
        expected /= 2  # fp32 accumulation runs at half rate there
    assert 0.85 < gpu.peak(gpu.compute_dtype("fp16")[0]) / expected <= 1.015


def test_no_alias_serves_two_gpus() -> None:
    spelt = [frozenset(alias.split()) for gpu in list_gpus() for alias in gpu.aliases]
    assert len(spelt) == len(set(spelt))


def test_same_silicon_same_figures() -> None:
    """Memory variants of one chip agree in everything else."""
    for one, other in [
        ("a100-sxm-40gb", "a100-sxm-80gb"),
        ("a100-sxm-40gb", "a100-pcie-80gb"),
        ("v100-sxm-16gb", "v100-sxm-32gb"),
        ("h100-sxm", "h200-sxm"),
        ("gh200", "gh200-144gb"),
    ]:
        a, b = load_gpu(one), load_gpu(other)
        assert a.peak_flops == b.peak_flops
        assert a.sm_count == b.sm_count
        assert a.boost_clock_hz == b.boost_clock_hz


# ---------------------------------------------------------------- number formats


@pytest.mark.parametrize(
    ("alias", "key"),
    [
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("BF16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("float32", "fp32"),
        ("float", "fp32"),
        ("float64", "fp64"),
        ("fp8_e4m3", "fp8"),
        ("torch.float8_e4m3fn", "fp8"),
        ("float8_e5m2", "fp8"),
        ("mxfp8", "fp8"),
        ("nvfp4", "fp4"),
        ("mxfp4", "fp4"),
        ("uint8", "int8"),
    ],
)
def test_dtype_spellings(alias: str, key: str) -> None:
    gpu = load_gpu("b200-sxm")
    assert gpu.peak(alias) == gpu.peak_flops[key]
    assert gpu.compute_dtype(alias) == (key, None)


@pytest.mark.parametrize("dtype", ["", "bf17", "float128", "x" * 10_000])
def test_unknown_dtype(dtype: str) -> None:
    for ask in (load_gpu("h100-sxm").peak, load_gpu("h100-sxm").compute_dtype):
        with pytest.raises(HymellError, match="unknown dtype") as caught:
            ask(dtype)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "dtype", "runs_in", "says"),
    [
        ("a100-sxm-80gb", "fp8", "bf16", "no fp8 units: fp8 is weight-only"),
        ("a100-sxm-80gb", "nvfp4", "bf16", "no fp4 units: fp4 is weight-only"),
        ("h100-sxm", "mxfp4", "bf16", "weight-only"),
        ("h100-sxm", "int4", "bf16", "engines use no int4 units"),
        ("a100-sxm-80gb", "int4", "bf16", "engines use no int4 units"),
        ("t4", "int4", "fp16", "weight-only, expanded to fp16"),
        ("t4", "fp8", "fp16", "weight-only, expanded to fp16"),
        ("v100-sxm-32gb", "int8", "fp16", "weight-only"),
        ("v100-sxm-32gb", "bf16", "fp16", "explicit cast of the model to float16"),
        ("t4", "bfloat16", "fp16", "engines refuse bf16"),
        ("t4", "tf32", "fp32", "no tf32 units"),
        ("cpu", "fp8", "bf16", "weight-only"),
    ],
)
def test_what_runs_where_units_are_missing(name: str, dtype: str, runs_in: str, says: str) -> None:
    gpu = load_gpu(name)
    key, note = gpu.compute_dtype(dtype)
    assert key == runs_in
    assert note is not None
    assert says in note
    assert "\n" not in note


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_what_runs_always_has_a_rate(name: str, dtype: str) -> None:
    gpu = load_gpu(name)
    key, note = gpu.compute_dtype(dtype)
    assert gpu.peak(key) > 0
    assert (note is None) == (key == dtype)


def test_hardware_with_fp32_alone(tmp_path: Path) -> None:
    gpu = read_gpu_file(write(tmp_path, sheet("h100-sxm") | {"peak_flops": {"fp32": 1e12}}))
    for dtype in set(FORMATS) - {"fp32", "fp64"}:
        assert gpu.compute_dtype(dtype)[0] == "fp32"
    with pytest.raises(HymellError, match="no fp64 units and nothing stands in"):
        gpu.compute_dtype("fp64")


def test_hardware_knows_every_float_format_of_the_package() -> None:
    from hymell.dtypes import BITS, math_format

    assert {math_format(name) for name in BITS} <= set(FORMATS)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        # nvidia-smi and rocm-smi
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 120GB", "gh200"),
        ("GH200 120GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        # people, clouds, benchmarks
        ("H100-SXM5-80GB", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("h100", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("h100sxm5", "h100-sxm"),
        ("  nvidia   h100  ", "h100-sxm"),
        ("H100 80 GB", "h100-sxm"),
        ("NVIDIA H100-SXM-80GB", "h100-sxm"),
        ("HGX H100", "h100-sxm"),
        ("h100_pcie", "h100-pcie"),
        ("H100 NVL 94GB", "h100-nvl"),
        ("NVIDIA H200-SXM-141GB", "h200-sxm"),
        ("NVIDIA H200 141GB HBM3e", "h200-sxm"),
        ("NVIDIA GH200 Grace Hopper Superchip 96GB", "gh200"),
        ("a100", "a100-sxm-80gb"),
        ("A100 GPU", "a100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100 80G", "a100-sxm-80gb"),
        ("a100-40gb", "a100-sxm-40gb"),
        ("a100_pcie_80gb", "a100-pcie-80gb"),
        ("a6000", "rtx-a6000"),
        ("RTXA6000", "rtx-a6000"),
        ("v100", "v100-sxm-32gb"),
        ("V100 16GB", "v100-sxm-16gb"),
        ("nvidia t4", "t4"),
        ("NVIDIA B200-SXM-180GB", "b200-sxm"),
        ("b300", "b300-sxm"),
        ("RTX4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("rtx_pro_6000_server", "rtx-pro-6000-server"),
        ("AMD Instinct™ MI300X", "mi300x"),
        ("CPU", "cpu"),
    ],
)
def test_names_mean(text: str, name: str) -> None:
    assert find_gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("h100-smx", ["h100-sxm"]),
        ("H100 80GB SXM HBM2e", ["h100-sxm"]),
        ("h1000", ["h100-sxm"]),
        ("H10", ["h100-sxm"]),
        ("l04s", ["l40s"]),
        ("L40", ["l40s", "l4"]),
        ("RTX 6000", ["rtx-a6000", "rtx-pro-6000", "rtx-pro-6000-server"]),
        ("RTX 6000 Ada Generation", ["rtx-a6000", "rtx-pro-6000"]),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", ["rtx-pro-6000"]),
        ("RTX 3090 Ti", ["rtx-3090"]),
        ("H200 NVL", ["h200-sxm"]),
        ("AMD H100", ["h100-sxm"]),
        ("Tesla V100-PCIE-16GB", ["v100-sxm-16gb"]),
        ("A100 64GB", ["a100-sxm-80gb"]),
        ("8x H100", ["h100-sxm"]),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ["h100-sxm"]),
        ("MI300A", ["mi300x"]),
        ("GB300", ["b300-sxm", "gb200"]),
        ("h100é", ["h100-sxm"]),
    ],
)
def test_near_misses_are_refused_with_suggestions(text: str, suggested: list[str]) -> None:
    with pytest.raises(HymellError, match="no known GPU is called") as caught:
        find_gpu(text)
    offered = re.findall(r"[a-z0-9-]+", str(caught.value).split("did you mean")[1].split("?")[0])
    assert set(suggested) <= set(offered)
    assert "`hymell gpus`" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("A100 PCIe", ["a100-pcie-40gb", "a100-pcie-80gb"]),
        ("H100 HBM3", ["h100-nvl", "h100-sxm"]),
        ("PRO 6000", ["rtx-pro-6000", "rtx-pro-6000-server"]),
        ("GH200 Hopper", ["gh200", "gh200-144gb"]),
    ],
)
def test_ambiguous_names_list_what_they_fit(text: str, candidates: list[str]) -> None:
    with pytest.raises(HymellError, match="is ambiguous") as caught:
        find_gpu(text)
    assert f"say {' or '.join(candidates)} (" in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", "banana", "nvidia", "gpu", "sxm", "80gb", "cuda:0"])
def test_names_without_a_gpu_in_them(text: str) -> None:
    with pytest.raises(HymellError, match="unknown GPU") as caught:
        find_gpu(text)
    assert "`hymell gpus`" in str(caught.value)


WORDS = sorted({word for gpu in list_gpus() for word in (*gpu.display_name.split(), *gpu.aliases)})


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from([*WORDS, "sxm", "8gb", "g", "/", ".json"]), max_size=5).map(
            " ".join
        ),
    )
)
@example("\x00.json")
@example("a\x00b")
@example("\ud800")
@example("\ud800.json")
@example("x" * 100_000)
@example("x" * 5000 + ".json")
@example("/")
@example("..")
@example("../gpus/h100-sxm")
@example(".json")
@example("~nobody")
@example("h100 " * 5000)
def test_any_text_resolves_or_is_refused_in_one_line(text: str) -> None:
    try:
        gpu = find_gpu(text)
    except HymellError as error:
        message = str(error)
        assert 10 < len(message) < 600
        assert "\n" not in message
    else:
        assert gpu.name in NAMES
        assert find_gpu(gpu.name) is gpu


# ---------------------------------------------------------------- a user's own file


def test_own_file(tmp_path: Path) -> None:
    data = sheet("h100-sxm") | {"name": "my-h100", "tdp_w": 350, "memory_bytes": 80e9}
    for optional in ("sources", "aliases", "idle_power_w", "base_clock_hz", "visible_memory_bytes"):
        del data[optional]
    gpu = find_gpu(write(tmp_path, data))
    assert isinstance(gpu, Gpu)
    assert (gpu.name, gpu.tdp_w, gpu.memory_bytes) == ("my-h100", 350.0, 80_000_000_000)
    assert gpu.idle_power_w is None
    assert gpu.sources == ()
    assert find_gpu(write(tmp_path, data, "no-extension")) == gpu


def test_a_file_does_not_hide_a_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, sheet("t4") | {"name": "impostor"}, "l4")
    monkeypatch.chdir(tmp_path)
    assert find_gpu("l4").name == "l4"
    assert find_gpu("./l4").name == "impostor"


REQUIRED = [
    "name",
    "display_name",
    "vendor",
    "architecture",
    "peak_flops",
    "memory_bytes",
    "memory_type",
    "l2_bytes",
    "sm_count",
    "memory_bandwidth_bytes_per_s",
    "tdp_w",
    "interconnect",
]
NUMBERS = [
    "memory_bytes",
    "visible_memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "l2_bytes",
    "sm_count",
    "base_clock_hz",
    "boost_clock_hz",
    "tdp_w",
    "idle_power_w",
]


def refused(folder: Path, data: object) -> str:
    """The message that refuses ``data``; always names the file."""
    path = write(folder, data)
    with pytest.raises(HymellError) as caught:
        find_gpu(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("field", REQUIRED)
def test_missing_field(field: str, tmp_path: Path) -> None:
    data = sheet("a100-sxm-80gb")
    del data[field]
    assert f"field '{field}' is missing" in refused(tmp_path, data)


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [-1, 0, -0.5, 1e300, 10**400, "700", True, [], {}])
def test_numbers_that_are_none(field: str, value: object, tmp_path: Path) -> None:
    data = sheet("a100-sxm-80gb") | {field: value}
    assert f"field '{field}' must be a number" in refused(tmp_path, data)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_beyond_json(value: float, tmp_path: Path) -> None:
    message = refused(tmp_path, sheet("a40") | {"tdp_w": value})
    assert "field 'tdp_w' must be a number above zero" in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": ""}, "'name' must be non-empty text"),
        ({"vendor": 3}, "'vendor' must be non-empty text"),
        ({"sm_count": 1.5}, "'sm_count' must be a whole number"),
        ({"memory_bytes": None}, "'memory_bytes' must be a number"),
        ({"compute_capability": 9.0}, "'compute_capability' must be non-empty text"),
        ({"compute_capability": "sm_90"}, "'compute_capability' must be text like \"9.0\""),
        ({"compute_capability": "9"}, "'compute_capability' must be text like \"9.0\""),
        ({"peak_flops": []}, "'peak_flops' must be an object"),
        ({"peak_flops": {}}, "'peak_flops.fp32' is missing"),
        ({"peak_flops": {"fp32": -1}}, "'peak_flops.fp32' must be a number above zero"),
        ({"peak_flops": {"fp32": 1e12, "bf16": None}}, "'peak_flops.bf16' must be a number"),
        ({"peak_flops": {"fp32": 1e12, "bf8": 1}}, "unknown field 'peak_flops.bf8'"),
        ({"interconnect": None}, "'interconnect' must be an object"),
        ({"interconnect": {"nvlink": 1}}, "unknown field 'interconnect.nvlink'"),
        (
            {"interconnect": {"pcie_bytes_per_s": "fast"}},
            "'interconnect.pcie_bytes_per_s' must be a number",
        ),
        ({"aliases": "h100"}, "'aliases' must be a list of texts"),
        ({"aliases": [1]}, "'aliases' must be a list of non-empty texts"),
        ({"sources": {}}, "'sources' must be a list"),
        ({"sources": ["NVIDIA"]}, "'sources' must be a list of objects"),
        ({"sources": [{"fields": ["tdp_w"]}]}, "'sources[0].title' is missing"),
        ({"memory_byte": 1}, "unknown field 'memory_byte'; did you mean 'memory_bytes'?"),
        ({"zzz": 1}, "unknown field 'zzz'; known: name,"),
    ],
)
def test_bad_fields(change: dict[str, object], says: str, tmp_path: Path) -> None:
    assert says in refused(tmp_path, sheet("h100-sxm") | change)


@pytest.mark.parametrize("data", [[], "h100", 3, None])
def test_not_an_object(data: object, tmp_path: Path) -> None:
    assert "must hold one JSON object" in refused(tmp_path, data)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"name": "x",}', b"\xff\xfe\x00", b"[" * 200_000, b"1" * 5000, b"\x80abc"],
    ids=["empty", "open", "comma", "utf16", "nested", "digits", "bytes"],
)
def test_broken_json(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(raw)
    with pytest.raises(HymellError, match="is not valid JSON") as caught:
        find_gpu(str(path))
    assert str(path) in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match=r"cannot read the GPU file .*gone\.json"):
        find_gpu(str(tmp_path / "gone.json"))
    folder = tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(HymellError, match="cannot read the GPU file"):
        find_gpu(str(folder))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(sheet("h100-sxm"))), JSON)
def test_any_value_in_any_field_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: object
) -> None:
    path = write(tmp_path_factory.getbasetemp(), sheet("h100-sxm") | {field: value}, "fuzz.json")
    try:
        gpu = read_gpu_file(path)
    except HymellError as error:
        message = str(error)
        assert "fuzz.json" in message
    else:
        assert gpu.peak("fp32") > 0
        assert math.isfinite(gpu.tdp_w)


# ---------------------------------------------------------------- the package around it


def test_leaf_and_lazy() -> None:
    """A direct name reads one file, and nothing outside the standard library is imported."""
    script = (
        "import sys; from hymell.hardware import find_gpu, load; find_gpu('H100_SXM');"
        "print(load.load_gpu.cache_info().currsize);"
        "print(*(m for m in sys.modules if m.split('.')[0] in sys.argv[1].split(',')))"
    )
    heavy = "numpy,torch,transformers,pandas,typer,rich,difflib"
    run = subprocess.run(
        [sys.executable, "-c", script, heavy], capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[:2] == ["1", ""]


def doc_row(gpu: Gpu) -> str:
    """The row of docs/hardware.md for ``gpu``."""

    def tera(key: str) -> str:
        return f"{gpu.peak_flops[key] / 1e12:g}" if key in gpu.peak_flops else "-"

    def giga(value: float | None) -> str:
        return "-" if value is None else f"{value / 1e9:g}"

    cells = (
        f"`{gpu.name}`",
        gpu.display_name,
        *(tera(key) for key in ("fp32", "bf16", "fp16", "fp8", "int8", "fp4")),
        f"{gpu.memory_bytes / GIB:g} {gpu.memory_type}",
        giga(gpu.memory_bandwidth_bytes_per_s),
        f"{gpu.l2_bytes / MIB:g}",
        str(gpu.sm_count),
        f"{gpu.tdp_w:g}",
        "-" if gpu.idle_power_w is None else f"{gpu.idle_power_w:g}",
        giga(gpu.interconnect.nvlink_bytes_per_s),
    )
    return f"| {' | '.join(cells)} |"


def test_docs_table_equals_the_data() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## The GPUs")[1].split("\nWorth knowing")[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    assert table == [doc_row(gpu) for gpu in list_gpus()]


def test_docs_describe_every_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for field in sheet("h100-sxm"):
        assert f"| `{field}` |" in text
    for key in FORMATS:
        assert f"`{key}`" in text
