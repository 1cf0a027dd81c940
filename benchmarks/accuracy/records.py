"""The records of accuracy.json: one estimator's errors on one hold-out of one table."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accuracy.tables import device_of
from hymell.estimators.level1.kernel_energy import energy_op
from hymell.measure.judging import Effort, Split, judge_all
from hymell.measure.operators import FEWEST_ROWS, Rows

#: What identifies a table, and its errors in % of the measured value.
TABLE = ("set", "gpu", "library", "op", "dtype")
FIGURES = ("mape", "median", "p90", "max", "bias")
#: Every key of a record, in order.
KEYS = (*TABLE, "estimator", "split", "rows", *FIGURES)

#: One record; over several hold-outs of a kind ``parts`` counts them.
Record = dict[str, Any]

REPEATABILITY = "repeatability"
PAPER = "HYMELL (paper)"

#: What HYMELL (arXiv 2608.06723) reports on its own H100 data, MAPE in %.
_REPORTED = {
    "gemm": 6.38,
    "rms_norm": 1.69,
    "softmax": 3.27,
    "gdn": 1.91,
    "ffn": 4.62,
    energy_op("gemm"): 5.79,
    energy_op("rms_norm"): 3.38,
    energy_op("softmax"): 1.92,
}

#: Heads held out with one window only, seen under another: an easier question than whole heads.
_EASIER = frozenset({"configs"})

#: Random hold-outs end in the seed, others in the width, the parity or the model they leave out.
_SEED = re.compile(r"[- ](\d)$")
_PART = re.compile(r"[- ](\d+|odd|even)$|(?<=^unseen model) .+$")

#: Longest name of a kernel that tables show.
_WIDEST = 80

#: Fewest measurements of one shape that say how well measurements repeat.
_FEWEST_REPEATED = 10


def kind(split: str) -> str:
    """A hold-out's name without the seed, width or model that it was made with."""
    return _PART.sub("", split)


def hold_outs(splits: Iterable[Split], seeds: int) -> list[Split]:
    """Every hold-out that leaves enough to fit on; of random ones the first ``seeds``."""
    found = []
    for split in splits:
        name, train, test = split
        seed = _SEED.search(name)
        if kind(name) in _EASIER or (seed is not None and int(seed[1]) >= seeds):
            continue
        if train.sum() >= FEWEST_ROWS // 2 and test.any():
            found.append(split)
    return found


def about(gpu: str, rows: Rows) -> Record:
    """What a record says of its table."""
    return {
        "set": f"{rows.source} {rows.version}",
        "gpu": gpu,
        "library": rows.library,
        "op": rows.operator.op,
        "dtype": "/".join(part for part in (rows.dtype, _short(rows.variant)) if part),
    }


def _short(variant: str) -> str:
    """A kernel's name; of a C++ signature the names that say what it does."""
    if len(variant) <= _WIDEST:
        return variant
    return " ".join(dict.fromkeys(re.findall(r"\w*(?:Functor|[Kk]ernel|Impl)\w*", variant)))


def record(table: Mapping[str, Any], score: Mapping[str, Any]) -> Record:
    """A record of accuracy.json."""
    return {key: table[key] if key in TABLE else score[key] for key in KEYS}


def judged(
    gpu: str, rows: Rows, splits: Iterable[Split], effort: Effort, cache: Path
) -> list[Record]:
    """The errors of every estimator of a table on its hold-outs."""
    table = about(gpu, rows)
    scores = judge_all(rows, device_of(gpu), effort, splits, cache)
    return [record(table, score) for score in scores]


def repeatability(gpu: str, rows: Rows) -> list[Record]:
    """How far measurements of one shape lie from their mean, in %: half their range.

    Nothing where fewer than ten shapes were measured more than once. Distances have no sign, so
    the bias is None.
    """
    twice = rows.table["repeats"] > 1
    if twice.sum() < _FEWEST_REPEATED:
        return []
    error = 50.0 * rows.table["spread"][twice]
    figures = (error.mean(), np.median(error), np.percentile(error, 90), error.max())
    score = {
        "estimator": REPEATABILITY,
        "split": "repeats",
        "rows": int(twice.sum()),
        **{name: round(float(v), 3) for name, v in zip(FIGURES[:4], figures, strict=True)},
        "bias": None,
    }
    return [record(about(gpu, rows), score)]


def reported(ops: Iterable[str]) -> list[Record]:
    """What the paper says of these ops; the paper prints no more than the MAPE."""
    unknown = dict.fromkeys(KEYS)
    return [
        {
            **unknown,
            "set": "HYMELL arXiv 2608.06723",
            "gpu": "H100",
            "op": op,
            "estimator": PAPER,
            "mape": _REPORTED[op],
        }
        for op in ops
        if op in _REPORTED
    ]


def means(found: Iterable[Record]) -> list[Record]:
    """One record per table, estimator and kind of hold-out: figures averaged, rows summed.

    ``max`` is the largest; ``parts`` says how many hold-outs there were.
    """
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for each in found:
        table = tuple(each[key] for key in TABLE)
        groups[*table, each["estimator"], kind(each["split"])].append(each)
    return [_mean(split, group) for (*_, split), group in groups.items()]


def _mean(split: str, group: list[Record]) -> Record:
    figures = {name: float(np.mean([each[name] for each in group])) for name in FIGURES}
    return {
        **group[0],
        "split": split,
        "rows": sum(each["rows"] for each in group),
        **figures,
        "max": max(each["max"] for each in group),
        "parts": len(group),
    }


def kept(file: Path, make: Callable[[], Iterator[Record]]) -> list[Record]:
    """What ``make`` gives, from ``file`` where it was made before."""
    if file.is_file():
        found: list[Record] = json.loads(file.read_text(encoding="utf-8"))
        return found
    made = list(make())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made), encoding="utf-8")
    return made
