"""benchmarks/intervals.py: what is judged has not been seen, and what ships holds all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from bounds.coverage import Residuals, missed, record
from bounds.page import page, records
from bounds.reach import beyond

from hymell.estimators.conformal import Stretch
from hymell.estimators.intervals import LEVEL1, OWN, TRANSFERRED


def _rows(seed: int = 0, **changes: Any) -> pd.DataFrame:
    """Two GPUs with four models of twelve runs, priced in three ways."""
    rng = np.random.default_rng(seed)
    frames = []
    for gpu in ("a", "b"):
        for model in ("m1", "m2", "m3", "m4"):
            bias = rng.normal(0, 0.05)
            for rung, width in ((OWN, 1.0), (TRANSFERRED, 2.0), (LEVEL1, 4.0)):
                ratio = width * (bias + rng.normal(0, 0.03, 12))
                frames.append(
                    pd.DataFrame(
                        {
                            "rung": rung,
                            "engine": "vllm",
                            "gpu": gpu,
                            "basis": "" if rung == LEVEL1 else "2024",
                            "load": "static",
                            "phase": "decode",
                            "kind": "dense",
                            "set": "runs",
                            "model": model,
                            "group": model,
                            "gpus": 1,
                            "batch": np.arange(1.0, 13.0),
                            "tokens": 512.0,
                            "prompt": 384.0,
                            "output": 128.0,
                            "dtype": "bfloat16",
                            "format": "16-bit",
                            "log_ratio": ratio,
                            "percent": np.expm1(-ratio) * 100,
                            "ships": True,
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True).assign(**changes)


def test_bounds_of_a_model_do_not_depend_on_its_runs() -> None:
    before = _rows()
    after = before.copy()
    mine = (before["model"] == "m2") & (before["gpu"] == "a")
    after.loc[mine, "log_ratio"] += 0.7
    ends = ["low", "high", "gaussian_low", "gaussian_high"]
    old, new = (Residuals(rows).judged() for rows in (before, after))
    # Not even the stretch: it is fitted without any run of the cell.
    pd.testing.assert_frame_equal(old.loc[mine, ends], new.loc[mine, ends])
    assert not np.allclose(old.loc[~mine, ends], new.loc[~mine, ends])


def test_every_run_is_judged_once() -> None:
    rows = _rows()
    judged = Residuals(rows).judged()
    assert sorted(judged.index) == sorted(rows.index)
    assert (judged["low"] <= 0).all()
    assert (judged["high"] >= 0).all()


def test_a_model_that_nothing_is_like_is_not_judged() -> None:
    rows = _rows()
    alone = rows[(rows["model"] == "m1") & (rows["gpu"] == "a")].assign(kind="moe", group="x")
    judged = Residuals(pd.concat([rows, alone], ignore_index=True)).judged()
    assert "moe" not in set(judged["kind"])
    assert len(judged) == len(rows)


def test_how_far_runs_go_beyond_kernel_tables() -> None:
    rows = pd.DataFrame(
        {
            "model": ["llama-3-8b", "llama-3-8b", "no such model"],
            "gpu": "h100-sxm",
            "engine": "vllm",
            "dtype": "bfloat16",
            "gpus": 1,
            "batch": [1.0, 64.0, 1.0],
            "prompt": [128.0, 4096.0, 128.0],
            "output": [128.0, 128.0, 128.0],
            "tokens": [256.0, 4224.0, 256.0],
        }
    )
    # The largest run of a model counts: 262,144 prompt tokens at once are beyond every table.
    assert beyond(rows, "prefill") > 0.5
    assert beyond(rows.iloc[:1], "prefill") < 0.5
    assert beyond(rows.iloc[2:], "prefill") == 0.0


def test_entries_are_of_each_gpu_and_of_all() -> None:
    entries = list(Residuals(_rows()).entries())
    found = {(entry.rung, entry.gpu) for entry in entries}
    assert found == {
        (OWN, "a"),
        (OWN, "b"),
        (TRANSFERRED, ""),
        *((LEVEL1, g) for g in ("a", "b", "")),
    }
    pooled = next(entry for entry in entries if (entry.rung, entry.gpu) == (LEVEL1, ""))
    assert (pooled.rows, pooled.models, pooled.batch, pooled.gpus) == (96, 4, (1.0, 12.0), (1, 1))
    assert pooled.judged["one"].rows == 96
    assert set(pooled.judged) == {"one"}


def test_what_no_report_uses_does_not_ship() -> None:
    rows = _rows()
    rows["ships"] = ~((rows["rung"] == OWN) & (rows["gpu"] == "b"))
    entries = list(Residuals(rows).entries())
    assert (OWN, "b") not in {(entry.rung, entry.gpu) for entry in entries}


def test_bounds_from_few_models_are_stretched() -> None:
    found = Residuals(_rows())
    assert found.kappa(OWN) > 0
    judged = found.judged()
    own = judged[judged["rung"] == OWN]
    needed = Stretch().fit([np.zeros(30)]).kappa_
    assert needed == 0
    assert 80 <= record(own)["coverage"] <= 100


def test_the_page_says_where_coverage_misses() -> None:
    rows = _rows()
    biased = (rows["model"] == "m4") & (rows["rung"] == OWN)
    rows.loc[biased, "log_ratio"] += 1.0
    rows["percent"] = np.expm1(-rows["log_ratio"]) * 100
    found = Residuals(rows)
    judged = found.judged()
    text = page(judged, found)
    misses = text.split("## Where coverage misses")[1]
    assert f"- {OWN}, runs, vllm, b, decode, dense: 75%; m4: 12 of 12 outside" in misses
    lines = records(judged)
    assert {line["rung"] for line in lines} == {OWN, TRANSFERRED, LEVEL1}
    assert next(x for x in lines if x["rung"] == OWN and x.get("gpu") == "b")["coverage"] == 75.0


def test_a_record_counts_what_is_held() -> None:
    rows = pd.DataFrame(
        {
            "log_ratio": [0.0, 0.1, 0.3, -0.2],
            "low": -0.1,
            "high": 0.2,
            "gaussian_low": -1.0,
            "gaussian_high": 1.0,
            "model": ["a", "a", "b", "b"],
            "percent": [0.0, -10.0, -26.0, 22.0],
            "ships": True,
        }
    )
    found = record(rows)
    assert found["coverage"] == 50.0
    assert found["gaussian_coverage"] == 100.0
    assert found["width"] == pytest.approx((np.exp(0.2) - np.exp(-0.1)) * 100, abs=0.06)
    assert missed(rows) == "b: 2 of 2 outside, bias -2%"
