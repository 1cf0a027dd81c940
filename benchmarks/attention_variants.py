"""Kernels of an attention variant on published GDN tables: docs/accuracy_attention.md and .json.

`hymell.zoo.attention.GatedDeltaAttention` stands in a Llama of as many heads as a row of the tables
has, is traced and lowered as `hymell attention` does it, and its scan and convolution are priced by
forms fitted without any row of that number of heads. Needs the measurements (docs/data.md), scipy.

    python benchmarks/attention_variants.py [-o docs/accuracy_attention.md]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

import hymell
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.level1.device import Device
from hymell.estimators.level1.estimator import Level1
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.predict import deploy
from hymell.estimators.queries import columns, query
from hymell.hardware import find_gpu
from hymell.measure.judging import Effort, Score, fit, pick, score
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, Operator, Rows, rows_of
from hymell.op_registry.engines import get_engine
from hymell.op_registry.primitives import Conv1d, Primitive, Scan, at
from hymell.zoo.attention import GatedDeltaAttention, replace_attention

PAGE = Path(__file__).parents[1] / "docs" / "accuracy_attention.md"

GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "l40s")
LIBRARY = "vllm"
#: The channels of a head in the tables, which the zoo's module has for keys and values alike.
HEAD_DIM = 128

#: A lighter correction than shipped calibrations have, so that a run takes minutes.
EFFORT = Effort(epochs=20, seeds=(0,))

_PRIMITIVES: dict[str, type] = {"gdn": Scan, "conv1d": Conv1d}
_PHASES = {"context": "prefill", "generation": "decode"}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """Errors in % of one kernel of the variant in one table, every number of heads unseen.

    ``rows`` of the ``of`` rows of the table have a shape that the module can have.
    """

    gpu: str
    library: str
    version: str
    kernel: str
    phase: str
    estimator: str
    rows: int
    of: int
    heads: tuple[int, ...]
    mape: float
    median: float
    p90: float
    max: float
    bias: float


def applicable(rows: Rows) -> NDArray[np.int64]:
    """The heads of each row as the module would have them; 0 where it cannot have that shape.

    It repeats keys for their query heads, so that a table's row has as many key as value heads;
    a convolution has the channels of queries, keys and values together.
    """
    table = rows.table
    if rows.operator.op == "conv1d":
        heads = table["channels"] / (3 * HEAD_DIM)
        known = heads == np.floor(heads)
        return np.where(known, heads, 0).astype(np.int64)
    same = (
        (table["heads"] == table["groups"])
        & (table["key_dim"] == HEAD_DIM)
        & (table["value_dim"] == HEAD_DIM)
    )
    return np.where(same, table["heads"], 0).astype(np.int64)


@cache
def deployment(heads: int, gpu: str) -> Deployment:
    """The module in a Llama of this many heads, lowered by vLLM's rules."""
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=heads * HEAD_DIM,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        replace_attention(model, GatedDeltaAttention)
    return deploy(hymell.trace(model), gpu=find_gpu(gpu), engine=get_engine("vllm"))


def kernels(
    model: Deployment, kind: type, phase: str, batch: Array, length: Array
) -> Iterator[tuple[NDArray[np.bool_], Primitive]]:
    """The variant's kernel of a kind for many workloads: (which of them, sizes as arrays)."""
    prompt = phase == "prefill"
    where = np.array(
        [
            model.region_index("prefill", int(b), int(n), 0)
            if prompt
            else model.region_index("decode", int(b), 1, 64)
            for b, n in zip(batch, length, strict=True)
        ]
    )
    for index in np.unique(where):
        rows = where == index
        [found] = {
            k.primitive: None
            for k in model.lowered(int(index)).kernels
            if isinstance(k.primitive, kind)
        }
        size = (length[rows], 0.0) if prompt else (1.0, 64.0)
        yield rows, at(found, batch[rows], *size)


def predicted(
    model: Deployment, rows: Rows, mine: NDArray[np.bool_], price: Callable[[Primitive], Array]
) -> Array:
    """What ``price`` says of the variant's kernels at the batch and length of some rows."""
    table = rows.table
    batch, length = table["batch"][mine], table["q_len"][mine]
    phase = _PHASES[str(rows.table["phase"][0])]
    times = np.empty(int(mine.sum()))
    for which, primitive in kernels(model, _PRIMITIVES[rows.operator.op], phase, batch, length):
        times[which] = price(primitive)
    return times


def judge(operator: Operator, gpu: str, rows: Rows) -> Iterator[Record]:
    """Errors of data sheet and fitted form, every second number of heads held out in turn."""
    device, board = Device.of(find_gpu(gpu)), find_gpu(gpu)
    heads = applicable(rows)
    numbers = [int(n) for n in np.unique(heads) if n]
    if not numbers:
        return
    found: dict[str, list[Array]] = {"roofline": [], "fitted": []}
    measured: list[Array] = []
    roofline = Roofline()
    groups = rows.groups()
    own = rows.table["channels"] if operator.op == "conv1d" else rows.table["heads"]

    def sheet(primitive: Primitive) -> Array:
        return np.asarray(roofline.time(primitive, board).time_s)

    for fold in (numbers[::2], numbers[1::2]):
        # Rows of so many heads that the module cannot have are left out of the fit as well.
        train = ~np.isin(own, np.unique(own[np.isin(heads, fold)]))
        made = fit(
            rows.forms[0],
            device,
            pick(rows.dims, train),
            rows.measured[train],
            EFFORT,
            operator.recipe,
            groups[train],
        )

        def fitted(primitive: Primitive, made: Level1 = made) -> Array:
            asked: Any = query(primitive)
            return np.asarray(made.predict(columns(asked.sizes())).time_s)

        for number in fold:
            mine = heads == number
            model = deployment(number, gpu)
            found["roofline"].append(predicted(model, rows, mine, sheet))
            found["fitted"].append(predicted(model, rows, mine, fitted))
            measured.append(rows.measured[mine])
    times = np.concatenate(measured)
    for estimator, parts in found.items():
        errors: Score = score("heads", estimator, np.concatenate(parts), times)
        yield Record(
            gpu=gpu,
            library=rows.library,
            version=rows.version,
            kernel="scan" if operator.op == "gdn" else "convolution",
            phase=_PHASES[str(rows.table["phase"][0])],
            estimator=estimator,
            rows=errors.rows,
            of=len(heads),
            heads=tuple(numbers),
            mape=errors.mape,
            median=errors.median,
            p90=errors.p90,
            max=errors.max,
            bias=errors.bias,
        )


def judge_all(root: Path | None) -> Iterator[Record]:
    """vLLM's tables of GDN's scan and convolution, prefill and decode."""
    chosen = [
        operator
        for operator in OPERATORS
        if operator.op in _PRIMITIVES and operator.rows.get("phase") in _PHASES
    ]
    for gpu in GPUS:
        for operator in chosen:
            for rows in rows_of(operator, gpu, LIBRARY, root):
                print(gpu, operator.op, operator.rows["phase"], file=sys.stderr)
                yield from judge(operator, gpu, rows)


_HEAD = """# Accuracy of an attention variant's kernels

Written by `benchmarks/attention_variants.py`; the same figures in
[accuracy_attention.json](accuracy_attention.json). What the command is for:
[attention_variants.md](attention_variants.md).

`gated_delta` of hymell's zoo in the place of a Llama's attention, traced and lowered as
`hymell attention` does it: its scan and its short convolution against what others measured of the
gated delta rule's kernels ([data.md](data.md)) at the same batch, length and number of heads. Every
second number of heads in turn is predicted by a form that was fitted to the rows of the others,
with a lighter correction than shipped calibrations have. The module repeats keys for their query
heads, so only rows with as many key as value heads have a shape that it can have: "rows" counts
them, "of" all of the table. Errors are absolute ones in % of the measured time, in brackets that of
the data-sheet roofline on the same rows. The other variants have no published kernels: they are
priced by the same forms at their data-sheet priors, and the answer says so.
"""


def page(records: Sequence[Record]) -> str:
    """The Markdown page."""
    lines = [
        _HEAD,
        "| GPU | kernels of | kernel | phase | mean | median | 90th | max | bias | rows | of |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    sheets = {_place(r): r for r in records if r.estimator == "roofline"}
    for r in records:
        if r.estimator == "roofline":
            continue
        sheet = sheets[_place(r)]
        lines.append(
            f"| {r.gpu} | {r.library} {r.version} | {r.kernel} | {r.phase} "
            f"| {r.mape:.1f} ({sheet.mape:.0f}) | {r.median:.1f} | {r.p90:.1f} | {r.max:.1f} "
            f"| {r.bias:+.1f} | {r.rows} | {r.of} |"
        )
    return "\n".join([*lines, ""])


def _place(record: Record) -> tuple[str, ...]:
    return record.gpu, record.library, record.version, record.kernel, record.phase


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the JSON beside it; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=PAGE, help="page to write")
    output: Path = parser.parse_args(arguments).output
    try:
        records = list(judge_all(locate()))
    except HymellError as error:
        print(f"attention_variants: {error}", file=sys.stderr)
        return 2
    output.write_text(page(records), encoding="utf-8")
    plain = {"errors": [asdict(record) for record in records]}
    output.with_suffix(".json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
