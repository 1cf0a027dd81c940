"""Energy of a kernel: the power form, its limits, which labels count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1 import kernel_energy as energy
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Terms
from hymell.hardware import find_gpu
from hymell.measure.splits import energy as splits
from hymell.measure.table import COMMON, Table, dims, labels
from hymell.op_registry.primitives import Attention, Experts, Gemm

Array = NDArray[np.float64]

FORM = energy.kernel_energy("gemm")


def device(name: str = "h200") -> Device:
    return Device.of(find_gpu(name))


def sizes(time_s: object, compute: object, memory: object) -> dict[str, Array]:
    """Dims from seconds and the shares of the data-sheet rates."""
    seconds, math, moved = (
        np.asarray(a, dtype=np.float64)
        for a in np.broadcast_arrays(np.atleast_1d(time_s), compute, memory)
    )
    return {"time_s": seconds, "compute_s": seconds * math, "memory_s": seconds * moved}


def evaluate(at: dict[str, Array], **changed: float) -> Terms:
    values = {c.name: c.prior(device()) for c in FORM.coefficients} | changed
    return FORM.evaluate(values, at, device(), {})


def table(op: str, **columns: object) -> Table:
    count = max(np.size(column) for column in columns.values())
    made: dict[str, object] = dict.fromkeys((*COMMON, *labels(op)), np.full(count, "", object))
    made |= dict.fromkeys(dims(op), np.ones(count))
    for name in ("dtype", "kv_dtype"):
        if name in made:
            made[name] = np.full(count, "bfloat16", dtype=object)
    made |= {name: np.broadcast_to(np.asarray(c), (count,)) for name, c in columns.items()}
    return Table(op, made)


def test_power_runs_from_the_base_to_the_cap() -> None:
    at = sizes(1e-3, [0.0, 0.0, 1.0, 1.5], [0.0, 0.5, 0.0, 1.5])
    power = evaluate(at, base_w=150.0, compute_w=400.0, memory_w=300.0, busy_w=1e-9).time_s / 1e-3
    assert power[0] == pytest.approx(150, rel=1e-3)
    assert power[1] == pytest.approx(300, rel=0.01)
    assert power[2] == pytest.approx(550, rel=0.05)
    assert 600 < power[3] < 700


def test_the_parts_add_up() -> None:
    at = sizes([1e-4, 1e-3], [0.3, 0.9], [0.8, 0.2])
    terms = evaluate(at)
    assert terms.launch_s + terms.memory_s + terms.compute_s == pytest.approx(terms.time_s)


@given(
    time_s=st.floats(1e-6, 10.0),
    compute_s=st.floats(0, 10.0),
    memory_s=st.floats(0, 10.0),
    more=st.floats(1, 100),
    which=st.sampled_from(["compute_s", "memory_s"]),
)
def test_more_work_in_the_same_time_never_costs_less(
    time_s: float, compute_s: float, memory_s: float, more: float, which: str
) -> None:
    at = {
        "time_s": np.full(2, time_s),
        "compute_s": np.full(2, compute_s),
        "memory_s": np.full(2, memory_s),
    }
    at[which] = at[which] * np.array([1.0, more])
    less, more_j = evaluate(at).time_s
    assert more_j >= less * (1 - 1e-9)


def test_energy_is_never_below_an_idle_board_nor_above_its_limit() -> None:
    estimator = Level1(FORM, device(), corrected=False)
    estimator.coefficients_ = {c.name: c.prior(device()) for c in FORM.coefficients}
    estimator.choice_, estimator.ranges_, estimator.spread_ = {}, {}, 0.0
    estimator.correction_ = None
    at = sizes([1e-9, 1.0, 1e6], [0.0, 1e9, 0.5], [0.0, 1e9, 0.5])
    power = estimator.predict(at).time_s / at["time_s"]
    assert np.all(power >= 0.1 * 700)
    assert np.all(power <= 700)
    estimator.coefficients_ = dict.fromkeys(estimator.coefficients_, 1e-3)
    assert estimator.predict(at).time_s / at["time_s"] == pytest.approx([70, 70, 70])


def test_a_fit_finds_the_watts_behind_labels() -> None:
    rng = np.random.default_rng(0)
    at = sizes(rng.uniform(1e-3, 1e-2, 400), rng.uniform(0, 0.8, 400), rng.uniform(0, 0.9, 400))
    true_j = evaluate(at, base_w=200.0, compute_w=700.0, memory_w=150.0, cap_w=690.0).time_s
    noisy = true_j * np.exp(rng.normal(0.0, 0.02, 400))
    settings = {name: energy.FIT[name] for name in ("f_scale", "ridge")}
    fitted = Level1(FORM, device(), corrected=False, **settings).fit(at, noisy)
    assert np.abs(fitted.predict(at).time_s / true_j - 1).mean() < 0.02
    assert fitted.coefficients_["base_w"] == pytest.approx(200, rel=0.15)


def test_dims_of_a_primitive_are_its_data_sheet_seconds() -> None:
    h200 = find_gpu("h200")
    got = energy.energy_dims(Gemm(m=np.array([1, 4096]), n=4096, k=4096), h200, [1e-5, 2e-4])
    assert got["time_s"] == pytest.approx([1e-5, 2e-4])
    assert got["compute_s"][1] == pytest.approx(2 * 4096**3 / h200.peak("bf16"))
    moved = 2 * (4096 + 4096 * 4096 + 4096)
    assert got["memory_s"][0] == pytest.approx(moved / h200.memory_bandwidth_bytes_per_s)


def test_labels_of_short_kernels_and_single_samples_do_not_count() -> None:
    made = table(
        "gemm",
        time_s=np.array([1e-4, 1e-3, 1e-3, 1e-3]),
        power_w=np.array([500.1234567, np.nan, 219.286, 500.1234567]),
        m=np.arange(1.0, 5.0),
    )
    assert splits.usable(made)["m"].tolist() == [4.0]


def test_work_of_each_op_is_that_of_its_primitive() -> None:
    gemm = table("gemm", m=64.0, n=128.0, k=256.0)
    flops, moved = splits.work(gemm)
    same = Gemm(m=64, n=128, k=256)
    assert (flops, moved) == ([same.flops], [same.bytes_read + same.bytes_written])
    for window, q_len, kv_len in ((0, 100, 100), (0, 1, 500), (64, 100, 100), (64, 1, 500)):
        attention = Attention(2, q_len, kv_len, 8, 2, 128, 128, window=window or None)
        made = table(
            "attention_prefill",
            batch=2.0,
            q_len=float(q_len),
            kv_len=float(kv_len),
            heads=8.0,
            kv_heads=2.0,
            head_dim=128.0,
            window=float(window),
        )
        flops, moved = splits.work(made)
        assert flops == pytest.approx([attention.flops_causal])
        assert moved == pytest.approx([attention.bytes_read + attention.bytes_written])
    moe = table(
        "moe", tokens=16.0, top_k=2.0, experts=8.0, hidden=512.0, intermediate=256.0, skew=0.0
    )
    routed = Experts(tokens=16, top_k=2, experts=8, hidden=512, intermediate=256)
    flops, moved = splits.work(moe)
    assert flops == pytest.approx([routed.flops])
    assert moved[0] > routed.weight_bytes
    halves = table(
        "moe",
        tokens=16.0,
        top_k=2.0,
        experts=8.0,
        hidden=512.0,
        intermediate=256.0,
        skew=0.0,
        ep=2.0,
    )
    assert splits.work(halves)[0] == pytest.approx(flops / 2)
    with pytest.raises(HymellError, match="no power labels are used for rope"):
        splits.work(table("rope", tokens=1.0))


def test_splits_hold_out_whole_shapes() -> None:
    n, m = (a.ravel() for a in np.meshgrid(np.arange(1.0, 21.0), np.arange(1.0, 11.0)))
    made = table("gemm", m=m, n=n, k=n, time_s=m * 1e-3)
    names = []
    for name, train, test in splits.splits(made):
        names.append(name)
        assert np.all(train ^ test)
        if name.startswith("unseen shape"):
            assert not set(made["n"][train]) & set(made["n"][test])
            assert test.sum() == 40
    assert names == ["unseen shape 0", "unseen shape 1", "unseen shape 2", "longest"]
    assert len(set(splits.TARGETS)) == len(splits.TARGETS)
