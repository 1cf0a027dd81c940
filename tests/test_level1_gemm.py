"""GEMM forms: physics, recovery of planted coefficients, regimes, hold-outs, round trips."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import REGIMES, join, l2_miss
from hymell.estimators.level1.gemm_five_regime import FiveRegime
from hymell.estimators.level1.gemm_tile import _join, _miss, tile_form, tiles
from hymell.hardware import find_gpu
from hymell.measure import operators
from hymell.measure.splits import gemm as splits
from hymell.measure.table import Table

GPUS = ("h100-sxm", "a100-sxm-80gb", "l40s", "b200-sxm", "t4")
FREE = {"split_from_mnk": 0.0, "split_from_k": 0.0}
Dims = dict[str, Any]


def device(name: str = "h100-sxm") -> Device:
    return Device.of(find_gpu(name))


def dims(m: Any, n: Any, k: Any, batch: Any = 1.0, copies: Any = 6.0) -> Dims:
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in (m, n, k)))
    names = dict(zip("mnk", (a.astype(float) for a in arrays), strict=True))
    ones = np.ones(len(names["m"]))
    return {**names, "batch": ones * batch, "copies": ones * copies}


def grid() -> Dims:
    m, n, k = np.meshgrid(2.0 ** np.arange(16), 2.0 ** np.arange(5, 17), 2.0 ** np.arange(5, 17))
    return dims(m.ravel(), n.ravel(), k.ravel())


def priors(gpu: Device, dtype: str = "bfloat16") -> dict[str, float]:
    return {c.name: c.prior(gpu) for c in tile_form(dtype).coefficients}


def prior_time(sizes: Dims, name: str = "h100-sxm", dtype: str = "bfloat16") -> Any:
    gpu = device(name)
    return tile_form(dtype).evaluate(priors(gpu, dtype), sizes, gpu, FREE).time_s


def random_dims(rows: int, seed: int = 0) -> Dims:
    draw = np.random.default_rng(seed)
    m, n, k = (np.round(2.0 ** draw.uniform(low, 14, rows)) for low in (0, 6, 6))
    return dims(m, n, k)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("size", ["m", "n", "k", "batch"])
def test_time_never_falls_as_a_size_grows(name: str, size: str) -> None:
    dtype = "float16" if name == "t4" else "bfloat16"
    sizes = random_dims(400)
    larger = {**sizes, size: sizes[size] * 1.37 + 1.0}
    before, after = prior_time(sizes, name, dtype), prior_time(larger, name, dtype)
    assert (after >= before * (1 - 1e-9)).all()
    assert (after > before * 1.05).any()


@pytest.mark.parametrize("name", GPUS)
def test_the_prior_stays_above_the_data_sheet_floor(name: str) -> None:
    dtype = "float16" if name == "t4" else "bfloat16"
    gpu, sizes = device(name), grid()
    assert (prior_time(sizes, name, dtype) > tile_form(dtype).floor_s(sizes, gpu)).all()


def test_absurd_sizes_are_finite_in_both_widths() -> None:
    sizes = dims([1, 1, 1e9, 1e9], [1, 1e7, 1, 1e7], [1, 1e7, 1e7, 1], copies=np.inf)
    assert np.isfinite(prior_time(sizes)).all()
    narrow = {name: values.astype(np.float32) for name, values in sizes.items()}
    assert np.isfinite(prior_time(narrow)).all()


def test_float32_agrees_with_float64_and_stays_float32() -> None:
    sizes = grid()
    narrow = prior_time({name: v.astype(np.float32) for name, v in sizes.items()})
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, prior_time(sizes), rtol=1e-4)


def test_cold_weights_cost_what_hbm_needs_and_small_warm_ones_less() -> None:
    gpu = device()
    # 8 MB of weights: six copies just fit the L2 of an H100, one stays there
    warm, table, cold = (prior_time(dims(1, 2048, 2048, copies=c))[0] for c in (1.0, 6.0, np.inf))
    assert warm <= table < cold
    assert cold > 2048 * 2048 * 2 / gpu.bandwidth


def test_the_correction_sees_no_more_copies_than_tables_rotate() -> None:
    gpu, form = device(), tile_form("bfloat16")
    seen, cold = (
        form.features(d, form.evaluate(priors(gpu), d, gpu, FREE), gpu)
        for d in (random_dims(200), {**random_dims(200), "copies": np.full(200, np.inf)})
    )
    np.testing.assert_array_equal(seen, cold)


def test_decode_is_memory_bound_and_prefill_compute_bound() -> None:
    gpu = device()
    sizes = dims([1, 16384, 1], [16384, 16384, 64], [16384, 16384, 64], copies=np.inf)
    terms = tile_form("bfloat16").evaluate(priors(gpu), sizes, gpu, FREE)
    assert [REGIMES[code] for code in terms.regime()] == ["memory", "compute", "launch"]
    achieved = 2 * 16384.0**3 / terms.time_s[1]
    assert 0.5 * gpu.peak("bf16") < achieved < gpu.peak("bf16")


def test_splitting_k_may_be_ruled_out_except_for_a_single_row() -> None:
    gpu, form = device("l40s"), tile_form("bfloat16")
    late = {"split_from_mnk": 2.0**21, "split_from_k": 8192.0}
    sizes = dims([1, 2, 64, 2], 64, [4096, 4096, 4096, 16384])
    free, ruled = (form.evaluate(priors(gpu), sizes, gpu, c).time_s for c in (FREE, late))
    np.testing.assert_array_equal(ruled == free, [True, False, True, True])
    assert ruled[1] > 2 * free[1]


def test_fewer_bits_move_fewer_bytes() -> None:
    sizes = dims(1, 8192, 8192, copies=np.inf)
    on_a100 = [prior_time(sizes, "a100-sxm-80gb", d)[0] for d in ("bfloat16", "int8_wo", "int4_wo")]
    assert on_a100[0] > on_a100[1] > on_a100[2]
    on_b200 = [prior_time(sizes, "b200-sxm", d)[0] for d in ("bfloat16", "float8_e4m3", "nvfp4")]
    assert on_b200[0] > on_b200[1] > on_b200[2]


def test_a_batch_of_products_costs_as_much_as_its_work() -> None:
    one = prior_time(dims(2048, 2048, 2048))[0]
    many = prior_time(dims(2048, 2048, 2048, batch=64))[0]
    assert many == pytest.approx(64 * one, rel=0.25)


def test_exponentials_agree_with_the_shared_formulas() -> None:
    a, b = np.geomspace(1e-6, 1e-3, 50), np.geomspace(1e-3, 1e-6, 50)
    np.testing.assert_allclose(_join(a, b, 2.5), join(a, b, 2.5), rtol=1e-12)
    x = np.geomspace(1e3, 1e12, 50)
    np.testing.assert_allclose(_miss(x, 0.5 * 5e7, 0.25), l2_miss(x, 5e7, 0.5, 0.25), rtol=1e-9)
    assert _miss(np.array([np.inf]), 1e7, 0.2)[0] == 1.0


def test_every_menu_has_transposes() -> None:
    for family in ("hopper", "ampere", "ada", "blackwell", "other"):
        menu = set(tiles(family))
        assert menu == {(b, a) for a, b in menu}


def planted(sizes: Dims, gpu: Device) -> Any:
    truth = {**priors(gpu), "launch": 4e-6, "tensor_rate": 0.6 * gpu.peak("bf16")}
    truth["dram_rate"] = 0.7 * gpu.bandwidth
    return truth, tile_form("bfloat16").evaluate(truth, sizes, gpu, FREE).time_s


def test_a_fit_recovers_planted_coefficients_and_repeats_itself() -> None:
    pytest.importorskip("scipy")
    gpu, sizes = device(), random_dims(600)
    truth, time_s = planted(sizes, gpu)
    options: dict[str, Any] = {"corrected": False, "ridge": 1e-4}
    first, second = (Level1(tile_form("bfloat16"), gpu, **options).fit(sizes, time_s) for _ in "ab")
    assert first.coefficients_ == second.coefficients_
    for name in ("launch", "tensor_rate", "dram_rate"):
        assert first.coefficients_[name] == pytest.approx(truth[name], rel=0.05)
    unseen = random_dims(300, seed=1)
    error = np.abs(first.predict(unseen).time_s / planted(unseen, gpu)[1] - 1)
    assert error.mean() < 0.01


def test_the_correction_learns_a_kink_and_fades_far_outside() -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("torch")
    gpu, sizes = device(), random_dims(1500)
    time_s = planted(sizes, gpu)[1] * np.where(sizes["m"] > 64, 1.2, 1.0)
    made = Level1(tile_form("bfloat16"), gpu, epochs=30, seeds=(0,), hidden=(32,))
    made.fit(sizes, time_s)
    plain, corrected = (
        np.abs(made.predict(sizes, corrected=c).time_s / time_s - 1).mean() for c in (False, True)
    )
    assert corrected < 0.7 * plain
    far = dims(2.0**20, 2.0**19, 2.0**19)
    alone = made.predict(far, corrected=False)
    np.testing.assert_allclose(made.predict(far).time_s, alone.time_s, rtol=1e-12)
    assert not alone.in_range[0]
    everywhere = grid()
    floor = made.form.floor_s(everywhere, gpu)
    assert (made.predict(everywhere).time_s >= floor).all()


def test_five_regimes_fit_each_regime_and_survive_json() -> None:
    gpu, sizes = device(), random_dims(3000)
    _, time_s = planted(sizes, gpu)
    made = FiveRegime("bfloat16", gpu).fit(sizes, time_s)
    found = made.predict(sizes)
    assert np.abs(found.time_s / time_s - 1).mean() < 0.15
    assert set(found.regime.tolist()) == set(range(5))
    back = FiveRegime.from_dict(json.loads(json.dumps(made.to_dict())), gpu)
    np.testing.assert_array_equal(back.predict(sizes).time_s, found.time_s)
    everywhere = grid()
    floor = tile_form("bfloat16").floor_s(everywhere, gpu)
    assert (made.predict(everywhere).time_s >= floor).all()


def test_five_regimes_are_exact_where_time_is_linear() -> None:
    gpu, sizes = device(), random_dims(2000)
    flops = 2 * sizes["m"] * sizes["n"] * sizes["k"]
    time_s = 5e-6 + flops / (0.5 * gpu.peak("bf16")) + sizes["n"] * sizes["k"] * 2 / 2e12
    time_s += sizes["m"] * sizes["k"] * 2 / 2e12
    made = FiveRegime("bfloat16", gpu).fit(sizes, time_s)
    np.testing.assert_allclose(made.predict(sizes).time_s, time_s, rtol=0.01)


def test_bad_input_is_refused() -> None:
    with pytest.raises(HymellError, match="no GEMM form for dtype 'int3'"):
        tile_form("int3")
    with pytest.raises(HymellError, match="22 rows"):
        FiveRegime("bfloat16", device()).fit(random_dims(5), np.full(5, 1e-5))


def table(op: str = "gemm", source: str = "aiconfigurator", library: str = "vllm") -> Table:
    sizes = [
        (m, n, k) for m in (1, 16, 64, 1280, 8192) for n in (64, 512, 51200) for k in (64, 512)
    ]
    m, n, k = np.array(sizes, dtype=float).T
    count = len(m)
    columns = {
        "m": m,
        "n": n,
        "k": k,
        "batch": np.full(count, 2.0),
        "time_s": np.full(count, 1e-5),
        "source": np.full(count, source, dtype=object),
        "library": np.full(count, library, dtype=object),
    }
    return Table(op, columns)


def test_hold_outs_keep_shapes_and_ranges_apart() -> None:
    rows = table()
    found = {name: (train, test) for name, train, test in splits.splits(rows)}
    # 5 x 3 x 2 rows leave fewer than 30 to fit on once a range is out
    assert set(found) == {"shapes-0", "shapes-1", "shapes-2"}
    for train, test in found.values():
        assert not (train & test).any()
        assert (train | test).all()
        pairs = [set(zip(rows["n"][mask], rows["k"][mask], strict=True)) for mask in (train, test)]
        assert pairs[0].isdisjoint(pairs[1])
    twice = Table("gemm", {n: np.concatenate([c, c]) for n, c in rows.columns.items()})
    wide = {name: test for name, _, test in splits.splits(twice)}
    assert set(wide) - set(found) == {"m-band", "m-large", "nk-large", "m-one"}
    assert set(twice["m"][wide["m-band"]]) == {64.0, 1280.0}
    assert set(twice["m"][wide["m-large"]]) == {8192.0}
    assert set(twice["n"][wide["nk-large"]]) == {51200.0}
    with pytest.raises(HymellError, match="moe"):
        splits.splits(Table("moe", {}))


@pytest.mark.parametrize(
    ("source", "library", "copies"),
    [
        ("aiconfigurator", "trtllm", 5.0),
        ("aiconfigurator", "vllm", 6.0),
        ("llmservingsim", "vllm", np.inf),
        ("vidur", "vidur", 1.0),
    ],
)
def test_copies_are_those_of_the_benchmark(source: str, library: str, copies: float) -> None:
    found = splits.dims(table(source=source, library=library))
    assert set(found["copies"]) == {copies}
    assert set(found["batch"]) == {1.0}
    assert set(splits.dims(table("batched_gemm", library=library))["batch"]) == {2.0}


def test_a_learning_curve_draws_training_rows_only() -> None:
    train = np.arange(100) % 2 == 0
    rows = splits.learning_rows(train, 30, seed=0)
    assert len(set(rows.tolist())) == 30
    assert train[rows].all()
    np.testing.assert_array_equal(rows, splits.learning_rows(train, 30, seed=0))
    assert len(splits.learning_rows(train, 1000, seed=0)) == 50


def dated(times_s: dict[tuple[str, str], float], library: str) -> Table:
    """50 products of each (dtype, version), the fastest of which takes so long."""
    count = 50
    parts = list(times_s.items())
    repeated = {
        "dtype": [dtype for (dtype, _), _ in parts],
        "version": [version for (_, version), _ in parts],
    }
    columns: dict[str, Any] = {
        name: np.repeat(np.array(values, dtype=object), count) for name, values in repeated.items()
    }
    rows = count * len(parts)
    times = np.concatenate([np.linspace(1.0, 9.0, count) * least for _, least in parts])
    columns |= {"time_s": times, "sustained": np.zeros(rows, dtype=bool)}
    columns |= {name: np.full(rows, 64.0) for name in "mnk"}
    for name, value in {"source": "tests", "library": library, "gpu": "h100-sxm"}.items():
        columns[name] = np.full(rows, value, dtype=object)
    return Table("gemm", columns)


def test_tables_that_timed_the_host_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = 60e-6, 4e-6
    block, fp8, wide = "float8_block128", "float8_e4m3", "bfloat16"
    tables = {
        "vllm": {(wide, "2"): fast, (block, "1"): fast, (block, "2"): slow, (fp8, "2"): slow},
        "sglang": {(wide, "5"): fast, (fp8, "5"): fast, (block, "5"): fast},
    }

    def read(op: str, gpu: str, library: str, root: object = None) -> Table:
        if library not in tables:
            raise HymellError("not measured")
        return dated(tables[library], library)

    monkeypatch.setattr(operators, "read", read)
    gemm = next(operator for operator in operators.OPERATORS if operator.op == "gemm")
    found = {r.dtype: (r.library, r.version) for r in operators.rows_of(gemm, "h100-sxm", "vllm")}
    assert found == {wide: ("vllm", "2"), block: ("vllm", "1"), fp8: ("sglang", "5")}


def test_no_fit_leaves_what_the_device_can_do() -> None:
    gpu = device()
    form = tile_form("bfloat16")
    sizes = random_dims(400)
    impossible = 0.05 * form.floor_s(sizes, gpu)
    fitted = Level1(form, gpu, corrected=False, ridge=1e-6).fit(sizes, impossible).coefficients_
    assert fitted["tensor_rate"] <= 1.001 * gpu.peak("bf16")
    assert fitted["dram_rate"] <= 1.001 * gpu.bandwidth <= 1.01 * fitted["l2_rate"]
    assert fitted["overlap"] >= 0.999
