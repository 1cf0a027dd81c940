"""Systems: fits to synthetic runs, files, the choice for a GPU, and what reports make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from deployments import H100, SERVING, toy
from systems.judge import Campaign, Form
from systems.results import with_one_row
from systems.rows import LABELS, Runs

import hymell
from hymell.errors import HymellError
from hymell.estimators import calibrated
from hymell.estimators.calibrated import system_for
from hymell.estimators.level3 import system as systems
from hymell.estimators.level3.features import FEATURES, features
from hymell.estimators.level3.fit import SystemFit
from hymell.estimators.level3.groups import all_heads, group_of
from hymell.estimators.level3.residual import BOUND, SIZES, Residual, residual_features
from hymell.estimators.level3.system import System, load, save
from hymell.estimators.level3.terms import FLOORS, MULTIPLIERS, TERMS, columns, stacked, total
from hymell.estimators.predict import _overheads
from hymell.estimators.rollup import decode_totals, prefill_totals
from hymell.hardware import load_gpu
from hymell.op_registry.primitives import Attention, Collective, Gemm

TRUE = {
    "prefill": 1.1,
    "dense": 0.9,
    "experts": 1.0,
    "attention": 1.2,
    "comm": 1.0,
    "gqa": 0.3,
    "step_s": 1e-3,
    "sequence_s": 2e-5,
    "logit_s": 1e-10,
    "message_s": 0.0,
    "routed_s": 0.0,
    "prefill_launch_s": 0.0,
    "decode_launch_s": 0.0,
}


def runs_of(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of runs whose terms are of the size that models on one GPU have."""
    random = np.random.default_rng(seed)
    steps = random.integers(100, 2000, count) * 1.0
    batch = random.integers(1, 65, count) * 1.0
    found = {name: np.zeros(count) for name in TERMS}
    found["prefill"] = random.uniform(0.01, 1.0, count)
    found["dense"] = steps * random.uniform(5e-3, 2e-2, count)
    found["attention"] = steps * batch * random.uniform(1e-5, 2e-4, count)
    found["gqa"] = found["attention"] * random.choice([0.0, 3.0], count)
    found["step_s"] = steps
    found["sequence_s"] = steps * batch
    found["logit_s"] = steps * batch * random.choice([32e3, 152e3], count)
    found["prefill_comm"] = np.zeros(count)
    return found


def made(**changes: object) -> System:
    plain = System("serving", "h100-sxm", "2024", "made runs", TRUE, 100, ("toy",), 4.0, 20.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_fit_finds_the_coefficients_that_made_the_runs() -> None:
    terms = runs_of(300)
    found = SystemFit(width=10.0).fit(terms, total(terms, TRUE)).coefficients_
    for name in ("prefill", "dense", "attention", "gqa", "step_s", "sequence_s", "logit_s"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.05), name
    assert found == SystemFit(width=10.0).fit(terms, total(terms, TRUE)).coefficients_
    assert list(found) == list(TERMS)


def test_fit_is_not_led_by_a_few_broken_runs_and_never_below_zero() -> None:
    terms = runs_of(200, seed=1)
    time_s = total(terms, {**TRUE, "step_s": 0.0})
    time_s[:10] *= 3
    fit = SystemFit().fit(terms, time_s)
    assert np.median(np.abs(fit.predict(terms) / time_s - 1)) < 0.02
    assert min(fit.coefficients_.values()) >= 0


def test_priors_decide_where_runs_say_nothing() -> None:
    terms = runs_of(50, seed=2)
    fit = SystemFit(prior={"comm": 1.7}).fit(terms, total(terms, TRUE))
    assert fit.coefficients_["comm"] == pytest.approx(1.7)
    assert fit.coefficients_["experts"] == pytest.approx(TERMS["experts"].prior)
    tight = SystemFit(width=1e-4).fit(terms, 2 * total(terms, TRUE)).coefficients_
    assert tight["dense"] == pytest.approx(1.0, abs=0.01)


def test_tied_multipliers_share_one_value_and_absent_ones_are_one() -> None:
    terms = runs_of(80, seed=3)
    names = ("dense", "attention", "step_s")
    found = SystemFit(names, tied=("dense", "attention")).fit(terms, total(terms, TRUE))
    assert found.coefficients_["dense"] == found.coefficients_["attention"]
    assert found.coefficients_["prefill"] == 1.0
    assert "gqa" not in found.coefficients_


def test_fit_refuses_runs_without_time() -> None:
    terms = runs_of(3)
    for time_s in (np.array([1.0, 0.0, 1.0]), np.array([1.0, np.nan, 1.0]), np.zeros(0)):
        with pytest.raises(HymellError, match="more than 0 seconds"):
            SystemFit().fit(terms, time_s)


def test_groups_of_kernels() -> None:
    attention = Attention(1, 1, 10, 8, 2, 64, 64)
    assert group_of(attention) == "attention"
    assert group_of(Gemm(1, 2, 3)) == "gemm"
    assert group_of(Collective("all_reduce", 10, 2)) == "comm"
    whole = all_heads(attention)
    assert whole is not None
    assert whole.kv_heads == 8
    assert all_heads(replace(attention, kv_heads=8)) is None
    assert all_heads(replace(attention, latent=True)) is None


WORKLOADS = (np.array([1.0, 16.0, 3.0]), np.array([128.0, 40.0, 7.0]), np.array([2.0, 300.0, 1.0]))


def test_a_priced_run_is_the_sum_of_its_terms() -> None:
    plain = toy(engine=SERVING)
    typical = {name: value for name, value in TRUE.items() if name not in FLOORS}
    fitted = replace(plain, system=made(coefficients=typical))
    B, prompt, output = WORKLOADS
    terms = columns(features(plain, B, prompt, output), 4096.0)
    prefill, decode = prefill_totals(fitted, B, prompt), decode_totals(fitted, B, prompt, output)
    host_s = SERVING.overheads.host_s_per_launch * prefill.launches
    stalls_s = np.maximum(host_s - prefill.kernel_s, 0)
    expected = total(terms, TRUE) + stalls_s
    assert prefill.time_s + decode.time_s == pytest.approx(expected)
    slow = {**typical, "prefill_launch_s": 5e-5, "decode_launch_s": 3e-5}
    waiting = replace(plain, system=made(coefficients=slow))
    waited_s = prefill_totals(waiting, B, prompt).time_s
    waited_s = waited_s + decode_totals(waiting, B, prompt, output).time_s
    assert waited_s == pytest.approx(total(terms, slow))
    assert (waited_s > total(terms, typical)).all()
    assert terms["gqa"][:2].min() > 0
    assert set(features(plain, B, prompt, output)) == set(FEATURES)


def test_without_a_system_prices_are_those_of_typical_overheads() -> None:
    plain = toy(engine=SERVING)
    alike = replace(plain, system=None)
    B, prompt, output = WORKLOADS
    steps = decode_totals(plain, B, prompt, output)
    gaps = SERVING.overheads.gap_s * steps.launches + SERVING.overheads.step_s * steps.steps
    assert steps.time_s == pytest.approx(steps.kernel_s + gaps)
    assert (decode_totals(alike, B, prompt, output).time_s == steps.time_s).all()
    assert "per step" in _overheads(plain)
    assert "not fitted" not in _overheads(plain)
    words = _overheads(replace(plain, system=made()))
    assert words.startswith("fitted on 100 runs of made runs (h100-sxm, serving 2024; 4.0% off")
    assert "typical, not fitted: 5 us of host per launch" in words


def test_idle_power_is_drawn_for_the_time_that_a_system_adds() -> None:
    plain = toy(engine=SERVING)
    B, prompt, output = WORKLOADS
    slow = made(coefficients={**TRUE, "dense": 2.0})
    before, after = (
        decode_totals(replace(plain, system=s), B, prompt, output) for s in (made(), slow)
    )
    longer_s = after.kernel_s - before.kernel_s
    assert (longer_s[:2] > 0).all()
    idle_w = (after.kernel_j - before.kernel_j)[:2] / longer_s[:2]
    assert idle_w == pytest.approx(H100.idle_power_w or 0.1 * H100.tdp_w)


def test_a_file_gives_back_the_system(tmp_path: Path) -> None:
    file = tmp_path / "serving" / "h100-sxm@2024.json"
    save(made(transfers=True), file)
    assert load(file) == made(transfers=True)
    content = json.loads(file.read_text())
    assert content["coefficients"]["step_s"]["unit"] == "s"
    content["coefficients"]["step_s"]["unit"] = "ms"
    file.write_text(json.dumps(content))
    with pytest.raises(HymellError, match="no system of this version"):
        load(file)
    with pytest.raises(HymellError, match="no system of this version"):
        load(tmp_path / "none.json")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(systems, "FOLDER", tmp_path)
    systems.shipped_system.cache_clear()
    yield tmp_path
    systems.shipped_system.cache_clear()


def ship(system: System) -> None:
    save(system, systems.system_file(system.engine, system.gpu, system.version))


def test_a_gpu_takes_its_own_system_or_one_of_its_family(shipped: Path) -> None:
    ship(made(engine="vllm", transfers=True))
    ship(made(engine="trtllm"))
    own = system_for(H100, "vllm")
    assert own is not None
    assert not own.transferred
    near = system_for(load_gpu("h200-sxm"), "vllm")
    assert near is not None
    assert near.transferred
    assert near.describe().startswith("transferred from")
    assert system_for(load_gpu("a100-sxm-80gb"), "vllm") is None, "other kernels"
    assert system_for(load_gpu("h200-sxm"), "trtllm") is None, "its relatives do not use it"
    assert system_for(H100, "sglang") is None
    assert system_for(load_gpu("cpu"), "vllm") is None
    edited = replace(H100, memory_bandwidth_bytes_per_s=1e12)
    assert system_for(edited, "trtllm") is None, "another GPU than the one that was measured"


@pytest.mark.parametrize("file", sorted(systems.FOLDER.glob("*/*.json")), ids=lambda f: f.stem)
def test_shipped_systems_beat_the_plain_composition(file: Path) -> None:
    found = load(file)
    assert (found.engine, f"{found.gpu}@{found.version}") == (file.parent.name, file.stem)
    assert found.mape < found.composed_mape
    assert load_gpu(found.gpu).name == found.gpu
    for name in MULTIPLIERS:
        assert 0.5 < found.value(name) < 2, name
    assert calibrated.system_for(load_gpu(found.gpu), found.engine, found.version) == found


def test_the_newest_version_is_taken_and_an_older_one_on_request(shipped: Path) -> None:
    for version, transfers in (("2024", True), ("0.9.2", False), ("0.11.1", False)):
        ship(made(engine="vllm", version=version, transfers=transfers))
    assert [v for _, v in systems.fitted_systems("vllm")] == ["0.11.1", "0.9.2", "2024"]
    newest = system_for(H100, "vllm")
    assert newest is not None
    assert newest.version == "0.11.1"
    older = system_for(H100, "vllm", "2024")
    assert older is not None
    assert older.version == "2024"
    near = system_for(load_gpu("h200-sxm"), "vllm")
    assert near is not None
    assert near.version == "2024", "of a relative the newest that was seen to carry over"
    with pytest.raises(HymellError, match=r"no system of vllm 0\.6 .* 0\.11\.1, 0\.9\.2, 2024$"):
        system_for(H100, "vllm", "0.6")
    with pytest.raises(HymellError, match=r"versions there are: none$"):
        system_for(H100, "sglang", "0.5")


def test_a_version_is_refused_where_no_system_is_used() -> None:
    with pytest.raises(HymellError, match="leave the calibration at auto"):
        calibrated.choose(H100, "vllm", "none", "2024")
    with pytest.raises(HymellError, match="leave the version out"):
        hymell.predict("llama-2-7b", engine_version="2024", pp=2)


def test_a_host_too_slow_for_its_kernels_is_found() -> None:
    terms = runs_of(300, seed=4)
    steps = terms["step_s"]
    terms["decode_launch_s"] = 400 * steps
    slow = {**TRUE, "step_s": 0.0, "decode_launch_s": 3e-5}
    time_s = total(terms, slow)
    kernels_s = total(terms, {**slow, "decode_launch_s": 0.0})
    bound = time_s > kernels_s + 1e-9
    assert 0.1 < bound.mean() < 0.9
    assert time_s[~bound] == pytest.approx(kernels_s[~bound])
    found = SystemFit(width=10.0).fit(terms, time_s)
    assert found.coefficients_["decode_launch_s"] == pytest.approx(3e-5, rel=0.05)
    assert np.abs(found.predict(terms) / time_s - 1).mean() < 0.02


def test_a_residual_is_bounded_and_learns_what_a_system_leaves() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 3))
    log_ratio = 0.15 * np.tanh(features[:, 0])
    found = Residual().fit(features, log_ratio).predict(features)
    assert np.abs(np.log(found) - log_ratio).mean() < 0.02
    large = Residual().fit(features, 10 * log_ratio).predict(features)
    assert np.abs(np.log(large)).max() <= BOUND + 1e-6
    assert (
        np.abs(np.log(Residual(np.inf).fit(features, 10 * log_ratio).predict(features))).max() > 1
    )
    with pytest.raises(HymellError, match="call fit first"):
        Residual().predict(features)
    with pytest.raises(HymellError, match="there are none"):
        Residual().fit(features[:0], log_ratio[:0])


def test_features_of_a_residual_are_the_same_for_runs_twice_as_slow() -> None:
    terms = runs_of(20, seed=5)
    sizes = {name: np.full(20, 2.0) for name in SIZES}
    slower = {name: 2 * values for name, values in terms.items()}
    once = residual_features(terms, sizes)
    assert once.shape == (20, 11)
    assert np.isfinite(once).all()
    assert residual_features(slower, sizes) == pytest.approx(once)


def campaign(changed: str = "", factor: float = 1.0) -> Campaign:
    """Two GPUs, three models; the times of model ``changed`` times ``factor``."""
    parts, labels = [], []
    for gpu in ("a", "b"):
        for model in ("x", "y", "z"):
            parts.append(runs_of(20, seed=len(parts)))
            rows = pd.DataFrame(dict.fromkeys(LABELS, ""), index=range(20))
            labels.append(rows.assign(gpu=gpu, library="l", zoo=model, n_gpus=1))
    terms, table = stacked(parts), pd.concat(labels, ignore_index=True)
    time_s = total(terms, TRUE) * np.where(table["zoo"] == changed, factor, 1.0)
    sizes = {name: np.full(len(time_s), 2.0) for name in SIZES}
    runs = Runs(table, terms, time_s, time_s, time_s, time_s, sizes)
    host = ("step_s", "sequence_s", "logit_s")
    every = [
        Form(("prefill", "dense", "attention", "gqa", *host), (), 1.0, pooled)
        for pooled in ("", "engine")
    ]
    every.append(Form(("prefill", "dense", "attention"), ("dense", "attention"), 0.1, ""))
    return Campaign(runs, every, runs.group)


def test_what_is_held_out_decides_nothing() -> None:
    plain, slower = campaign(), campaign("x", 1.5)
    cell = ("a", "l")
    of_x = plain.group[plain.cells[cell]] == "x"
    first, second = plain.held_out(cell), slower.held_out(cell)
    assert first[of_x] == pytest.approx(second[of_x], rel=1e-12)
    assert first[~of_x] != pytest.approx(second[~of_x], rel=1e-3)
    assert plain.chosen["x"] == slower.chosen["x"]


def test_the_form_that_explains_the_runs_is_chosen() -> None:
    found = campaign()
    assert set(found.chosen.values()) <= set(found.forms[:2])
    for cell, rows in found.cells.items():
        error = found.held_out(cell) / found.runs.time_s[rows] - 1
        assert np.abs(error).mean() < 0.02


def test_another_gpu_is_judged_without_its_runs() -> None:
    found = campaign()
    away = found.abroad(("a", "l"), [("b", "l")])
    assert away is not None
    changed = campaign()
    changed.runs.time_s[changed.cells["a", "l"]] *= 1.2
    changed.__dict__["chosen"] = found.chosen
    assert changed.abroad(("a", "l"), [("b", "l")]) == pytest.approx(away)


def test_one_measured_run_calibrates_its_configuration_and_is_not_judged() -> None:
    runs = campaign().runs
    off = np.where(runs.labels["zoo"] == "x", 0.7, np.where(runs.labels["zoo"] == "y", 1.3, 1.0))
    found, left = with_one_row(runs, runs.time_s * off)
    configurations = runs.labels.groupby(["zoo", "dtype", "n_gpus", "library"]).ngroups
    assert (~left).sum() == configurations
    assert found == pytest.approx(runs.time_s), "the errors are ratios, and ratios are chosen"
    shifted = runs.time_s + np.where(runs.labels["zoo"] == "x", 0.5, 0.2)
    assert with_one_row(runs, shifted)[0] == pytest.approx(runs.time_s), "and so are differences"


def test_a_network_on_top_has_not_seen_the_model_either() -> None:
    plain, slower = campaign(), campaign("x", 1.5)
    cell = ("a", "l")
    of_x = plain.group[plain.cells[cell]] == "x"
    first, second = plain.with_network(cell), slower.with_network(cell)
    assert first[of_x] == pytest.approx(second[of_x], rel=1e-9)
    assert np.abs(np.log(second / slower.held_out(cell))).max() <= BOUND + 1e-6
    alone, again = plain.networks_alone(cell), slower.networks_alone(cell)
    assert alone[of_x] == pytest.approx(again[of_x] / 1.5, rel=1e-9)
