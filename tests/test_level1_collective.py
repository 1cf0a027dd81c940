"""Collectives: the three-line form, numbers of GPUs, physics, fitting, splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hymell.estimators.level1 import collective
from hymell.estimators.level1.collective import COLLECTIVES
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Terms
from hymell.hardware import find_gpu
from hymell.measure.splits import collective as splits
from hymell.measure.table import COMMON, Table, dims, labels

Array = NDArray[np.float64]


def device(name: str = "h100") -> Device:
    return Device.of(find_gpu(name))


def sizes(message_bytes: object, n_gpus: object) -> dict[str, Array]:
    message, count = np.broadcast_arrays(
        np.atleast_1d(np.asarray(message_bytes, float)), np.asarray(n_gpus, float)
    )
    return {"message_bytes": message.copy(), "n_gpus": count.copy()}


def evaluate(op: str, at: dict[str, Array], gpu: str = "h100", **changed: float) -> Terms:
    """The form at its priors, some of them changed."""
    form, where = COLLECTIVES[op], device(gpu)
    values = {c.name: c.prior(where) for c in form.coefficients} | changed
    return form.evaluate(values, at, where, {})


def table(op: str, at: dict[str, Array], time_s: Array) -> Table:
    text = np.full(len(time_s), "", dtype=object)
    columns = dict.fromkeys((*COMMON, *labels(op)), text)
    return Table(op, {**columns, **{name: at[name] for name in dims(op)}, "time_s": time_s})


def grid() -> dict[str, Array]:
    message, count = np.meshgrid(2.0 ** np.arange(9, 30), [2.0, 4.0, 8.0], indexing="ij")
    return sizes(message.ravel(), count.ravel())


def test_small_messages_cost_latency_and_large_ones_bandwidth() -> None:
    link = collective.link_bytes_per_s(device())
    assert link == pytest.approx(450e9)
    small, large = evaluate("all_gather", sizes([1.0, 1e12], 2)).time_s
    assert small == pytest.approx(6e-6, rel=0.1)
    assert large == pytest.approx(0.5 * 1e12 / (0.75 * link), rel=0.01)


def test_an_all_reduce_crosses_the_links_twice() -> None:
    at = sizes([1e12], 8)
    once = evaluate("reduce_scatter", at).extra["wire"]
    assert once == pytest.approx([7 / 8 * 1e12])
    assert evaluate("all_reduce", at).extra["wire"] == pytest.approx(2 * once)


def test_a_board_without_nvlink_talks_over_pcie() -> None:
    assert collective.link_bytes_per_s(device("l40s")) == pytest.approx(32e9)
    at = sizes(2.0**26, 4)
    assert evaluate("all_gather", at, "l40s").time_s > 5 * evaluate("all_gather", at).time_s


def test_numbers_of_gpus_between_and_beyond_the_measured() -> None:
    got = evaluate("all_gather", sizes(512.0, [2, 3, 4, 6, 8, 16, 64])).time_s
    assert np.all(np.diff(got) > 0)
    # beyond eight, latency grows as log2 n: twice that of 8 at 64
    assert got[-1] == pytest.approx(2 * got[4], rel=0.02)


@pytest.mark.parametrize("op", list(COLLECTIVES))
@given(
    gpu=st.sampled_from(["h100", "b200", "l40s", "a100"]),
    message=st.floats(1, 1e11),
    more=st.floats(1, 1e4),
    n_gpus=st.integers(2, 64),
    draw=st.lists(st.floats(-1.5, 1.5), min_size=19, max_size=19),
)
def test_a_larger_message_never_takes_less_time(
    op: str, gpu: str, message: float, more: float, n_gpus: int, draw: list[float]
) -> None:
    form, where = COLLECTIVES[op], device(gpu)
    changed = {
        c.name: c.prior(where) * float(np.exp(x))
        for c, x in zip(form.coefficients, draw, strict=True)
    }
    short, long = evaluate(op, sizes([message, message * more], n_gpus), gpu, **changed).time_s
    assert long >= short * (1 - 1e-9)


@pytest.mark.parametrize("op", list(COLLECTIVES))
def test_absurd_sizes_stay_finite_and_above_the_floor(op: str) -> None:
    where = device()
    estimator = Level1(COLLECTIVES[op], where, corrected=False)
    estimator.coefficients_ = {c.name: c.prior(where) for c in COLLECTIVES[op].coefficients}
    estimator.coefficients_["beta3"] *= 1e6
    estimator.choice_, estimator.ranges_, estimator.spread_ = {}, {}, 0.0
    estimator.correction_ = None
    at = sizes([1.0, 1e6, 1e18, 1e18], [2, 8, 2, 4096])
    got = estimator.predict(at).time_s
    assert np.all(np.isfinite(got))
    share = (at["n_gpus"] - 1) / at["n_gpus"]
    assert np.all(got >= share * at["message_bytes"] / 450e9)


def test_a_fit_finds_sizes_and_numbers_of_gpus_it_has_not_seen() -> None:
    at = grid()
    form = COLLECTIVES["all_gather"]
    shifted = {c.name: 1.4 * c.prior(device()) for c in form.coefficients if c.unit != "ratio"}
    true_s = evaluate("all_gather", at, **shifted).time_s
    noisy = true_s * np.exp(np.random.default_rng(0).normal(0.0, 0.01, len(true_s)))
    settings = {name: collective.FIT[name] for name in ("f_scale", "ridge")}
    limits = {"unseen sizes odd": 0.03, "unseen sizes even": 0.03, "unseen number of GPUs": 0.06}
    for name, train, test in splits.splits(table("all_gather", at, noisy)):
        fitted = Level1(form, device(), corrected=False, **settings).fit(
            {key: column[train] for key, column in at.items()}, noisy[train]
        )
        got = fitted.predict({key: column[test] for key, column in at.items()}).time_s
        assert np.abs(got / true_s[test] - 1).mean() < limits.get(name, 0.06), name


def test_splits_hold_out_whole_sizes_and_numbers() -> None:
    at = grid()
    made = table("all_reduce", at, np.ones(63))
    assert set(splits.dims(made)) == set(COLLECTIVES["all_reduce"].dims)
    found = {name: (train, test) for name, train, test in splits.splits(made)}
    assert set(found) == {
        "unseen sizes odd",
        "unseen sizes even",
        "largest sizes",
        "unseen number of GPUs",
    }
    for name, (train, test) in found.items():
        assert np.all(train ^ test)
        kind = "n_gpus" if name.endswith("GPUs") else "message_bytes"
        assert not set(made[kind][train]) & set(made[kind][test]), name
