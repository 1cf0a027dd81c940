"""How much nearer a few runs of one's own bring an estimate: docs/accuracy_own_runs.md and .json.

For every configuration of the end-to-end campaigns (model, GPU, engine, format, number of GPUs)
one, two and three of its runs calibrate the estimate (`hymell.estimators.offset_fit`), and the
others judge it. The estimate is that of a system which never saw the model (`systems.judge`). The
widths of the priors are chosen without the campaign that a line is about. Needs the measurements
(docs/data.md); what is priced is kept in build/end_to_end.

    python benchmarks/own_runs.py [--out DIR]

The parts are in benchmarks/own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from own.energy import judged_energy, records
from own.judge import judged
from own.page import page
from own.rows import campaigns

from hymell.errors import HymellError

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Judge, and write the page and the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "end_to_end")
    chosen = parser.parse_args(arguments)
    try:
        result = judged(campaigns(chosen.cache))
        print("energy", file=sys.stderr, flush=True)
        energy = judged_energy()
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    content = {"held_out_systems": result.to_dict(), "reports": records(energy)}
    text = json.dumps(content, indent=1) + "\n"
    (chosen.out / "accuracy_own_runs.json").write_text(text, encoding="utf-8")
    (chosen.out / "accuracy_own_runs.md").write_text(page(result, energy), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
