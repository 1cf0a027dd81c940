"""The few figures that the README shows, from the records of accuracy.json."""

from __future__ import annotations

from collections.abc import Iterable

from accuracy.records import Record, means

GPUS = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s")

#: What is shown: name, op, format, kind of hold-out. All of vLLM's kernels.
SHOWN = (
    ("GEMM", "gemm", "bfloat16", "shapes"),
    ("attention, prefill", "attention_prefill", "bfloat16/bfloat16", "heads"),
    ("attention, decode", "attention_decode", "bfloat16/bfloat16", "heads"),
    ("MoE, unseen family", "moe", "bfloat16", "family"),
    ("gated delta net", "gdn", "bfloat16/context", "heads"),
)


def headline(records: Iterable[Record]) -> list[str]:
    """A Markdown table: MAPE in % of the corrected estimator, the roofline's in brackets."""
    shown = ("corrected", "roofline")
    theirs = [r for r in records if r["library"] == "vllm" and r["estimator"] in shown]
    found = {
        (each["op"], each["dtype"], each["split"], each["gpu"], each["estimator"]): each["mape"]
        for each in means(theirs)
    }
    lines = [f"| bf16 | {' | '.join(GPUS)} |", "|---|" + "--:|" * len(GPUS)]
    for name, op, dtype, kind in SHOWN:
        cells = []
        for gpu in GPUS:
            ours = found.get((op, dtype, kind, gpu, "corrected"))
            base = found.get((op, dtype, kind, gpu, "roofline"))
            cells.append("" if ours is None or base is None else f"{ours:.1f} ({base:.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines
