"""Refit the calibrations that hymell ships, in hymell/hardware/calibrations.

Needs the measurements (docs/data.md). Each op is written when it is done. Held-out errors are kept
in the folder that `benchmarks/accuracy_level1.py` uses too, so that either saves the other's work.

    python benchmarks/calibrations.py [--only GPU/LIBRARY ...] [--op OP ...] [--cache DIR]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hymell.estimators.calibration import FOLDER, load
from hymell.measure.calibrate import NoMeasurementsError, calibrate
from hymell.measure.judging import Effort
from hymell.measure.operators import OPERATORS

#: GPU and library of every calibration that is shipped.
SHIPPED = (
    *(
        (gpu, library)
        for library in ("vllm", "trtllm", "sglang")
        for gpu in ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s")
    ),
    ("rtx-pro-6000-server", "vllm"),
    ("rtx-4090", "vllm"),
    ("rtx-a6000", "vllm"),
    ("rtx-3090", "vllm"),
    ("a40", "vllm"),
)

CACHE = Path(__file__).resolve().parents[1] / "build" / "accuracy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=(), metavar="GPU/LIBRARY")
    parser.add_argument("--op", nargs="*", default=(), help="fit these, keep the others")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--no-judge", action="store_true", help="leave the held-out errors out")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--resume", action="store_true", help="skip ops that a file has already")
    parser.add_argument("--rows", type=int, default=Effort().rows, help="most rows of a fit")
    parser.add_argument("--epochs", type=int, default=Effort().epochs)
    options = parser.parse_args()
    start = time.monotonic()
    for gpu, library in SHIPPED:
        if options.only and f"{gpu}/{library}" not in options.only:
            continue

        def say(step: str, where: str = f"{gpu}/{library}") -> None:
            print(
                f"{time.monotonic() - start:7.0f} s  {where}  {step}", file=sys.stderr, flush=True
            )

        out = options.folder / gpu / f"{library}.json"
        for op in options.op or dict.fromkeys(operator.op for operator in OPERATORS):
            there = load(out).entries if out.is_file() else {}
            if options.resume and any(key[0] == op for key in there):
                continue
            try:
                # One op at a time: what is done stays done when a run is stopped.
                calibrate(
                    gpu,
                    library,
                    out=out,
                    ops=(op,),
                    effort=Effort(options.rows, options.epochs),
                    judged=not options.no_judge,
                    cache=options.cache,
                    progress=say,
                )
            except NoMeasurementsError:
                continue


if __name__ == "__main__":
    main()
