"""Whole runs priced by fitted estimators: sums over steps, limits, monotony, what a report says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deployments import H100, PLAIN, toy

from hymell.estimators.base import Deployment
from hymell.estimators.breakdown import coverage, kernel_costs
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.calibration import Entry, assemble
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.roofline import limits
from hymell.estimators.rollup import KernelDetail, decode_totals, kernel_sums, prefill_totals
from hymell.op_registry.primitives import at

FORMS = (
    ("gemm", "tile-bfloat16", "bfloat16", ""),
    ("attention_prefill", "flash-tiles", "bfloat16", "bfloat16"),
    ("attention_decode", "split-keys", "bfloat16", "bfloat16"),
    ("pointwise", "elementwise", "float16", ""),
)


def _at_priors(op: str, name: str) -> Level1:
    """A form with coefficients at their priors, as if fitted up to 2^14 (pointwise: 2^40)."""
    form = catalog.find(op, name)
    assert form is not None
    device = Device.of(H100)
    made = Level1(form, device, corrected=False)
    made.coefficients_ = {c.name: c.prior(device) for c in form.coefficients}
    made.choice_ = form.choices[0]
    made.ranges_ = dict.fromkeys(form.range_dims, (0.0, 40.0 if op == "pointwise" else 14.0))
    made.spread_, made.rows_, made.correction_ = 0.05, 1000, None
    return made


@pytest.fixture(scope="module")
def estimator() -> Calibrated:
    fitted = {}
    for op, name, dtype, variant in FORMS:
        made = _at_priors(op, name)
        entry = Entry(op, dtype, variant, "tests", "vllm", "1.0", "", made.to_dict())
        fitted[entry.key] = (entry, made)
    return Calibrated(H100, (assemble("h100-sxm", "vllm", {}, fitted),))


@pytest.fixture(scope="module")
def model(estimator: Calibrated) -> Deployment:
    return toy(estimator=estimator)


def test_decode_is_the_sum_of_its_steps(model: Deployment, estimator: Calibrated) -> None:
    batch, prompt, output = 3.0, 100.0, 300.0
    totals = decode_totals(model, np.array([batch]), np.array([prompt]), np.array([output]))
    one_by_one = 0.0
    for kernel in model.lowered(1).kernels:
        for length in np.arange(prompt, prompt + output - 1):
            sized = at(kernel.primitive, np.array([batch]), 1, np.array([length]))
            one_by_one += kernel.repeat * float(estimator.time(sized, H100).time_s[0])
    assert totals.kernel_s[0] == pytest.approx(one_by_one, rel=0.01)


def test_many_workloads_are_priced_as_each_alone(model: Deployment) -> None:
    random = np.random.default_rng(0)
    B, prompt = random.integers(1, 64, 200) * 1.0, random.integers(1, 2000, 200) * 1.0
    output = random.integers(2, 500, 200) * 1.0
    together = decode_totals(model, B, prompt, output).time_s
    prefill = prefill_totals(model, B, prompt).time_s
    for i in (0, 17, 199):
        alone = decode_totals(model, B[[i]], prompt[[i]], output[[i]]).time_s
        assert alone[0] == pytest.approx(together[i], rel=1e-9)
        alone = prefill_totals(model, B[[i]], prompt[[i]]).time_s
        assert alone[0] == pytest.approx(prefill[i], rel=1e-9)


def test_more_work_takes_longer(model: Deployment) -> None:
    sizes = np.exp2(np.arange(0, 18, dtype=float))
    for first, second in ((sizes, np.ones_like(sizes)), (np.ones_like(sizes), sizes)):
        assert (np.diff(prefill_totals(model, first, second).kernel_s) >= 0).all()
        decoded = decode_totals(model, first, second, np.full_like(sizes, 2.0)).kernel_s
        assert (np.diff(decoded) >= 0).all()


@pytest.mark.parametrize("size", [1.0, 7.0, 4096.0, 2.0**20])
def test_no_product_beats_the_data_sheet(
    size: float, model: Deployment, estimator: Calibrated
) -> None:
    for kernel in model.lowered(0).kernels:
        if kernel.primitive.kind != "gemm":
            continue
        sized = at(kernel.primitive, np.array([size]), np.array([1.0]))
        time_s = estimator.time(sized, H100).time_s
        bound = limits(sized, H100)
        assert time_s[0] >= np.ravel(bound.matrix_s)[0]
        # Weights come from HBM, whatever L2 could hold of them.
        assert time_s[0] >= np.ravel(sized.weight_bytes)[0] / H100.memory_bandwidth_bytes_per_s


def test_kernels_say_what_priced_them(model: Deployment) -> None:
    one = np.array([1.0])
    details: list[KernelDetail] = []
    prefill_totals(model, one, one * 512, details)
    costs = list(kernel_costs("prefill", details, model))
    assert {cost.estimator for cost in costs} == {"tile-bfloat16", "flash-tiles", "elementwise"}
    assert {cost.calibration for cost in costs} == {"h100-sxm, vllm 1.0"}
    assert all(cost.calibrated and cost.in_range for cost in costs)
    whole = coverage([detail.kernel for detail in details], costs)
    assert whole.calibrated_share_of_time == pytest.approx(1.0)
    huge: list[KernelDetail] = []
    prefill_totals(model, one, one * 2**20, huge)
    beyond = list(kernel_costs("prefill", huge, model))
    assert not any(cost.in_range for cost in beyond if cost.name in ("proj", "attention"))


def test_no_part_of_the_time_counts_as_calibrated_on_another_gpu(estimator: Calibrated) -> None:
    elsewhere = replace(estimator, gpu=replace(H100, name="h101"), _found={})
    model = toy(estimator=elsewhere, engine=PLAIN)
    details: list[KernelDetail] = []
    prefill_totals(model, np.array([1.0]), np.array([64.0]), details)
    costs = list(kernel_costs("prefill", details, model))
    assert coverage([d.kernel for d in details], costs).calibrated_share_of_time == 0.0
    assert all(cost.calibration.startswith("transferred from h100-sxm") for cost in costs)


def test_power_never_exceeds_the_tdp(model: Deployment) -> None:
    B = np.array([1.0, 64.0])
    steps = decode_totals(model, B, B * 16, B + 10)
    assert (steps.kernel_j <= H100.tdp_w * steps.kernel_s * (1 + 1e-9)).all()


def test_sums_are_of_the_kernels_repeats(model: Deployment) -> None:
    from hymell.estimators.rollup import decode_steps

    one = np.array([1.0])
    steps = decode_steps(model, one, one * 10, one * 20)
    kernel = model.lowered(1).kernels[0]
    doubled = replace(kernel, repeat=2 * kernel.repeat)
    single, twice = (kernel_sums(k, model, steps).time_s[0] for k in (kernel, doubled))
    assert twice == pytest.approx(2 * single)
