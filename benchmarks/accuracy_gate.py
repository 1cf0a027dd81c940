"""The quick gate: a few held-out errors, refitted on few rows, must not get worse.

Fits a fixed subset of `benchmarks/accuracy_level1.py` with little effort (under two minutes on two
cores) and compares each figure with the one recorded in accuracy_gate.json: it fails where a figure
is worse by more than 5% of itself. Without measurements on the machine (docs/data.md) it says so
and passes.

    python benchmarks/accuracy_gate.py [--record]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from hymell.errors import HymellError
from hymell.estimators.level1.device import Device
from hymell.hardware import load_gpu
from hymell.measure.calibrate import held_out
from hymell.measure.judging import Effort, judge
from hymell.measure.location import locate
from hymell.measure.operators import OPERATORS, rows_of

RECORDED = Path(__file__).with_suffix(".json")

#: Worse by more than this share of the recorded figure fails.
TOLERANCE = 0.05

#: op, GPU, library, format: one of each kind of kernel.
SUBSET = (
    ("gemm", "h100-sxm", "vllm", "bfloat16", ""),
    ("attention_prefill", "h100-sxm", "vllm", "bfloat16", "bfloat16"),
    ("attention_decode", "h100-sxm", "vllm", "bfloat16", "bfloat16"),
    ("moe", "h100-sxm", "vllm", "bfloat16", ""),
    ("rms_norm", "a100-sxm-80gb", "vllm", "float16", ""),
)

EFFORT = Effort(rows=9000, epochs=40, seeds=(0,))


def figures() -> Iterator[tuple[str, float]]:
    """Name and MAPE of the analytical and the corrected estimator on unseen shapes."""
    root = locate()
    known = {operator.op: operator for operator in OPERATORS}
    for op, gpu, library, dtype, variant in SUBSET:
        for rows in rows_of(known[op], gpu, library, root):
            if (rows.dtype, rows.variant) != (dtype, variant):
                continue
            split = held_out(rows)[0]
            for found in judge(rows, Device.of(load_gpu(gpu)), split, EFFORT):
                if found.estimator in ("analytical", "corrected"):
                    yield f"{op} {gpu} {library} {dtype} {found.estimator}", found.mape


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--record", action="store_true", help="keep these figures as the record")
    options = parser.parse_args()
    try:
        locate()
    except HymellError as error:
        print(f"accuracy gate not run: {error}")
        return 0
    found = dict(figures())
    if options.record:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    failed = False
    for name, before in recorded.items():
        now = found.get(name)
        worse = now is None or now > before * (1.0 + TOLERANCE)
        failed |= worse
        print(f"{'WORSE' if worse else 'ok':>5}  {name}: {now} % (recorded {before})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
