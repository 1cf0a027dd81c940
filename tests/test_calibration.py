"""Calibration files, and what prices kernels with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hymell.errors import HymellError
from hymell.estimators import calibrated, calibration
from hymell.estimators.base import REGIMES
from hymell.estimators.calibrated import Calibrated, choose, predict_rows, relatives, scaled
from hymell.estimators.calibration import (
    Calibration,
    Entry,
    TransferError,
    assemble,
    load,
    save,
)
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.mlp import Mlp
from hymell.estimators.queries import columns, query
from hymell.hardware import find_gpu, list_gpus, load_gpu
from hymell.op_registry.primitives import Attention, RowReduce, Unknown

H100 = load_gpu("h100-sxm")


def _fitted(op: str, name: str, *, corrected: bool) -> Level1:
    """A form with coefficients off their priors, and a small random correction."""
    form = catalog.find(op, name)
    assert form is not None
    device = Device.of(H100)
    made = Level1(form, device)
    made.coefficients_ = {c.name: 1.3 * c.prior(device) for c in form.coefficients}
    made.choice_ = form.choices[0]
    made.ranges_ = dict.fromkeys(form.range_dims, (0.0, 14.0))
    made.spread_, made.rows_ = 0.02, 500
    made.correction_ = None
    if corrected:
        sizes = columns({name: np.exp2(np.arange(0.0, 12.0)) for name in form.dims})
        features = form.features(sizes, made.terms(sizes), device)
        random = np.random.default_rng(0)
        width = features.shape[1]
        made.correction_ = Mlp(
            mean=features.mean(0),
            scale=np.maximum(features.std(0), 1e-3),
            low=features.min(0),
            high=features.max(0),
            weights=(random.normal(size=(2, width, 8)), random.normal(size=(2, 8, 1))),
            biases=(random.normal(size=(2, 8)), random.normal(size=(2, 1))),
            centre=0.05,
            spread=0.05,
            bound=0.3,
        )
    return made


def _calibration(*, corrected: bool = True) -> Calibration:
    kinds = (
        ("rms_norm", "row-wave", "float16", ""),
        ("attention_decode", "split-keys", "bfloat16", "bfloat16"),
    )
    fitted = {}
    for op, form, dtype, variant in kinds:
        made = _fitted(op, form, corrected=corrected)
        errors = ({"split": "shapes", "estimator": "analytical", "rows": 9, "mape": 4.2},)
        entry = Entry(op, dtype, variant, "tests", "vllm", "1.0", "", made.to_dict(), errors)
        fitted[entry.key] = (entry, made)
    return assemble("h100-sxm", "vllm", {"tests": "now"}, fitted)


NORM = RowReduce("add_rms_norm", np.array([1.0, 64.0, 4096.0]), 4096, 3e7, 3e7)
DECODE = Attention(np.array([1.0, 8.0, 64.0]), 1, 2048, 32, 8, 128, 128)


@pytest.mark.parametrize("corrected", [True, False])
def test_file_gives_back_what_was_fitted(tmp_path: Path, corrected: bool) -> None:
    made = _calibration(corrected=corrected)
    save(made, tmp_path / "new" / "vllm.json")
    back = load(tmp_path / "new" / "vllm.json")
    assert (back.gpu, back.library, back.data) == ("h100-sxm", "vllm", {"tests": "now"})
    assert back.entries == made.entries
    assert (tmp_path / "new" / "vllm.safetensors").exists() is corrected
    for key in made.entries:
        op = key[0]
        original = _fitted(op, made.entries[key].fitted["form"], corrected=corrected)
        sizes = columns({name: np.array([2.0, 64.0, 1024.0]) for name in original.form.dims})
        restored = back.estimator(key)
        assert restored is not None
        # Weights are kept in half precision.
        np.testing.assert_allclose(
            restored.predict(sizes).time_s, original.predict(sizes).time_s, rtol=2e-3
        )
        assert restored.to_dict() == original.to_dict()


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(_calibration(), tmp_path / f"{name}.json")
    for suffix in (".json", ".safetensors"):
        a, b = ((tmp_path / name).with_suffix(suffix).read_bytes() for name in ("a", "b"))
        assert a == b


def test_update_keeps_the_other_entries(tmp_path: Path) -> None:
    old = _calibration()
    norm = next(key for key in old.entries if key[0] == "rms_norm")
    made = _fitted("rms_norm", "row-wave", corrected=False)
    entry = replace(old.entries[norm], version="2.0", fitted=made.to_dict())
    newer = assemble("h100-sxm", "vllm", {}, {norm: (entry, made)})
    save(old, tmp_path / "c.json")
    save(load(tmp_path / "c.json").updated(newer), tmp_path / "c.json")
    back = load(tmp_path / "c.json")
    assert back.entries[norm].version == "2.0"
    assert len(back.entries) == 2
    decode = back.estimator(("attention_decode", "bfloat16", "bfloat16"))
    assert decode is not None
    assert decode.correction_ is not None
    other = replace(newer, gpu="l40s")
    with pytest.raises(HymellError, match="l40s/vllm"):
        old.updated(other)


def _damage(path: Path, change: str) -> None:
    content = json.loads(path.read_text())
    if change == "text":
        path.write_text("{")
        return
    if change == "version":
        content["schema_version"] = 99
    if change == "gpu":
        content["gpu"] = "h999"
    if change == "entries":
        del content["entries"][0]["fitted"]
    if change == "list":
        content = [content]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("text", "not valid JSON"),
        ("version", "schema_version"),
        ("gpu", "h999"),
        ("entries", "damaged"),
        ("list", "no calibration"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "c.json"
    save(_calibration(), path)
    _damage(path, change)
    with pytest.raises(HymellError, match=says):
        load(path)


def test_missing_file_and_weights(tmp_path: Path) -> None:
    with pytest.raises(HymellError, match="cannot read"):
        load(tmp_path / "none.json")
    path = tmp_path / "c.json"
    save(_calibration(), path)
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(HymellError, match="missing"):
        load(path).estimator(("rms_norm", "float16", ""))
    path.with_suffix(".safetensors").write_bytes(b"nonsense")
    with pytest.raises(HymellError, match="damaged"):
        load(path).estimator(("rms_norm", "float16", ""))


@pytest.mark.parametrize("change", ["form", "coefficient"])
def test_entry_of_another_hymell_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "c.json"
    save(_calibration(), path)
    content = json.loads(path.read_text())
    for entry in content["entries"]:
        if change == "form":
            entry["fitted"]["form"] = "forgotten"
        else:
            entry["fitted"]["coefficients"].popitem()
    path.write_text(json.dumps(content))
    with pytest.raises(HymellError, match="refit"):
        load(path).estimator(("rms_norm", "float16", ""))


def test_prices_what_was_fitted_and_falls_back_for_the_rest() -> None:
    estimator = Calibrated(H100, (_calibration(),))
    asked = query(DECODE)
    assert asked is not None
    made = _fitted("attention_decode", "split-keys", corrected=True)
    priced = estimator.time(DECODE, H100)
    np.testing.assert_allclose(
        priced.time_s, made.predict(columns(asked.sizes())).time_s, rtol=1e-6
    )
    assert priced.in_range.all()
    assert {REGIMES[code] for code in priced.regime} <= set(REGIMES)
    assert estimator.origin(DECODE, H100).calibration == "h100-sxm, vllm 1.0"
    assert estimator.origin(DECODE, H100).calibrated
    assert estimator.terms(DECODE, H100) is None
    unknown = Unknown("aten.fft", 1e6, 1e6)
    assert estimator.time(unknown, H100) == Roofline().time(unknown, H100)
    assert estimator.origin(unknown, H100) == Roofline().origin(unknown, H100)
    assert estimator.terms(unknown, H100) == Roofline().terms(unknown, H100)


def test_sixteen_bit_formats_stand_in_for_each_other_and_others_do_not() -> None:
    estimator = Calibrated(H100, (_calibration(),))
    half = replace(DECODE, dtype="float16", kv_dtype="float16")
    assert estimator.origin(half, H100).calibrated
    assert not estimator.origin(replace(DECODE, kv_dtype="float8_e4m3"), H100).calibrated


def test_a_cache_is_priced_as_cold() -> None:
    asked = query(replace(DECODE, batch=np.array([1.0])))
    assert asked is not None
    sizes = columns(asked.sizes())
    assert (sizes["cold"] == 1).all()
    made = _fitted("attention_decode", "split-keys", corrected=False)
    warm = made.predict({**sizes, "cold": np.zeros(1)}).time_s
    assert (made.predict(sizes).time_s >= warm).all()


def test_equal_rows_are_priced_alike() -> None:
    made = _fitted("rms_norm", "row-wave", corrected=True)
    rows = np.random.default_rng(0).integers(1, 20, 500).astype(float)
    sizes = columns({"rows": rows, "cols": 4096, "bytes": rows * 4096 * 4})
    plain, shared = made.predict(sizes), predict_rows(made, sizes)
    np.testing.assert_allclose(shared.time_s, plain.time_s)
    np.testing.assert_array_equal(shared.regime, plain.regime)
    np.testing.assert_array_equal(shared.in_range, plain.in_range)


def test_transfer_scales_by_the_data_sheet_and_says_so() -> None:
    h200, made = load_gpu("h200-sxm"), _fitted("rms_norm", "row-wave", corrected=False)
    moved = scaled(made, Device.of(h200))
    ratio = h200.memory_bandwidth_bytes_per_s / H100.memory_bandwidth_bytes_per_s
    was, now = made.coefficients_, moved.coefficients_
    assert now["hbm_bandwidth"] / was["hbm_bandwidth"] == pytest.approx(ratio)
    assert now["t0"] == was["t0"]
    estimator = Calibrated(h200, (_calibration(),))
    origin = estimator.origin(NORM, h200)
    assert not origin.calibrated
    assert origin.calibration == "transferred from h100-sxm, vllm 1.0"
    assert "transferred from measurements of vllm on h100-sxm" in estimator.describe(h200)
    big = RowReduce("rms_norm", np.array([1e6]), 4096, 8e9, 8e9)
    assert (
        estimator.time(big, h200).time_s
        < Calibrated(H100, (_calibration(),)).time(big, H100).time_s
    )


def test_a_correction_comes_along_only_where_it_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    h200, op = load_gpu("h200-sxm"), "rms_norm"
    asked = query(NORM)
    assert asked is not None
    sizes = columns(asked.sizes())
    made = _fitted(op, "row-wave", corrected=True)
    for corrected, error in ((True, (9.0, 4.0)), (False, (4.0, 9.0))):
        found = {(op, True): TransferError(*error)}
        monkeypatch.setattr(calibration, "transfer_errors", lambda found=found: found)
        estimator = Calibrated(h200, (_calibration(),))
        expected = scaled(made, Device.of(h200), corrected=corrected).predict(sizes).time_s
        np.testing.assert_allclose(estimator.time(NORM, h200).time_s, expected, rtol=1e-6)
        assert estimator.origin(NORM, h200).calibration.endswith("error about 4%")


def test_a_format_without_units_is_not_transferred() -> None:
    t4 = load_gpu("t4")
    estimator = Calibrated(t4, (_calibration(),))
    fp8 = replace(DECODE, math="fp8")
    assert estimator.origin(fp8, t4).estimator == "roofline"


def test_relatives_prefer_the_family() -> None:
    names = ["h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s"]
    for gpu, nearest in (
        ("h200-sxm", "h100-sxm"),
        ("gh200", "h100-sxm"),
        ("a100-sxm-40gb", "a100-sxm-80gb"),
        ("a40", "a100-sxm-80gb"),
        ("rtx-4090", "l40s"),
        ("b300-sxm", "b200-sxm"),
    ):
        assert relatives(load_gpu(gpu), names)[0] == nearest
    assert relatives(load_gpu("cpu"), names) == []


def test_an_edited_data_sheet_is_not_the_gpu_that_was_measured() -> None:
    faster = replace(H100, memory_bandwidth_bytes_per_s=9e12)
    assert calibrated.own(H100, _calibration())
    assert not calibrated.own(faster, _calibration())
    assert not Calibrated(faster, (_calibration(),)).origin(NORM, faster).calibrated


def test_choice_of_a_calibration(tmp_path: Path) -> None:
    assert choose(H100, "vllm", "none") is None
    assert choose(H100, "eager") is None
    save(_calibration(), tmp_path / "mine.json")
    mine = choose(H100, "vllm", tmp_path / "mine.json")
    assert mine is not None
    assert mine.origin(NORM, H100).calibration == "h100-sxm, vllm 1.0"
    with pytest.raises(HymellError, match="cannot read the calibration"):
        choose(H100, "vllm", "no-such-file.json")


@pytest.fixture
def two_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of calibrations with H100 and L40S under vllm."""
    monkeypatch.setattr(calibration, "FOLDER", tmp_path)
    calibration.shipped.cache_clear()
    whole = _calibration(corrected=False)
    norm = {k: e for k, e in whole.entries.items() if k[0] == "rms_norm"}
    save(replace(whole, gpu="l40s", entries=norm), tmp_path / "l40s" / "vllm.json")
    save(whole, tmp_path / "h100-sxm" / "vllm.json")
    yield
    calibration.shipped.cache_clear()


@pytest.mark.usefixtures("two_shipped")
def test_auto_takes_the_gpus_own_then_its_relatives() -> None:
    assert calibration.available() == (("h100-sxm", "vllm"), ("l40s", "vllm"))
    for gpu, homes in (
        ("h100-sxm", ["h100-sxm", "l40s"]),
        ("l40s", ["l40s", "h100-sxm"]),
        ("h200-sxm", ["h100-sxm"]),
        ("rtx-4090", ["l40s"]),
    ):
        found = choose(load_gpu(gpu), "vllm")
        assert found is not None
        assert [c.gpu for c in found.sources] == homes
        assert found.calibrated is (gpu == homes[0])
    l40s = load_gpu("l40s")
    found = choose(l40s, "vllm")
    assert found is not None
    assert found.origin(NORM, l40s).calibrated
    # What the GPU's own calibration lacks comes from its relative.
    assert found.origin(DECODE, l40s).calibration.startswith("transferred from h100-sxm")
    assert choose(l40s, "sglang") is None
    assert choose(load_gpu("cpu"), "vllm") is None


@pytest.mark.parametrize("name", calibration.available(), ids="-".join)
def test_shipped_calibrations_load_and_price(name: tuple[str, str]) -> None:
    gpu, library = name
    found = calibration.shipped(gpu, library)
    assert found is not None
    assert (found.gpu, found.library) == name
    assert found.entries
    for key, entry in found.entries.items():
        made = found.estimator(key)
        assert made is not None
        assert entry.fitted["rows"] >= 40
        assert len(made.coefficients_) == len(made.form.coefficients)


@pytest.mark.parametrize("gpu", [g.name for g in list_gpus()])
def test_every_gpu_prices_finite_positive_times(gpu: str) -> None:
    board = find_gpu(gpu)
    estimator = Calibrated(board, (_calibration(),))
    for primitive in (NORM, DECODE):
        priced = estimator.time(primitive, board).time_s
        assert np.isfinite(priced).all()
        assert (np.asarray(priced) > 0).all()
