"""Energy of a kernel: the power form, its limits, which labels count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1 import catalog
from hymell.estimators.level1 import kernel_energy as energy
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Terms
from hymell.hardware import find_gpu
from hymell.measure.calibrate import held_out
from hymell.measure.judging import Effort, judge_all
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, rows_of
from hymell.measure.readers import read
from hymell.measure.splits import energy as splits
from hymell.measure.table import COMMON, Table, dims, labels
from hymell.op_registry.primitives import Attention, Experts, Gemm, Primitive

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
    micro = 1e6 * seconds
    sizes = dict.fromkeys(energy.SIZES["gemm"], np.full(len(micro), 1024.0))
    return {"time_us": micro, "compute_us": micro * math, "memory_us": micro * moved} | sizes


def evaluate(at: dict[str, Array], **changed: float) -> Terms:
    values = {c.name: c.prior(device()) for c in FORM.coefficients} | changed
    return FORM.evaluate(values, at, device(), {})


def table(op: str, **columns: object) -> Table:
    count = max(np.size(column) for column in columns.values())
    made: dict[str, object] = dict.fromkeys((*COMMON, *labels(op)), np.full(count, "", object))
    made |= dict.fromkeys(dims(op), np.ones(count))
    made["time_s"] = np.ones(count)
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
    time_us=st.floats(1, 1e7),
    compute_us=st.floats(0, 1e7),
    memory_us=st.floats(0, 1e7),
    more=st.floats(1, 100),
    which=st.sampled_from(["compute_us", "memory_us"]),
)
def test_more_work_in_the_same_time_never_costs_less(
    time_us: float, compute_us: float, memory_us: float, more: float, which: str
) -> None:
    at = {
        "time_us": np.full(2, time_us),
        "compute_us": np.full(2, compute_us),
        "memory_us": np.full(2, memory_us),
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
    power = estimator.predict(at).time_s / at["time_us"] * 1e6
    assert np.all(power >= 0.1 * 700)
    assert np.all(power <= 700)
    estimator.coefficients_ = dict.fromkeys(estimator.coefficients_, 1e-3)
    assert estimator.predict(at).time_s / at["time_us"] * 1e6 == pytest.approx([70, 70, 70])


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
    assert got["time_us"] == pytest.approx([10, 200])
    assert got["compute_us"][1] == pytest.approx(1e6 * 2 * 4096**3 / h200.peak("bf16"))
    moved = 2 * (4096 + 4096 * 4096 + 4096)
    assert got["memory_us"][0] == pytest.approx(1e6 * moved / h200.memory_bandwidth_bytes_per_s)


def test_labels_of_short_kernels_and_single_samples_do_not_count() -> None:
    made = table(
        "gemm",
        time_s=np.array([1e-4, 1e-3, 1e-3, 1e-3]),
        power_w=np.array([500.1234567, np.nan, 219.286, 500.1234567]),
        m=np.arange(1.0, 5.0),
    )
    assert splits.usable(made)["m"].tolist() == [4.0]


def _same(made: Table, primitive: Primitive) -> None:
    """A row of a table and a primitive have the same dims."""
    time_s = float(made["time_s"][0])
    expected = energy.energy_dims(primitive, find_gpu("h200-sxm"), time_s)
    found = splits.dims(made)
    assert set(found) == set(expected) == set(energy.kernel_energy(made.op).dims)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


def test_a_row_has_the_dims_of_its_primitive() -> None:
    _same(table("gemm", gpu="h200-sxm", m=64.0, n=128.0, k=256.0), Gemm(m=64, n=128, k=256))
    for window, q_len, kv_len in ((0, 100, 100), (0, 1, 500), (64, 100, 100), (64, 1, 500)):
        for kv_dtype in ("bfloat16", "float8_e4m3"):
            attention = Attention(
                2, q_len, kv_len, 8, 2, 128, 128, window=window or None, kv_dtype=kv_dtype
            )
            made = table(
                "attention_prefill",
                gpu="h200-sxm",
                batch=2.0,
                q_len=float(q_len),
                kv_len=float(kv_len),
                heads=8.0,
                kv_heads=2.0,
                head_dim=128.0,
                window=float(window),
                kv_dtype=kv_dtype,
            )
            _same(made, attention)


def test_a_row_of_experts_has_the_dims_of_its_primitive_but_for_its_routing() -> None:
    # Tables route in balance, where so many tokens reach every expert in either case.
    columns = {"tokens": 4096.0, "top_k": 2.0, "experts": 8.0, "hidden": 512.0, "skew": 0.0}
    made = table("moe", gpu="h200-sxm", intermediate=256.0, **columns)
    experts = Experts(tokens=4096, top_k=2, experts=8, hidden=512, intermediate=256)
    expected = energy.energy_dims(experts, find_gpu("h200-sxm"), 1.0)
    found = splits.dims(made)
    assert set(found) == set(expected)
    for name in set(expected) - {"fullest"}:
        assert found[name] == pytest.approx(expected[name], rel=1e-6), name
    halves = table("moe", gpu="h200-sxm", intermediate=256.0, **columns, ep=2.0)
    assert splits.work(halves).matrix_flops == pytest.approx(splits.work(made).matrix_flops / 2)


def test_there_is_a_form_for_each_op_with_labels_and_no_other() -> None:
    assert set(splits.SHAPES) == set(energy.SIZES)
    for op in energy.SIZES:
        form = catalog.find(energy.energy_op(op), "power")
        assert form is not None
        assert form.op == energy.energy_op(op)
    assert catalog.find("rope_energy", "power") is None
    with pytest.raises(HymellError, match="no power labels are used for rope"):
        splits.work(table("rope", tokens=1.0))


def test_only_rows_of_tables_with_usable_labels_are_fitted() -> None:
    made = table(
        "gemm",
        gpu=np.array(["h200-sxm", "h200-sxm", "h100-sxm"], dtype=object),
        library="vllm",
        version=np.array(["0.22.0", "0.24.0", "0.22.0"], dtype=object),
        time_s=1e-3,
        power_w=500.1234567,
    )
    assert splits.labelled(made)["version"].tolist() == ["0.22.0"]
    assert splits.labelled(made)["gpu"].tolist() == ["h200-sxm"]


def test_the_data_sheet_stays_between_idle_and_tdp() -> None:
    made = table("gemm", gpu="h200-sxm", m=8192.0, n=8192.0, k=8192.0, time_s=[1.0, 1.2e-3, 1e-9])
    watts = splits.data_sheet_j(made) / made["time_s"]
    assert watts[0] == pytest.approx(75, rel=0.01)
    assert 500 < watts[1] < 700
    assert watts[2] == pytest.approx(700)


def test_the_correction_fades_for_kernels_much_shorter_than_any_label() -> None:
    rng = np.random.default_rng(0)
    at = sizes(rng.uniform(3e-4, 1e-2, 300), rng.uniform(0, 0.8, 300), rng.uniform(0, 0.9, 300))
    joules = 1.2 * evaluate(at).time_s * np.exp(0.3 * np.sin(40 * at["compute_us"]))
    made = Level1(FORM, device(), epochs=5, seeds=(0,), **energy.FIT).fit(at, joules)
    for time_s, differs in ((1e-3, True), (1e-6, False)):
        asked = sizes(time_s, 0.5, 0.3)
        both = made.predict(asked).time_s, made.predict(asked, corrected=False).time_s
        assert (both[0] != both[1]).all() == differs


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


def _measurements() -> Path:
    try:
        folder = locate()
        read("gemm", "b200-sxm", "trtllm", root=folder)
    except HymellError as error:
        pytest.skip(f"no measurements: {error}")
    return folder


def test_energies_are_judged_where_there_are_labels() -> None:
    folder = _measurements()
    operator = next(o for o in OPERATORS if o.op == "gemm_energy")
    found = {rows.dtype: rows for rows in rows_of(operator, "b200-sxm", "trtllm", folder)}
    wanted = [t for t in splits.TARGETS if (t.op, t.library) == ("gemm", "trtllm")]
    assert set(found) == {t.dtype for t in wanted}
    # The newest tables of the library have no usable labels.
    assert {rows.version for rows in found.values()} == {"1.3.0rc15"}
    rows = found["nvfp4"]
    assert rows.measured == pytest.approx(rows.table["power_w"] * rows.table["time_s"])
    held = held_out(rows)
    names = ["unseen shape 0", "unseen shape 1", "unseen shape 2", "longest"]
    assert [name for name, *_ in held] == names
    device = Device.of(find_gpu("b200-sxm"))
    judged = judge_all(rows, device, Effort(rows=100, epochs=1, seeds=(0,)), held[:1])
    mape = {score["estimator"]: score["mape"] for score in judged}
    assert set(mape) == {"roofline", "analytical", "corrected"}
    assert mape["analytical"] < 10 < mape["roofline"]


def test_no_energy_is_fitted_without_labels() -> None:
    folder = _measurements()
    for gpu, library in (("h100-sxm", "vllm"), ("b200-sxm", "sglang")):
        for operator in OPERATORS:
            if operator.joules:
                assert not list(rows_of(operator, gpu, library, folder))
