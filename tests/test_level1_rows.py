"""Row kernels and kernels bound by bytes: the forms, their physics, fitting, splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1 import pointwise, row_ops
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Form
from hymell.hardware import find_gpu
from hymell.measure.splits import pointwise as pointwise_splits
from hymell.measure.splits import row_ops as row_splits
from hymell.measure.table import COMMON, Table, dims, labels
from hymell.op_registry.primitives import Gather, Memory, RowReduce

Array = NDArray[np.float64]

WAVE_FORMS = (row_ops.RMS_NORM, row_ops.SOFTMAX, pointwise.ELEMENTWISE, pointwise.EMBEDDING)
ALL_FORMS = (*WAVE_FORMS, row_ops.NORM_REGIMES, row_ops.SOFTMAX_REGIMES)
GPUS = ("h100", "b200", "a100", "l4", "rtx-4090", "t4")


def device(name: str = "h100") -> Device:
    return Device.of(find_gpu(name))


def sizes(rows: object, cols: object, element_bytes: float = 2.0) -> dict[str, Array]:
    """Every size that some form asks for, one read and one write."""
    count, width = (
        np.asarray(a, dtype=np.float64)
        for a in np.broadcast_arrays(np.atleast_1d(rows), np.atleast_1d(cols))
    )
    moved = 2.0 * count * width * element_bytes
    return {"rows": count, "cols": width, "bytes": moved, "elements": count * width}


def time_s(form: Form, at: dict[str, Array], gpu: str = "h100", **changed: float) -> Array:
    """The form at its priors, some of them changed, under its first choice."""
    where = device(gpu)
    values = {c.name: c.prior(where) for c in form.coefficients} | changed
    return form.evaluate(values, at, where, form.choices[0]).time_s


def table(op: str, source: str = "vidur", **columns: object) -> Table:
    """A table of ``op`` with float16 rows; what is not said is 1."""
    count = max(np.size(column) for column in columns.values())
    filled: dict[str, object] = {
        name: np.ones(count) for name in ("time_s", "repeats", *dims(op))
    } | {
        name: np.full(count, "", dtype=object)
        for name in (*COMMON, *labels(op))
        if name not in ("time_s", "repeats", "spread", "power_w", "sustained")
    }
    filled["dtype"] = np.full(count, "float16", dtype=object)
    filled["source"] = np.full(count, source, dtype=object)
    filled |= {name: np.broadcast_to(np.asarray(c), (count,)) for name, c in columns.items()}
    return Table(op, filled)


def grid(counts: Array, widths: Array) -> tuple[Array, Array]:
    rows, cols = np.meshgrid(counts, widths, indexing="ij")
    return rows.ravel(), cols.ravel()


def noisy(true_s: Array, seed: int = 0) -> Array:
    return true_s * np.exp(np.random.default_rng(seed).normal(0.0, 0.01, len(true_s)))


def test_a_second_wave_starts_where_the_first_is_full() -> None:
    at = sizes(np.array([1.0, 132.0, 133.0, 264.0, 265.0]), 4096.0)
    at["bytes"] = np.ones(5)
    got = time_s(row_ops.RMS_NORM, at, quantised=1.0)
    wave = 1e-6 + 3e-7 * 4096 / 1024
    assert got == pytest.approx(2e-6 + wave * np.array([1, 1, 2, 2, 3]), rel=1e-4)


def test_bytes_out_of_l2_cost_less_than_out_of_hbm() -> None:
    h100 = device()
    values = {c.name: c.prior(h100) for c in row_ops.RMS_NORM.coefficients}
    seconds, miss = row_ops.memory_seconds(values, np.array([1e5, 1e10]), h100)
    assert miss == pytest.approx([0.0, 1.0], abs=1e-3)
    assert seconds[1] == pytest.approx(1e10 / (0.85 * h100.bandwidth), rel=1e-3)
    assert seconds[0] == pytest.approx(1e5 / (0.85 * h100.bandwidth * 2.5), rel=1e-3)


@pytest.mark.parametrize(
    ("cols", "threads", "passes"),
    [
        (2048, 256, 2),  # two vectors of four per thread
        (4096, 512, 2),
        (3072, 512, 3),  # one vector each, then the last 1024 one by one
        (2560, 512, 2),
        (16384, 512, 8),
        (2049, 256, 3.75),  # three of four rows start off a vector's boundary
    ],
)
def test_passes_of_the_block_softmax(cols: int, threads: int, passes: float) -> None:
    got = row_ops.softmax_block(sizes(64.0, float(cols), 4.0))
    assert got[0] == pytest.approx(threads)
    assert got[1] == pytest.approx(passes)


def test_softmax_rereads_rows_that_l1_cannot_hold() -> None:
    at = sizes(65536.0, np.array([4096.0, 16384.0]), 4.0)
    per_byte = time_s(row_ops.SOFTMAX, at, "a100", row_s=1e-9, pass_s=1e-9) / at["bytes"]
    assert per_byte[1] > 1.4 * per_byte[0]


@pytest.mark.parametrize("form", WAVE_FORMS, ids=lambda f: f.op)
@given(
    gpu=st.sampled_from(GPUS),
    rows=st.floats(1, 2e6),
    more=st.floats(1, 50),
    cols=st.sampled_from([64, 512, 1024, 1536, 4096, 16384]),
    draw=st.lists(st.floats(-1.5, 1.5), min_size=20, max_size=20),
)
def test_more_rows_never_take_less_time(
    form: Form, gpu: str, rows: float, more: float, cols: int, draw: list[float]
) -> None:
    where = device(gpu)
    changed = {
        c.name: c.prior(where) * float(np.exp(x))
        for c, x in zip(form.coefficients, draw, strict=False)
    }
    at = sizes(np.floor(np.array([rows, rows * more])), float(cols))
    short, long = time_s(form, at, gpu, **changed)
    assert long >= short * (1 - 1e-9)


@pytest.mark.parametrize("form", [row_ops.RMS_NORM, pointwise.ELEMENTWISE], ids=lambda f: f.op)
def test_wider_rows_never_take_less_time(form: Form) -> None:
    got = time_s(form, sizes(300.0, np.arange(64.0, 20000.0, 64.0)))
    assert np.all(np.diff(got) >= 0)


@pytest.mark.parametrize("form", ALL_FORMS, ids=lambda f: f"{f.op}-{f.name}")
@pytest.mark.parametrize("gpu", GPUS)
def test_absurd_sizes_stay_finite_and_above_the_floor(form: Form, gpu: str) -> None:
    where = device(gpu)
    rows, cols = grid(np.array([1.0, 1e4, 1e9]), np.array([1.0, 4096.0, 1e7]))
    at = sizes(rows, cols)
    estimator = Level1(form, where, corrected=False)
    estimator.coefficients_ = {c.name: 1e-3 * c.prior(where) for c in form.coefficients}
    estimator.choice_, estimator.ranges_, estimator.spread_ = form.choices[0], {}, 0.0
    estimator.correction_ = None
    got = estimator.predict(at).time_s
    assert np.all(np.isfinite(got))
    assert np.all(got >= (at["bytes"] - where.l2_bytes) / where.bandwidth)
    terms = form.evaluate(estimator.coefficients_, at, where, form.choices[0])
    assert np.all(np.isfinite(form.features(at, terms, where)))


@pytest.mark.parametrize("form", ALL_FORMS, ids=lambda f: f"{f.op}-{f.name}")
def test_a_fit_finds_unseen_widths(form: Form) -> None:
    """From its own times with 1% of noise, with coefficients a third off their priors."""
    rows, cols = grid(np.unique(np.geomspace(1, 60000, 60).round()), np.array([1500, 4096, 8192]))
    at = sizes(rows, cols)
    shifted = {c.name: 1.3 * c.prior(device()) for c in form.coefficients}
    true_s = time_s(form, at, **shifted)
    held = cols == 4096
    one = replace(form, choices=form.choices[:1])
    fitted = Level1(one, device(), corrected=False, **row_ops.FIT).fit(
        {name: a[~held] for name, a in at.items()}, noisy(true_s[~held])
    )
    got = fitted.predict({name: a[held] for name, a in at.items()}).time_s
    assert np.abs(got / true_s[held] - 1).mean() < 0.04


def test_the_occupancy_is_found_on_the_training_rows() -> None:
    rows, cols = grid(np.arange(8.0, 4000.0, 40.0), np.array([4096.0, 8192.0]))
    at = sizes(rows, cols)
    form = replace(row_ops.RMS_NORM, choices=({"occupancy": 4.0},))
    fitted = Level1(row_ops.RMS_NORM, device(), corrected=False, **row_ops.FIT)
    fitted.fit(at, noisy(time_s(form, at, quantised=1.0)))
    assert fitted.choice_ == {"occupancy": 4.0}


def test_the_correction_learns_refits_alike_and_fades_outside_the_range() -> None:
    rows, cols = grid(np.unique(np.geomspace(8, 4000, 60).round()), np.array([4096.0, 8192.0]))
    at = sizes(rows, cols)
    true_s = time_s(row_ops.RMS_NORM, at) * (1.0 + 0.1 * np.sin(np.log2(rows)))

    def fit() -> Level1:
        return Level1(row_ops.RMS_NORM, device(), epochs=60, seeds=(0,), **row_ops.FIT).fit(
            at, true_s
        )

    first, second = fit(), fit()
    assert np.array_equal(first.predict(at).time_s, second.predict(at).time_s)
    plain = np.abs(first.predict(at, corrected=False).time_s / true_s - 1).mean()
    assert np.abs(first.predict(at).time_s / true_s - 1).mean() < 0.7 * plain
    far = sizes(4000.0 * 2.0**6, 8192.0)
    assert first.predict(far).time_s == first.predict(far, corrected=False).time_s
    assert not first.predict(far).in_range[0]


def test_sizes_come_from_primitives() -> None:
    norm = RowReduce("rms_norm", np.array([8, 16]), 4096, np.array([10, 20]), 5)
    assert {k: v.tolist() for k, v in row_ops.row_dims(norm).items()} == {
        "rows": [8.0, 16.0],
        "cols": [4096.0, 4096.0],
        "bytes": [15.0, 25.0],
    }
    add = Memory("residual_add", elements=100, bytes_read=400, bytes_written=200)
    assert pointwise.element_dims(add) == {"elements": [100.0], "bytes": [600.0]}
    embedding = row_ops.row_dims(Gather(rows=4, cols=128))
    assert embedding["bytes"] == [2 * 4 * 128 * 2 + 4 * 8]


def test_norm_splits_hold_out_whole_widths_and_row_counts() -> None:
    rows, cols = grid(np.arange(1.0, 4097.0, 50.0), np.array([4096.0, 5120.0, 8192.0]))
    made = table("rms_norm", rows=rows, cols=cols)
    assert row_splits.dims(made)["bytes"] == pytest.approx(4 * rows * cols)
    seen = {}
    for name, train, test in row_splits.splits(made):
        assert not np.any(train & test)
        assert np.all(train | test)
        assert test.any()
        kind = "cols" if name.startswith("unseen width") else "rows"
        assert not set(made[kind][train]) & set(made[kind][test]), name
        seen[name] = test
    assert np.all(made["cols"][seen["unseen width 5120"]] == 5120)
    assert made["rows"][~seen["longest rows"]].max() < made["rows"][seen["longest rows"]].min()
    assert sum(name.startswith("unseen rows") for name in seen) == 3


def test_eager_tables_keep_their_published_split() -> None:
    file = np.array(["a/train/softmax.csv"] * 30 + ["a/test/softmax.csv"] * 10, dtype=object)
    made = table("softmax", "neusight", rows=np.arange(1.0, 41.0), cols=2048.0, file=file)
    found = {name: test for name, _, test in row_splits.splits(made)}
    assert found["published split"].tolist() == [False] * 30 + [True] * 10


def test_bytes_of_pointwise_tables() -> None:
    act = table("pointwise", rows=3.0, cols=10.0, reads=2.0)
    assert pointwise_splits.dims(act)["bytes"] == [3 * 10 * 2 * 3]
    rope = table("rope", tokens=5.0, heads=4.0, kv_heads=2.0, head_dim=8.0)
    assert pointwise_splits.dims(rope)["bytes"] == [5 * 2 * (2 * 48 + 8)]
    embedding = table("embedding", tokens=7.0, hidden=16.0, vocab=100.0)
    assert pointwise_splits.dims(embedding)["bytes"] == [7 * (2 * 16 * 2 + 8)]


def test_a_wrong_table_is_refused_in_a_sentence() -> None:
    with pytest.raises(HymellError, match="gemm is no row kernel"):
        row_splits.dims(table("gemm", m=1.0))
    with pytest.raises(HymellError, match="gemm is not priced by its bytes"):
        pointwise_splits.dims(table("gemm", m=1.0))
