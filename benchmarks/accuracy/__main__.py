"""The command: see `benchmarks/accuracy_level1.py`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from accuracy import curves, ffn, goals, plots
from accuracy.page import Results, page
from accuracy.records import Record, about, hold_outs, judged, means, repeatability, reported
from accuracy.tables import GPUS, tables
from hymell.errors import HymellError
from hymell.estimators.calibration import FOLDER, TRANSFER_FILE
from hymell.measure.judging import Effort, Split, is_kept
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, Rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MOST_SEEDS = 3


def main() -> int:
    """Run it; 1 where something that it needs is missing."""
    options = _parser().parse_args()
    try:
        if not options.no_plots:
            plots.check_installed()
        run(options)
    except HymellError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Judge what was asked for and write the page, the records and the pictures."""
    effort, root, cache = Effort(options.rows, options.epochs), locate(), options.cache
    errors: list[Record] = []
    repeats: list[Record] = []
    curve: list[Record] = []
    matrix: list[Record] = []
    unjudged: list[Record] = []
    pictures: dict[str, tuple[str, str]] = {}
    learned = set() if not options.no_curve else set(curves.CURVE)
    for gpu, library, rows in tables(options.gpu, options.op, root):
        op = rows.operator.op
        _say(*about(gpu, rows).values())
        splits = hold_outs(rows.splits(), options.seeds)
        if not splits:
            unjudged.append(about(gpu, rows))
        if options.kept:
            splits = [split for split in splits if is_kept(rows, effort, split, cache)]
        errors += judged(gpu, rows, splits, effort, cache)
        repeats += repeatability(gpu, rows)
        if splits and op not in pictures and not options.no_plots:
            pictures[op] = _draw(gpu, rows, splits[0], effort, cache, options.out)
        if (gpu, library) == curves.CURVE_OF and op in curves.CURVE and op not in learned:
            learned.add(op)
            curve += curves.learning_curve(gpu, rows, splits, effort, cache)
        if library == curves.MATRIX_LIBRARY and gpu in curves.MATRIX:
            matrix += curves.transferred(gpu, rows, cache)
    for gpu in options.gpu:
        if gpu in ffn.GPUS and (not options.op or ffn.OP in options.op):
            _say(ffn.OP, gpu)
            errors += ffn.judge_ffn(gpu, root, effort, cache)
    paper = reported(dict.fromkeys(each["op"] for each in errors))
    found = Results(errors, repeats, paper, curve, matrix, pictures, unjudged)
    lines = goals.check(goals.GOALS, means(errors), options.gpu, options.op)
    text = page(found, lines, effort, options.seeds, _asked(sys.argv[1:]))
    options.out.mkdir(parents=True, exist_ok=True)
    options.out.joinpath("accuracy.md").write_text(text, "utf-8")
    # A record a line: thousands of them stay readable, and small changes small.
    listed = ",\n".join(json.dumps(each, allow_nan=False) for each in found.records())
    options.out.joinpath("accuracy.json").write_text(f"[\n{listed}\n]\n", "utf-8")
    if matrix and not options.op and set(options.gpu).issuperset(curves.MATRIX):
        summary = json.dumps(curves.transfer_summary(matrix), indent=1) + "\n"
        FOLDER.joinpath(TRANSFER_FILE).write_text(summary, "utf-8")


def _say(*words: str) -> None:
    print(*words, file=sys.stderr, flush=True)


def _draw(
    gpu: str, rows: Rows, split: Split, effort: Effort, cache: Path, out: Path
) -> tuple[str, str]:
    """Draw one table; the picture's path from the page, and what it shows."""
    op = rows.operator.op
    name = f"accuracy/{op}.png"
    shown = plots.points(gpu, rows, split, effort, cache)
    table = about(gpu, rows)
    title = f"{op}: {gpu}, {rows.library} {rows.version}, {table['dtype']}, {split[0]} held out"
    plots.draw(out / name, title, plots.size_of(op)[0], shown)
    return name, f"{gpu}, {rows.library} {rows.version}, {table['dtype']}, held out: {split[0]}."


def _asked(arguments: list[str]) -> str:
    """What the run was asked for, without the places of its files."""
    hidden = {
        at + shift
        for at, argument in enumerate(arguments)
        if argument in ("--cache", "--out")
        for shift in (0, 1)
    }
    shown = [argument for at, argument in enumerate(arguments) if at not in hidden]
    return f"`{' '.join(shown)}`" if shown else "everything that was measured"


def _parser() -> argparse.ArgumentParser:
    ops = list(dict.fromkeys([*(operator.op for operator in OPERATORS), ffn.OP]))
    parser = argparse.ArgumentParser(
        prog="accuracy_level1.py",
        description="How accurate the level-1 estimators are: docs/accuracy.md and .json.",
        epilog="A run over every op and GPU also renews the transfer errors that hymell ships.",
    )
    parser.add_argument("--gpu", nargs="+", default=GPUS, choices=GPUS, metavar="GPU")
    parser.add_argument(
        "--op", nargs="+", default=(), choices=ops, metavar="OP", help=", ".join(ops)
    )
    parser.add_argument("--cache", type=Path, default=DOCS.parent / "build" / "accuracy")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of accuracy.md and .json")
    parser.add_argument("--rows", type=int, default=Effort().rows, help="most rows of a fit")
    parser.add_argument("--epochs", type=int, default=Effort().epochs)
    parser.add_argument(
        "--seeds",
        type=int,
        default=_MOST_SEEDS,
        choices=range(1, _MOST_SEEDS + 1),
        help="how many of a random hold-out",
    )
    parser.add_argument(
        "--kept", action="store_true", help="fit nothing for errors that are not in the cache"
    )
    parser.add_argument("--no-curve", action="store_true", help="leave the learning curve out")
    parser.add_argument("--no-plots", action="store_true", help="leave the pictures out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
