"""Attention estimators: tiling against exact scheduling, physics, fitting, splits."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hymell.errors import HymellError
from hymell.estimators.level1 import attention_decode, attention_prefill, mla
from hymell.estimators.level1.attention_tiles import dynamic_splits, tile, tile_sizes
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Form
from hymell.hardware import find_gpu
from hymell.measure.splits import attention as attention_splits
from hymell.measure.splits import mla as mla_splits
from hymell.measure.table import Table, column_names

Array = NDArray[np.float64]

FORMS = {
    "prefill": attention_prefill.PREFILL,
    "encoder": attention_prefill.ENCODER,
    "decode": attention_decode.DECODE,
    "mla prefill": mla.PREFILL,
    "mla decode": mla.DECODE,
    "mla prefill module": mla.PREFILL_MODULE,
    "mla decode module": mla.DECODE_MODULE,
}
GPUS = ("h100", "b200", "a100", "l40s", "rtx-4090", "v100")


def device(name: str = "h100") -> Device:
    return Device.of(find_gpu(name))


def grid(form: Form, rows: int = 1, **sizes: float | Array) -> dict[str, Array]:
    """Dims of one Llama-3-8B-like layer, or what ``sizes`` say, as long as the longest of them."""
    decode = "decode" in form.op
    usual = {
        "batch": 4.0,
        "q_len": 1.0 if decode else 2048.0,
        "kv_len": 2048.0,
        "heads": 32.0,
        "kv_heads": 8.0,
        "head_dim": 128.0,
        "window": 0.0,
        "q_bytes": 2.0,
        "kv_bytes": 2.0,
        "weight_bytes": 2.0,
        "cold": 0.0,
    } | sizes
    count = max([rows, *(np.size(value) for value in usual.values())])
    names = {*form.dims, "cold"}
    return {
        name: np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()
        for name, value in usual.items()
        if name in names
    }


def priors(form: Form, on: Device) -> dict[str, float]:
    return {c.name: c.prior(on) for c in form.coefficients}


def time_s(form: Form, dims: dict[str, Array], on: Device, choice: int = 0) -> Array:
    return form.evaluate(priors(form, on), dims, on, form.choices[choice]).time_s


# -- tiles


def scheduled(
    copies: int, q_len: int, kv_len: int, window: int, m: int, n: int, group: int, sms: int
) -> tuple[float, float]:
    """(makespan, total) of longest task first, each task one tile of overhead more."""
    tiles = np.arange(-(-q_len * group // m))
    before = kv_len - q_len
    last = np.minimum(q_len * group - 1, (tiles + 1) * m - 1) // group + before
    first = tiles * m // group + before
    low = np.maximum(0, first - window + 1) // n if window else 0 * tiles
    lengths = np.sort(-(-(last + 1) // n) - low)[::-1]
    loads = [0.0] * sms
    for length in lengths:
        for _ in range(copies):
            heapq.heapreplace(loads, loads[0] + float(length) + 1.0)
    return max(loads), float(lengths.sum()) * copies


def test_the_makespan_is_that_of_longest_task_first() -> None:
    random = np.random.default_rng(5)
    ratios, totals = [], []
    for _ in range(150):
        group = int(random.choice([1, 2, 4, 8]))
        q_len = int(random.choice([128, 512, 1024, 2048, 4096]))
        kv_len = q_len + int(random.choice([0, 0, 1024]))
        window = int(random.choice([0, 0, 512]))
        window = window if window < kv_len else 0
        copies = int(random.integers(1, 33))
        exact, total = scheduled(copies, q_len, kv_len, window, 128, 128, group, 132)
        values = (1.0, q_len, kv_len, copies, group, window, 128.0, 128.0)
        columns = [np.array([float(value)]) for value in values]
        made = tile(*columns, causal=True)
        ratios.append(made.makespan(1.0, 132.0)[0] / exact)
        totals.append(made.total[0] / total)
    assert np.mean(np.abs(np.log(ratios))) < 0.03
    assert np.max(np.abs(np.log(ratios))) < 0.30
    assert np.max(np.abs(np.log(totals))) < 0.10


def test_equal_tasks_come_in_whole_rounds() -> None:
    columns = [np.array([float(value)]) for value in (1, 1280, 1280, 20, 1, 0, 128, 128)]
    made = tile(*columns, causal=False)
    assert made.tasks[0] == 200
    assert made.makespan(0.0, 132.0)[0] == pytest.approx(2 * 10)


def test_keys_are_split_only_while_sms_are_idle() -> None:
    one, blocks = np.array([1.0, 64.0, 132.0, 500.0]), np.full(4, 256.0)
    splits = dynamic_splits(one, blocks, 132.0)
    assert splits[0] > 64
    assert splits[1] == 2
    assert splits[2:].tolist() == [1.0, 1.0]


def test_head_dims_between_compiled_ones_are_padded_up() -> None:
    dims = np.array([64.0, 80.0, 128.0, 160.0, 700.0])
    m, n = tile_sizes(dims, np.full(5, 2.0), device())
    assert m.tolist() == [192.0, 128.0, 128.0, 128.0, 64.0]
    assert n.tolist() == [128.0, 128.0, 128.0, 96.0, 64.0]


# -- physics


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("gpu", GPUS)
def test_times_are_finite_and_positive_for_absurd_sizes(name: str, gpu: str) -> None:
    form = FORMS[name]
    extreme = np.array([1.0, 7.0, 1e3, 1e6])
    dims = grid(form, batch=extreme, kv_len=extreme[::-1] * 3)
    if "decode" not in form.op:
        dims["q_len"] = dims["kv_len"].copy()
    on = device(gpu)
    for choice in range(len(form.choices)):
        terms = form.evaluate(priors(form, on), dims, on, form.choices[choice])
        assert np.isfinite(terms.time_s).all()
        assert (terms.time_s > 0).all()
        assert np.isfinite(form.features(dims, terms, on)).all()
    assert np.isfinite(form.floor_s(dims, on)).all()


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", ["batch", "kv_len", "heads"])
def test_more_work_never_takes_much_less_time(name: str, size: str) -> None:
    """Splits and rounds make steps of a few percent; beyond them time only grows."""
    form = FORMS[name]
    values = 2.0 ** np.arange(3, 16 if size == "kv_len" else 12)
    dims = grid(form, **{size: values})
    if size == "kv_len" and "decode" not in form.op:
        dims["q_len"] = dims["kv_len"].copy()
    took = time_s(form, dims, device())
    assert (took[1:] > 0.97 * took[:-1]).all()
    assert took[-1] > 1.5 * took[0]


@pytest.mark.parametrize("name", FORMS)
def test_no_prediction_is_below_the_data_sheet(name: str) -> None:
    form, on = FORMS[name], device()
    dims = grid(form, batch=np.array([1.0, 16.0, 256.0]))
    model = Level1(form, on, corrected=False)
    model.coefficients_ = {c.name: c.prior(on) * 1e-3 for c in form.coefficients}
    model.choice_ = form.choices[0]
    model.ranges_, model.spread_, model.correction_ = {}, 0.1, None
    assert (model.predict(dims).time_s >= form.floor_s(dims, on)).all()


def test_a_window_makes_attention_cheaper_and_a_wide_one_does_not_matter() -> None:
    for form in (attention_prefill.PREFILL, attention_decode.DECODE):
        dims = grid(form, kv_len=16384.0, window=np.array([0.0, 1024.0, 16384.0]))
        if form.op == "attention_prefill":
            dims["q_len"] = dims["kv_len"].copy()
        full, narrow, wide = time_s(form, dims, device())
        assert narrow < 0.6 * full
        assert wide == pytest.approx(full)


def test_a_cold_cache_is_never_faster_and_matters_only_where_l2_would_hold_it() -> None:
    for form in (attention_decode.DECODE, mla.DECODE):
        dims = grid(form, batch=np.array([8.0, 8.0, 256.0, 256.0]), kv_len=4096.0)
        if form is attention_decode.DECODE:
            dims["kv_heads"] = np.array([1.0, 1.0, 8.0, 8.0])
        dims["cold"] = np.array([0.0, 1.0, 0.0, 1.0])
        warm, cold, large, large_cold = time_s(form, dims, device())
        assert cold > 1.05 * warm
        assert large_cold == pytest.approx(large, rel=0.02)
        floor = form.floor_s(dims, device())
        assert floor[1] > floor[0]


def test_an_fp8_cache_halves_the_memory_of_decode() -> None:
    form = attention_decode.DECODE
    dims = grid(form, batch=64.0, kv_len=32768.0, kv_bytes=np.array([2.0, 1.0]))
    terms = form.evaluate(priors(form, device()), dims, device(), form.choices[0])
    assert terms.memory_s[1] == pytest.approx(terms.memory_s[0] / 2, rel=0.01)


def test_chunked_prefill_costs_between_a_short_and_a_whole_one() -> None:
    form = attention_prefill.PREFILL
    dims = grid(
        form,
        q_len=np.array([1024.0, 1024.0, 8192.0]),
        kv_len=np.array([1024.0, 8192.0, 8192.0]),
    )
    short, chunk, whole = time_s(form, dims, device())
    assert short < chunk < whole


def test_encoders_do_about_twice_the_work_of_a_causal_prefill() -> None:
    sizes = {"q_len": 16384.0, "kv_len": 16384.0}
    causal = time_s(attention_prefill.PREFILL, grid(attention_prefill.PREFILL, **sizes), device())
    both = time_s(attention_prefill.ENCODER, grid(attention_prefill.ENCODER, **sizes), device())
    assert both[0] / causal[0] == pytest.approx(2.0, rel=0.1)


def test_mla_projections_are_those_of_deepseek_v3() -> None:
    # 61 layers of 187.1 M parameters: config.json of deepseek-ai/DeepSeek-V3, norms left out.
    assert mla.projection_weights(np.array([128.0]))[0] == pytest.approx(187.1e6, rel=1e-3)


# -- fitting


@pytest.mark.parametrize("name", FORMS)
def test_a_fit_recovers_times_that_the_form_made(name: str) -> None:
    on = device()
    form = replace(FORMS[name], choices=FORMS[name].choices[:1])
    random = np.random.default_rng(0)
    batch = 2.0 ** random.integers(0, 7, 300)
    length = 2.0 ** random.integers(6, 14, 300)
    dims = grid(form, batch=batch, kv_len=length, heads=2.0 ** random.integers(3, 7, 300))
    if "decode" not in form.op:
        dims["q_len"] = length.copy()
    truth = {
        c.name: c.prior(on) * float(np.exp(random.uniform(-0.3, 0.3))) for c in form.coefficients
    }
    made = form.evaluate(truth, dims, on, form.choices[0]).time_s
    made = np.maximum(made, form.floor_s(dims, on))
    model = Level1(form, on, corrected=False).fit(dims, made)
    error = np.abs(model.predict(dims).time_s / made - 1)
    assert error.mean() < 0.05
    again = Level1(form, on, corrected=False).fit(dims, made)
    assert again.coefficients_ == model.coefficients_


def test_the_correction_learns_what_the_form_lacks_and_fades_far_outside() -> None:
    on = device()
    form = replace(attention_decode.DECODE, choices=attention_decode.DECODE.choices[:1])
    random = np.random.default_rng(1)
    dims = grid(
        form,
        batch=2.0 ** random.integers(0, 6, 250),
        kv_len=2.0 ** random.integers(8, 13, 250),
    )
    odd = 1.0 + 0.3 * (dims["batch"] > 8)
    made = time_s(form, dims, on) * odd
    model = Level1(form, on, epochs=25, seeds=(0,)).fit(dims, made)
    plain = model.predict(dims, corrected=False).time_s
    corrected = model.predict(dims).time_s
    assert np.abs(corrected / made - 1).mean() < 0.5 * np.abs(plain / made - 1).mean()
    far = grid(form, batch=2.0**12, kv_len=2.0**12)
    assert model.predict(far).time_s == pytest.approx(model.predict(far, corrected=False).time_s)
    assert not model.predict(far).in_range.any()


# -- splits


def table(op: str, **columns: Array) -> Table:
    count = len(next(iter(columns.values())))
    usual: dict[str, object] = {
        "batch": 1.0,
        "q_len": 1.0,
        "kv_len": 64.0,
        "heads": 8.0,
        "kv_heads": 8.0,
        "head_dim": 128.0,
        "window": 0.0,
        "dtype": "bfloat16",
        "kv_dtype": "float8_e4m3",
        "gemm_dtype": "nvfp4",
        "time_s": 1e-5,
    }
    filled = {
        name: columns.get(
            name,
            np.full(
                count,
                usual[name],
                dtype=object if isinstance(usual[name], str) else np.float64,
            ),
        )
        for name in column_names(op)
        if name in usual
    }
    return Table(op, filled)


def head_table() -> Table:
    heads = np.repeat(2.0 ** np.arange(6), 20)
    length = np.tile(2.0 ** np.arange(5, 15), 12)
    window = np.tile(np.repeat([0.0, 128.0], 10), 6)
    return table("attention_decode", heads=heads, kv_len=length, window=window)


def test_held_out_heads_are_whole_and_unseen() -> None:
    measured = head_table()
    cuts = attention_splits.splits(measured)
    assert [name for name, _, _ in cuts] == [
        *(f"heads-{seed}" for seed in attention_splits.SEEDS),
        *(f"configs-{seed}" for seed in attention_splits.SEEDS),
        "length",
    ]
    for name, train, test in cuts:
        assert (train ^ test).all()
        if name.startswith("heads"):
            assert not set(measured["heads"][train]) & set(measured["heads"][test])
        if name == "length":
            assert measured["kv_len"][train].max() <= 8192 < measured["kv_len"][test].min()


@pytest.mark.parametrize(("groups", "expected"), [(1, 0), (2, 0), (3, 3)])
def test_too_few_groups_have_no_hold_out(groups: int, expected: int) -> None:
    heads = np.tile(2.0 ** np.arange(groups), 5)
    measured = table("attention_decode", heads=heads)
    found = list(attention_splits.held_groups(measured, ("heads",), "heads"))
    assert len(found) == expected
    assert all(train.any() and test.any() for _, train, test in found)


def test_splits_are_the_same_every_time_and_differ_by_seed() -> None:
    first, second = (attention_splits.splits(head_table()) for _ in range(2))
    for (_, _, one), (_, _, other) in zip(first, second, strict=True):
        assert (one == other).all()
    assert any((first[0][2] != cut[2]).any() for cut in first[1:3])


def test_tables_of_other_ops_are_refused() -> None:
    with pytest.raises(HymellError, match="mla_decode"):
        attention_splits.splits(table("mla_decode", heads=np.ones(4)))
    with pytest.raises(HymellError, match="attention_decode"):
        mla_splits.splits(head_table())


def test_labels_become_bytes() -> None:
    dims = attention_splits.dims(head_table())
    assert set(attention_decode.DIMS) == set(dims)
    assert dims["q_bytes"][0] == 2
    assert dims["kv_bytes"][0] == 1
    module = mla_splits.dims(table("mla_decode_module", heads=np.ones(3)))
    assert set(mla.MODULE_DIMS) == set(module)
    assert module["weight_bytes"].tolist() == [0.5625] * 3
