"""How near predicted attention and FFN blocks are: docs/accuracy_blocks.md and .json.

Block corrections (`hymell.estimators.level2`) are judged on models, numbers of heads and GPUs that
neither they nor level 1 have seen; beside them stand the data sheet, level 1's formulas, its sums
and a plain MLP. Corrections that are nearer than the sum are written to hymell/hardware/blocks with
--ship. Needs the measurements (docs/data.md) and calibrations; fits and figures are kept in
build/blocks.

    python benchmarks/blocks.py [--only SOURCE/GPU/LIBRARY ...] [--ship] [--out DIR]

The parts are in benchmarks/blocks_parts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from blocks_parts.page import page, records
from blocks_parts.results import cells, judged, no_results, shippable

from hymell.errors import HymellError
from hymell.estimators.level2.shipped import FOLDER, BlockEntry, BlockEstimates, load, save
from hymell.measure.blocks import read_blocks

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Judge, with --ship write corrections, then the page and the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="SOURCE/GPU/LIBRARY", default=())
    parser.add_argument("--ship", action="store_true", help="write hymell/hardware/blocks")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "blocks")
    chosen = parser.parse_args(arguments)
    try:
        _run(chosen)
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(chosen: argparse.Namespace) -> None:
    rows = read_blocks().to_frame()
    if chosen.only:
        where = rows["source"] + "/" + rows["gpu"] + "/" + rows["library"]
        rows = rows[where.isin(chosen.only)]
        if not len(rows):
            raise no_results()
    every, left = cells(rows, chosen.cache / "level1")
    results = []
    ready: dict[tuple[str, str], list[BlockEntry]] = defaultdict(list)
    for cell in every:
        print(*cell.family, cell.source.stack.gpu, file=sys.stderr, flush=True)
        result = judged(cell, every, chosen.cache / "cells")
        results.append(result)
        if chosen.ship and (entry := shippable(cell, result)) is not None:
            ready[result.gpu, result.library].append(entry)
    for (gpu, library), entries in ready.items():
        save(gpu, library, entries, FOLDER / gpu / f"{library}.json")
    chosen.out.mkdir(parents=True, exist_ok=True)
    listed = ",\n".join(json.dumps(each, allow_nan=False) for each in records(results))
    (chosen.out / "accuracy_blocks.json").write_text(f"[\n{listed}\n]\n", encoding="utf-8")
    text = page(results, left, _shipped())
    (chosen.out / "accuracy_blocks.md").write_text(text, encoding="utf-8")


def _shipped() -> list[BlockEstimates]:
    return [load(path) for path in sorted(FOLDER.glob("*/*.json"))]


if __name__ == "__main__":
    sys.exit(main())
