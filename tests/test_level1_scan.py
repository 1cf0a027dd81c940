"""Scan and convolution forms: physics sanity, recovery, kinds without data, splits."""

from __future__ import annotations

import numpy as np
import pytest

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Form
from hymell.estimators.level1.scan import (
    CONV1D,
    MEASURED_KINDS,
    UNFITTED_KINDS,
    chunked_form,
    conv_dims,
    recurrent_form,
    scan_dims,
    unfitted,
)
from hymell.hardware import find_gpu
from hymell.measure.splits import scan as cut
from hymell.measure.table import COMMON, Table, labels
from hymell.op_registry.primitives import Scan

H100 = Device.of(find_gpu("h100"))


def sizes(batch: object = 4.0, length: object = 1024.0, heads: object = 16.0) -> dict:
    """GDN with 128 x 128 states, as many key heads as value heads."""
    b, n, h = np.broadcast_arrays(*(np.atleast_1d(v).astype(float) for v in (batch, length, heads)))
    dim = np.full(b.shape, 128.0)
    return {
        "batch": b,
        "length": n,
        "heads": h,
        "key_dim": dim,
        "value_dim": dim,
        "chunk": np.full(b.shape, 64.0),
        "token_bytes": 2.0 * b * n * 4 * h * 128,
    }


def at_priors(form: Form, **choice: float | bool) -> Level1:
    """The form with its coefficients at their priors."""
    made = Level1(form, H100, corrected=False)
    made.coefficients_ = {c.name: c.prior(H100) for c in form.coefficients}
    made.choice_ = {**form.choices[0], **choice}
    made.ranges_, made.spread_, made.correction_ = {}, 0.1, None
    return made


GROWING = 2.0 ** np.arange(15)


@pytest.mark.parametrize("size", ["batch", "length", "heads"])
@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_prefill_grows_with_every_size(size: str, serial: bool, fused: bool) -> None:
    model = at_priors(chunked_form("gdn"), serial=serial, fused=fused)
    time_s = model.predict(sizes(**{size: GROWING})).time_s
    assert (np.diff(time_s) >= -1e-12).all()
    assert time_s[-1] > time_s[0]


@pytest.mark.parametrize("size", ["batch", "length", "heads"])
def test_decode_grows_with_every_size(size: str) -> None:
    given = {"batch": 1.0, "length": 1.0, size: GROWING}
    time_s = at_priors(recurrent_form("gdn")).predict(sizes(**given)).time_s
    assert (np.diff(time_s) >= -1e-12).all()
    assert time_s[-1] > time_s[0]


@pytest.mark.parametrize("size", ["batch", "length", "channels"])
def test_convolution_grows_with_every_size(size: str) -> None:
    given = {"batch": 2.0, "length": 512.0, "channels": 2048.0, size: GROWING}
    time_s = at_priors(CONV1D).predict(conv_dims(**given)).time_s
    assert (np.diff(time_s) >= -1e-12).all()
    assert time_s[-1] > time_s[0]


def test_large_decode_is_as_fast_as_its_state_traffic() -> None:
    model = at_priors(recurrent_form("gdn"))
    rows = sizes(batch=4096.0, length=1.0)
    traffic = 2 * 4 * 4096 * 16 * 128 * 128 / H100.bandwidth
    assert model.predict(rows).time_s[0] == pytest.approx(traffic, rel=0.5)
    assert model.predict(rows).time_s[0] > traffic


@pytest.mark.parametrize("form", [chunked_form("gdn"), recurrent_form("kda"), CONV1D])
def test_absurd_sizes_stay_finite_and_above_the_data_sheet(form: Form) -> None:
    huge = np.array([1.0, 1e4, 1e9])
    rows = conv_dims(huge, huge, huge) if form is CONV1D else sizes(huge, huge, huge)
    model = at_priors(form)
    time_s = model.predict(rows).time_s
    assert np.isfinite(time_s).all()
    assert (time_s >= form.floor_s(rows, H100)).all()
    assert np.isfinite(form.features(rows, model.terms(rows), H100)).all()


def test_the_fit_finds_a_slow_walk_back_and_repeats_itself() -> None:
    batch, length, heads = (
        a.ravel() for a in np.meshgrid([1, 8, 64], 2.0 ** np.arange(5, 14), [4, 16, 64])
    )
    rows = sizes(batch, length, heads)
    truth = at_priors(chunked_form("gdn"), serial=True, fused=True)
    truth.coefficients_ |= {"chunk_s": 3e-6, "t0": 1e-5}
    time_s = truth.terms(rows).time_s
    first, again = (
        Level1(chunked_form("gdn"), H100, epochs=3, seeds=(0,), ridge=5e-4).fit(rows, time_s)
        for _ in range(2)
    )
    plain = first.predict(rows, corrected=False).time_s
    assert np.abs(plain / time_s - 1).mean() < 0.02
    assert first.choice_["serial"] is True
    assert first.coefficients_["chunk_s"] == pytest.approx(3e-6, rel=0.2)
    np.testing.assert_array_equal(first.predict(rows).time_s, again.predict(rows).time_s)


def test_sizes_of_a_primitive_leave_the_state_out_of_the_token_bytes() -> None:
    state = 2 * 16 * 128 * 128 * 4
    primitive = Scan(
        variant="gated_delta",
        batch=2,
        length=np.array([64, 128]),
        heads=16,
        key_dim=128,
        value_dim=128,
        chunk=64,
        bytes_read=10e6 + state,
        bytes_written=5e6 + state,
    )
    rows = scan_dims(primitive)
    np.testing.assert_allclose(rows["token_bytes"], 15e6)
    np.testing.assert_array_equal(rows["length"], [64, 128])


@pytest.mark.parametrize("kind", [*UNFITTED_KINDS, *MEASURED_KINDS])
@pytest.mark.parametrize("phase", ["context", "generation"])
def test_a_kind_without_data_is_priced_and_says_so(kind: str, phase: str) -> None:
    model = unfitted(kind, phase, H100)
    length = 1.0 if phase == "generation" else GROWING
    predicted = model.predict(sizes(length=length))
    assert model.rows_ == 0
    assert model.correction_ is None
    assert model.to_dict()["rows"] == 0
    assert (predicted.spread >= 0.5).all()
    assert (predicted.time_s > 1e-6).all()
    assert np.isfinite(predicted.time_s).all()


def test_without_a_matrix_form_a_long_scan_is_bound_by_the_vector_units() -> None:
    long = sizes(batch=8.0, length=65536.0)
    stepped, matrix = (
        unfitted(kind, "context", H100).terms(long).extra["flops"][0]
        for kind in ("selective_scan", "linear_attention")
    )
    assert stepped > matrix


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(HymellError, match="hyena"):
        unfitted("hyena", "context", H100)


def table(op: str = "gdn") -> Table:
    """Five head counts by four lengths."""
    heads, length = (a.ravel() for a in np.meshgrid([2.0, 4.0, 8.0, 16.0, 32.0], GROWING[10:14]))
    rows = len(heads)
    texts = {name: np.full(rows, "x", dtype=object) for name in (*COMMON, *labels(op))}
    numbers = {
        "batch": np.ones(rows),
        "q_len": length,
        "heads": heads,
        "groups": heads / 2,
        "key_dim": np.full(rows, 128.0),
        "value_dim": np.full(rows, 64.0),
        "chunk": np.zeros(rows),
        "channels": heads * 128,
        "width": np.full(rows, 4.0),
        "time_s": np.ones(rows),
    }
    return Table(op, {**texts, **numbers})


@pytest.mark.parametrize(("op", "column"), [("gdn", "heads"), ("conv1d", "channels")])
def test_splits_hold_out_whole_head_counts_and_the_longest(op: str, column: str) -> None:
    measured = table(op)
    (*held_out, (name, short, long)) = [
        (name, fitted, held) for name, fitted, held in cut.splits(measured)
    ]
    assert [found for found, _, _ in held_out] == [f"{column}-{seed}" for seed in (0, 1, 2)]
    for _, fitted, held in held_out:
        assert not set(measured[column][fitted]) & set(measured[column][held])
    assert name == "length"
    assert measured["q_len"][short].max() <= 4096 < measured["q_len"][long].min()


def test_splits_refuse_another_op() -> None:
    with pytest.raises(HymellError, match="moe"):
        cut.splits(Table("moe", {"time_s": np.ones(1)}))


def test_dims_count_keys_of_groups_and_values_of_heads() -> None:
    rows = cut.dims(table())
    assert rows["token_bytes"][0] == 2 * 1024 * (2 * 1 * 128 + 2 * 2 * 64)
    assert (rows["chunk"] == 64).all()
