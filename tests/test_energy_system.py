"""Energies of whole models: counts, forms, fits, files, hold-outs, and what reports say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from deployments import H100, toy
from energies.judge import FORMS, Campaign, Form, Harness
from energies.rows import LABELS, Runs
from hypothesis import given, settings
from hypothesis import strategies as st

import hymell
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.estimators import calibrated
from hymell.estimators.breakdown import shared_j
from hymell.estimators.calibrated import energies_for
from hymell.estimators.energy import PowerModel
from hymell.estimators.level3 import energies as files
from hymell.estimators.level3.energies import Energies, load, save
from hymell.estimators.level3.energy_counts import energy_counts
from hymell.estimators.level3.energy_fit import EnergyFit
from hymell.estimators.level3.energy_terms import (
    ENERGY_TERMS,
    Work,
    capped,
    energy_columns,
    power_share,
)
from hymell.estimators.pipeline import energy_j
from hymell.estimators.rollup import decode_totals, prefill_totals
from hymell.hardware import load_gpu
from hymell.op_registry.primitives import (
    Attention,
    Collective,
    Experts,
    Gemm,
    Memory,
    Scan,
    at,
)
from hymell.workload import Workload

SOFT = {"base": 0.2, "matrix": 1.1, "weights": 0.5, "cache": 0.6, "cap": 0.9, "sharpness": 5.0}
LINEAR = {"base": 0.2, "matrix": 0.9, "bytes": 0.5}
IDLE_W = PowerModel.of(H100).idle_w


def energies(coefficients: dict[str, float] = SOFT, **changes: object) -> Energies:
    made = Energies("h100-sxm", "runs", coefficients, 9, ("a", "b"), 5.0, 30.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def columns_of(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of runs of one second on one GPU."""
    random = np.random.default_rng(seed)
    found = {name: random.uniform(0.0, 0.6, count) for name in ENERGY_TERMS}
    found["base"] = np.ones(count)
    found["busy"] = np.maximum(found["matrix"], found["bytes"])
    return found


# What counts.


def test_fp8_products_count_by_half_and_padded_experts_in_blocks() -> None:
    wide, narrow = (
        energy_counts(Gemm(64, 4096, 4096, math=math), H100)[0] for math in ("bf16", "fp8")
    )
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    experts = Experts(tokens=8, top_k=2, experts=16, hidden=1024, intermediate=512)
    matrix_s, padded_s, cache, activations = energy_counts(experts, H100)
    # One row of every expert met is a block of 64.
    met = float(experts.active_experts)
    assert padded_s == pytest.approx(64 * met * matrix_s / 16, rel=0.2)
    assert cache == 0
    assert activations > 0
    blocks = replace(experts, b_dtype="float8_block128")
    assert energy_counts(blocks, H100)[1] == pytest.approx(2 * padded_s)
    many = replace(experts, tokens=200_000)
    assert energy_counts(many, H100)[1] == pytest.approx(energy_counts(many, H100)[0], rel=0.01)
    shared = replace(experts, ranks=4)
    assert energy_counts(shared, H100)[1] == pytest.approx(padded_s / 4)


def test_bytes_are_of_caches_or_of_activations_and_messages_of_neither() -> None:
    attention = Attention(2, 1, 1000, 8, 2, 64, 64)
    _, _, cache, rest = energy_counts(attention, H100)
    assert cache == 2 * 1000 * 2 * 128 * 2
    assert cache + rest == attention.bytes_read + attention.bytes_written
    scan = Scan("mamba2_ssd", 2, 1, 8, 64, 64, 1, 100.0, 200.0)
    assert energy_counts(scan, H100)[2:] == (300.0, 0.0)
    assert energy_counts(Memory("copy", 10, 30.0, 40.0, 5.0), H100)[2:] == (0.0, 65.0)
    assert energy_counts(Collective("all_reduce", 1e6, 4), H100) == (0.0, 0.0, 0.0, 0.0)


def test_a_phase_adds_up_what_its_kernels_count() -> None:
    model = toy()
    B, prompt, output = np.array([3.0]), np.array([100.0]), np.array([51.0])
    found = decode_totals(model, B, prompt, output)
    kernels = model.lowered(1).kernels
    for name, place in (("matrix_s", 0), ("cache_bytes", 2), ("activation_bytes", 3)):
        by_hand = sum(
            kernel.repeat * energy_counts(at(kernel.primitive, 3, 1, L), H100)[place]
            for kernel in kernels
            for L in range(100, 150)
        )
        assert getattr(found, name)[0] == pytest.approx(by_hand, rel=1e-9)
    total = found.weight_bytes + found.cache_bytes + found.activation_bytes
    assert total == pytest.approx(found.bytes)


# The form.


def test_the_cap_is_soft_below_and_never_passed() -> None:
    x = np.array([0.0, 0.1, 0.9, 10.0])
    found = capped(x, 0.9, 6.0)
    assert found[:2] == pytest.approx(x[:2], abs=1e-4)
    assert found[2] == pytest.approx(0.9 * 2 ** (-1 / 6))
    assert found[3] == pytest.approx(0.9, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SOFT, LINEAR]),
    st.sampled_from(sorted(ENERGY_TERMS)),
    st.floats(1.0, 20.0),
    st.integers(0, 20),
)
def test_energy_grows_with_work_and_time_between_idle_and_tdp(
    coefficients: dict[str, float], grown: str, factor: float, seed: int
) -> None:
    columns = columns_of(4, seed)
    made = energies(coefficients)
    less = made.energy_j(columns, H100, IDLE_W)
    more = made.energy_j({**columns, grown: columns[grown] * factor}, H100, IDLE_W)
    assert (more >= less * (1 - 1e-12)).all()
    assert (less >= IDLE_W * columns["base"]).all()
    assert (less <= H100.tdp_w * columns["base"]).all()


def test_a_phase_of_no_time_takes_no_energy() -> None:
    nothing = {name: np.zeros(1) for name in ENERGY_TERMS}
    assert energies().energy_j(nothing, H100, IDLE_W) == 0


def test_columns_are_seconds_at_data_sheet_rates() -> None:
    one, gpu_s = np.ones(1), np.full(1, 4.0)
    rate = H100.memory_bandwidth_bytes_per_s
    work = Work(2 * one, 3 * one, rate * one, 0.5 * rate * one, one, one, 0.7 * one)
    found = energy_columns(work, gpu_s, H100)
    assert set(found) == set(ENERGY_TERMS)
    assert found["base"] == 4
    assert (found["bytes"], found["weights"], found["busy"]) == (1, 0.5, 2)
    assert (found["matrix"], found["padded"], found["prompts"]) == (2, 3, 0.7)


# The fit.


@pytest.mark.parametrize(("truth", "soft"), [(SOFT, True), (LINEAR, False)])
def test_a_fit_finds_the_power_that_made_the_runs(truth: dict[str, float], soft: bool) -> None:
    columns = columns_of(200)
    joules = 700.0 * columns["base"] * power_share(columns, truth)
    terms = tuple(name for name in truth if name in ENERGY_TERMS)
    fit = EnergyFit(terms, soft).fit(columns, joules, 700.0)
    unseen = columns_of(50, seed=1)
    true_j = 700.0 * power_share(unseen, truth)
    assert fit.predict(unseen, 700.0) == pytest.approx(true_j, rel=0.02)
    assert set(fit.coefficients_) == set(truth)
    assert min(fit.coefficients_.values()) >= 0


def test_a_fit_is_not_decided_by_runs_that_went_wrong() -> None:
    columns = columns_of(100)
    joules = 700.0 * power_share(columns, LINEAR)
    spoilt = np.where(np.arange(100) < 5, 3 * joules, joules)
    fit = EnergyFit(("base", "matrix", "bytes"), soft=False).fit(columns, spoilt, 700.0)
    assert fit.predict(columns, 700.0)[5:] == pytest.approx(joules[5:], rel=0.05)


@pytest.mark.parametrize("joules", [[], [1.0, 0.0], [1.0, np.nan]])
def test_a_fit_refuses_runs_without_energy(joules: list[float]) -> None:
    with pytest.raises(HymellError, match="more than 0 joules"):
        EnergyFit(("base",)).fit(columns_of(len(joules)), np.array(joules), 700.0)


# Hold-outs.


def harness(spoilt: str = "") -> Harness:
    """Runs of four models on an H100; all of ``spoilt`` take twice the energy."""
    columns = columns_of(40, seed=3)
    groups = np.repeat(["a", "b", "c", "d"], 10)
    joules = 700.0 * power_share(columns, SOFT) * np.where(groups == spoilt, 2.0, 1.0)
    labels = pd.DataFrame({name: [""] * 40 for name in LABELS})
    labels = labels.assign(gpu="h100-sxm", group=groups, zoo=groups, n_gpus=1.0, moe=False)
    rate = H100.memory_bandwidth_bytes_per_s
    work = {
        "matrix_s": columns["matrix"],
        "padded_s": np.zeros(40),
        "bytes": (columns["weights"] + columns["cache"]) * rate,
        "weight_bytes": columns["weights"] * rate,
        "cache_bytes": columns["cache"] * rate,
        "activation_bytes": np.zeros(40),
    }
    runs = Runs(labels, work, joules, np.ones(40), np.zeros(40), {})
    return Harness({"h100-sxm": Campaign(runs, groups)})


def test_a_model_left_out_decides_nothing_about_itself() -> None:
    plain, spoilt = harness(), harness("b")
    assert spoilt.chosen()["b"] == plain.chosen()["b"]
    there = plain.campaigns["h100-sxm"].group == "b"
    before = plain.held_out("h100-sxm", plain.campaigns["h100-sxm"].columns)[there]
    after = spoilt.held_out("h100-sxm", spoilt.campaigns["h100-sxm"].columns)[there]
    assert after == pytest.approx(before)


def test_hold_outs_are_near_where_the_form_is_true() -> None:
    found = harness()
    campaign = found.campaigns["h100-sxm"]
    errors = found.held_out("h100-sxm", campaign.columns) / campaign.runs.energy_j - 1
    assert np.abs(errors).mean() < 0.02
    assert found.choose() == Form("split", True, False)
    assert all(not form.prompts for form in found.forms)
    assert len(FORMS) == 12


# Files.


def test_a_file_keeps_coefficients_with_units(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "h100-sxm.json"
    save(energies(transfers=True), file)
    assert load(file) == energies(transfers=True)
    entry = json.loads(file.read_text())["coefficients"]["matrix"]
    assert entry["unit"] == "1"
    assert "share of TDP" in entry["meaning"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 99),
        ("coefficients", {"base": {"value": -1, "unit": "1"}}),
        ("coefficients", {"base": {"value": 1, "unit": "W"}}),
        ("coefficients", {"what": {"value": 1, "unit": "1"}}),
        ("coefficients", {"matrix": {"value": 1, "unit": "1"}}),
        ("rows", "many"),
        ("rows", float("inf")),
        *(
            ("coefficients", {n: {"value": v, "unit": "1"} for n, v in values.items()})
            for values in (
                {"base": 0.2, "cap": 0.0, "sharpness": 6.0},
                {"base": 0.2, "cap": 0.9, "sharpness": 0.0},
            )
        ),
    ],
)
def test_a_damaged_file_says_so(tmp_path: Path, field: str, value: object) -> None:
    file = tmp_path / "x.json"
    save(energies(), file)
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(HymellError, match=r"x\.json holds no energies"):
        load(file)


def test_shipped_energies_are_better_than_kernels_and_on_the_page() -> None:
    names = files.fitted_energies()
    assert "h100-sxm" in names
    page = json.loads((Path(__file__).parents[1] / "docs" / "accuracy_energy.json").read_text())
    for name in names:
        found = files.shipped_energies(name)
        assert found is not None
        assert found.mape < found.kernels_mape
        assert load_gpu(name).tdp_w in (400.0, 700.0, 1000.0)
        own = [
            record["mape"]
            for record in page
            if record["gpu"] == name
            and record["estimator"] == "fitted energies, capped"
            and record["time"] == "measured"
            and record["set"].endswith(": all")
        ]
        assert any(abs(mape - found.mape) < 0.01 for mape in own)


def test_relatives_of_one_family_take_energies_that_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrated, "fitted_energies", lambda: ("h100-sxm",))
    for transfers in (True, False):
        made = energies(transfers=transfers)
        monkeypatch.setattr(calibrated, "shipped_energies", lambda _, made=made: made)
        found = energies_for(load_gpu("h200-sxm"))
        assert (found is not None and found.transferred) == transfers
        assert energies_for(load_gpu("a100-sxm-80gb")) is None
        assert energies_for(H100) is made


# Reports.


def report(calibration: str = "auto", **options: int) -> CostReport:
    parallel = {name: options.pop(name) for name in ("tp", "ep", "pp") if name in options}
    workload = Workload(**{"batch": 4, "prompt": 300, "output": 40, **options})
    return hymell.predict(
        "llama-3-8b", workload, gpu="h100-sxm", calibration=calibration, **parallel
    )


def test_a_phase_takes_what_energies_say() -> None:
    model = replace(toy(), energies=energies())
    B, prompt = np.array([2.0]), np.array([64.0])
    power = PowerModel.of(H100)
    for phase, totals in (
        ("prefill", prefill_totals(model, B, prompt)),
        ("decode", decode_totals(model, B, prompt, np.array([9.0]))),
    ):
        gpu_s = totals.time_s
        work = Work(
            totals.matrix_s,
            totals.padded_s,
            totals.bytes,
            totals.weight_bytes,
            totals.cache_bytes,
            totals.activation_bytes,
            gpu_s if phase == "prefill" else 0 * gpu_s,
        )
        expected = energies().energy_j(energy_columns(work, gpu_s, H100), H100, power.idle_w)
        assert energy_j(model, phase, totals, power) == pytest.approx(expected)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.just(0.0) | st.floats(1e-3, 9), st.floats(1e-3, 9)), min_size=1, max_size=9
    ),
    st.floats(0, 99),
)
def test_kernels_share_joules_up_to_their_most(
    pairs: list[tuple[float, float]], whole_j: float
) -> None:
    own_j, most_j = np.array(pairs).T
    found = shared_j(own_j, most_j, whole_j)
    assert (found <= most_j + 1e-9).all()
    assert (found[own_j == 0] == 0).all()
    assert found.sum() == pytest.approx(min(whole_j, most_j[own_j > 0].sum()), abs=1e-6)
    below = (own_j > 0) & (found < 0.999 * most_j)
    factors = found[below] / own_j[below]
    assert factors == pytest.approx(np.full(len(factors), factors.max(initial=0.0)))


@pytest.mark.parametrize("batch", [1, 64])
def test_no_kernel_draws_more_than_the_board_may(batch: int) -> None:
    for kernel in report(batch=batch).kernels:
        assert kernel.energy_j <= 700.0 * kernel.time_s * (1 + 1e-9)


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_and_gaps_add_up_to_the_phase(tp: int) -> None:
    found = report(tp=tp)
    assert "power of whole runs" in found.assumptions["energy"]
    for phase, cost in (("prefill", found.prefill), ("decode", found.decode)):
        own = [kernel for kernel in found.kernels if kernel.phase == phase]
        gaps_j = tp * IDLE_W * (cost.time_s - sum(kernel.time_s for kernel in own))
        assert cost.energy_j == pytest.approx(sum(kernel.energy_j for kernel in own) + gaps_j)
        assert cost.power_w == pytest.approx(cost.energy_j / cost.time_s)
        assert tp * IDLE_W < cost.power_w < tp * 700
    assert found.energy_per_request_j == pytest.approx(found.energy_j / 4)
    assert found.energy_per_output_token_j == pytest.approx(found.energy_j / 160)
    assert found.tdp_w == tp * 700
    assert found.energy_calibrated


def test_stages_and_data_sheets_are_without_energies() -> None:
    for found in (report(pp=2), report(calibration="none")):
        assert "whole runs" not in found.assumptions["energy"]
        assert not found.energy_calibrated


def test_a_run_without_decode_has_no_decode_power() -> None:
    found = report(output=1)
    assert found.decode.power_w == 0
    assert found.decode.energy_j == 0
    assert found.energy_j > 0
