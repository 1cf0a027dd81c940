"""The accuracy page: hold-outs chosen, records averaged, goals checked, sums of FFNs, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from accuracy import curves, ffn, plots
from accuracy.curves import learning_curve, samples, transfer_summary, transferred
from accuracy.goals import GOALS, Goal, check
from accuracy.headline import headline
from accuracy.page import Results, page
from accuracy.plots import Points, draw, points, size_of, thinned
from accuracy.records import (
    KEYS,
    PAPER,
    Record,
    hold_outs,
    kind,
    means,
    record,
    repeatability,
    reported,
)
from accuracy.tables import GPUS, device_of

from hymell.errors import HymellError
from hymell.estimators.level1.form import Dims
from hymell.measure.judging import Effort
from hymell.measure.operators import OPERATORS, Operator, Rows
from hymell.measure.table import Table

ROOT = Path(__file__).resolve().parents[1]

EFFORT = Effort(rows=50, epochs=1, seeds=(0,))


def made(split: str = "shapes-0", estimator: str = "corrected", **changed: Any) -> Record:
    plain = {
        "set": "made 1.0",
        "gpu": "h100-sxm",
        "library": "vllm",
        "op": "gemm",
        "dtype": "bfloat16",
        "estimator": estimator,
        "split": split,
        "rows": 10,
        "mape": 3.0,
        "median": 2.0,
        "p90": 6.0,
        "max": 9.0,
        "bias": -1.0,
    }
    assert tuple(plain) == KEYS
    return {**plain, **changed}


def every_estimator(split: str = "shapes-0", **changed: Any) -> list[Record]:
    return [
        made(split, estimator, **changed)
        for estimator in ("roofline", "five-regime", "analytical", "corrected")
    ]


def softmax_rows(repeats: np.ndarray, spread: np.ndarray) -> Rows:
    count = len(repeats)
    operator = next(each for each in OPERATORS if each.op == "softmax")
    columns: dict[str, Any] = {
        "rows": np.full(count, 64.0),
        "cols": np.exp2(np.arange(count) % 12),
        "time_s": np.linspace(1e-5, 2e-5, count),
        "repeats": repeats,
        "spread": spread,
        **{
            name: np.full(count, value, dtype=object)
            for name, value in {
                "source": "made",
                "gpu": "l4",
                "library": "pytorch",
                "version": "1.0",
                "dtype": "float32",
                "kernel": "k",
            }.items()
        },
    }
    return Rows(operator, "float32", "", Table("softmax", columns))


# -- hold-outs and records


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("shapes-2", "shapes"),
        ("unseen rows 1", "unseen rows"),
        ("unseen width 4096", "unseen width"),
        ("unseen sizes odd", "unseen sizes"),
        ("unseen model meta-llama/Llama-2-70b-hf", "unseen model"),
        ("30 samples, heads-1", "30 samples, heads"),
        ("m-one", "m-one"),
        ("m-large", "m-large"),
        ("longest rows", "longest rows"),
        ("unseen number of GPUs", "unseen number of GPUs"),
    ],
)
def test_a_kind_has_neither_seed_nor_width_nor_model(split: str, expected: str) -> None:
    assert kind(split) == expected


def test_random_hold_outs_come_by_seed_and_others_all() -> None:
    most, few = np.arange(100) >= 5, np.arange(100) < 5
    names = ("heads-0", "heads-1", "heads-2", "configs-0", "length", "unseen width 512", "m-one")
    splits = [(name, most, ~most) for name in names]
    splits += [("starved", few, ~few), ("empty", most | few, most & few)]
    assert [name for name, _, _ in hold_outs(splits, 2)] == [
        "heads-0",
        "heads-1",
        "length",
        "unseen width 512",
        "m-one",
    ]
    assert sum(name.startswith("heads") for name, _, _ in hold_outs(splits, 3)) == 3


def test_means_are_over_the_seeds_of_one_table_and_estimator() -> None:
    found = [
        made("shapes-0", mape=2.0, rows=10, bias=-2.0, max=5.0),
        made("shapes-1", mape=4.0, rows=30, bias=1.0, max=50.0),
        made("shapes-1", "analytical", mape=8.0),
        made("shapes-0", dtype="float8_e4m3", mape=7.0),
        made("m-large", mape=6.0),
    ]
    first, *others = means(found)
    assert first["split"] == "shapes"
    assert (first["mape"], first["bias"], first["max"]) == (3.0, -0.5, 50.0)
    assert (first["rows"], first["parts"]) == (40, 2)
    assert [(each["mape"], each["parts"]) for each in others] == [(8.0, 1), (7.0, 1), (6.0, 1)]


def test_repeatability_is_half_the_range_of_what_was_measured_twice() -> None:
    repeats = np.repeat([1, 2], 12)
    spread = np.concatenate([np.zeros(12), np.full(11, 0.02), [0.08]])
    (found,) = repeatability("l4", softmax_rows(repeats, spread))
    assert tuple(found) == KEYS
    assert (found["rows"], found["mape"], found["max"]) == (12, 1.25, 4.0)
    assert (found["median"], found["bias"]) == (1.0, None)
    assert repeatability("l4", softmax_rows(np.ones(24, dtype=int), np.zeros(24))) == []


def test_the_papers_figures_leave_the_unknown_open() -> None:
    (found,) = reported(["gemm", "all_reduce"])
    assert tuple(found) == KEYS
    assert (found["estimator"], found["op"], found["mape"]) == (PAPER, "gemm", 6.38)
    assert found["rows"] is found["split"] is found["library"] is None


# -- goals


GEMM = Goal("GEMM", "h100-sxm", ("gemm",), ("shapes",), 3.5, 5.0, ("bfloat16",))


def _met(goal: Goal, found: Iterable[Record]) -> list[str]:
    return [line.met for line in check([goal], means(found), GPUS, ())]


@pytest.mark.parametrize(
    ("corrected", "analytical", "expected"),
    [
        (3.5, 5.0, "yes"),
        (3.51, 5.01, "no"),
        (3.0, 6.0, "corrected only"),
        (4.0, 4.0, "analytical only"),
    ],
)
def test_a_goal_with_two_halves_says_which_is_met(
    corrected: float, analytical: float, expected: str
) -> None:
    found = [made(mape=corrected), made(estimator="analytical", mape=analytical)]
    assert _met(GEMM, found) == [expected]


def test_a_goal_is_checked_on_every_library_and_only_on_what_it_names() -> None:
    found = [
        *every_estimator(mape=3.0),
        *every_estimator(library="trtllm", mape=4.0),
        *every_estimator(split="m-large", mape=1.0),
        *every_estimator(dtype="float8_e4m3", mape=1.0),
        *every_estimator(gpu="l40s", mape=1.0),
    ]
    lines = list(check([GEMM], means(found), GPUS, ()))
    assert [(line.library, line.corrected) for line in lines] == [("vllm", 3.0), ("trtllm", 4.0)]
    assert [line.met for line in lines] == ["yes", "analytical only"]


def test_a_goal_of_several_ops_is_their_mean() -> None:
    goal = Goal("NCCL", "h100-sxm", ("all_reduce", "all_gather"), ("unseen sizes",), 4.5)
    found = [
        *every_estimator("unseen sizes odd", op="all_reduce", mape=2.0),
        *every_estimator("unseen sizes even", op="all_reduce", mape=4.0),
        *every_estimator("unseen sizes odd", op="all_gather", mape=6.0),
    ]
    (line,) = check([goal], means(found), GPUS, ())
    assert (line.corrected, line.rows, line.met) == (4.5, 30, "yes")


def test_a_goal_without_records_says_why() -> None:
    (absent,) = check([GEMM], [], GPUS, ())
    assert (absent.met, absent.why) == ("not measured", "no table on this machine has such rows")
    for gpus, ops in ((["a40"], ()), (GPUS, ["moe"])):
        (skipped,) = check([GEMM], [], gpus, ops)
        assert skipped.why == "this run was not asked for it"
    strange = Goal("tea", "h100-sxm", ("tea",), ("shapes",), 1.0)
    (unknown,) = check([strange], [], GPUS, ())
    assert unknown.why == "no estimator is fitted for it"


def test_goals_name_gpus_that_are_judged() -> None:
    assert {goal.gpu for goal in GOALS} <= set(GPUS)
    assert all(device_of(gpu).family for gpu in GPUS)


# -- the page


def _page(found: Results, **changed: Any) -> str:
    lines = check([GEMM], means(found.judged), GPUS, ())
    return page(found, lines, EFFORT, **{"seeds": 3, "asked": "all of it", **changed})


def test_the_page_shows_means_goals_pictures_and_noise() -> None:
    judged = [
        each
        for seed, mape in enumerate((2.0, 3.0, 4.0))
        for each in every_estimator(f"shapes-{seed}", mape=mape)
    ]
    noise = made("repeats", "repeatability", mape=1.25, bias=None)
    plotted = {"gemm": ("accuracy/gemm.png", "One table.")}
    found = Results(judged, [noise], reported(["gemm"]), [], [], plotted)
    text = _page(found).splitlines()
    assert any(line.startswith("This run: all of it.") for line in text)
    goal = "| GEMM | h100-sxm | vllm | bfloat16 | shapes | 30 | 3.5 (5) | 3.00 (3.00) | yes |"
    assert goal in text
    line = (
        "| h100-sxm | vllm 1.0 | bfloat16 | shapes (3) | 30 | 3.0 | 3.0 | 3.0 | **3.0** | 2.0 "
        "| 6.0 | 9.0 | -1.0 | 1.2 |"
    )
    assert line in text
    assert "![gemm, predicted over measured by size](accuracy/gemm.png)" in text
    assert "HYMELL reports 6.38 for its own H100 data." in text
    assert len(found.records()) == 14
    assert all(tuple(each) == KEYS for each in found.records())


def test_an_op_without_a_baseline_has_an_empty_cell_and_no_picture() -> None:
    judged = [each for each in every_estimator(op="moe") if each["estimator"] != "five-regime"]
    text = _page(Results(judged, [], [], [], []))
    assert "| 10 | 3.0 |  | 3.0 | **3.0** |" in text
    assert "![" not in text


def test_tables_of_which_nothing_can_be_held_out_are_named() -> None:
    table = {key: made(op="moe")[key] for key in ("set", "gpu", "library", "op", "dtype")}
    found = Results(every_estimator(), [], [], [], [], unjudged=[table])
    assert "- moe bfloat16, h100-sxm, vllm 1.0" in _page(found).splitlines()
    assert "## Not judged" not in _page(Results(every_estimator(), [], [], [], []))


def test_the_page_says_that_nothing_was_transferred() -> None:
    text = _page(Results(every_estimator(), [], [], [], []))
    assert "Not measured: this run found no shipped vllm calibration" in text
    assert "## Learning curve" not in text


def test_the_page_shows_curve_and_matrix() -> None:
    curve = [
        made(f"{count} samples, shapes-{seed}", estimator, mape=mape + seed)
        for count, mape in ((30, 8.0), (1000, 5.0))
        for seed in (0, 1)
        for estimator in ("analytical", "corrected")
    ]
    matrix = [
        made("from h200-sxm", "analytical", mape=7.0),
        made("from h200-sxm", "corrected", mape=6.0),
    ]
    text = _page(Results(every_estimator(), [], [], curve, matrix)).splitlines()
    assert "| gemm | bfloat16 | 8.5 / 8.5 |  |  | 5.5 / 5.5 |" in text
    assert "| h200-sxm | 7.0 / 6.0 |  |  |  |  |" in text


# -- few measurements, and none


def test_the_learning_curve_fits_on_few_of_the_rows_left_by_whole_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def judged(gpu: str, rows: Rows, splits: list[Any], effort: Effort, cache: Path) -> list[Any]:
        seen.extend(splits)
        return [made(name, e) for name, _, _ in splits for e in ("roofline", "corrected")]

    monkeypatch.setattr(curves, "judged", judged)
    train = np.arange(400) < 200
    splits = [("heads-0", train, ~train), ("heads-1", ~train, train), ("length", train, ~train)]
    rows = softmax_rows(np.ones(400, dtype=int), np.zeros(400))
    found = learning_curve("h100-sxm", rows, splits, EFFORT, Path("unused"))
    # 250 and 1000 samples are more than there are to fit on.
    assert [name for name, _, _ in seen] == [
        f"{count} samples, heads-{seed}" for seed in (0, 1) for count in (30, 120)
    ]
    for (name, drawn, test), whole in zip(seen, (train, train, ~train, ~train), strict=True):
        assert drawn.sum() == samples(name)
        assert not (drawn & ~whole).any()
        assert (test == ~whole).all()
    assert {each["estimator"] for each in found} == {"corrected"}


def test_a_table_is_priced_with_the_calibration_of_every_other_gpu_that_ships_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = softmax_rows(np.ones(50, dtype=int), np.zeros(50))
    asked: list[Any] = []

    class Half:
        def predict(self, dims: Dims, *, corrected: bool) -> Any:
            return SimpleNamespace(time_s=rows.table["time_s"] * (0.5 if corrected else 2.0))

    class Fitted:
        def estimator(self, key: tuple[str, str, str]) -> str | None:
            asked.append(key)
            return "fitted"

    there = {"h100-sxm": Fitted(), "l40s": Fitted()}
    monkeypatch.setattr(curves, "_shipped", there.get)
    monkeypatch.setattr(curves, "scaled", lambda fitted, device: Half())
    found = list(transferred("l40s", rows, tmp_path))
    assert [(each["split"], each["gpu"], each["mape"]) for each in found] == [
        ("from h100-sxm", "l40s", 100.0),
        ("from h100-sxm", "l40s", 50.0),
    ]
    assert asked == [("softmax", "float32", "")]
    assert list(transferred("l40s", rows, tmp_path)) == found
    assert len(asked) == 1


def test_transfers_are_summed_up_by_op_and_family() -> None:
    matrix = [
        made(f"from {source}", estimator, gpu=target, mape=mape)
        for source, target, mape in (
            ("h100-sxm", "h200-sxm", 4.0),
            ("h200-sxm", "h100-sxm", 6.0),
            ("h100-sxm", "l40s", 20.0),
        )
        for estimator in ("analytical", "corrected")
    ]
    other, same = transfer_summary(matrix)
    assert (same["op"], same["same_family"], same["pairs"], same["analytical"]) == (
        "gemm",
        True,
        2,
        5.0,
    )
    assert (other["same_family"], other["pairs"], other["corrected"]) == (False, 1, 20.0)


# -- FFNs


def _time_ms(m: Any, n: Any, k: Any) -> Any:
    return 1e-3 * (5.0 + 1e-6 * m * n + 1e-3 * k)


def _vidur(root: Path, name: str, hidden: int, wide: int) -> None:
    """One model's layers, timed as a formula of their sizes, at one and two ways of parallelism."""
    tokens = np.tile(np.arange(8, 200, 8), 2)
    tp = np.repeat([1, 2], len(tokens) // 2)
    up = (tokens, 2 * wide // tp, hidden)
    down = (tokens, np.full(len(tokens), hidden), wide // tp)
    square = (tokens, np.full(len(tokens), hidden), hidden // tp)
    columns: dict[str, Any] = {
        "num_tokens": tokens,
        "n_embd": hidden,
        "n_head": hidden // 64,
        "n_kv_head": hidden // 64,
        "n_expanded_embd": wide,
        "vocab_size": 1000,
        "use_gated_mlp": True,
        "num_tensor_parallel_workers": tp,
        "time_stats.mlp_up_proj.mean": _time_ms(*up),
        "time_stats.mlp_down_proj.mean": _time_ms(*down),
        "time_stats.attn_post_proj.mean": _time_ms(*square),
        "time_stats.mlp_act.mean": _time_ms(tokens, wide // tp, 0.0),
        "time_stats.add.mean": 0.5,
    }
    path = root / "data/profiling/compute/a40" / name / "mlp.csv"
    path.parent.mkdir(parents=True)
    pd.DataFrame(columns).to_csv(path, index=False)


class _Formula:
    """A fit that knows the formula; the correction adds a tenth."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def predict(self, dims: Dims, *, corrected: bool = True) -> Any:
        if "m" in dims:
            time_s = 1e-3 * _time_ms(dims["m"], dims["n"], dims["k"])
        else:
            time_s = 1e-3 * _time_ms(dims["rows"], dims["cols"], 0.0)
        return SimpleNamespace(time_s=time_s * (1.1 if corrected else 1.0))


def test_an_ffn_is_the_sum_of_kernels_fitted_without_any_shape_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    for name, hidden, wide in (("a/one", 1024, 4096), ("b/two", 1024, 2048), ("c/three", 512, 640)):
        _vidur(data, name, hidden, wide)
    fitted: list[set[tuple[float, float]]] = []

    def fit(form: Any, device: Any, dims: Mapping[str, Any], *_: Any) -> _Formula:
        names = ("n", "k") if "m" in dims else ("cols", "cols")
        fitted.append(set(zip(*(dims[name].tolist() for name in names), strict=True)))
        return _Formula(form)

    monkeypatch.setattr(ffn, "fit", fit)
    found = list(ffn.judge_ffn("a40", data, EFFORT, cache))
    assert [each["split"] for each in found[::3]] == [
        f"unseen model {name}" for name in ("a/one", "b/two", "c/three")
    ]
    by = {each["estimator"]: each for each in found[:3]}
    assert by["analytical"]["mape"] == pytest.approx(0.0, abs=1e-3)
    assert by["corrected"]["mape"] == pytest.approx(10.0)
    assert by["roofline"]["mape"] > 1.0
    assert all(tuple(each) == KEYS and each["rows"] == 48 for each in found)
    products, widths = fitted[0], fitted[1]
    assert not {(8192.0, 1024.0), (4096.0, 1024.0), (1024.0, 4096.0), (1024.0, 2048.0)} & products
    # The attention's projection is one of the model's shapes as well, though others have it too.
    assert (1024.0, 1024.0) not in products
    assert (1280.0, 512.0) in products
    assert not {(4096.0, 4096.0), (2048.0, 2048.0)} & widths
    assert widths
    monkeypatch.setattr(ffn, "fit", None)
    assert list(ffn.judge_ffn("a40", data, EFFORT, cache)) == found


def test_a_gpu_that_vidur_did_not_measure_has_no_ffn(tmp_path: Path) -> None:
    _vidur(tmp_path, "a/one", 1024, 4096)
    assert list(ffn.judge_ffn("h100-sxm", tmp_path, EFFORT, tmp_path)) == []


# -- pictures


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.op)
def test_every_op_has_a_size_to_be_drawn_over(operator: Operator) -> None:
    assert size_of(operator.op)[0]


def test_sizes_count_what_they_say() -> None:
    ones = {name: np.array([2.0]) for name in ("m", "n", "k", "batch")}
    assert size_of("gemm")[1](ones).tolist() == [32.0]
    assert size_of("softmax")[1]({"bytes": np.array([7.0])}).tolist() == [7.0]
    with pytest.raises(HymellError, match="no size to draw tea over"):
        size_of("tea")


def test_points_are_kept_and_give_held_out_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = softmax_rows(np.ones(60, dtype=int), np.zeros(60))
    train = np.arange(60) < 40

    class Doubled:
        def predict(self, dims: Dims) -> Any:
            count = len(dims["rows"])
            time_s = 2.0 * rows.table["time_s"][~train]
            return SimpleNamespace(time_s=time_s, regime=np.arange(count) % 5)

    monkeypatch.setattr(plots, "fit", lambda *_: Doubled())
    first = points("l4", rows, ("unseen shapes 0", train, ~train), EFFORT, tmp_path)
    np.testing.assert_allclose(first.ratio, 2.0)
    np.testing.assert_allclose(first.size, rows.dims["bytes"][~train])
    monkeypatch.setattr(plots, "fit", None)
    again = points("l4", rows, ("unseen shapes 0", train, ~train), EFFORT, tmp_path)
    assert (again.regime == first.regime).all()


def many_points(count: int = 20_000) -> Points:
    random = np.random.default_rng(0)
    ratio = np.exp(random.normal(0.0, 0.05, count))
    ratio[[3, 7]] = 0.2, 5.0
    return Points(np.exp2(random.uniform(10, 40, count)), ratio, random.integers(0, 5, count))


def test_thinned_points_keep_the_two_worst() -> None:
    few = thinned(many_points())
    assert len(few.size) <= 2500
    assert (few.ratio.min(), few.ratio.max()) == (0.2, 5.0)
    alike = many_points(100)
    assert thinned(alike) is alike


def test_a_picture_is_small_and_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    for name in ("one.png", "two.png"):
        draw(tmp_path / "new" / name, "gemm", "FLOPs", many_points())
    one, two = (tmp_path.joinpath("new", name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG")
    assert len(one) < 80_000
    assert one == two


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(HymellError, match=r"matplotlib.*--no-plots"):
        plots.check_installed()


def test_records_take_their_table_from_the_table() -> None:
    scored = {key: made()[key] for key in KEYS if key not in ("gpu", "op")}
    assert record({**made(), "op": "moe"}, {**scored, "dtype": "other"})["dtype"] == "bfloat16"


def test_the_readme_shows_the_figures_of_the_records() -> None:
    records = json.loads((ROOT / "docs" / "accuracy.json").read_text("utf-8"))
    assert "\n".join(headline(records)) in (ROOT / "README.md").read_text("utf-8")
