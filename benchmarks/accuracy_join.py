"""Blocks and whole models in docs/accuracy.md and docs/accuracy.json, beside the kernels.

The records of the pages on blocks, whole models, eager PyTorch, servers and energy are added to
accuracy.json, and their lines, one per set, GPU and library, stand at the end of accuracy.md.
Computes nothing: run it after those benchmarks, as `make accuracy` does.

    python benchmarks/accuracy_join.py [--docs DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]

Record = Mapping[str, Any]

_TITLE: Final = "## Blocks and whole models"

_INTRO: Final = f"""
{_TITLE}

MAPE in % on models that nothing was fitted on, as the pages say that explain each part. **data
sheet**: every kernel by roofline. **analytical**: level 1's formulas alone, in the spirit of AMALI
and LIFE. **composed**: level 1 with its corrections (of energy, the power of kernels; of eager,
typical overheads), nothing learnt from whole models or blocks. **MLP**: HYMELL's third level as
published, a plain MLP without bounds. **hymell**: what reports use, its model left out.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """The records of one page, and which of their estimators stand in which column."""

    name: str
    columns: tuple[str, str, str, str, str]


_COLUMNS: Final = ("data sheet", "analytical", "composed", "MLP", "hymell")

PARTS: Final = (
    Part(
        "accuracy_blocks",
        ("data sheet", "analytical sum", "sum of level 1", "unbounded MLP", "level 2"),
    ),
    Part(
        "accuracy_end_to_end",
        (
            "data sheet",
            "analytical composition",
            "level-1 composition",
            "unbounded MLP",
            "fitted system",
        ),
    ),
    Part(
        "accuracy_eager", ("data sheet", "", "typical overheads", "", "eager, operators measured")
    ),
    Part("accuracy_serving", ("data sheet", "", "", "", "simulation")),
    Part("accuracy_energy", ("data sheet", "", "power of kernels", "", "fitted energies")),
)

#: Errors beyond this, in %, are not spelt out.
_MOST: Final = 1000

#: What tells lines apart, of those that records have.
_KEYS: Final = ("set", "run", "hold_out", "time", "gpu", "library")


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    docs: Path = parser.parse_args(arguments).docs
    parts = {part: json.loads((docs / f"{part.name}.json").read_bytes()) for part in PARTS}
    records = json.loads((docs / "accuracy.json").read_bytes())
    added = [{**record, "part": part.name} for part, mine in parts.items() for record in mine]
    whole = [record for record in records if "part" not in record] + added
    (docs / "accuracy.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    kernels = (docs / "accuracy.md").read_text(encoding="utf-8").split(_TITLE)[0].rstrip()
    text = "\n".join([kernels, "", *section(parts)])
    (docs / "accuracy.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    return 0


def section(parts: Mapping[Part, Sequence[Record]]) -> Iterator[str]:
    """The lines of the section."""
    yield from _INTRO.strip().splitlines()
    for part, records in parts.items():
        yield ""
        yield f"[{part.name}.md]({part.name}.md):"
        yield ""
        shown = [place for place, name in enumerate(part.columns) if name]
        titles = [_COLUMNS[place] for place in shown]
        yield f"| runs | GPU | library | n | models | {' | '.join(titles)} | bias |"
        yield f"|---|---|---|--:|--:|{'--:|' * (len(shown) + 1)}"
        yield from lines(part, records)


def lines(part: Part, records: Sequence[Record]) -> Iterator[str]:
    """A line per group of records that has what reports use."""
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        key = tuple(record.get(name) for name in _KEYS)
        groups.setdefault(key, {})[record["estimator"]] = record
    for found in groups.values():
        ours = found.get(part.columns[-1])
        if ours is None:
            continue
        what = ", ".join(
            text
            for text in (ours["set"], ours.get("run"), ours.get("hold_out"), _time(ours))
            if text
        )
        figures = [
            _percent(found[name]["mape"]) if name in found else "" for name in part.columns if name
        ]
        figures[-1] = f"**{figures[-1]}**"
        yield (
            f"| {what} | {ours['gpu']} | {ours['library']} | {ours['rows']:,} | {ours['models']} "
            f"| {' | '.join(figures)} | {ours['bias']:+.1f} |"
        )


def _percent(mape: float | None) -> str:
    """An unbounded net's error may be anything; how large it is beyond 1000% tells nothing."""
    return f"{mape:.1f}" if mape is not None and mape < _MOST else f"over {_MOST:,}"


def _time(record: Record) -> str:
    return f"at the {record['time']} time" if "time" in record else ""


if __name__ == "__main__":
    sys.exit(main())
