"""The part of accuracy.md on blocks and whole models: joined, not doubled, figures as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import accuracy_join
from accuracy_join import PARTS


def written(docs: Path) -> tuple[list[dict[str, object]], str]:
    text = (docs / "accuracy.md").read_text("utf-8")
    return json.loads((docs / "accuracy.json").read_text("utf-8")), text


def record(estimator: str, mape: float, **more: object) -> dict[str, object]:
    return {
        "set": "one: runs",
        "gpu": "h100-sxm",
        "library": "vllm",
        "op": "end_to_end",
        "dtype": "float16",
        "estimator": estimator,
        "split": "unseen model",
        "rows": 1234,
        "mape": mape,
        "bias": -1.25,
        "models": 3,
        **more,
    }


def test_parts_are_joined_once_and_kernels_stay(tmp_path: Path) -> None:
    kernels = [{"op": "gemm", "mape": 3.0}]
    (tmp_path / "accuracy.json").write_text(json.dumps(kernels))
    (tmp_path / "accuracy.md").write_text("# Kernels\n\nlines\n")
    for part in PARTS:
        names = dict(
            zip((n for n in part.columns if n), (40.0, 5e9, 7.25, 6.0, 4.04), strict=False)
        )
        mine = [record(name, mape) for name, mape in names.items()]
        (tmp_path / f"{part.name}.json").write_text(json.dumps([*mine, record("another", 1.0)]))
    assert accuracy_join.main(["--docs", str(tmp_path)]) == 0
    once = written(tmp_path)
    records, text = once
    assert records[0] == kernels[0]
    assert {r["part"] for r in records[1:]} == {part.name for part in PARTS}
    assert text.startswith("# Kernels\n\nlines\n\n## Blocks and whole models")
    assert "| one: runs | h100-sxm | vllm | 1,234 | 3 | 40.0 | over 1,000 | 7.2 |" in text
    assert accuracy_join.main(["--docs", str(tmp_path)]) == 0
    assert written(tmp_path) == once


def test_the_page_has_the_figures_of_the_parts() -> None:
    docs = Path(__file__).parents[1] / "docs"
    records, text = written(docs)
    for part in PARTS:
        own = json.loads((docs / f"{part.name}.json").read_text("utf-8"))
        assert [r for r in records if r.get("part") == part.name] == [
            {**r, "part": part.name} for r in own
        ]
        for line in accuracy_join.lines(part, own):
            assert line in text
