"""docs/accuracy_end_to_end.md: the records in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hymell.estimators.level3.terms import TERMS
from systems.predictions import (
    ABROAD,
    ANALYTIC,
    COMPOSED,
    FITTED,
    NETWORK,
    SHEET,
    SHIPPED,
    SIBLING,
    UNBOUNDED,
)
from systems.results import Record, Result

#: (set, gpu, library) -> goal in % of the records of fitted systems.
GOALS: Final = {
    ("argonne: latency, 1 GPU", "h100-sxm", "vllm"): 4.0,
    ("argonne: latency, 1 GPU", "h100-sxm", "trtllm"): 3.5,
    ("argonne: latency, 1 GPU", "a100-sxm-40gb", "vllm"): 4.0,
    ("argonne: latency, 1 GPU", "a100-sxm-40gb", "trtllm"): 4.0,
    ("argonne: latency, 1-4 GPUs", "h100-sxm", "vllm"): 5.5,
    ("argonne: latency, 1-4 GPUs", "h100-sxm", "trtllm"): 5.5,
    ("argonne: latency, 1-4 GPUs", "a100-sxm-40gb", "vllm"): 5.5,
    ("argonne: latency, 1-4 GPUs", "a100-sxm-40gb", "trtllm"): 5.5,
    ("argonne: latency, 1 GPU, batch 1, Llama-3-8B", "h100-sxm", "vllm"): 2.5,
    ("argonne: latency, 1 GPU, batch 1, Llama-3-8B", "h100-sxm", "trtllm"): 2.5,
    ("splitwise: prefill", "h100-sxm", "vllm"): 9.0,
    ("splitwise: decode", "h100-sxm", "vllm"): 8.0,
    ("mlenergy_v3 H100: ITL, dense, 1 GPU", "h100-sxm", "vllm"): 4.0,
    ("mlenergy_v3 H100: ITL, dense, 1-8 GPUs", "h100-sxm", "vllm"): 5.0,
    ("mlenergy_v3 H100: ITL, MoE", "h100-sxm", "vllm"): 11.0,
    (
        "mlenergy_v3 H100: ITL, MoE, one run per configuration measured",
        "h100-sxm",
        "vllm",
    ): 6.0,
    ("aic_silicon H100: TPOT, all", "h100-sxm", "trtllm"): 12.0,
    ("aic_silicon H100: TPOT, all", "h100-sxm", "vllm"): 12.0,
    ("aic_silicon Llama-3-8B: TPOT", "h100-sxm", "trtllm"): 5.0,
} | {
    ("argonne: TTFT, 1 GPU", gpu, library): 2.5
    for gpu in ("h100-sxm", "gh200", "a100-sxm-40gb")
    for library in ("vllm", "trtllm")
}

_UNITS: Final = {"1": (1.0, ""), "s": (1e6, " us")}


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    parts = [_INTRO.strip(), ""]
    for result in results:
        parts += [f"## {result.spec.title}", "", *_errors(result), *_words(result), ""]
    parts += ["## Transfer between GPUs", "", *_transfer(results), ""]
    parts += ["## The coefficients of 2024 on other campaigns", "", *_elsewhere(results), ""]
    parts += ["## What ships", "", *_ships(results), ""]
    parts += ["## What could not be priced", "", *_left(results)]
    return "\n".join(parts).rstrip() + "\n"


_INTRO = """
# Accuracy on whole models

Written by `benchmarks/end_to_end.py`; every figure is also in
[accuracy_end_to_end.json](accuracy_end_to_end.json). The sets, their filters and their traps are in
[data.md](data.md#whole-models), the formula in [estimators/system.md](estimators/system.md).

Errors are % of the measured time.

- **data sheet**: every kernel by roofline, typical overheads.
- **analytical**: kernels alone by level 1's analytical forms, no learned correction and nothing
  between kernels, in the spirit of AMALI and LIFE.
- **composition**: every kernel by its calibration, typical overheads: no whole model looked at.
- **unbounded MLP**: the analytical kernels and a network on global parameters that nothing holds,
  in the spirit of HYMELL, trained without the model that is judged.
- **fitted**: a few coefficients per engine, version and GPU, fitted without the model that is
  judged and its near twins (Mistral-7B with Llama-3-8B, all 70B Llamas together); which terms,
  which multipliers share a value and how firm the priors are was chosen without it too, by leaving
  out one by one the models that remained.
- **with MLP**: the same with a network on top that may change it by 22% at most, trained without
  the model too. It is kept for a model where it is nearer on the models that remain.

Median to bias are those of the fitted system; * misses its goal. A line with one run per
configuration measured takes that run's difference or ratio for the others, and does not judge it.

The terms themselves and the forms to choose among were developed with these campaigns in view
(sampling per logit on Argonne, prompts that share chunks on the served ones). Small changes of
level 1 on other GPUs move a line by one or two points, through the priors and the chosen form.
"""

_HEAD = (
    "| runs | GPU | engine | n | models | data sheet | analytical | composition | unbounded MLP | "
    "fitted | with MLP | goal | median | P90 | max | bias |\n" + "|---" * 16 + "|"
)


def _errors(result: Result) -> Iterator[str]:
    lines: dict[tuple[str, str, str], dict[str, Record]] = {}
    for record in result.records:
        key = record["set"], record["gpu"], record["library"]
        lines.setdefault(key, {})[record["estimator"]] = record
    yield _HEAD
    for key, found in lines.items():
        plain, ours, goal = found[COMPOSED], found.get(FITTED), GOALS.get(key)
        cells = [key[0].partition(": ")[2], key[1], key[2], plain["rows"], plain["models"]]
        cells += [_mape(found, name) for name in (SHEET, ANALYTIC, COMPOSED, UNBOUNDED)]
        if ours is None:
            cells += ["one model only", *[""] * 6]
        else:
            missed = "*" if goal is not None and ours["mape"] > goal else ""
            cells += [f"**{ours['mape']:.1f}**{missed}", _mape(found, NETWORK)]
            cells += ["" if goal is None else f"{goal:g}"]
            cells += [f"{ours[name]:.1f}" for name in ("median", "p90", "max")]
            cells += [f"{ours['bias']:+.1f}"]
        yield "| " + " | ".join(str(cell) for cell in cells) + " |"
    yield ""


def _mape(found: Mapping[str, Record], estimator: str) -> str:
    return f"{found[estimator]['mape']:.1f}" if estimator in found else ""


def _words(result: Result) -> Iterator[str]:
    if result.spec.by != "model":
        yield f"Of one model only, so that a hold-out leaves out one {result.spec.by}."
        yield ""
    times = Counter(str(form) for form in result.forms.values())
    count = f"in {times[str(result.final)]} of {len(result.forms)} hold-outs too"
    yield f"Form chosen with all runs ({count}): {result.final}."
    yield ""
    names = [name for name in TERMS if name in result.final.terms]
    yield "| GPU | engine | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for (gpu, library), values in result.coefficients.items():
        cells = [_value(name, values[name]) for name in names]
        yield f"| {gpu} | {library} | " + " | ".join(cells) + " |"
    yield ""
    yield from _network(result)
    yield "Largest errors of the fitted system on unseen runs (groups of three runs or more):"
    yield ""
    yield "| GPU | engine | model | batch | prompt + output |"
    yield "|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[str]] = {}
    for cell, _, value, rows, mape, bias in result.worst:
        groups.setdefault(cell, []).append(f"{value}: {mape:.1f} (bias {bias:+.1f}, {rows} runs)")
    for (gpu, library), found in groups.items():
        yield f"| {gpu} | {library} | " + " | ".join(found) + " |"


def _network(result: Result) -> Iterator[str]:
    """What a network on top makes of each cell, and where the other models would keep it."""
    if not result.helped:
        return
    yield "| GPU | engine | fitted, all runs | with MLP | kept in hold-outs | MLP where kept |"
    yield "|---" * 6 + "|"
    for (gpu, library), (kept, of, alone, always, chosen) in result.helped.items():
        yield (
            f"| {gpu} | {library} | {alone:.1f} | {always:.1f} | {kept} of {of} | {chosen:.1f} |"
        )
    yield ""


def _value(name: str, value: float) -> str:
    if name == "logit_s":
        return f"{value * 1e11:.1f} us per 100,000"
    factor, unit = _UNITS[TERMS[name].unit]
    return f"{value * factor:,.{0 if unit else 2}f}{unit}"


def _transfer(results: Sequence[Result]) -> Iterator[str]:
    yield """Coefficients of other GPUs on a GPU none of whose runs are in the fit, the model left
out too; MAPE in %. The form was chosen with that GPU's runs of other models. **family**: of GPUs
with the same kernels (H100 and GH200)."""
    yield ""
    yield "| runs | GPU | engine | composition | all other GPUs | family | its own |"
    yield "|---|---|---|---|---|---|---|"
    lines: dict[tuple[str, str, str], dict[str, float]] = {}
    for result in results:
        for record in result.records:
            key = record["set"], record["gpu"], record["library"]
            lines.setdefault(key, {})[record["estimator"]] = record["mape"]
    for (runs, gpu, library), found in lines.items():
        if ABROAD in found:
            cells = [f"{found[n]:.1f}" if n in found else "" for n in _TRANSFERS]
            yield f"| {runs.partition(': ')[2]} | {gpu} | {library} | " + " | ".join(cells) + " |"


_TRANSFERS = (COMPOSED, ABROAD, SIBLING, FITTED)


def _elsewhere(results: Sequence[Result]) -> Iterator[str]:
    yield "Other versions, other loads: what the coefficients of 2024 make of campaigns that they"
    yield "were not fitted on; MAPE in %, with the bias. A GPU without its own borrows a relative's"
    yield "here; reports borrow only those that did better than the composition on every relative."
    yield ""
    yield "| runs | GPU | engine | n | composition | of 2024 |"
    yield "|---|---|---|---|---|---|"
    lines: dict[tuple[str, str, str], dict[str, Record]] = {}
    for result in results:
        for record in result.records:
            key = record["set"], record["gpu"], record["library"]
            lines.setdefault(key, {})[record["estimator"]] = record
    for (runs, gpu, library), found in lines.items():
        if SHIPPED in found:
            plain, ours = found[COMPOSED], found[SHIPPED]
            yield (
                f"| {runs} | {gpu} | {library} | {ours['rows']} | {plain['mape']:.1f} "
                f"({plain['bias']:+.1f}) | {ours['mape']:.1f} ({ours['bias']:+.1f}) |"
            )


def _ships(results: Sequence[Result]) -> Iterator[str]:
    yield """A report uses coefficients where they are nearer to unseen models than the plain
composition: on the very GPU, or on the nearest one with the same kernels where those of relatives
helped too. Else it uses typical overheads, and says so. It takes those of the newest version;
`--engine-version` asks for another. Served runs time decode alone: prefill's multiplier is then
that of the version before on this GPU, or 1. Runs of several versions stand under the newest, a
year stands for runs that state none. Nothing ships where the plain composition is nearer, where a
multiplier is beyond 0.5 to 2 (no overhead is that large, so a calibration is wrong), or of one
model only. Systems ship without the network on top: the tables above say what it makes of each
cell, and chosen by the models that remain it gains little, or loses."""
    yield ""
    for result in results:
        for system in result.systems:
            yield (
                f"- {system.engine} {system.version} on {system.gpu}: {system.mape:.1f}% against "
                f"{system.composed_mape:.1f}%, {system.rows} runs of {len(system.models)} models; "
                f"relatives {'use it' if system.transfers else 'do not use it'}"
            )
        for (gpu, library), version in result.unfit:
            yield f"- {library} {version} on {gpu}, {result.spec.name}: nothing ships"


def _left(results: Sequence[Result]) -> Iterator[str]:
    yield "| set | model | runs | why |"
    yield "|---|---|---|---|"
    seen = {}
    for result in results:
        for left in result.left:
            key = left.set, left.model, left.why
            seen[key] = seen.get(key, {}) | {(result.spec.name, left): left.rows}
    for (name, model, why), rows in seen.items():
        first = {left: count for (_, left), count in rows.items()}
        yield f"| {name} | {model} | {sum(first.values())} | {why} |"
