"""Which models hymell traces: every case in its own process, the result in docs/coverage.md.

    python benchmarks/trace_coverage.py [--only families,types,configs] [--jobs 2] [--match TEXT]

Cases are the small test families, every `AutoModelForCausalLM` type of the installed transformers
at its default config, and every config.json in --configs (skipped where the folder is absent).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hymell.graph import ModelFacts, Phase, Region
from hymell.op_registry.engines import get_engine
from hymell.op_registry.lower import lower
from hymell.sources import resolve
from hymell.tracer.configs import to_config

ROOT = Path(__file__).resolve().parents[1]
BATCH, PROMPT, CACHED = 2, 128, 128
KINDS = ("families", "types", "configs")
TITLES = {
    "families": "Test families, small size",
    "types": "AutoModelForCausalLM types, default config",
    "configs": "Published config.json files",
}


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--match", default="", help="only cases whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per case")
    parser.add_argument("--configs", type=Path, default=ROOT.parent / "shared/data/hf-configs")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/coverage.md")
    parser.add_argument(
        "--json", type=Path, help="keep the raw results here; kinds not run are taken from it"
    )
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    # The cases are forks of this process: what every trace imports is imported here, once.
    run_case("families", "llama", options.configs)
    results: dict[str, list[dict[str, Any]]] = {}
    if options.json and options.json.is_file():
        results = json.loads(options.json.read_text())
    for kind in options.only.split(","):
        names = [name for name in case_names(kind, options.configs) if options.match in name]
        results[kind] = run_cases(kind, names, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    options.output.write_text(report(results))
    print(f"wrote {options.output}")


def run_cases(kind: str, names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case in its own process, ``--jobs`` at a time, each under the time limit."""
    context = multiprocessing.get_context("fork")
    waiting = list(names)
    running: dict[Any, tuple[str, Any, float]] = {}
    done: dict[str, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=child, args=(send, kind, name, options.configs))
            process.start()
            send.close()
            running[receive] = (name, process, time.monotonic() + options.timeout)
        ready = wait(list(running), timeout=0.2)
        for receive in list(running):
            name, process, deadline = running[receive]
            if receive in ready:
                try:
                    done[name] = receive.recv()
                except EOFError:
                    process.join()
                    reason = f"the process ended with status {process.exitcode}"
                    done[name] = {"name": name, "reason": reason}
            elif time.monotonic() > deadline:
                process.kill()
                done[name] = {"name": name, "reason": f"longer than {options.timeout:.0f} s"}
            else:
                continue
            process.join()
            del running[receive]
            print(json.dumps(done[name]), flush=True)
    return [done[name] for name in names]


def child(send: Connection, kind: str, name: str, configs: Path) -> None:
    """Run one case and send its result; nothing a model asks for is answered."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    send.send(run_case(kind, name, configs))


def case_names(kind: str, configs: Path) -> list[str]:
    """Names of the cases of a kind."""
    if kind == "configs":
        return sorted(path.name for path in configs.glob("*.json")) if configs.is_dir() else []
    if kind == "families":
        sys.path.insert(0, str(ROOT / "tests"))
        from families import FAMILIES

        return list(FAMILIES)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def run_case(kind: str, name: str, configs: Path) -> dict[str, Any]:
    """Build and trace one model; failures become one-line reasons."""
    result: dict[str, Any] = {"name": name}
    try:
        from hymell.tracer.build import build_model
        from hymell.tracer.concrete import count_parameters, trace_once

        config = make_config(kind, name, configs)
        model = build_model(config)
    except Exception as error:
        return {**result, "reason": one_line(error)}
    result["parameters"] = count_parameters(model)
    steps: tuple[tuple[Phase, int, int], ...] = (("prefill", PROMPT, 0), ("decode", 1, CACHED))
    for phase, length, cached in steps:
        start = time.process_time()
        try:
            region = trace_once(model, phase, BATCH, length, cached)
        except Exception as error:
            result[phase] = {"reason": one_line(error)}
            continue
        result[phase] = {
            "seconds": round(time.process_time() - start, 2),
            "nodes": len(region.ops),
            **understood(region, config.model_type),
        }
        if kind == "families":
            full = trace_once(model, phase, BATCH, length, cached, memo=False)
            result[phase]["memo"] = work(region) == work(full)
    return result


def work(region: Region) -> Counter[Any]:
    """What a region runs: op names with all shapes and dtypes, counted over repeats."""
    total: Counter[Any] = Counter()
    for op in region.ops:
        total[op.name, tuple(operand.spec for operand in op.inputs), op.outputs] += op.repeat
    return total


def make_config(kind: str, name: str, configs: Path) -> Any:
    """The config of a case."""
    from transformers import CONFIG_MAPPING

    if kind == "families":
        sys.path.insert(0, str(ROOT / "tests"))
        from families import FAMILIES

        return FAMILIES[name]()
    if kind == "configs":
        return to_config(resolve(configs / name))
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = CONFIG_MAPPING[name]()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    config.architectures = [architecture if isinstance(architecture, str) else architecture[0]]
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def understood(region: Region, model_type: str) -> dict[str, Any]:
    """Share of the memory traffic of ops that the registry understands, and the names of others.

    The FLOPs of an op nobody registered are unknown, its bytes are not.
    """
    facts = ModelFacts("", model_type, "", "bfloat16", 1, 1, 1, {})
    moved: Counter[bool] = Counter()
    unknown: set[str] = set()
    for kernel in lower(region, get_engine("eager"), facts).kernels:
        primitive = kernel.primitive
        size = float(primitive.bytes_read) + float(primitive.bytes_written)
        moved[kernel.understood] += int(kernel.repeat * size)
        if not kernel.understood:
            unknown.add(kernel.name)
    return {"understood": moved[True] / max(1, moved.total()), "unknown": sorted(unknown)}


def one_line(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else text[:197] + "..."


def report(results: dict[str, list[dict[str, Any]]]) -> str:
    """The Markdown report."""
    import torch
    import transformers

    lines = [
        "# What hymell traces",
        "",
        f"Written by `benchmarks/trace_coverage.py` with transformers {transformers.__version__} "
        f"and torch {torch.__version__.partition('+')[0]}: batch {BATCH}, prefill of {PROMPT} "
        f"tokens, decode of one token on {CACHED} cached ones. Each model runs in its own process; "
        "nodes are graph ops with identical layers once, seconds are CPU time of one trace, "
        "understood is the share of memory traffic in ops that the registry knows. Memo = full: "
        "layers traced once give the same ops, shapes, dtypes and counts as all of them traced.",
        "",
    ]
    for kind, rows in results.items():
        traced = {p: sum("nodes" in row.get(p, {}) for row in rows) for p in ("prefill", "decode")}
        lines += [
            f"## {TITLES[kind]}",
            "",
            f"{traced['prefill']} of {len(rows)} traced in prefill, {traced['decode']} in decode.",
            "",
            "| Model | Parameters | Prefill | Decode | Nodes | Seconds "
            "| Understood | Memo = full | Reason |",
            "|---|---|---|---|---|---|---|---|---|",
            *map(table_row, rows),
            "",
        ]
    return "\n".join(lines)


def table_row(row: dict[str, Any]) -> str:
    """One line of the table."""
    phases = [row.get(phase, {}) for phase in ("prefill", "decode")]
    reasons = [row.get("reason", ""), *(phase.get("reason", "") for phase in phases)]
    reasons += [f"unknown: {name}" for phase in phases for name in phase.get("unknown", ())]
    cells = [
        row["name"].removesuffix("_config.json"),
        count(row.get("parameters")),
        *("yes" if "nodes" in phase else "no" for phase in phases),
        pair(phase.get("nodes") for phase in phases),
        pair(phase.get("seconds") for phase in phases),
        pair(percent(phase.get("understood")) for phase in phases),
        pair({True: "yes", False: "NO", None: None}[phase.get("memo")] for phase in phases),
        "; ".join(dict.fromkeys(filter(None, reasons))).replace("|", "/"),
    ]
    return "| " + " | ".join(cells) + " |"


def pair(values: Iterable[Any]) -> str:
    """Prefill and decode side by side."""
    shown = ["-" if value is None else str(value) for value in values]
    return "" if all(value == "-" for value in shown) else " / ".join(shown)


def percent(share: float | None) -> str | None:
    """A share as a percentage."""
    return None if share is None else f"{100 * share:.1f}%"


def count(parameters: int | None) -> str:
    """A parameter count in short."""
    if parameters is None:
        return ""
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"


if __name__ == "__main__":
    main()
