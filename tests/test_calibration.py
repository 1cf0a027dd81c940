"""Calibration files, and what prices kernels with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hymell.errors import HymellError
from hymell.estimators import calibration, fitted
from hymell.estimators.base import REGIMES
from hymell.estimators.calibrated import Calibrated, choose, relatives
from hymell.estimators.calibration import (
    Calibration,
    Entry,
    TransferError,
    assemble,
    load,
    save,
)
from hymell.estimators.fitted import predict_rows, scaled
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.mlp import Mlp
from hymell.estimators.queries import columns, query
from hymell.hardware import find_gpu, list_gpus, load_gpu
from hymell.op_registry.primitives import (
    Attention,
    Conv1d,
    Gemm,
    Memory,
    Preparation,
    RowReduce,
    Unknown,
)

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
        priced.time_s, made.predict(columns(asked.sizes())).time_s, rtol=1e-4
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


def test_a_window_that_is_not_full_is_none() -> None:
    cached = np.array([100.0, 4096.0, 4097.0])
    asked = query(replace(DECODE, window=4096, kv_len=cached))
    assert asked is not None
    assert list(columns(asked.sizes())["window"]) == [0, 0, 4096]
    open_ended = query(replace(DECODE, kv_len=cached))
    assert open_ended is not None
    assert list(columns(open_ended.sizes())["window"]) == [0, 0, 0]


def test_a_cache_is_priced_as_cold() -> None:
    asked = query(replace(DECODE, batch=np.array([1.0])))
    assert asked is not None
    sizes = columns(asked.sizes())
    assert (sizes["cold"] == 1).all()
    made = _fitted("attention_decode", "split-keys", corrected=False)
    warm = made.predict({**sizes, "cold": np.zeros(1)}).time_s
    assert (made.predict(sizes).time_s >= warm).all()


def _of(library: str, *kinds: tuple[str, str, str, str]) -> Calibrated:
    """What prices H100 with fits made up: (op, form, dtype, variant), of one library's kernels."""
    fitted = {}
    for op, form, dtype, variant in kinds:
        made = _fitted(op, form, corrected=False)
        made.ranges_ = dict.fromkeys(made.form.range_dims, (0.0, 40.0))
        entry = Entry(op, dtype, variant, "tests", library, "1.0", "", made.to_dict())
        fitted[entry.key] = (entry, made)
    return Calibrated(H100, (assemble("h100-sxm", library, {}, fitted),))


ROPE = ("rope", "row-wave", "bfloat16", "")
NORMS = ("rms_norm", "row-wave", "bfloat16", "")
OVER_CACHE = ("attention_decode", "split-keys", "bfloat16", "bfloat16")
FP8_GEMM = ("gemm", "tile-float8_e4m3", "float8_e4m3", "")

TOKENS = np.array([1.0, 64.0, 4096.0])


def _rope_append(role: str = "rope_kv_append", attention: Attention = DECODE) -> Memory:
    """32 heads rotated, 8 appended with their values, of 128 in bfloat16."""
    moved = TOKENS * (32 + 2 * 8) * 128 * 2
    copied = 2 * TOKENS * 8 * 128 * 2
    prepares = Preparation(attention, TOKENS, copied)
    return Memory(role, moved / 2, moved, moved, prepares=prepares)


def test_an_append_that_attention_counts_in_leaves_its_rotation() -> None:
    estimator = _of("vllm", ROPE, OVER_CACHE)
    priced = estimator.time(_rope_append(), H100)
    width = (32 + 8) * 128
    sizes = columns({"rows": TOKENS, "cols": width, "bytes": 2 * 2 * TOKENS * width})
    alone = _fitted("rope", "row-wave", corrected=False).predict(sizes)
    np.testing.assert_allclose(priced.time_s, alone.time_s)
    assert priced.in_range.all()
    origin = estimator.origin(_rope_append(), H100)
    assert (origin.estimator, origin.calibrated) == ("row-wave", True)
    # The norms before the rotation are in no table.
    fused = estimator.origin(_rope_append("qk_norm_rope_kv_append"), H100)
    assert (fused.estimator, fused.calibrated) == ("row-wave, rope stands in", False)


@pytest.mark.parametrize(
    ("library", "role"),
    [("vllm", "kv_append"), ("sglang", "kv_append"), ("trtllm", "rope_kv_append")],
)
def test_what_attention_counts_in_whole_takes_no_time(library: str, role: str) -> None:
    estimator = _of(library, ROPE, OVER_CACHE)
    append = _rope_append(role)
    priced = estimator.time(append, H100)
    assert (priced.time_s == 0).all()
    assert len(priced.time_s) == len(TOKENS)
    origin = estimator.origin(append, H100)
    assert origin.estimator == "in attention_decode"
    assert origin.calibration == f"h100-sxm, {library} 1.0"


@pytest.mark.parametrize(
    ("library", "attention"),
    [
        ("vllm", replace(DECODE, kv_dtype="float8_e4m3")),
        ("vllm", replace(DECODE, causal=False, q_len=16)),
        ("elsewhere", DECODE),
    ],
    ids=["unmeasured", "cross-attention", "unknown library"],
)
def test_an_append_that_nobody_counts_in_is_priced_and_marked(
    library: str, attention: Attention
) -> None:
    estimator = _of(library, ROPE, OVER_CACHE)
    append = _rope_append(attention=attention)
    priced = estimator.time(append, H100)
    counted = _of("vllm", ROPE, OVER_CACHE).time(_rope_append(), H100)
    assert (priced.time_s >= counted.time_s).all()
    assert priced.time_s[-1] > counted.time_s[-1]
    assert not priced.in_range.any()
    origin = estimator.origin(append, H100)
    assert origin.estimator == "row-wave, rope stands in"
    assert (origin.calibration, origin.calibrated) == ("", False)


def test_an_append_without_any_measurement_stands_on_the_data_sheet() -> None:
    estimator = _of("vllm", FP8_GEMM)
    priced = estimator.time(_rope_append(), H100)
    assert (priced.time_s > 0).all()
    assert not priced.in_range.any()
    origin = estimator.origin(_rope_append(), H100)
    assert origin.estimator == "row-wave, data-sheet priors"
    assert not origin.calibrated


def _conversion(product: Gemm) -> Memory:
    elements = TOKENS * 4096
    return Memory(
        "quantize_fp8", elements, 2 * elements, elements, prepares=Preparation(product, TOKENS)
    )


def test_quantisation_is_counted_in_by_its_product_only() -> None:
    product = Gemm(TOKENS, 6144, 4096, b_dtype="float8_e4m3", math="fp8")
    estimator = _of("vllm", NORMS, FP8_GEMM)
    assert (estimator.time(_conversion(product), H100).time_s == 0).all()
    assert estimator.origin(_conversion(product), H100).estimator == "in gemm"
    other = _conversion(replace(product, b_dtype="int8", math="int8"))
    priced = estimator.time(other, H100)
    sizes = columns({"rows": TOKENS, "cols": 4096, "bytes": 3 * 4096 * TOKENS})
    norm = _fitted("rms_norm", "row-wave", corrected=False).predict(sizes)
    np.testing.assert_allclose(priced.time_s, norm.time_s)
    assert not priced.in_range.any()
    origin = estimator.origin(other, H100)
    assert (origin.estimator, origin.calibrated) == ("row-wave, rms_norm stands in", False)
    # A norm of the same sizes was measured, and keeps its marks beside its stand-in.
    assert estimator.origin(NORM, H100).calibrated
    bare = _of("vllm", OVER_CACHE).origin(other, H100)
    assert bare.estimator == "row-wave, data-sheet priors"


@pytest.mark.parametrize(("step", "phase"), [(False, "context"), (True, "generation")])
def test_a_convolution_is_priced_in_its_phase(step: bool, phase: str) -> None:
    estimator = _of("vllm", ("conv1d", "causal-conv1d", "bfloat16", phase))
    batch = np.array([1.0, 16.0])
    conv = Conv1d(batch, 1 if step else 512, 8192, 4, 1e6, 1e6, step=step)
    sizes = columns({"batch": batch, "length": conv.length, "channels": 8192, "width": 4})
    alone = _fitted("conv1d", "causal-conv1d", corrected=False).predict(sizes)
    np.testing.assert_allclose(estimator.time(conv, H100).time_s, alone.time_s)
    assert estimator.origin(conv, H100).calibrated
    for other in (replace(conv, step=not step), replace(conv, dtype="float32")):
        assert estimator.origin(other, H100).estimator == "roofline"


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
    assert fitted.own(H100, _calibration())
    assert not fitted.own(faster, _calibration())
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
