"""How often 90% intervals hold: docs/accuracy_intervals.md and .json.

Bounds of measured / predicted are fitted without one model after the other, and judged on it, for
every way in which a report prices a run; beside them stands a Gaussian of the same rows. --ship
writes the bounds fitted to all models to hymell/hardware/intervals.json, for the systems and
energies that ship (run benchmarks/end_to_end.py --ship and benchmarks/energy.py --ship first).
Needs the measurements (docs/data.md); what is priced is kept in build/, where those look too.

    python benchmarks/intervals.py [--ship] [--out DIR]

The parts are in benchmarks/bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bounds.coverage import Residuals
from bounds.page import page, records
from bounds.rows import residuals

from hymell.errors import HymellError
from hymell.estimators.intervals import FILE, save, shipped_book

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Judge, write the page and the records, and with --ship the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ship", action="store_true", help=f"write {FILE.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build")
    chosen = parser.parse_args(arguments)
    try:
        times, joules = chosen.cache / "end_to_end", chosen.cache / "energy"
        for folder in (times, joules):
            folder.mkdir(parents=True, exist_ok=True)
        found = Residuals(residuals(times, joules))
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if chosen.ship:
        save(tuple(found.entries()), FILE)
        shipped_book.cache_clear()
    judged = found.judged()
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(records(judged), indent=1) + "\n"
    (chosen.out / "accuracy_intervals.json").write_text(text, encoding="utf-8")
    (chosen.out / "accuracy_intervals.md").write_text(page(judged, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
