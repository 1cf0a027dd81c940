"""How near predictions of whole models are: docs/accuracy_end_to_end.md and .json.

A system's coefficients (`hymell.estimators.level3`) are fitted per engine and GPU without one model
after the other, and judged on it; the form of the fit is chosen without it too. Beside them stand
the data sheet and the plain composition of level 1 with typical overheads. Coefficients that are
nearer than the plain composition are written to hymell/hardware/systems with --ship. Needs the
measurements (docs/data.md) and calibrations; what is priced is kept in build/end_to_end.

    python benchmarks/end_to_end.py [--only CAMPAIGN ...] [--ship] [--out DIR]

The parts are in benchmarks/systems.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from systems.campaigns import SPECS
from systems.page import page
from systems.results import Result, judged, not_lent

from hymell.errors import HymellError
from hymell.estimators.level3.system import save, shipped_system, system_file

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Judge, write the page and the records, and with --ship the systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[spec.name for spec in SPECS])
    parser.add_argument("--ship", action="store_true", help="write hymell/hardware/systems")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "end_to_end")
    chosen = parser.parse_args(arguments)
    found: list[Result] = []
    try:
        for spec in SPECS:
            if not chosen.only or spec.name in chosen.only:
                print(spec.name, file=sys.stderr, flush=True)
                before = [system for result in found for system in result.systems]
                found.append(judged(spec, chosen.cache, before))
        found = not_lent(found)
        if chosen.ship:
            for result in found:
                _ship(result)
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    records = [record for result in found for record in result.records]
    text = json.dumps(records, indent=1) + "\n"
    (chosen.out / "accuracy_end_to_end.json").write_text(text, encoding="utf-8")
    (chosen.out / "accuracy_end_to_end.md").write_text(page(found), encoding="utf-8")
    return 0


def _ship(result: Result) -> None:
    """Write the systems; drop what is not supported."""
    for (gpu, engine), version in result.unfit:
        system_file(engine, gpu, version).unlink(missing_ok=True)
    for system in result.systems:
        save(system, system_file(system.engine, system.gpu, system.version))
    shipped_system.cache_clear()


if __name__ == "__main__":
    sys.exit(main())
