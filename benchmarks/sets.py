"""What the sets of whole models are, what was left out, their noise: docs/sets.md and docs/sets/.

Counts and noise are the reader's own. A picture per set shows held-out predictions over measured
times. Needs the measurements (docs/data.md); predictions are those that benchmarks/end_to_end.py
keeps in build/end_to_end.

    python benchmarks/sets.py [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from systems.held_out import held_out_rows
from systems.results import FITTED, SHEET

from hymell.errors import HymellError
from hymell.measure.e2e import read_runs, run_files
from hymell.measure.e2e.filters import REASONS
from hymell.measure.location import locate
from hymell.measure.table import Table

ROOT = Path(__file__).resolve().parents[1]

#: Where each set is judged.
_JUDGED: Final = {
    "argonne_e2e": "accuracy_end_to_end.md",
    "argonne_ttft": "accuracy_end_to_end.md",
    "argonne_grid_a100": "accuracy_sweet_spot.md",
    "argonne_power": "accuracy_energy.md",
    "splitwise": "accuracy_end_to_end.md",
    "mlenergy_v3": "accuracy_end_to_end.md",
    "mlenergy_v2": "accuracy_energy.md",
    "mlenergy_v1_legacy": "accuracy_eager.md",
    "wilkins_grid_a100": "accuracy_sweet_spot.md",
    "aic_silicon": "accuracy_end_to_end.md",
    "neusight": "accuracy_eager.md",
    "llmservingsim_bench": "accuracy_serving.md",
}

_INTRO: Final = """
# The sets of whole models

Written by `benchmarks/sets.py`. What a row of each set is, its units and traps:
[data.md](data.md#whole-models); the reasons for leaving rows out are worded there too.

**noise** is what no prediction can be nearer than. Where a configuration was measured several times
it is the spread of those runs, (max - min) / mean, or upstream's coefficient of variation. A set
without repeats shows none; that does not make it free of it.

In the pictures every run is predicted by an estimator that has not seen its model: by the data
sheet (grey) and by the fitted system (blue, several GPUs open), over the measured time.
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the page and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "end_to_end")
    chosen = parser.parse_args(arguments)
    try:
        held = held_out_rows(chosen.cache)
        names = [file.set for file in run_files(locate())]
        lines = [_INTRO.strip(), ""]
        for name in dict.fromkeys(names):
            lines += [*_section(name, read_runs(name)), ""]
            mine = held[held["set"] == name]
            if len(mine):
                (chosen.out / "sets").mkdir(parents=True, exist_ok=True)
                _draw(mine, chosen.out / "sets" / f"{name}.png")
                lines += [f"![Predicted over measured, {name}](sets/{name}.png)", ""]
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (chosen.out / "sets.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return 0


def _section(name: str, table: Table) -> Iterator[str]:
    rows = table.to_frame()
    yield f"## {name}"
    yield ""
    where = _JUDGED.get(name)
    judged = f"; judged in [{where}]({where})" if where else "; read, not judged"
    yield f"{rows['source'].iloc[0]}{judged}."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| rows upstream, kept | {sum(t.rows_in for t in table.tallies):,}, {len(rows):,} |"
    for reason, count in _dropped(table).most_common():
        yield f"| left out: {reason} | {count:,}: {REASONS[reason]} |"
    for reason, count in _blanked(table).most_common():
        yield f"| power blanked: {reason} | {count:,} |"
    yield f"| GPUs | {_counted(rows['gpu'])} |"
    yield f"| libraries | {_counted(rows['library'] + ' ' + rows['version'])} |"
    yield f"| models | {rows['model'].nunique()}{_unknown(rows)} |"
    yield f"| formats | {_counted(rows['dtype'])} |"
    yield f"| batch, prompt, output | {', '.join(_range(rows[n]) for n in _SIZES)} |"
    yield f"| noise | {_noise(rows)} |"


_SIZES: Final = ("batch", "prompt", "output")


def _dropped(table: Table) -> Counter[str]:
    found: Counter[str] = Counter()
    for tally in table.tallies:
        found.update(tally.dropped)
    return found


def _blanked(table: Table) -> Counter[str]:
    found: Counter[str] = Counter()
    for tally in table.tallies:
        found.update(tally.power_unusable)
    return found


def _counted(values: pd.Series) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in values.value_counts().items())


def _unknown(rows: pd.DataFrame) -> str:
    without = sorted(rows.loc[rows["zoo"] == "", "model"].unique())
    return f"; without a config in the zoo: {', '.join(without)}" if without else ""


def _range(values: pd.Series) -> str:
    known = values.dropna()
    if known.empty:
        return "not stated"
    low, high = known.min(), known.max()
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def _noise(rows: pd.DataFrame) -> str:
    spread = 100 * rows.loc[(rows["spread"] > 0), "spread"]
    if spread.empty:
        return "no configuration was measured twice"
    return (
        f"{spread.median():.1f}% in the median, {spread.quantile(0.9):.1f}% at the 90th "
        f"percentile, {spread.max():.0f}% at most, over {len(spread):,} configurations"
    )


def _draw(rows: pd.DataFrame, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for estimator, colour in ((SHEET, "#999999"), (FITTED, "#0072b2")):
        mine = rows[rows["estimator"] == estimator]
        one = mine["n_gpus"] == 1
        percent = 100 * (mine["predicted_s"] / mine["measured_s"] - 1).abs().mean()
        label = f"{estimator}: {percent:.1f}% off, {len(mine):,} runs"
        for part, face in ((mine[one], colour), (mine[~one], "none")):
            axes.scatter(
                1e3 * part["measured_s"],
                1e3 * part["predicted_s"],
                s=10,
                facecolors=face,
                edgecolors=colour,
                label=label if len(part) else None,
                zorder=2 if estimator == FITTED else 1,
            )
            label = "" if len(part) else label
    ends = 1e3 * np.array([rows["measured_s"].min(), rows["measured_s"].max()])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    figure.legend(loc="outside lower center", ncols=1)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
