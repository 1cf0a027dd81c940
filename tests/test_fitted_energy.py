"""Energy of kernels and of reports by fitted power forms: own, lent by a relative, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deployments import toy

from hymell.estimators import predict
from hymell.estimators.base import DATA_SHEET_POWER, Deployment, Estimator
from hymell.estimators.breakdown import calibrated_share_of_energy, coverage, kernel_costs
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.calibration import Calibration, Entry, assemble, load, save
from hymell.estimators.energy import PowerModel, busy_terms
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.kernel_energy import energy_dims, energy_op
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.predict import predict_graph, price
from hymell.estimators.rollup import KernelDetail, decode_totals, prefill_totals
from hymell.graph import Region
from hymell.hardware import load_gpu
from hymell.op_registry.kernels import Lowered
from hymell.op_registry.primitives import Attention, Gemm, Primitive, at
from hymell.report.summary import coverage_lines, headline
from hymell.workload import Workload

H200 = load_gpu("h200-sxm")
GEMM = Gemm(m=np.array([1.0, 64.0, 8192.0]), n=4096, k=4096)
TIME_S = np.array([1e-5, 2e-5, 1e-3])


def _power(op: str, base_w: float = 200.0) -> Level1:
    form = catalog.find(energy_op(op), "power")
    assert form is not None
    made = Level1(form, Device.of(H200), corrected=False)
    made.coefficients_ = {c.name: c.prior(Device.of(H200)) for c in form.coefficients}
    made.coefficients_["base_w"] = base_w
    made.choice_ = {}
    made.ranges_ = dict.fromkeys(form.range_dims, (0.0, 20.0))
    made.spread_, made.rows_, made.correction_ = 0.05, 1000, None
    return made


def _calibration(*ops: str) -> Calibration:
    fitted = {}
    for op in ops:
        made = _power(op)
        entry = Entry(energy_op(op), "bfloat16", "", "tests", "vllm", "0.22.0", "", made.to_dict())
        fitted[entry.key] = (entry, made)
    return assemble("h200-sxm", "vllm", {}, fitted)


OWN = Calibrated(H200, (_calibration("gemm", "attention_decode"),))


def test_a_fitted_power_gives_the_energy_at_the_given_time() -> None:
    expected = _power("gemm").predict(energy_dims(GEMM, H200, TIME_S)).time_s
    assert OWN.energy_j(GEMM, H200, TIME_S) == pytest.approx(expected)
    # Twice the time at the same work is more energy, but not twice: utilisation halves.
    twice = OWN.energy_j(GEMM, H200, 2 * TIME_S)
    assert np.all(twice > expected)
    assert np.all(twice < 2 * expected)
    origin = OWN.energy_origin(GEMM, H200)
    assert (origin.estimator, origin.calibration) == ("power", "h200-sxm, vllm 0.22.0")
    assert origin.calibrated


def test_many_equal_kernels_cost_what_each_alone_does() -> None:
    m = np.repeat([1.0, 64.0, 8192.0], 200)
    time_s = np.repeat(TIME_S, 200)
    together = OWN.energy_j(replace(GEMM, m=m), H200, time_s)
    assert together == pytest.approx(np.repeat(OWN.energy_j(GEMM, H200, TIME_S), 200))


@pytest.mark.parametrize(
    "kernel",
    [
        Attention(1, 512, 512, 8, 8, 64, 64),  # prefill: this calibration has decode alone
        Attention(1, 1, 512, 8, 1, 576, 512, latent=True),
        replace(GEMM, b_dtype="float8_e4m3", math="fp8"),
    ],
)
def test_what_was_not_fitted_takes_the_data_sheet(kernel: Primitive) -> None:
    assert OWN.energy_j(kernel, H200, TIME_S) is None
    assert OWN.energy_origin(kernel, H200).estimator == DATA_SHEET_POWER
    assert not OWN.energy_origin(kernel, H200).calibration


def test_the_roofline_has_no_fitted_power() -> None:
    assert Roofline().energy_j(GEMM, H200, TIME_S) is None
    assert Roofline().energy_origin(GEMM, H200).estimator == DATA_SHEET_POWER


@pytest.mark.parametrize(
    ("gpu", "lent"),
    [
        ("h100-sxm", True),
        ("h100-pcie", False),  # half the TDP
        ("gh200", False),  # its TDP is that of a module with a CPU
        ("b200-sxm", False),  # another family
        ("a100-sxm-80gb", False),
    ],
)
def test_a_power_is_lent_within_a_family_to_boards_of_like_tdp(gpu: str, lent: bool) -> None:
    board = load_gpu(gpu)
    estimator = Calibrated(board, (_calibration("gemm"),))
    origin = estimator.energy_origin(GEMM, board)
    assert not origin.calibrated
    assert origin.calibration == ("transferred from h200-sxm, vllm 0.22.0" if lent else "")
    assert (estimator.energy_j(GEMM, board, TIME_S) is not None) == lent


def test_a_lent_power_is_scaled_by_tdp() -> None:
    b300, b200 = load_gpu("b300-sxm"), load_gpu("b200-sxm")
    theirs = replace(_calibration("gemm"), gpu="b200-sxm")
    at_home, lent = (Calibrated(gpu, (theirs,)) for gpu in (b200, b300))
    # All but the cap is far away, so that only the base counts.
    idle = Gemm(m=np.array([1.0]), n=1, k=1)
    ratio = lent.energy_j(idle, b300, 1.0) / at_home.energy_j(idle, b200, 1.0)
    assert ratio == pytest.approx(b300.tdp_w / b200.tdp_w, rel=1e-3)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """The toy model on H200, also when its graph is deployed anew."""
    made = toy(gpu=H200, estimator=OWN)

    def lower(region: Region, *_: object, **__: object) -> Lowered:
        return made.lowered(made.graph.regions.index(region))

    monkeypatch.setattr(predict, "lower", lower)
    return made


def test_energy_of_a_run_is_that_of_its_kernels_and_of_idling(model: Deployment) -> None:
    batch, prompt, output = 3.0, 100.0, 300.0
    totals = decode_totals(model, *(np.array([v]) for v in (batch, prompt, output)))
    power, joules = PowerModel.of(H200), 0.0
    for kernel in model.lowered(1).kernels:
        for length in np.arange(prompt, prompt + output - 1):
            sized = at(kernel.primitive, np.array([batch]), 1, np.array([length]))
            time_s = OWN.time(sized, H200).time_s
            found = OWN.energy_j(sized, H200, time_s)
            if found is None:
                busy_s = np.minimum(time_s, _busy_s(sized))
                found = power.energy_j(time_s, busy_s)
            joules += kernel.repeat * float(np.ravel(found)[0])
    assert totals.kernel_j[0] == pytest.approx(joules, rel=1e-3)
    costs = price(model.graph, batch, prompt, output, gpu=H200, engine=model.engine, estimator=OWN)
    gaps_s = totals.time_s[0] - totals.kernel_s[0]
    assert gaps_s > 0
    assert costs["decode_energy_j"] == pytest.approx(
        totals.kernel_j[0] + power.idle_w * gaps_s, rel=1e-9
    )


def _busy_s(primitive: Primitive) -> float:
    return float(max(np.ravel(term)[0] for term in busy_terms(primitive, H200)))


def test_kernels_say_where_their_energy_comes_from(model: Deployment) -> None:
    details: list[KernelDetail] = []
    prefill_totals(model, np.array([1.0]), np.array([512.0]), details)
    costs = list(kernel_costs("prefill", details, model))
    by_kind = {cost.primitive: cost for cost in costs}
    assert by_kind["gemm"].energy_calibrated
    assert by_kind["gemm"].energy_estimator == "power"
    assert by_kind["gemm"].energy_calibration == "h200-sxm, vllm 0.22.0"
    assert by_kind["attention"].energy_estimator == DATA_SHEET_POWER
    share = coverage([d.kernel for d in details], costs).calibrated_share_of_energy
    assert 0 < share < 1
    assert share == pytest.approx(
        sum(c.energy_j for c in costs if c.primitive == "gemm") / sum(c.energy_j for c in costs)
    )
    assert calibrated_share_of_energy([by_kind["gemm"]]) == 1
    assert calibrated_share_of_energy([]) == 0


@pytest.mark.parametrize(
    ("estimator", "gpu", "remark", "words"),
    [
        (OWN, "h200-sxm", "% calibrated", "fitted on h200-sxm, vllm 0.22.0"),
        (
            Calibrated(load_gpu("h100-sxm"), OWN.sources),
            "h100-sxm",
            "part transferred",
            "power transferred from h200-sxm",
        ),
        (Roofline(), "h200-sxm", "uncalibrated", "uncalibrated: idle"),
    ],
)
def test_a_report_says_how_much_of_its_energy_is_calibrated(
    model: Deployment, estimator: Estimator, gpu: str, remark: str, words: str
) -> None:
    report = predict_graph(
        model.graph,
        Workload(batch=2, prompt=64, output=16),
        gpu=load_gpu(gpu),
        engine=model.engine,
        estimator=estimator,
    )
    assert not report.energy_calibrated
    said = {fact.label: fact.remark for fact in headline(report).items}
    for name in ("Energy", "Energy per token"):
        assert remark in said[name]
    assert words in report.assumptions["energy"]
    assert any("of the kernels' energy" in line for line in coverage_lines(report))
    assert report.energy_j == pytest.approx(report.prefill.energy_j + report.decode.energy_j)


def test_a_file_gives_back_a_power_form(tmp_path: Path) -> None:
    made = _calibration("gemm", "moe")
    save(made, tmp_path / "c.json")
    back = load(tmp_path / "c.json")
    for key in made.entries:
        ours, theirs = made.estimator(key), back.estimator(key)
        assert ours is not None
        assert theirs is not None
        assert ours.to_dict() == theirs.to_dict()
