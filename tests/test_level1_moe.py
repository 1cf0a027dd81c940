"""The MoE form: routing, physics sanity, recovery from made-up measurements, splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.form import Coefficients, Form, Terms
from hymell.estimators.level1.moe import FORMATS, MOE_DIMS, expert_dims, moe_dims, moe_form
from hymell.estimators.level1.routing import BLOCKS, balanced, independent, loads, power_law
from hymell.hardware import find_gpu
from hymell.measure.judging import Effort, Recipe, fit
from hymell.measure.operators import OPERATORS, Rows
from hymell.measure.splits import moe as cut
from hymell.measure.table import COMMON, Table, dims, labels
from hymell.op_registry.primitives import Experts

H100 = Device.of(find_gpu("h100"))
B200 = Device.of(find_gpu("b200"))


def at_priors(dtype: str = "bfloat16", device: Device = H100) -> Level1:
    """The form with its coefficients at their priors."""
    made = Level1(moe_form(dtype), device, corrected=False)
    made.coefficients_ = {c.name: c.prior(device) for c in made.form.coefficients}
    made.choice_ = {"rule": "fastest"}
    made.ranges_, made.spread_, made.correction_ = {}, 0.1, None
    return made


def layer(tokens: np.ndarray, **sizes: float) -> dict[str, np.ndarray]:
    """A balanced layer of 64 experts, top 8."""
    values = {"hidden": 4096, "width": 1024, "gated": 1.0, "cold": 0.0, **sizes}
    count = len(tokens)
    columns = (tokens, *(np.full(count, float(v)) for v in (8, 64, 1)))
    found = loads(balanced, *columns)
    return dict(moe_dims(found, tokens=tokens, top_k=8, experts=64, ranks=1, **values))


TOKENS = 4.0 ** np.arange(8)


def test_balanced_routing_reaches_every_expert_once_there_are_enough_pairs() -> None:
    assert balanced(1, 8, 256, 1).active == 8
    assert balanced(4, 8, 256, 8).active == 4
    assert balanced(1000, 8, 256, 8).active == 32
    assert balanced(1024, 8, 256, 1).padded == (8192.0, 8192.0, 16384.0, 32768.0)


def test_with_fewer_pairs_than_ranks_one_rank_still_has_work() -> None:
    assert balanced(1, 8, 256, 32).pairs == 1.0


@pytest.mark.parametrize("tokens", [1, 7, 64, 3000])
@pytest.mark.parametrize("ranks", [1, 8])
def test_routed_rows_are_conserved_and_no_expert_takes_a_token_twice(
    tokens: int, ranks: int
) -> None:
    for load in (power_law(tokens, 8, 256, ranks, 1.2), independent(tokens, 8, 256, ranks, 0.5)):
        assert load.fullest <= tokens
        assert 0 < load.active <= 256 / ranks
        assert tokens * 8 / ranks <= load.pairs <= tokens * 8
        assert all(padded >= load.pairs for padded in load.padded)
        assert sorted(load.padded) == list(load.padded)
        if ranks == 1:
            assert load.pairs == tokens * 8


def test_a_steeper_power_law_loads_fewer_experts_more() -> None:
    mild, steep = power_law(4096, 8, 256, 1, 1.01), power_law(4096, 8, 256, 1, 1.6)
    assert steep.fullest > mild.fullest > balanced(4096, 8, 256, 1).fullest


def test_packed_rows_fill_one_rank() -> None:
    spread = power_law(1, 8, 256, 8, 1.01)
    packed = power_law(1, 8, 256, 8, 1.01, True)
    assert spread.active < 2.5 < packed.active


def test_independent_routing_has_the_expected_number_of_active_experts() -> None:
    primitive = Experts(tokens=16, top_k=8, experts=128, hidden=64, intermediate=64)
    assert independent(16, 8, 128, 1, 0.0).active == pytest.approx(
        float(primitive.active_experts), rel=0.05
    )


@pytest.mark.parametrize("size", ["tokens", "hidden", "width"])
def test_time_grows_with_every_size(size: str) -> None:
    if size == "tokens":
        sizes = layer(TOKENS)
    else:
        grown = 128.0 * np.arange(1, 20)
        sizes = {name: np.repeat(a[:1], 19) for name, a in layer(np.array([512.0])).items()}
        sizes[size] = grown
    time_s = at_priors().predict(sizes).time_s
    assert (np.diff(time_s) >= -1e-12).all()


def test_skewed_routing_costs_more_at_many_tokens() -> None:
    primitive = Experts(tokens=4096, top_k=2, experts=64, hidden=4096, intermediate=2048)
    even = expert_dims(primitive, ranks=8)
    skewed = expert_dims(
        Experts(4096, top_k=2, experts=64, hidden=4096, intermediate=2048, skew=1.0), ranks=8
    )
    model = at_priors()
    assert model.predict(skewed).time_s[0] > model.predict(even).time_s[0]


def test_a_gate_costs_a_third_of_the_weights_more_when_memory_bound() -> None:
    model = at_priors()
    with_gate, without = (
        model.terms(layer(np.array([64.0]), gated=gated, hidden=8192, width=8192)).memory_s[0]
        for gated in (1.0, 0.0)
    )
    assert with_gate / without == pytest.approx(1.5, rel=0.03)


def test_cold_weights_are_never_faster_than_warm_ones() -> None:
    small = {"hidden": 512, "width": 256}
    warm, cold = (
        at_priors().predict(layer(TOKENS, cold=cold, **small)).time_s for cold in (0.0, 1.0)
    )
    assert (cold >= warm).all()
    assert cold[5] > warm[5]


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_time_is_below_the_data_sheet_or_not_a_number(dtype: str) -> None:
    sizes = layer(np.array([1.0, 64.0, 1e4, 1e7]), hidden=65536, width=65536, cold=1.0)
    model = at_priors(dtype, B200)
    predicted = model.predict(sizes)
    assert np.isfinite(predicted.time_s).all()
    assert (predicted.time_s >= model.form.floor_s(sizes, B200)).all()
    assert np.isfinite(model.form.features(sizes, model.terms(sizes), B200)).all()


def test_features_hold_no_size_of_the_model_as_such() -> None:
    """Scaling hidden and width alike leaves every feature that is not a share of time alone."""
    model = at_priors()
    one, other = (layer(np.array([8192.0]), hidden=h, width=h / 4) for h in (4096.0, 8192.0))
    ratios = [model.form.features(sizes, model.terms(sizes), H100)[0, :9] for sizes in (one, other)]
    np.testing.assert_allclose(ratios[0], ratios[1])


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(HymellError, match="bfloat99"):
        moe_form("bfloat99")


def many(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Sizes of six families, and the family of each row."""
    generator = np.random.default_rng(seed)
    parts = []
    for _ in range(6):
        hidden, width = generator.choice([2048, 4096, 6144]), generator.choice([512, 768, 1536])
        parts.append(layer(TOKENS, hidden=float(hidden), width=float(width)))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in MOE_DIMS}
    return joined, np.repeat(np.arange(6), len(TOKENS))


def test_the_fit_finds_the_coefficients_back() -> None:
    sizes, _ = many()
    truth = at_priors()
    truth.coefficients_ |= {"t0": 3e-5, "hbm_bandwidth": 0.6 * H100.bandwidth, "efficiency": 0.4}
    time_s = truth.terms(sizes).time_s
    form = replace(moe_form("bfloat16"), choices=({"rule": "fastest"},))
    fitted = Level1(form, H100, corrected=False, ridge=5e-4).fit(sizes, time_s)
    assert np.abs(fitted.predict(sizes).time_s / time_s - 1).mean() < 0.03
    assert fitted.coefficients_["hbm_bandwidth"] == pytest.approx(0.6 * H100.bandwidth, rel=0.15)


def of_few(names: int) -> Form:
    """The form with all but its first coefficients held at their priors, quick to fit."""
    form = moe_form("bfloat16")
    priors = at_priors().coefficients_

    def evaluate(found: Coefficients, *rest: Any) -> Terms:
        return form.evaluate({**priors, **found}, *rest)

    few = form.coefficients[:names]
    return replace(form, coefficients=few, evaluate=evaluate, choices=({"rule": "fine"},))


@pytest.mark.parametrize("useful", [True, False])
def test_a_correction_stays_where_it_helps_on_unseen_families_only(useful: bool) -> None:
    sizes, families = many()
    generator = np.random.default_rng(1)
    if useful:
        error = np.where(sizes["tokens"] > 200, 1.4, 1.0)
    else:
        error = np.exp(0.3 * generator.standard_normal(6))[families]
    time_s = at_priors().terms(sizes).time_s * error
    effort = Effort(epochs=60, seeds=(0,))
    fitted = fit(of_few(2), H100, sizes, time_s, effort, Recipe(bound=0.7), families)
    assert (fitted.correction_ is not None) == useful


def test_far_outside_the_range_only_physics_speaks() -> None:
    sizes, _ = many()
    truth = at_priors().terms(sizes).time_s * np.where(sizes["tokens"] > 64, 1.3, 1.0)
    fitted = Level1(moe_form("bfloat16"), H100, epochs=10, seeds=(0,)).fit(sizes, truth)
    far = layer(np.array([1e9]))
    np.testing.assert_allclose(
        fitted.predict(far).time_s, fitted.predict(far, corrected=False).time_s
    )
    assert not fitted.predict(far).in_range[0]


def table(rows: int = 40, **columns: object) -> Table:
    """A table of five families in two configurations, balanced."""
    generator = np.random.default_rng(0)
    numbers = {
        "tokens": np.tile([1.0, 64.0, 4096.0, 16384.0], rows // 4),
        "top_k": np.full(rows, 8.0),
        "experts": np.full(rows, 64.0),
        "hidden": np.repeat([1024.0, 2048.0, 4096.0, 5120.0, 6144.0], rows // 5),
        "intermediate": np.full(rows, 768.0),
        "tp": np.ones(rows),
        "ep": np.tile(np.repeat([1.0, 8.0], 4), rows // 8),
        "gated": np.zeros(rows),
        "skew": np.zeros(rows),
        "active_experts": np.full(rows, np.nan),
        "time_s": generator.random(rows),
    }
    texts = {name: np.full(rows, "x", dtype=object) for name in (*COMMON, *labels("moe"))}
    assert set(dims("moe")) <= set(numbers)
    return Table("moe", {**texts, **numbers, **columns})


def test_splits_hold_out_whole_configurations_and_whole_families() -> None:
    measured = table()
    found = cut.splits(measured)
    assert [name for name, _, _ in found] == [
        *(f"config-{seed}" for seed in (0, 1, 2)),
        *(f"family-{seed}" for seed in (0, 1, 2)),
        "length",
    ]
    for name, fitted, held in found:
        assert not (fitted & held).any()
        assert fitted.any()
        assert held.any()
        if name.startswith("family"):
            assert not set(measured["hidden"][fitted]) & set(measured["hidden"][held])
    assert measured["tokens"][found[-1][1]].max() == 4096


def test_splits_refuse_another_op() -> None:
    with pytest.raises(HymellError, match="softmax"):
        cut.splits(Table("softmax", {"time_s": np.ones(1)}))


def test_dims_of_a_table_follow_its_routing_and_the_gate_that_was_timed() -> None:
    plain = cut.dims(table())
    assert (plain["gated"] == 0).all()
    assert plain["active"][0] == 8
    assert plain["active"][4] == 1
    older = cut.dims(table(kernel=np.full(40, "vllm_fused_moe", dtype=object)))
    assert (older["gated"] == 1).all()
    stated = cut.dims(table(skew=np.full(40, np.nan), active_experts=np.full(40, 5.0)))
    assert stated["active"][1] == 5
    assert stated["padded_16"][1] == 5 * np.ceil(64 * 8 / 5 / BLOCKS[0]) * BLOCKS[0]


def test_groups_are_families_or_finer_where_there_are_too_few() -> None:
    moe = next(operator for operator in OPERATORS if operator.op == "moe")

    def groups(few: Table) -> int:
        return len(np.unique(Rows(moe, "bfloat16", "", few).groups()))

    assert groups(table()) == 5
    three = np.repeat([1.0, 2.0, 3.0, 3.0, 3.0], 8) * 1024
    assert groups(table(hidden=three)) == 6
    assert groups(table(hidden=np.full(40, 1024.0))) > 6
