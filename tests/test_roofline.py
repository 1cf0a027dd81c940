"""The data-sheet roofline and the power model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymell.errors import HymellError
from hymell.estimators.base import COMPUTE, MEMORY
from hymell.estimators.energy import IDLE_SHARE, MEMORY_SHARE, PowerModel, busy_terms
from hymell.estimators.level1.roofline import Roofline, limits
from hymell.hardware import find_gpu
from hymell.op_registry.primitives import Attention, Gemm, Memory

H100 = find_gpu("h100-sxm")
T4 = find_gpu("t4")
V100 = find_gpu("v100-sxm-32gb")


def test_large_gemm_runs_at_the_bf16_peak() -> None:
    priced = Roofline().time(Gemm(8192, 8192, 8192), H100)
    assert priced.time_s == pytest.approx(2 * 8192**3 / 989.4e12, rel=1e-3)
    assert priced.regime == COMPUTE


def test_one_row_reads_the_weights_at_full_bandwidth() -> None:
    gemm = Gemm(1, 4096, 4096)
    priced = Roofline().time(gemm, H100)
    assert priced.time_s == pytest.approx((4096 * 4096 + 2 * 4096) * 2 / 3.35e12, rel=1e-3)
    assert priced.regime == MEMORY


def test_arrays_give_what_numbers_give() -> None:
    rows = np.array([1.0, 64.0, 2000.0, 8192.0])
    together = Roofline().time(Gemm(rows, 4096, 4096), H100)
    for i, m in enumerate(rows):
        alone = Roofline().time(Gemm(float(m), 4096, 4096), H100)
        assert together.time_s[i] == alone.time_s
        assert together.regime[i] == alone.regime
    assert list(together.regime) == [MEMORY, MEMORY, COMPUTE, COMPUTE]


def test_causal_attention_is_priced_at_what_the_mask_lets_through() -> None:
    masked = Attention(1, 4096, 4096, 32, 32, 128, 128)
    full = replace(masked, causal=False)
    ratio = limits(full, H100).matrix_s / limits(masked, H100).matrix_s
    assert ratio == pytest.approx(2 * 4096 / 4097)
    assert masked.flops == full.flops


def test_fp32_runs_at_the_plain_rate() -> None:
    gemm = Gemm(8192, 8192, 8192, a_dtype="float32", b_dtype="float32", math="fp32")
    assert limits(gemm, H100).matrix_s == pytest.approx(gemm.flops / H100.peak("fp32"))
    assert H100.peak("tf32") > 5 * H100.peak("fp32")


def test_element_wise_work_runs_at_the_fp32_rate() -> None:
    heavy = Memory("gelu", 1e6, 4.0, 4.0, vector_flops=1e12)
    priced = Roofline().time(heavy, H100)
    assert priced.time_s == pytest.approx(1e12 / H100.peak("fp32"))
    assert priced.regime == COMPUTE


@pytest.mark.parametrize(
    ("gpu", "math", "runs_in"),
    [(V100, "bf16", "fp16"), (T4, "fp8", "fp16"), (find_gpu("a100"), "fp8", "bf16")],
)
def test_a_format_without_units_runs_in_what_the_gpu_has(gpu, math: str, runs_in: str) -> None:  # type: ignore[no-untyped-def]
    gemm = Gemm(8192, 8192, 8192, math=math)
    assert limits(gemm, gpu).matrix_s == pytest.approx(gemm.flops / gpu.peak(runs_in))


def test_a_format_that_nothing_stands_in_for_is_an_error() -> None:
    gpu = replace(H100, peak_flops={"fp32": 1e12})
    with pytest.raises(HymellError, match="fp64"):
        limits(Gemm(8, 8, 8, math="fp64"), gpu)


def test_power_at_full_use_is_the_tdp() -> None:
    power = PowerModel.of(H100)
    gemm = Gemm(8192, 8192, 8192)
    time_s = float(Roofline().time(gemm, H100).time_s)
    energy_j = power.energy_j(time_s, float(max(busy_terms(gemm, H100))))
    assert energy_j / time_s == pytest.approx(H100.tdp_w)


def test_power_at_full_bandwidth_is_a_share_of_the_dynamic_power() -> None:
    power = PowerModel.of(H100)
    copy = Memory("copy", 1e9, 1e9, 1e9)
    time_s = float(Roofline().time(copy, H100).time_s)
    watts = power.energy_j(time_s, float(max(busy_terms(copy, H100)))) / time_s
    assert watts == pytest.approx(power.idle_w + MEMORY_SHARE * (power.tdp_w - power.idle_w))


def test_idle_power_is_stated_or_a_share_of_the_tdp() -> None:
    stated = PowerModel.of(replace(H100, idle_power_w=80.0))
    assert (stated.idle_w, stated.idle_stated) == (80.0, True)
    assert "data sheet" in stated.describe()
    absent = PowerModel.of(replace(H100, idle_power_w=None))
    assert (absent.idle_w, absent.idle_stated) == (IDLE_SHARE * H100.tdp_w, False)
    assert "10% of TDP" in absent.describe()


sizes = st.integers(1, 20_000)


@given(m=sizes, n=sizes, k=sizes, more=st.integers(0, 1000), longer=st.floats(1, 10))
def test_energy_is_monotone_and_power_bounded(
    m: int, n: int, k: int, more: int, longer: float
) -> None:
    power = PowerModel.of(H100)

    def energy_j(rows: int, stretch: float) -> float:
        gemm = Gemm(rows, n, k)
        time_s = stretch * float(Roofline().time(gemm, H100).time_s)
        used = power.energy_j(time_s, float(max(busy_terms(gemm, H100))))
        assert power.idle_w * (1 - 1e-9) <= used / time_s <= power.tdp_w * (1 + 1e-9)
        return float(used)

    assert energy_j(m + more, 1.0) >= energy_j(m, 1.0)
    assert energy_j(m, longer) >= energy_j(m, 1.0)
