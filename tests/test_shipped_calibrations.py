"""What shipped calibrations answer to any question: sane far outside the sizes that were measured.

Sizes are drawn evenly over octaves, from below the smallest measured to where the correction has
long faded, and priced in one call per estimator. HYMELL_TEST_CALIBRATIONS names another folder of
calibrations to check than the shipped one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from hymell.dtypes import bytes_per_element
from hymell.estimators import calibration
from hymell.estimators.calibration import Calibration, Entry
from hymell.estimators.level1 import catalog
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import _FADING_OCTAVES, Level1
from hymell.estimators.level1.form import Terms
from hymell.estimators.level1.kernel_energy import SIZES, energy_op
from hymell.estimators.level1.moe import expert_dims
from hymell.estimators.queries import columns
from hymell.hardware import load_gpu
from hymell.op_registry.primitives import Experts

Array = NDArray[np.float64]
Sizes = Mapping[str, Array]

with pytest.MonkeyPatch.context() as _patch:
    _patch.setattr(
        calibration,
        "FOLDER",
        Path(os.environ.get("HYMELL_TEST_CALIBRATIONS", calibration.FOLDER)),
    )
    FOLDER = calibration.FOLDER
    NAMES = calibration.available()

ROWS: Final = 600

#: Octaves beyond those over which a correction fades that sizes are drawn.
BEYOND: Final = 2.0

#: Most power that a form may say, as a share of TDP; reports cut it at TDP.
MOST_POWER: Final = 1.5

#: What doubling a size may save where the analytical form speaks alone: splits and rounds of tiles
#: step (docs/estimators/attention.md).
FAR_DIP: Final = 0.05
#: Near the sizes seen, what a library chooses by shape shows, and the correction of a kernel that
#: takes the same time whatever its size fades. In the tables of H100 (vllm), B200 (trtllm) and L40S
#: (sglang) one doubling in twenty saves over 10% at most, but for GEMM on L40S, block-scaled fp8
#: and the length of Mamba2's kernels on B200 (up to 18%); one in a hundred saves 5% (norms, scans)
#: to 17% (attention). Decode of TensorRT-LLM on A100 saves half where it switches kernels.
NEAR_DIP: Final = 0.10
NEAR_SHARE: Final = 0.15
WORST_DIP: Final = 0.55
#: Some go further, as their tables do. Of doublings of m with fp8 on B200 6% save over a third, the
#: most 86%: a single row takes 18 us where two take 6, and the next size may be split over k. Of
#: doublings of the batch of a prefill with an fp8 cache on L40S 1% do, the most 86%. PyTorch looks
#: up to 16 rows of a table up with another kernel: on H100 16 rows take 11.6 us and 24 rows 3 us.
#: vLLM looks the tiles of experts up by the number of tokens: one doubling in a hundred with fp8 on
#: H100 and H200 saves over 20%, the most over half.
WORST_DIPS: Final = {
    "gemm": 0.80,
    "embedding": 0.75,
    "attention_prefill": 0.70,
    "moe": 0.60,
}

#: Rounding of one and the same prediction.
ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Probe:
    """How to ask about an op.

    ``free``: sizes drawn at random, each with the range of the estimator that bounds it; ``step``:
    what they are multiples of; ``picks``: values that others are drawn from; ``dims(sizes, entry)``
    gives what the form needs; ``grow``: sizes that cost more when doubled.
    """

    free: Mapping[str, str]
    dims: Callable[[Sizes, Entry], Mapping[str, Any]]
    grow: tuple[str, ...]
    step: Mapping[str, int] = field(default_factory=dict)
    picks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def _gemm(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    return {**s, "batch": 1, "copies": np.inf}


def _stored(entry: Entry) -> Mapping[str, Any]:
    """Formats of queries and cache, which is cold."""
    q_bytes, kv_bytes = (float(bytes_per_element(name)) for name in (entry.dtype, entry.variant))
    return {"q_bytes": q_bytes, "kv_bytes": kv_bytes, "cold": 1}


def _attention(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    q_len = 1 if entry.op == "attention_decode" else s["length"]
    lengths = {"batch": s["batch"], "q_len": q_len, "kv_len": s["length"], "window": 0}
    heads = {"heads": s["kv_heads"] * s["group"], "kv_heads": s["kv_heads"]}
    return {**lengths, **heads, "head_dim": s["head_dim"], **_stored(entry)}


def _mla(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    q_len = 1 if entry.op == "mla_decode" else s["length"]
    lengths = {"batch": s["batch"], "q_len": q_len, "kv_len": s["length"]}
    return {**lengths, "heads": s["heads"], **_stored(entry)}


#: Experts per token, experts, hidden and intermediate size: Mixtral, Qwen3, gpt-oss, DeepSeek-V3.
_FAMILIES: Final = (
    (2, 8, 4096, 14336),
    (8, 128, 2048, 768),
    (4, 128, 2880, 2880),
    (8, 256, 7168, 2048),
)


def _moe(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    made: dict[str, Array] = {}
    for family, shape in enumerate(_FAMILIES):
        chosen = s["family"] == family
        if not chosen.any():
            continue
        experts = Experts(s["tokens"][chosen], *shape, gated="nongated" not in entry.variant)
        for name, values in expert_dims(experts).items():
            made.setdefault(name, np.empty(len(chosen)))[chosen] = values
    return made


def _scan(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    length = s["length"] if entry.variant == "context" else 1
    shape = {"key_dim": 128, "value_dim": 128, "chunk": 64}
    token_bytes = 2 * 4 * 128 * s["batch"] * length * s["heads"]
    return {**s, "length": length, **shape, "token_bytes": token_bytes}


def _conv(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    return {**s, "length": s["length"] if entry.variant == "context" else 1, "width": 4}


def _rows(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    return {**s, "bytes": 2 * bytes_per_element(entry.dtype) * s["rows"] * s["cols"]}


def _elements(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    return {**s, "bytes": 3 * bytes_per_element(entry.dtype) * s["elements"]}


def _message(s: Sizes, entry: Entry) -> Mapping[str, Any]:
    return s


_LENGTHS: Final = {"batch": "batch", "length": "kv_len"}
_HEADS: Final = {"kv_heads": (1, 2, 4, 8), "group": (1, 4, 8), "head_dim": (64, 128)}
_OF_ATTENTION: Final = Probe(_LENGTHS, _attention, ("batch", "length"), picks=_HEADS)
_OF_MLA: Final = Probe(
    _LENGTHS, _mla, ("batch", "length"), picks={"heads": (4.0, 16.0, 64.0, 128.0)}
)
_OF_SCANS: Final = Probe(
    {"batch": "batch", "length": "length"}, _scan, ("batch", "length"), picks={"heads": (8, 32)}
)
_OF_ROWS: Final = Probe({"rows": "rows", "cols": "cols"}, _rows, ("rows",), {"cols": 128})
_OF_MESSAGES: Final = Probe(
    {"message_bytes": "message_bytes"}, _message, ("message_bytes",), picks={"n_gpus": (2, 4, 8)}
)
PROBES: Final[Mapping[str, Probe]] = {
    "gemm": Probe({n: n for n in "mnk"}, _gemm, ("m", "n", "k"), {"n": 128, "k": 128}),
    **dict.fromkeys(("attention_prefill", "encoder_attention", "attention_decode"), _OF_ATTENTION),
    **dict.fromkeys(("mla_prefill", "mla_decode"), _OF_MLA),
    "moe": Probe({"tokens": "tokens"}, _moe, ("tokens",), picks={"family": (0, 1, 2, 3)}),
    **dict.fromkeys(("gdn", "kda", "mamba2"), _OF_SCANS),
    "conv1d": Probe(
        {n: n for n in ("batch", "length", "channels")},
        _conv,
        ("batch", "length"),
        {"channels": 128},
    ),
    **dict.fromkeys(("rms_norm", "layer_norm", "softmax", "embedding", "rope"), _OF_ROWS),
    "pointwise": Probe({"elements": "elements"}, _elements, ("elements",)),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "custom_all_reduce"),
        _OF_MESSAGES,
    ),
}


def faded(made: Level1) -> float:
    """Octaves outside the sizes seen at which a correction has faded."""
    return made.trusted_octaves + _FADING_OCTAVES


#: Ops whose estimators give J.
POWERED: Final = frozenset(energy_op(op) for op in SIZES)


def drawn(probe: Probe, made: Level1) -> dict[str, Array]:
    """`ROWS` sizes, from well below to well above those where a correction says something."""
    random = np.random.default_rng(0)
    reach = faded(made) + BEYOND
    sizes = {}
    for name, bound in probe.free.items():
        low, high = made.ranges_[bound]
        step = probe.step.get(name, 1)
        values = np.exp2(random.uniform(max(low - reach, 0.0), high + reach, ROWS))
        sizes[name] = np.maximum(np.round(values / step), 1.0) * step
    for name, choice in probe.picks.items():
        sizes[name] = random.choice(np.array(choice, float), ROWS)
    return sizes


@dataclass(frozen=True)
class Priced:
    """Predictions, the analytical form alone, its floor, and octaves outside the range seen."""

    time_s: Array
    analytical_s: Array
    floor_s: Array
    outside: Array

    @staticmethod
    def of(made: Level1, sizes: Mapping[str, Any]) -> Priced:
        dims = columns(sizes)
        outside = np.zeros(len(next(iter(dims.values()))))
        for name, (low, high) in made.ranges_.items():
            value = np.log2(np.maximum(dims[name], 1.0))
            outside = np.maximum(outside, np.maximum(low - value, value - high))
        floor_s = made.form.floor_s(dims, made.device)
        analytical_s = made.predict(dims, corrected=False).time_s
        return Priced(made.predict(dims).time_s, analytical_s, floor_s, outside)


def strange(entry: Entry, made: Level1) -> list[str]:
    """Predictions that are no time, beat the data sheet, or keep their correction far away."""
    probe = PROBES[entry.op]
    priced = Priced.of(made, probe.dims(drawn(probe, made), entry))
    far = priced.outside >= faded(made)
    found = {
        "not finite and positive": ~(np.isfinite(priced.time_s) & (priced.time_s > 0)),
        "below the data sheet": priced.time_s < priced.floor_s,
        "corrected far outside": far & (priced.time_s != priced.analytical_s),
    }
    return [f"{entry.prefix}: {bad.sum()} {name}" for name, bad in found.items() if bad.any()]


def dips(entry: Entry, made: Level1) -> list[str]:
    """Doublings of a size that make the kernel cheaper than real kernels get."""
    probe = PROBES[entry.op]
    sizes = drawn(probe, made)
    once = Priced.of(made, probe.dims(sizes, entry))
    found = []
    for name in probe.grow:
        twice = Priced.of(made, probe.dims({**sizes, name: 2 * sizes[name]}, entry))
        saved = 1.0 - twice.time_s / once.time_s
        far = np.minimum(once.outside, twice.outside) >= faded(made)
        beyond, within = saved[far], saved[~far]
        where = f"{entry.prefix}: twice the {name}"
        if beyond.max(initial=0.0) > FAR_DIP:
            found.append(f"{where} saves up to {beyond.max():.1%} far outside")
        if within.max(initial=0.0) > WORST_DIPS.get(entry.op, WORST_DIP):
            found.append(f"{where} saves up to {within.max():.1%}")
        share = np.mean(within > NEAR_DIP) if len(within) else 0.0
        if share > NEAR_SHARE:
            found.append(f"{where} saves over {NEAR_DIP:.0%} in {share:.1%} of the doublings")
    return found


#: What benchmarks find in L2, by the size of a form that says so, and serving: public GEMM
#: tables rotate up to six copies of the weights, the others replay one kernel.
_WARM: Final = {"copies": (6.0, np.inf), "cold": (0.0, 1.0)}


def cheap_serving(entry: Entry, made: Level1) -> list[str]:
    """Sizes at which weights or cache from HBM cost less than the benchmark's warm ones."""
    probe = PROBES[entry.op]
    sizes = probe.dims(drawn(probe, made), entry)
    found = []
    for name, (benchmark, serving) in _WARM.items():
        if name not in made.form.dims:
            continue
        warm, cold = (Priced.of(made, {**sizes, name: v}).time_s for v in (benchmark, serving))
        bad = cold < warm * (1.0 - ROUNDING)
        if bad.any():
            saved = float((1.0 - cold / warm).max())
            found.append(
                f"{entry.prefix}: serving is cheaper in {bad.mean():.1%}, by up to {saved:.1%}"
            )
    return found


def _check(check: Callable[[Entry, Level1], list[str]], held: Calibration) -> None:
    found = []
    for key, entry in held.entries.items():
        if entry.op in PROBES:
            made = held.estimator(key)
            assert made is not None
            found += check(entry, made)
    assert not found, "\n".join(found)


def unlikely(entry: Entry, made: Level1) -> list[str]:
    """Power that no board draws: below a tenth of TDP, or well above it."""
    random = np.random.default_rng(0)
    dims = {name: np.exp2(random.uniform(0.0, 24.0, ROWS)) for name in made.form.dims}
    watts = made.predict(dims).time_s / (dims["time_us"] * 1e-6)
    share = watts / made.device.tdp_w
    bad = ~((share >= 0.1 * (1 - ROUNDING)) & (share <= MOST_POWER))
    if not bad.any():
        return []
    return [f"{entry.prefix}: {bad.sum()} draw {share.min():.2f} to {share.max():.2f} of TDP"]


@pytest.mark.parametrize(
    "name",
    NAMES or [pytest.param((), marks=pytest.mark.skip(reason="no calibration ships yet"))],
    ids="-".join,
)
class TestShipped:
    @pytest.fixture
    def held(self, name: tuple[str, str]) -> Calibration:
        gpu, library = name
        return calibration.load(FOLDER / gpu / f"{library}.json")

    def test_every_op_is_asked(self, held: Calibration) -> None:
        times = {op for op, _, _ in held.entries if op not in POWERED}
        assert times <= set(PROBES)

    def test_power_is_what_a_board_draws(self, held: Calibration) -> None:
        found = []
        for key, entry in held.entries.items():
            if entry.op in POWERED:
                made = held.estimator(key)
                assert made is not None
                found += unlikely(entry, made)
        assert not found, "\n".join(found)

    def test_times_are_sane_far_outside_what_was_measured(self, held: Calibration) -> None:
        _check(strange, held)

    def test_larger_kernels_are_not_cheaper(self, held: Calibration) -> None:
        _check(dips, held)

    def test_serving_is_never_cheaper_than_the_benchmark(self, held: Calibration) -> None:
        _check(cheap_serving, held)


def _at_priors(op: str, form: str, dtype: str, variant: str = "") -> tuple[Entry, Level1]:
    found = catalog.find(op, form)
    assert found is not None
    made = Level1(found, Device.of(load_gpu("h100-sxm")))
    made.coefficients_ = {c.name: c.prior(made.device) for c in found.coefficients}
    made.choice_, made.correction_ = found.choices[0], None
    made.ranges_ = dict.fromkeys(found.range_dims, (0.0, 14.0))
    made.spread_, made.rows_ = 0.1, 100
    return Entry(op, dtype, variant, "tests", "vllm", "1.0", "", made.to_dict()), made


FORMS: Final = (
    ("gemm", "tile-bfloat16", "bfloat16", ""),
    ("attention_decode", "split-keys", "bfloat16", "bfloat16"),
    ("moe", "moe-tile-bfloat16", "bfloat16", ""),
    ("gdn", "scan-chunked", "bfloat16", "context"),
    ("rms_norm", "row-wave", "bfloat16", ""),
    ("pointwise", "elementwise", "bfloat16", ""),
    ("all_reduce", "three-lines", "float16", ""),
)


@pytest.mark.parametrize("which", FORMS, ids=lambda which: which[0])
def test_forms_at_their_priors_pass(which: tuple[str, str, str, str]) -> None:
    entry, made = _at_priors(*which)
    assert strange(entry, made) + dips(entry, made) + cheap_serving(entry, made) == []


def _planted(made: Level1, change: Callable[[Terms, Sizes], Array]) -> Level1:
    """The same estimator with its analytical time changed."""
    evaluate = made.form.evaluate

    def changed(c: Any, dims: Any, device: Any, choice: Any) -> Terms:
        terms = evaluate(c, dims, device, choice)
        return replace(terms, time_s=change(terms, dims))

    made.form = replace(made.form, evaluate=changed)
    return made


@pytest.mark.parametrize(
    ("check", "change", "says"),
    [
        (strange, lambda t, d: np.where(d["m"] > 1e4, np.nan, t.time_s), "not finite"),
        (
            dips,
            lambda t, d: t.time_s * np.where(d["n"] < 4096, 20.0, 1.0),
            "twice the n saves up to",
        ),
        (cheap_serving, lambda t, d: t.time_s * (1.2 - 0.1 * np.isinf(d["copies"])), "serving"),
    ],
)
def test_planted_faults_are_found(
    check: Callable[[Entry, Level1], list[str]],
    change: Callable[[Terms, Sizes], Array],
    says: str,
) -> None:
    entry, made = _at_priors("gemm", "tile-bfloat16", "bfloat16")
    assert any(says in line for line in check(entry, _planted(made, change)))


def test_a_correction_that_does_not_fade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, made = _at_priors("pointwise", "elementwise", "bfloat16")
    plain = Level1.predict

    def predict(self: Level1, dims: Any, *, corrected: bool = True) -> Any:
        found = plain(self, dims)
        return replace(found, time_s=1.01 * found.time_s) if corrected else found

    monkeypatch.setattr(Level1, "predict", predict)
    assert any("corrected far outside" in line for line in strange(entry, made))
