"""How fast a sweep goes: python benchmarks/sweep.py [-o docs/speed_sweep.md].

CPU seconds of one process for what one core does, wall time for what two workers gain: run it on a
machine that does nothing else. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

MODEL = "meta-llama/Meta-Llama-3-8B"

#: Architectures shaped like the model; more than a process remembers the graphs of.
VALUES = {
    "num_attention_heads": [16, 32, 64],
    "num_key_value_heads": [4, 8, 16],
    "num_hidden_layers": [28, 32],
    "intermediate_size": [12288, 14336],
}

ARCHITECTURES = f"""
import json, time, hymell
hymell.sweep({MODEL!r}, {{"num_attention_heads": [32]}})
def timed(**how):
    cpu, wall = time.process_time(), time.perf_counter()
    found = hymell.sweep({MODEL!r}, {VALUES!r}, **how)
    return found.architectures, time.process_time() - cpu, time.perf_counter() - wall
count, cpu_s, _ = timed()
count_2, cpu_2_s, _ = timed(gpu=["h100-sxm", "l40s"], batch=[1, 8, 64])
print(json.dumps({{"architectures": count, "cpu_s": cpu_s, "cpu_6_points_s": cpu_2_s}}))
"""

TRACES = f"""
import json, time
from itertools import product
from hymell import sources
from hymell.api.sweeping import trace_architecture
config = sources.resolve({MODEL!r}).config
trace_architecture("warm", None, config)
values = {VALUES!r}
configs = [{{**config, **dict(zip(values, choice))}} for choice in product(*values.values())]
start = time.process_time()
for changed in configs:
    trace_architecture("changed", None, changed)
print(json.dumps({{"traces": len(configs), "cpu_s": time.process_time() - start}}))
"""

POINTS = f"""
import json, time, hymell
import numpy as np
def some(low, high):
    return np.unique(np.geomspace(low, high, 72).astype(int)).tolist()
grid = dict(batch=some(1, 1024), prompt=some(64, 8192), output=some(16, 4096))
hymell.sweep({MODEL!r}, batch=[1, 2])
found = {{}}
for calibration in ("auto", "none"):
    start = time.process_time()
    points = hymell.sweep({MODEL!r}, calibration=calibration, **grid).points
    found[calibration] = time.process_time() - start
from hymell.estimators.calibrated import choose
from hymell.estimators.predict import price
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
gpu, engine = find_gpu("h100-sxm"), get_engine("vllm")
random = np.random.default_rng(0)
sizes = [random.integers(1, high, 10_000) for high in (257, 8193, 2049)]
start = time.process_time()
price(hymell.trace({MODEL!r}), *sizes, gpu=gpu, engine=engine, estimator=choose(gpu, "vllm"))
random_s = time.process_time() - start
print(json.dumps({{"points": points, "auto_s": found["auto"], "none_s": found["none"],
                   "random_points": 10_000, "random_s": random_s}}))
"""

SCALING = f"""
import json, time, hymell
def seconds(workers, turn):
    # Another vocabulary each time: no process remembers such a graph.
    values = {{**{VALUES!r}, "vocab_size": [128256 + 64 * turn]}}
    start = time.perf_counter()
    hymell.sweep({MODEL!r}, values, workers=workers)
    return time.perf_counter() - start
if __name__ == "__main__":
    found = {{1: [], 2: []}}
    for workers in (1, 2):  # imports, and processes that stay
        hymell.sweep({MODEL!r}, {{"num_attention_heads": [16, 32, 64, 128]}}, workers=workers)
    for turn in range(ROUNDS):
        for workers in (1, 2):
            found[workers].append(seconds(workers, 2 * turn + workers))
    print(json.dumps({{"one_s": min(found[1]), "two_s": min(found[2])}}))
"""


def run(code: str) -> dict[str, float]:
    """The JSON that a fresh process prints last."""
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(rounds: int) -> dict[str, float]:
    """Every figure by name."""
    traces, sweeps, points = run(TRACES), run(ARCHITECTURES), run(POINTS)
    scaling = run(SCALING.replace("ROUNDS", str(rounds)))
    return {
        "architectures": sweeps["architectures"],
        "traces_per_s": traces["traces"] / traces["cpu_s"],
        "architectures_per_s": sweeps["architectures"] / sweeps["cpu_s"],
        "architectures_6_points_per_s": sweeps["architectures"] / sweeps["cpu_6_points_s"],
        "grid_points": points["points"],
        "grid_points_per_s": points["points"] / points["auto_s"],
        "grid_points_data_sheet_per_s": points["points"] / points["none_s"],
        "random_points_per_s": points["random_points"] / points["random_s"],
        "one_worker_s": scaling["one_s"],
        "two_workers_s": scaling["two_s"],
        "scaling": scaling["one_s"] / scaling["two_s"],
        "load": os.getloadavg()[0],
    }


def markdown(f: dict[str, float]) -> str:
    """The page."""
    cores = os.cpu_count()
    rows = [
        ("architectures traced anew, per second and core", f["traces_per_s"], None, ".1f"),
        (
            "architectures traced and priced at one point, per second and core",
            f["architectures_per_s"],
            5.0,
            ".1f",
        ),
        (
            "the same at 6 points (2 GPUs, 3 batches), per second and core",
            f["architectures_6_points_per_s"],
            None,
            ".1f",
        ),
        (
            "workload points of a grid, calibrated, per second and core",
            f["grid_points_per_s"],
            200_000.0,
            ",.0f",
        ),
        (
            "the same by the data sheet",
            f["grid_points_data_sheet_per_s"],
            None,
            ",.0f",
        ),
        (
            "random workload points, calibrated (`price`, no grid)",
            f["random_points_per_s"],
            None,
            ",.0f",
        ),
        ("two local workers against one, wall time", f["scaling"], 1.7, ".2f"),
    ]
    lines = [
        "# Speed of sweeps",
        "",
        f"Written by `benchmarks/sweep.py`; {platform.machine()}, Python "
        f"{platform.python_version()}, {cores} cores. CPU seconds of a process after its imports, "
        f"wall time for workers (load {f['load']:.1f} at the end). "
        f"{f['architectures']:.0f} architectures shaped like {MODEL} "
        f"(heads, KV heads, layers, FFN width), each traced anew; a grid of "
        f"{f['grid_points']:,.0f} workloads (batch, prompt, output), its memory and its table "
        "counted in.",
        "",
        "| what | measured | goal | met |",
        "|---|--:|--:|---|",
        *(_row(*row) for row in rows),
        "",
        "| raw figure | value |",
        "|---|--:|",
        *(f"| {name} | {value:.4g} |" for name, value in f.items()),
        "",
    ]
    return "\n".join(lines)


def _row(what: str, value: float, goal: float | None, form: str) -> str:
    shown = "" if goal is None else f"{goal:,g}"
    met = "" if goal is None else "yes" if value >= goal else "no"
    return f"| {what} | {value:{form}} | {shown} | {met} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of the comparison of workers")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/speed_sweep.md"))
    options = parser.parse_args()
    text = markdown(measure(options.rounds))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
