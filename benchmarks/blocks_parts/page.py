"""docs/accuracy_blocks.md from results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from blocks_parts.judge import ANALYTICAL, ESTIMATORS, MLP, OURS, SHEET, SUM
from blocks_parts.results import Left, Record, Result
from hymell.estimators.level2.shipped import BlockEstimates

#: Goals in % on an unseen model, by GPU and block, for blocks of layers that one stack timed.
GOALS: Final[Mapping[tuple[str, str], float]] = {
    ("h100-sxm", "attention"): 2.5,
    ("h100-sxm", "ffn"): 4.0,
}

_INTRO: Final = """# How accurate predicted blocks are

Written by `benchmarks/blocks.py`; records in [accuracy_blocks.json](accuracy_blocks.json). How
blocks are corrected: [estimators/blocks.md](estimators/blocks.md). A block is the attention or the
FFN of one layer; its truth is the sum of layers that upstream timed one by one (Vidur,
LLMServingSim), or one module (aiconfigurator's latent attention).

Errors are MAPE in % of the measured time, on what was left out. **data sheet**: roofline and 3 us
per launch. **analytical**: level 1's formulas alone, fitted to kernels, never to blocks: a purely
analytical composition, as AMALI and LIFE make them. **sum**: level 1 with its corrections.
**MLP**: a plain MLP on the sums of level 1, neither bounded nor fading, as HYMELL has it. **level
2**: what hymell uses. Median to bias are those of level 2; * misses its goal. HYMELL reports 1.98
for attention blocks and 4.62 for FFN blocks on an H100, on its own measurements, which are not
published.
"""

_MODEL: Final = """## A model left out

Level 1 is fitted without any shape of the model that is judged, its near twins and models with the
very same block left out too; what level 2 learns from is priced by level 1 without those shapes
either. Which stage level 2 uses (the sum itself, a multiplier per kind of kernel, a net on top) is
chosen by leaving out one after the other the models that remain, of which it takes three.
"""

_HEADS: Final = """## Latent attention, numbers of heads left out

Only DeepSeek-V3's module was measured, cut to 128..1 heads: a quarter of the numbers of heads left
out (1-2, 4-8, 16-32, 64-128) stands for an unseen model. Level 1 is the shipped calibration of the
same GPU and library, fitted to other tables. Its latent attention is SGLang's under vLLM, whose own
was not measured alone; the module shows what vLLM's takes.
"""

_GPU: Final = """## A GPU left out

Corrections of the other GPUs with the same library, on all blocks of this one. Level 1 of layers is
that of another GPU too, scaled by the data sheets; that of modules is this GPU's own calibration.
For modules on H100 and H200 the corrections of the others were never worse than the sum, by far
better where vLLM's prefill is off; on B200 and L40S, whose kernels are others, they may be worse
than none. A report uses none from abroad.
"""

_HEAD: Final = (
    "| blocks | GPU | library | n | groups | data sheet | analytical | sum | MLP | level 2 | "
    "goal | median | P90 | max | bias |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)

_NONE: Final = """## Blocks without truth

Nobody published whole blocks of windowed attention, of linear attention and state-space mixers, of
experts under a serving engine, or of attention under vLLM, SGLang and TensorRT-LLM but the above.
For them the sum of level 1 stands, and a report says so (`blocks` among its assumptions, "Priced
by" in `hymell blocks`). LLMServingSim's 0.19 profiles of vLLM (RTX 4090, RTX PRO 6000) cover one
and three models: too few to choose a correction by.
"""


def page(results: Sequence[Result], left: Sequence[Left], ships: Sequence[BlockEstimates]) -> str:
    """The page."""
    return "\n".join(_lines(results, left, ships)).rstrip() + "\n"


def _lines(
    results: Sequence[Result], left: Sequence[Left], ships: Sequence[BlockEstimates]
) -> Iterator[str]:
    yield _INTRO
    yield _MODEL
    yield from _table(results, "unseen model")
    yield from _worst(results, "unseen model")
    yield from _stages(results, "unseen model")
    yield _HEADS
    yield from _table(results, "unseen heads")
    yield from _worst(results, "unseen heads")
    yield from _stages(results, "unseen heads")
    yield _GPU
    yield from _table(results, "unseen GPU")
    yield _NONE
    yield "## What ships\n"
    for each in ships:
        for entry in each.entries.values():
            yield f"- {each.gpu}, {each.library}: {entry.describe()}"
    yield "" if ships else "Nothing.\n"
    yield "## Blocks that were not judged\n"
    yield "| source | GPU | what | blocks | why |\n|---|---|---|---|---|"
    for item in left:
        yield f"| {item.source} | {item.gpu} | {item.what} | {item.rows:,} | {item.why} |"


def _table(results: Sequence[Result], split: str) -> Iterator[str]:
    yield _HEAD
    for result in results:
        found = {r["estimator"]: r for r in result.records if r["hold_out"] == split}
        if found:
            yield _row(result, found, split)
    yield ""


def _row(result: Result, found: Mapping[str, Record], split: str) -> str:
    ours = found[OURS]
    goal = GOALS.get((result.gpu, result.block)) if split == "unseen model" else None
    missed = "*" if goal is not None and ours["mape"] > goal else ""
    what = ours["set"].partition(": ")[2]
    cells = [f"{result.source}: {what}", result.gpu, f"{result.library} {result.version}"]
    cells += [f"{ours['rows']:,}", str(ours["models"])]
    cells += [_figure(found[name]["mape"]) for name in (SHEET, ANALYTICAL, SUM, MLP)]
    cells += [f"**{_figure(ours['mape'])}**{missed}", "" if goal is None else f"{goal:g}"]
    cells += [_figure(ours[name]) for name in ("median", "p90", "max")]
    cells += [f"{ours['bias']:+.1f}"]
    return "| " + " | ".join(cells) + " |"


def _figure(percent: float) -> str:
    return f"{percent:.1f}" if percent < 1000 else "over 1000"


def _worst(results: Sequence[Result], split: str) -> Iterator[str]:
    yield "Largest errors of level 2 (mean of a group):"
    yield ""
    yield "| blocks | GPU | groups |"
    yield "|---|---|---|"
    for result in results:
        if split in result.stages:
            what = result.records[0]["set"].partition(": ")[2]
            groups = "; ".join(
                f"{value}: {mape:.1f} (bias {bias:+.1f}, {rows:,} blocks)"
                for _, value, rows, mape, bias in result.worst
            )
            yield f"| {result.source}: {what} | {result.gpu}, {result.library} | {groups} |"
    yield ""


def _stages(results: Sequence[Result], split: str) -> Iterator[str]:
    yield "Stages chosen, and the mean errors on inner hold-outs that they were chosen by:"
    yield ""
    for result in results:
        if split in result.stages:
            what = result.records[0]["set"].partition(": ")[2]
            found: Mapping[str, Any] = result.stages[split]
            count = Counter(choice["stage"] for choice in found.values())
            words = ", ".join(f"{stage} {n} of {len(found)}" for stage, n in count.items())
            errors = [choice["errors"] for choice in found.values() if choice["errors"]]
            means = {
                stage: sum(each[stage] for each in errors) / len(errors)
                for stage in (errors[0] if errors else ())
            }
            tried = ", ".join(f"{stage} {_figure(value)}" for stage, value in means.items())
            yield (
                f"- {result.source}, {result.gpu}, {result.library}, {what}: {words}"
                f"{f' ({tried})' if tried else ' (too few groups to choose)'}"
            )
    yield ""


def records(results: Sequence[Result]) -> list[Record]:
    """All records, by estimator in the order of the tables; null: an error beyond all numbers."""
    order = {name: place for place, name in enumerate(ESTIMATORS)}
    found = [
        {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in record.items()
        }
        for result in results
        for record in result.records
    ]
    return sorted(found, key=lambda r: (r["hold_out"], r["set"], r["gpu"], order[r["estimator"]]))
