"""How fast hymell answers, as ratios within one run: python benchmarks/speed.py [-o docs/speed.md].

Each figure is CPU time (user + system) of a fresh process, the smallest of several rounds in which
the contestants take turns, so that a busy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "meta-llama/Meta-Llama-3-8B"
LARGE = "deepseek-ai/DeepSeek-V3"

IMPORTS = "import torch, transformers; from transformers import AutoConfig, AutoModelForCausalLM"

FLOP_COUNTER = f"""
{IMPORTS}
from hymell import sources
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig
config = LlamaConfig(**sources.resolve({MODEL!r}).config)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.empty(1, 1024, dtype=torch.long)
with torch.no_grad(), FlopCounterMode(display=False) as counter:
    out = model(ids, use_cache=True)
assert counter.get_total_flops() > 1e13
"""

FLOP_COUNTER_BOTH = (
    FLOP_COUNTER
    + """
with torch.no_grad(), FlopCounterMode(display=False) as counter:
    model(ids[:, :1], past_key_values=out.past_key_values, use_cache=True)
assert counter.get_total_flops() > 1e10
"""
)

PRICE = f"""
import time, numpy as np, hymell
from hymell.estimators.calibrated import choose
from hymell.estimators.predict import price
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
graph = hymell.trace({MODEL!r})
random = np.random.default_rng(0)
count = COUNT
batch = random.integers(1, 257, count)
prompt = random.integers(1, 8193, count)
output = random.integers(1, 2049, count)
start = time.process_time()
gpu, engine = find_gpu("h100-sxm"), get_engine("vllm")
estimator = choose(gpu, engine.name, CALIBRATION)
costs = price(graph, batch, prompt, output, gpu=gpu, engine=engine, estimator=estimator)
seconds = time.process_time() - start
assert np.isfinite(costs["latency_s"]).all()
print(seconds)
"""

GEMMS = """
import time, numpy as np
from hymell.estimators.calibrated import predict_rows
from hymell.estimators.calibration import shipped
gemm = shipped("h100-sxm", "vllm").estimator(("gemm", "bfloat16", ""))
assert gemm.correction_ is not None
random = np.random.default_rng(0)
count = 1_000_000
sizes = {
    "m": random.integers(1, 8193, count),
    "n": 64 * random.integers(1, 449, count),
    "k": 64 * random.integers(1, 449, count),
    "batch": np.ones(count),
    "copies": np.full(count, 6.0),
}
sizes = {name: values.astype(np.float32) for name, values in sizes.items()}
predict_rows(gemm, {name: values[:1000] for name, values in sizes.items()})
start = time.process_time()
priced = predict_rows(gemm, sizes)
seconds = time.process_time() - start
assert (priced.time_s > 0).all()
print(seconds)
"""

RETRACE = f"""
import time, hymell
from hymell import sources
config = sources.resolve({MODEL!r}).config
hymell.trace(config, use_cache=False)
seconds = []
for heads, kv in ((16, 4), (64, 8), (32, 32), (32, 1)):
    changed = {{**config, "num_attention_heads": heads, "num_key_value_heads": kv}}
    start = time.process_time()
    hymell.trace(changed, use_cache=False)
    seconds.append(time.process_time() - start)
print(min(seconds))
"""


@dataclass(frozen=True)
class Run:
    """A finished process."""

    cpu_s: float
    out: str


def run(arguments: Sequence[str], cache: str, *, threads: int = 1) -> Run:
    """CPU time and output of one process; raises CalledProcessError when it fails."""
    environment = {
        **os.environ,
        "HYMELL_CACHE_DIR": cache,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
    }
    # A user's Python keeps its compiled modules; one that must not would compile hymell each time.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out = process.stdout.read()
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments, out, error)
    return Run(usage.ru_utime + usage.ru_stime, out)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def report(model: str) -> list[str]:
    return [sys.executable, "-m", "hymell", "report", model, "--json"]


def measure(rounds: int) -> dict[str, float]:
    """Every figure by name; seconds of CPU unless the name says otherwise."""
    figures: dict[str, float] = {}

    def keep(name: str, value: float) -> None:
        figures[name] = min(figures.get(name, value), value)

    with tempfile.TemporaryDirectory() as warm:
        run(report(MODEL), warm)
        for _ in range(rounds):
            keep("imports_s", run(python(IMPORTS), warm).cpu_s)
            keep("flop_counter_prefill_s", run(python(FLOP_COUNTER), warm).cpu_s)
            keep("flop_counter_both_s", run(python(FLOP_COUNTER_BOTH), warm).cpu_s)
            with tempfile.TemporaryDirectory() as cold:
                first = run(report(MODEL), cold)
                assert json.loads(first.out)["ttft_s"] > 0
                keep("first_report_s", first.cpu_s)
            keep("cached_report_s", run(report(MODEL), warm).cpu_s)
            for name, calibration, count in (
                ("price_million_s", "none", 1_000_000),
                ("price_calibrated_s", "auto", 100_000),
            ):
                code = f"CALIBRATION, COUNT = {calibration!r}, {count}\n{PRICE}"
                keep(name, float(run(python(code), warm).out))
            keep("gemm_million_s", float(run(python(GEMMS), warm).out))
            keep("retrace_s", float(run(python(RETRACE), warm).out))
        with tempfile.TemporaryDirectory() as cold:
            keep("large_peak_bytes", children_peak(report(LARGE), cold))
    return figures


def children_peak(arguments: list[str], cache: str) -> float:
    """Peak resident bytes of a command that may exit 1: 671 B parameters do not fit one GPU."""
    code = (
        "import resource, subprocess, sys; "
        f"done = subprocess.run({arguments!r}, stdout=subprocess.DEVNULL); "
        "assert done.returncode in (0, 1); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    unit = 1 if sys.platform == "darwin" else 1024
    return float(run(python(code), cache).out) * unit


def rows(f: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """(what, measured, goal, met) for the table."""
    return [
        _row(
            "first report / flop_counter on one prefill",
            f["first_report_s"] / f["flop_counter_prefill_s"],
            1.0,
            "x",
        ),
        _row(
            "first report / flop_counter on prefill and one decode step",
            f["first_report_s"] / f["flop_counter_both_s"],
            1.0,
            "x",
        ),
        _row(
            "first report / importing torch and transformers",
            f["first_report_s"] / f["imports_s"],
            1.5,
            "x",
        ),
        _row("cached report", f["cached_report_s"], 0.5, " s"),
        _row(
            "pricing 1,000,000 workloads by the data sheet, one core",
            f["price_million_s"],
            10.0,
            " s",
        ),
        _row(
            "pricing 100,000 workloads by calibrations, one core",
            f["price_calibrated_s"],
            1.0,
            " s",
        ),
        _row("1,000,000 GEMMs, corrected, one core", f["gemm_million_s"], 1.0, " s"),
        _row("re-trace of a changed config", f["retrace_s"], 0.7, " s"),
        _row("peak memory of a report of DeepSeek-V3", f["large_peak_bytes"] / 1e9, 1.0, " GB"),
    ]


def _row(what: str, value: float, goal: float, unit: str) -> tuple[str, str, str, str]:
    return what, f"{value:.2f}{unit}", f"{goal:g}{unit}", "yes" if value <= goal else "no"


def markdown(figures: dict[str, float], rounds: int) -> str:
    lines = [
        "# Speed",
        "",
        "Written by `benchmarks/speed.py`. CPU seconds of fresh processes, the smallest of "
        f"{rounds} rounds in which the contestants take turns; {platform.machine()}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores.",
        f"The model is {MODEL} unless said otherwise. The first report traces prefill and decode "
        "for every batch and length, and prices them; `torch.utils.flop_counter` counts one shape.",
        "",
        "| what | measured | goal | met |",
        "|---|---|---|---|",
        *(f"| {what} | {value} | {goal} | {met} |" for what, value, goal, met in rows(figures)),
        "",
        "| raw figure | value |",
        "|---|---|",
        *(f"| {name} | {value:.4g} |" for name, value in sorted(figures.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/speed.md"))
    options = parser.parse_args()
    text = markdown(measure(options.rounds), options.rounds)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
