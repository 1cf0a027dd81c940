"""How errors grow with fewer measurements of a GPU, down to none: those of another GPU instead."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache as remembered
from functools import partial
from pathlib import Path

import numpy as np

from accuracy.records import Record, about, judged, kept, kind, record
from accuracy.tables import device_of
from hymell.estimators.calibration import FOLDER, Calibration, shipped
from hymell.estimators.fitted import scaled
from hymell.measure.judging import Effort, Split, fingerprint, score
from hymell.measure.operators import Rows
from hymell.measure.splits.gemm import learning_rows

#: The learning curve: training rows, ops, and the GPU and library they are judged on.
SAMPLES = (30, 120, 250, 1000)
CURVE = ("gemm", "attention_decode", "attention_prefill", "moe")
CURVE_OF = ("h100-sxm", "vllm")

#: GPUs between which calibrations are transferred, and the library.
MATRIX = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s")
MATRIX_LIBRARY = "vllm"

_FROM = "from "


def learning_curve(
    gpu: str, rows: Rows, splits: Sequence[Split], effort: Effort, cache: Path
) -> list[Record]:
    """Errors after fitting on a few rows, on the first kind of ``splits``: whole shapes."""
    few = []
    shapes = [split for split in splits if kind(split[0]) == kind(splits[0][0])]
    for seed, (name, train, test) in enumerate(shapes):
        for count in SAMPLES:
            if count <= train.sum():
                drawn = np.zeros(len(train), dtype=bool)
                drawn[learning_rows(train, count, seed)] = True
                few.append((f"{count} samples, {name}", drawn, test))
    wanted = ("analytical", "corrected")
    return [r for r in judged(gpu, rows, few, effort, cache) if r["estimator"] in wanted]


def samples(split: str) -> int:
    """How many rows a record of the learning curve was fitted on."""
    return int(split.partition(" ")[0])


def transferred(target: str, rows: Rows, cache: Path) -> Iterator[Record]:
    """What the shipped calibration of each other GPU, coefficients scaled, says of all ``rows``."""
    for source in MATRIX:
        calibration = _shipped(source)
        if source == target or calibration is None:
            continue
        every = np.ones(len(rows.table), dtype=bool)
        name = fingerprint(rows, Effort(), (f"{_FROM}{source} {_state(source)}", every, every))
        price = partial(_scaled, calibration, source, target, rows)
        yield from kept(cache / f"{name}.json", price)


def _scaled(made: Calibration, source: str, target: str, rows: Rows) -> Iterator[Record]:
    fitted = made.estimator((rows.operator.op, rows.dtype, rows.variant))
    if fitted is None:
        return
    moved = scaled(fitted, device_of(target))
    for corrected in (False, True):
        name = "corrected" if corrected else "analytical"
        predicted = moved.predict(rows.dims, corrected=corrected).time_s
        scored = score(f"{_FROM}{source}", name, predicted, rows.measured)
        yield record(about(target, rows), scored.to_dict())


def source_of(split: str) -> str:
    """The GPU whose calibration a record of the transfer matrix was priced with."""
    return split.removeprefix(_FROM)


def transfer_summary(matrix: Iterable[Record]) -> list[Record]:
    """Mean errors by op and family, as hymell.estimators.calibration reads them."""
    family = {gpu: device_of(gpu).family for gpu in MATRIX}
    groups: dict[tuple[str, bool], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in matrix:
        same = family[source_of(m["split"])] == family[m["gpu"]]
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


@remembered
def _shipped(gpu: str) -> Calibration | None:
    return shipped(gpu, MATRIX_LIBRARY)


@remembered
def _state(gpu: str) -> str:
    """Tells one content of a shipped calibration from another."""
    digest = hashlib.sha256()
    for file in sorted((FOLDER / gpu).glob(f"{MATRIX_LIBRARY}.*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
