"""How near the energy of whole models is: docs/accuracy_energy.md and .json.

The power that boards draw while they run a whole model (`hymell.estimators.level3.energies`) is
fitted per GPU without one model after the other and judged on it, at the measured and at the
predicted time; the form of the fit is chosen without it too. Beside it stand the data sheet, the
power of level 1's kernels, and the plain linear form. With --ship what is nearer than the power of
kernels is written to hymell/hardware/energies. Needs the measurements (docs/data.md) and
calibrations; what is priced is kept in build/energy.

    python benchmarks/energy.py [--ship] [--out DIR]

The parts are in benchmarks/energies.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from energies.held_out import SPECS, held_out_rows, judged
from energies.page import page
from energies.results import records, shipping, worst

from hymell.errors import HymellError
from hymell.estimators.level3.energies import FOLDER, save

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Judge, write the page and the records, and with --ship the energies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ship", action="store_true", help="write hymell/hardware/energies")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "energy")
    chosen = parser.parse_args(arguments)
    try:
        found = [judged(spec, chosen.cache) for spec in SPECS]
        rows = held_out_rows(chosen.cache, found)
        made = shipping(found, rows)
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if chosen.ship:
        for old in FOLDER.glob("*.json"):
            old.unlink()
        for energies in made.energies:
            save(energies, FOLDER / f"{energies.gpu}.json")
    every = list(records(pd.concat([rows, made.tried], ignore_index=True)))
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(every, indent=1) + "\n"
    (chosen.out / "accuracy_energy.json").write_text(text, encoding="utf-8")
    written = page(found, every, list(worst(rows)), made)
    (chosen.out / "accuracy_energy.md").write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
