"""How accurate the level-1 estimators are: docs/accuracy.md and docs/accuracy.json.

Every estimator is fitted without some whole shapes, and without the longest sizes, and judged on
them; the data-sheet roofline and HYMELL's own forms stand beside it. Needs the measurements
(docs/data.md). Results are kept per op, GPU, library and hold-out, so that a run that was stopped
goes on where it was: the first takes hours on two cores, one without changes seconds.

    python benchmarks/accuracy_level1.py [--gpu NAME ...] [--op OP ...] [--cache DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hymell.estimators.calibrated import scaled
from hymell.estimators.calibration import FOLDER, TRANSFER_FILE, shipped
from hymell.estimators.level1.device import Device
from hymell.hardware import load_gpu
from hymell.measure.calibrate import held_out
from hymell.measure.judging import Effort, fit, judge_all, pick, score
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, Operator, Rows, rows_of

DOCS = Path(__file__).resolve().parents[1] / "docs"

GPUS = (
    "h100-sxm",
    "h200-sxm",
    "a100-sxm-80gb",
    "b200-sxm",
    "l40s",
    "a40",
    "rtx-a6000",
    "rtx-3090",
    "rtx-4090",
    "rtx-pro-6000-server",
    "a100-pcie-40gb",
    "l4",
    "t4",
    "v100-sxm-32gb",
)
LIBRARIES = ("vllm", "trtllm", "sglang", "pytorch")

#: What HYMELL (arXiv 2608.06723) reports on its own H100 data, time, MAPE in %.
PAPER = {"rms_norm": 1.69, "softmax": 3.27, "gemm": 6.38, "gdn": 1.91}

#: The learning curve's training rows, and the transfer matrix's GPUs.
SAMPLES = (30, 120, 250, 1000)
CURVE = ("gemm", "attention_decode", "attention_prefill")
MATRIX = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s")


def sets(gpus: Iterable[str], ops: Iterable[str], root: Path) -> Iterator[tuple[str, Rows]]:
    """Every table that an estimator is fitted on; what a library borrows counts once."""
    wanted = set(ops)
    for gpu in gpus:
        seen = set()
        for library in LIBRARIES:
            for operator in OPERATORS:
                if wanted and operator.op not in wanted:
                    continue
                for rows in rows_of(operator, gpu, library, root):
                    key = (operator.op, rows.library, rows.version, rows.dtype, rows.variant)
                    if key not in seen:
                        seen.add(key)
                        yield gpu, rows


def repeatability(rows: Rows) -> float | None:
    """Mean distance in % of two measurements of one shape from their mean; None without repeats."""
    twice = rows.table["repeats"] > 1
    if twice.sum() < 10:
        return None
    return round(float(50.0 * rows.table["spread"][twice].mean()), 2)


def records(gpu: str, rows: Rows, effort: Effort, cache: Path) -> Iterator[dict[str, Any]]:
    """The scores of one table as docs/accuracy.json lists them."""
    device = Device.of(load_gpu(gpu))
    for found in judge_all(rows, device, effort, held_out(rows), cache):
        yield {
            "set": f"{rows.source} {rows.version}",
            "gpu": gpu,
            "library": rows.library,
            "op": rows.operator.op,
            "dtype": "/".join(part for part in (rows.dtype, rows.variant) if part),
            **{key: found[key] for key in ("estimator", "split")},
            **{key: found[key] for key in ("rows", "mape", "median", "p90", "max", "bias")},
        }


def learning_curve(root: Path, effort: Effort) -> Iterator[dict[str, Any]]:
    """Errors on H100 vllm held-out shapes after fitting on a few rows."""
    device = Device.of(load_gpu("h100-sxm"))
    for operator in OPERATORS:
        if operator.op not in CURVE:
            continue
        rows = next(rows_of(operator, "h100-sxm", "vllm", root), None)
        if rows is None:
            continue
        dims, time_s = rows.dims, rows.table["time_s"]
        _, train, test = held_out(rows)[0]
        form = rows.forms[0]
        for count in SAMPLES:
            few = np.random.default_rng(0).choice(np.flatnonzero(train), count, replace=False)
            made = fit(form, device, pick(dims, few), time_s[few], effort, operator.recipe)
            for corrected in (False, True):
                predicted = made.predict(pick(dims, test), corrected=corrected).time_s
                name = "corrected" if corrected else "analytical"
                yield {
                    "op": operator.op,
                    "samples": count,
                    **score("shapes", name, predicted, time_s[test]).to_dict(),
                }


def transfer_matrix(root: Path) -> Iterator[dict[str, Any]]:
    """What each shipped vllm calibration says of every other GPU, coefficients scaled."""
    for operator in OPERATORS:
        for target in MATRIX:
            for rows in rows_of(operator, target, "vllm", root):
                yield from _transferred(operator, rows, target)


def _transferred(operator: Operator, rows: Rows, target: str) -> Iterator[dict[str, Any]]:
    dims, time_s = rows.dims, rows.table["time_s"]
    device = Device.of(load_gpu(target))
    for source in MATRIX:
        calibration = shipped(source, "vllm")
        key = (operator.op, rows.dtype, rows.variant)
        made = None if calibration is None else calibration.estimator(key)
        if made is None or source == target:
            continue
        moved = scaled(made, device)
        for corrected in (False, True):
            name = "corrected" if corrected else "analytical"
            predicted = moved.predict(dims, corrected=corrected).time_s
            yield {
                "op": operator.op,
                "dtype": "/".join(part for part in (rows.dtype, rows.variant) if part),
                "source": source,
                "target": target,
                **score("all", name, predicted, time_s).to_dict(),
            }


def transfer_summary(matrix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean errors by op and family, as hymell.estimators.calibration reads them."""
    family = {gpu: Device.of(load_gpu(gpu)).family for gpu in MATRIX}
    groups: dict[tuple[str, bool], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in matrix:
        same = family[m["source"]] == family[m["target"]]
        groups[m["op"], same][m["estimator"]].append(m["mape"])
    return [
        {
            "op": op,
            "same_family": same,
            "pairs": len(found["analytical"]),
            **{name: round(float(np.mean(values)), 2) for name, values in found.items()},
        }
        for (op, same), found in sorted(groups.items())
    ]


def table_lines(found: list[dict[str, Any]], noise: Mapping[tuple[str, ...], float]) -> list[str]:
    """One line per table and hold-out, the estimators side by side."""
    lines = [
        "| GPU | measured | op | format | held out | rows | roofline | paper's form | analytical |"
        " **corrected** | median | P90 | max | bias | repeats |",
        "|---|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in found:
        key = tuple(str(record[k]) for k in ("gpu", "library", "set", "op", "dtype", "split"))
        groups[key][record["estimator"]] = record
    for (gpu, library, name, op, dtype, split), by in groups.items():
        best = by.get("corrected") or by["analytical"]
        others = [e for e in by if e not in ("roofline", "analytical", "corrected")]
        paper = f"{by[others[0]]['mape']:.1f}" if others else ""
        repeats = noise.get((gpu, library, op, dtype))
        cells = (
            gpu,
            f"{library} {name.split(' ', 1)[1]}",
            op,
            dtype,
            split,
            f"{best['rows']:,}",
            f"{by['roofline']['mape']:.1f}",
            paper,
            f"{by['analytical']['mape']:.1f}",
            f"**{by['corrected']['mape']:.1f}**" if "corrected" in by else "",
            *(f"{best[k]:.1f}" for k in ("median", "p90", "max", "bias")),
            "" if repeats is None else f"{repeats:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shown_arguments() -> str:
    """What the run was asked for, without the places of its files."""
    asked = sys.argv[1:]
    hidden = {
        i + shift for i, a in enumerate(asked) if a in ("--cache", "--out") for shift in (0, 1)
    }
    kept = [argument for i, argument in enumerate(asked) if i not in hidden]
    return f"`{' '.join(kept)}`" if kept else "everything that was measured"


def page(
    found: list[dict[str, Any]],
    noise: Mapping[tuple[str, ...], float],
    curve: list[dict[str, Any]],
    matrix: list[dict[str, Any]],
    effort: Effort,
) -> str:
    """docs/accuracy.md."""
    lines = [
        "# Accuracy of the level-1 estimators",
        "",
        "Written by `make accuracy`; the figures are also in [accuracy.json](accuracy.json).",
        f"This run: {shown_arguments()}. Some forms were developed with some of these tables in",
        "view: [docs/estimators](estimators) says which.",
        "",
        "Errors are % of the measured time, on rows that were held out of the fit: whole shapes",
        "(all m of a fifth of the weights' shapes, whole head or expert configurations, whole",
        "widths), and whole ranges (the longest lengths, the largest sizes). Seed 0 where a",
        "hold-out is random.",
        "",
        "- **roofline**: data-sheet time + 3 us",
        "- **paper's form**: HYMELL's own regimes (arXiv 2608.06723), fitted on the same rows",
        "- **analytical**: the fitted physical form; **corrected**: with its bounded residual;",
        "  median to bias are of the latter",
        "- **repeats**: how far measurements of one shape are from their mean: nothing gets below",
        "",
        f"Fits see at most {effort.rows:,} rows, drawn with a fixed seed; corrections are"
        f" {len(effort.seeds)} nets of {effort.epochs} epochs.",
        "HYMELL reports for its own H100 data: "
        + ", ".join(f"{op} {value}" for op, value in PAPER.items())
        + ".",
        "",
        "## Held-out errors",
        "",
        *table_lines(found, noise),
    ]
    if curve:
        lines += [
            "",
            "## Learning curve",
            "",
            "H100, vllm, held-out shapes, MAPE: analytical / corrected.",
            "",
        ]
        lines += ["| op | " + " | ".join(map(str, SAMPLES)) + " |", "|---|" + "--:|" * len(SAMPLES)]
        for op in dict.fromkeys(c["op"] for c in curve):
            cells = []
            for count in SAMPLES:
                by = {c["estimator"]: c for c in curve if (c["op"], c["samples"]) == (op, count)}
                cells.append(f"{by['analytical']['mape']:.1f} / {by['corrected']['mape']:.1f}")
            lines.append(f"| {op} | {' | '.join(cells)} |")
    if matrix:
        lines += ["", "## Transfer between GPUs", ""]
        lines += ["vllm calibrations, coefficients scaled as their data-sheet priors, judged on"]
        lines += [
            "all rows of another GPU, MAPE: analytical / corrected. Rows: fitted on; columns:",
            "judged.",
            "",
        ]
        for op in dict.fromkeys((m["op"], m["dtype"]) for m in matrix):
            mine = [m for m in matrix if (m["op"], m["dtype"]) == op]
            lines += [f"### {op[0]} {op[1]}", "", "| | " + " | ".join(MATRIX) + " |"]
            lines += ["|---|" + "--:|" * len(MATRIX)]
            for source in MATRIX:
                cells = [_cell(mine, source, target) for target in MATRIX]
                lines.append(f"| {source} | {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cell(matrix: list[dict[str, Any]], source: str, target: str) -> str:
    by = {
        m["estimator"]: m["mape"] for m in matrix if (m["source"], m["target"]) == (source, target)
    }
    return f"{by['analytical']:.1f} / {by['corrected']:.1f}" if by else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--gpu", nargs="*", default=GPUS)
    parser.add_argument("--op", nargs="*", default=())
    parser.add_argument("--cache", type=Path, default=DOCS.parent / "build" / "accuracy")
    parser.add_argument("--no-curve", action="store_true", help="leave the learning curve out")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of accuracy.md and .json")
    parser.add_argument("--rows", type=int, default=Effort().rows, help="most rows of a fit")
    parser.add_argument("--epochs", type=int, default=Effort().epochs)
    options = parser.parse_args()
    effort, root = Effort(options.rows, options.epochs), locate()
    found: list[dict[str, Any]] = []
    noise: dict[tuple[str, ...], float] = {}
    for gpu, rows in sets(options.gpu, options.op, root):
        print(
            f"{gpu} {rows.library} {rows.operator.op} {rows.dtype} {rows.variant}", file=sys.stderr
        )
        mine = list(records(gpu, rows, effort, options.cache))
        found += mine
        repeats = repeatability(rows)
        if repeats is not None and mine:
            noise[gpu, rows.library, rows.operator.op, mine[0]["dtype"]] = repeats
    curve = [] if options.no_curve else list(learning_curve(root, effort))
    matrix = list(transfer_matrix(root))
    if matrix:
        summary = json.dumps(transfer_summary(matrix), indent=1) + "\n"
        FOLDER.joinpath(TRANSFER_FILE).write_text(summary, "utf-8")
    text = page(found, noise, curve, matrix, effort)
    options.out.joinpath("accuracy.md").write_text(text, "utf-8")
    options.out.joinpath("accuracy.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
