"""Conformal bounds, the file that ships them, and what a report makes of them."""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hymell
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.estimators import bounded, intervals
from hymell.estimators.calibrated import choose
from hymell.estimators.conformal import Conformal, Stretch, hull, kappa_needed, quantiles
from hymell.estimators.intervals import (
    LEVEL1,
    LEVEL1_TRANSFERRED,
    OWN,
    SHEET,
    TRANSFERRED,
    Book,
    Entry,
    Judged,
    shipped_book,
)
from hymell.estimators.predict import deploy, price
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
from hymell.report import units
from hymell.report.csv_ import to_csv
from hymell.report.markdown import to_markdown
from hymell.report.summary import report_view
from hymell.report.terminal import to_text
from hymell.workload import Parallel, Precision, Workload

DENSE, MOE = "llama-3-8b", "mixtral-8x7b"


@functools.cache
def _graph(model: str) -> OpGraph:
    return hymell.trace(model)


def _models(rng: Any, models: int, rows: int, between: float, within: float) -> tuple[Any, Any]:
    """Log ratios of models that each have a bias of their own."""
    bias = rng.normal(0, between, models)
    ratios = (bias[:, None] + rng.normal(0, within, (models, rows))).ravel()
    return ratios, np.repeat([f"m{i}" for i in range(models)], rows).astype(object)


def test_bounds_hold_as_many_exchangeable_runs_as_they_say() -> None:
    rng = np.random.default_rng(7)
    held = []
    for _ in range(400):
        ratios = rng.gamma(2.0, 0.1, 121)
        # One row a model: runs are exchangeable.
        model = np.arange(120).astype(object)
        held.append(bool(Conformal().fit(ratios[:-1] - 0.2, model[1:]).holds(ratios[-1:] - 0.2)[0]))
    assert 0.86 <= np.mean(held) <= 0.95


def test_the_correction_for_few_rows_is_that_of_split_conformal() -> None:
    ratios = np.linspace(-1.0, 1.0, 39)
    model = np.array(["m"] * 39, dtype=object)
    # ceil(40 * 0.95) = 38: the second largest of 39; with 18 rows none is far enough out.
    assert quantiles(ratios, model) == (ratios[1], ratios[-2])
    assert quantiles(ratios[:18], model[:18]) == (ratios[0], ratios[17])


def test_a_stretch_makes_up_for_few_models() -> None:
    rng = np.random.default_rng(3)

    def study(kappa: float) -> tuple[float, Any]:
        held, needed = [], []
        for _ in range(150):
            ratios, model = _models(rng, 5, 20, 0.08, 0.03)
            left = model == "m4"
            held.append(Conformal(kappa).fit(ratios[~left], model[~left]).holds(ratios[left]))
            needed.append(kappa_needed(ratios[left], ratios[~left], model[~left]))
        return float(np.concatenate(held).mean()), needed

    plain, needed = study(0.0)
    kappa = Stretch().fit(needed).kappa_
    stretched, _ = study(kappa)
    assert plain < 0.86
    assert kappa > 0
    assert 0.87 <= stretched <= 0.93


def test_rows_elsewhere_weigh_as_much_as_one_model() -> None:
    rng = np.random.default_rng(5)
    ratios, model = _models(rng, 3, 30, 0.0, 0.05)
    elsewhere = rng.normal(0, 0.5, 1000)
    alone = Conformal().fit(ratios, model)
    both = Conformal().fit(ratios, model, elsewhere)
    assert both.high_ - both.low_ > alone.high_ - alone.low_
    assert both.high_ < np.quantile(elsewhere, 0.95)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30), st.floats(0, 3))
def test_bounds_hold_the_prediction_and_grow_with_kappa(values: list[float], kappa: float) -> None:
    ratios, model = np.array(values), np.array([str(i % 3) for i in range(len(values))], object)
    plain, stretched = Conformal().fit(ratios, model), Conformal(kappa).fit(ratios, model)
    assert plain.low_ <= 0 <= plain.high_
    assert stretched.high_ - stretched.low_ >= plain.high_ - plain.low_ - 1e-12
    assert stretched.models_ == len(set(model))


def test_what_cannot_be_fitted_is_refused() -> None:
    nobody = np.zeros(0, dtype=object)
    with pytest.raises(HymellError, match="finite"):
        Conformal().fit(np.zeros(0), nobody)
    with pytest.raises(HymellError, match="finite"):
        Conformal().fit(np.array([np.nan]), np.array(["m"], dtype=object))
    with pytest.raises(HymellError, match="left out"):
        Stretch().fit([])


def test_rows_without_spread_need_no_end_of_stretch() -> None:
    one, model = np.array([0.1]), np.array(["m"], dtype=object)
    assert kappa_needed(np.array([0.1, 0.2]), one, model).tolist() == [0.0, math.inf]


def test_a_hull_holds_all_bounds() -> None:
    assert hull([(-0.1, 0.2), (-0.3, 0.1)]) == (-0.3, 0.2)


def _entry(rung: str, low: float, high: float, **changes: Any) -> Entry:
    made = Entry(
        rung=rung,
        engine="vllm",
        gpu="",
        basis="",
        load="static",
        phase="decode",
        kind="dense",
        low=low,
        high=high,
        rows=62,
        models=8,
        sets=("runs",),
        judged={"one": Judged(3.6, 62, 8)},
        batch=(1.0, 64.0),
        tokens=(256.0, 4096.0),
        gpus=(1, 4),
        formats=("16-bit",),
    )
    return replace(made, **changes)


def _book(*more: Entry, basis: str = "", home: str = "h100-sxm") -> Book:
    own = {"gpu": home, "basis": basis}
    entries = [
        _entry(OWN, -0.05, 0.08, **own),
        _entry(TRANSFERRED, -0.04, 0.12, basis=basis, judged={"one": Judged(6.6, 204, 8)}),
        _entry(LEVEL1, 0.0, 0.5),
        _entry(SHEET, 0.0, 0.4, batch=(1.0, 512.0)),
    ]
    entries += [replace(entry, phase="prefill", tokens=(1024.0, 1024.0)) for entry in entries]
    return Book((*entries, *more))


def test_entries_come_back_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "intervals.json"
    intervals.save(_book().entries, file)
    assert intervals.load(file) == _book()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema_version": 1', '"schema_version": 99'),
        ('"level": 0.9', '"level": 0.5'),
        ('"low": -0.05', '"low": 0.05'),
        ('"rung": "own system"', '"rung": "guess"'),
        ('"mape"', '"error"'),
        ('"gpus": [', '"gpus": [2, '),
        ('"batch": [', '"batch": [1e9, '),
        ('"beyond": 0', '"beyond": NaN'),
        ("{", ""),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "intervals.json"
    intervals.save(_book().entries, file)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(HymellError, match=r"intervals\.json holds no intervals"):
        intervals.load(file)


def test_each_rung_holds_those_before_it() -> None:
    book = _book(basis="2024")
    system = {"basis": "2024", "home": "h100-sxm"}
    own = book.bounds(OWN, "vllm", "h100-sxm", "decode", "dense", **system)
    lent = book.bounds(TRANSFERRED, "vllm", "h200-sxm", "decode", "dense", **system)
    assert own is not None
    assert lent is not None
    assert own.factors[0] == pytest.approx((math.exp(-0.05), math.exp(0.08)))
    # -0.05 is that of home, 0.12 its own.
    assert lent.factors[0] == pytest.approx((math.exp(-0.05), math.exp(0.12)))
    for bounds in (own, lent):
        lows, highs = zip(*bounds.factors, strict=True)
        assert list(lows) == sorted(lows, reverse=True)
        assert list(highs) == sorted(highs)


def test_where_a_rung_was_not_measured_the_next_one_holds() -> None:
    book = _book()
    found = book.bounds(LEVEL1_TRANSFERRED, "vllm", "t4", "decode", "dense")
    assert found is not None
    assert [entry.rung for entry in found.entries] == [SHEET]
    assert found.factors[0][1] == pytest.approx(math.exp(0.5))
    assert book.bounds(LEVEL1, "vllm", "t4", "decode", "moe") is None
    assert book.bounds(LEVEL1, "sglang", "t4", "decode", "dense") is None


def test_a_gpus_own_entry_and_static_batches_come_first() -> None:
    served = _entry(LEVEL1, 0.0, 2.0, load="served", gpu="b200-sxm")
    book = Book((_entry(LEVEL1, 0.0, 1.0), served, _entry(LEVEL1, 0.0, 3.0, load="served")))
    find = book.find
    assert find(LEVEL1, "vllm", "b200-sxm", "decode", "dense") is served
    pooled = find(LEVEL1, "vllm", "l40s", "decode", "dense")
    assert pooled is not None
    assert pooled.load == "static"


def test_another_version_of_a_system_comes_after_its_own() -> None:
    new = _entry(OWN, -0.2, 0.1, gpu="h100-sxm", basis="0.11.1", batch=(8.0, 512.0), load="served")
    book = _book(new, basis="2024")
    found = book.bounds(OWN, "vllm", "h100-sxm", "decode", "dense", basis="0.11.1", home="h100-sxm")
    assert found is not None
    assert [entry.basis for entry in found.entries[:2]] == ["0.11.1", "2024"]
    assert found.factors[0] == pytest.approx((math.exp(-0.2), math.exp(0.1)))
    first = book.bounds(
        OWN, "vllm", "h100-sxm", "prefill", "dense", basis="0.11.1", home="h100-sxm"
    )
    assert first is not None
    assert first.entries[0].basis == "2024"


def _deployment(gpu: str = "h100-sxm", engine: str = "vllm", **how: Any) -> Any:
    board = find_gpu(gpu)
    how.setdefault("estimator", choose(board, engine))
    model = how.pop("model", DENSE)
    return deploy(_graph(model), gpu=board, engine=get_engine(engine), **how)


def _version(gpu: str) -> str:
    system = _deployment(gpu).system
    assert system is not None
    return str(system.version)


def _factors(model: Any, B: float, tokens: float, book: Book, beyond: float = 0.0) -> Any:
    found = bounded.held(model, "decode", book)
    low, high = found.factors(np.array([B]), np.array([tokens]), beyond)
    return float(low[0]), float(high[0])


def test_rungs_follow_from_what_prices() -> None:
    assert bounded.rung_of(_deployment("h100-sxm"), "decode") == OWN
    assert bounded.rung_of(_deployment("h200-sxm"), "decode") == TRANSFERRED
    assert bounded.rung_of(_deployment("h100-sxm", parallel=Parallel(pp=2)), "decode") == LEVEL1
    assert bounded.rung_of(_deployment("t4"), "decode") == LEVEL1_TRANSFERRED
    assert bounded.rung_of(_deployment("h100-sxm", estimator=None), "decode") == SHEET


def test_kinds_and_formats_of_models() -> None:
    assert bounded.kind_of(_deployment()) == "dense"
    assert bounded.kind_of(_deployment(model=MOE)) == "moe"
    assert bounded.weight_format(_deployment()) == "16-bit"
    precision = Precision.of("fp8")
    assert bounded.weight_format(_deployment(precision=precision)) == "float8_e4m3"


def test_out_of_range_is_wider_until_a_range_holds_it() -> None:
    model = _deployment()
    book = _book(basis=_version("h100-sxm"))
    home = _factors(model, 64, 4096, book)
    assert home == pytest.approx((math.exp(-0.05), math.exp(0.08)))
    # Batches over 64 only the data sheet's runs have; no run has 100 tokens: the next rung.
    for B, tokens, high in ((128, 1024, 0.5), (1, 100, 0.12)):
        found = _factors(model, B, tokens, book)
        assert found == pytest.approx((home[0], math.exp(high)))
    # Kernels beyond their tables: the next rung.
    assert _factors(model, 64, 4096, book, 0.5)[1] == pytest.approx(math.exp(0.12))
    precision = Precision.of("fp8")
    assert _factors(_deployment(precision=precision), 1, 1024, book)[1] > home[1]
    assert _factors(_deployment(parallel=Parallel(tp=8)), 1, 1024, book)[1] > home[1]


def test_transferred_is_never_narrower_than_at_home() -> None:
    book = shipped_book()
    lent = [
        entry for entry in book.entries if entry.rung == TRANSFERRED and entry.phase != "energy"
    ]
    assert lent
    for entry in lent:
        home = {"basis": entry.basis, "home": "h100-sxm"}
        about = (entry.engine, "h100-sxm", entry.phase, entry.kind)
        ends = [book.bounds(rung, *about, **home) for rung in (OWN, TRANSFERRED)]
        assert ends[0] is not None
        assert ends[1] is not None
        (low, high), (lent_low, lent_high) = (bounds.factors[0] for bounds in ends)  # type: ignore[union-attr]
        assert lent_low <= low <= 1 <= high <= lent_high


def test_a_calibration_of_ones_own_was_not_judged() -> None:
    board = find_gpu("h100-sxm")
    estimator = choose(board, "vllm")
    assert estimator is not None
    mine = replace(estimator, sources=tuple(replace(c) for c in estimator.sources))
    found = bounded.held(_deployment(estimator=mine), "decode")
    assert any("not judged" in why for why in found.always[0])


def _report(**how: Any) -> CostReport:
    workload = how.pop("workload", Workload(1, 1024, 128))
    return hymell.predict(_graph(how.pop("model", DENSE)), workload, **how)


def test_a_report_shows_intervals_and_how_near_its_estimator_was() -> None:
    report = _report(engine_version="2024")
    for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s"):
        low, high = report.intervals[name]
        assert low <= getattr(report, name) <= high
        assert low < high
    near = report.accuracy["tpot_s"]
    assert near.estimator == "system of vllm 2024 on h100-sxm"
    assert near.mape is not None
    assert near.in_range
    text = to_text(report_view(report).document)
    assert f"TPOT: {near.estimator}, {near.mape:.1f}% off on {near.models} dense" in text
    shown = units.seconds(report.tpot_s, report.intervals["tpot_s"])
    assert re.search(rf"TPOT +{re.escape(shown)} ", text)
    assert "90% intervals" in to_markdown(report_view(report).document)
    (row,) = csv.DictReader(io.StringIO(to_csv(report_view(report).records)))
    assert float(row["intervals.tpot_s_low"]) == report.intervals["tpot_s"][0]
    assert float(row["accuracy.tpot_s.mape"]) == near.mape
    assert shown in report._repr_html_()


def test_latency_is_both_phases_together() -> None:
    report = _report(workload=Workload(16, 1024, 512))
    for end in (0, 1):
        decode = report.intervals["tpot_s"][end] * report.decode.steps
        whole = report.intervals["ttft_s"][end] + decode
        assert report.intervals["latency_s"][end] == pytest.approx(whole)


def test_a_single_token_has_no_interval_of_tpot() -> None:
    report = _report(workload=Workload(1, 1024, 1))
    assert "tpot_s" not in report.intervals
    assert "tpot_s" not in report.accuracy
    assert report.intervals["latency_s"] == report.intervals["ttft_s"]


def test_an_engine_without_runs_has_no_interval_and_says_so() -> None:
    report = _report(engine="compile")
    assert report.intervals == {}
    assert report.accuracy["tpot_s"].mape is None
    assert "no interval: no measured runs of compile" in to_text(report_view(report).document)


def test_a_kind_without_runs_has_no_interval_and_says_so() -> None:
    found = bounded.held(_deployment(model=MOE), "decode", _book())
    assert found.bounds is None
    assert found.why == "no measured runs of models with experts under vllm to judge TPOT by"


def test_arrays_have_the_same_intervals_as_reports() -> None:
    board, engine = find_gpu("h100-sxm"), get_engine("vllm")
    many = price(
        _graph(DENSE),
        [1, 16, 64],
        1024,
        128,
        gpu=board,
        engine=engine,
        estimator=choose(board, "vllm"),
        bounds=True,
    )
    for place, batch in enumerate((1, 16, 64)):
        report = _report(workload=Workload(batch, 1024, 128))
        for name, ends in report.intervals.items():
            found = (many[f"{name}_low"][place], many[f"{name}_high"][place])
            if batch == 1:
                assert found == pytest.approx(ends)
            # A report also looks at the ranges of kernel tables.
            assert ends[0] <= found[0] * (1 + 1e-6)
            assert ends[1] >= found[1] * (1 - 1e-6)
    plain = price(_graph(DENSE), 1, 1024, 128, gpu=board, engine=engine)
    assert not any(name.endswith(("_low", "_high")) for name in plain)
