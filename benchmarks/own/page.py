"""docs/accuracy_own_runs.md: the result in words and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hymell.estimators.offset_fit import ENERGY_WIDTH
from own.energy import EnergyResult
from own.judge import ADDED, BOTH, COUNTS, DRAWS, FACTORS, SHIPPED, Line, Result
from own.rows import JUDGES

#: (campaign, gpu, library) -> goal in % with one run per configuration.
GOALS: Final = {("mlenergy_v3 H100 MoE", "h100-sxm", "vllm"): 6.0}

_INTRO: Final = f"""
# Accuracy with runs of one's own

Written by `benchmarks/own_runs.py`; every figure is also in
[accuracy_own_runs.json](accuracy_own_runs.json). How to use runs of your own is in
[own_runs.md](own_runs.md).

One, two or three runs of a configuration (model, GPU, engine and version, format, number of GPUs)
calibrate it, and its other runs judge: errors are mean absolute errors in % of the measured time on
runs that neither the offsets nor the system saw. **before** is the fitted system of
[accuracy_end_to_end.md](accuracy_end_to_end.md), which never saw the model nor its near twins. Each
run is the single one once; two and three are drawn {DRAWS} times at random (seed 0). Configurations
with fewer than {3 + JUDGES} runs are left out. Widths of the priors are chosen on the other
campaigns: by the mean over them of log(error after / error before). Dense models and models with
experts of one harness are two campaigns here, and so are its GPUs.
"""


def page(result: Result, energy: EnergyResult) -> str:
    """The whole page."""
    parts = [_INTRO.strip(), "", *_offsets(result), "", *_worst(result), "", *_kinds(result)]
    parts += ["", *_shared(result), "", *_energy(energy)]
    return "\n".join(parts).rstrip() + "\n"


def _offsets(result: Result) -> Iterator[str]:
    yield "## With one, two and three runs"
    yield ""
    yield (
        "| campaign | GPU | engine | configurations | runs | data sheet | before | 1 run | goal "
        "| 2 runs | 3 runs |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for line in result.lines:
        goal = GOALS.get((line.campaign, line.gpu, line.library))
        after = line.after[BOTH]
        missed = "*" if goal is not None and after[1] > goal else ""
        yield (
            f"| {_where(line)} | {line.configurations} | {line.runs} | {line.sheet:.1f} "
            f"| {line.before[1]:.1f} | **{after[1]:.1f}{missed}** | {goal or ''} "
            f"| {after[2]:.1f} | {after[3]:.1f} |"
        )
    yield ""
    yield "* misses its goal."
    yield ""
    yield (
        "Left out, runs in configurations too small: "
        + ", ".join(f"{name} {count}" for name, count in result.too_few.items())
        + "."
    )


def _worst(result: Result) -> Iterator[str]:
    yield "## Farthest off with one run"
    yield ""
    yield (
        "What one run cannot mend is what differs within a configuration: by batch, by length, by "
        "task."
    )
    yield ""
    yield "| campaign | GPU | engine | model and GPUs: error before, after (runs) |"
    yield "|---|---|---|---|"
    for line in result.lines:
        named = "; ".join(
            f"{each.model} on {each.n_gpus}: {each.before:.1f}, {each.after:.1f} ({each.runs})"
            for each in line.worst
        )
        yield f"| {_where(line)} | {named} |"


def _kinds(result: Result) -> Iterator[str]:
    yield "## Which offsets"
    yield ""
    yield (
        "Errors with one / two / three runs, each kind with the widths that are best for it on the "
        "other campaigns."
    )
    yield ""
    yield f"| campaign | GPU | engine | before | {' | '.join(_KINDS)} | widths of the first |"
    yield "|---|---|---|---|---|---|---|---|"
    for line in result.lines:
        cells = [" / ".join(f"{line.after[k][n]:.1f}" for n in COUNTS) for k in _KINDS]
        yield (
            f"| {_where(line)} | {line.before[1]:.1f} | {' | '.join(cells)} | {line.widths[BOTH]} |"
        )
    yield ""
    yield f"hymell uses {SHIPPED}; best over all campaigns: {result.best}."


_KINDS: Final = (BOTH, FACTORS, ADDED)


def _shared(result: Result) -> Iterator[str]:
    yield "## Runs of other models"
    yield ""
    yield (
        "What three runs of one model add per step and sequence, applied to each other model of "
        "the same GPU and engine: the mean over all pairs."
    )
    yield ""
    yield "| campaign | GPU | engine | before | after |"
    yield "|---|---|---|---|---|"
    for line in result.lines:
        if line.shared is not None:
            yield f"| {_where(line)} | {line.shared_before:.1f} | {line.shared:.1f} |"
    helped = [x for x in result.lines if x.shared is not None and x.shared < x.shared_before]
    tried = [x for x in result.lines if x.shared is not None]
    yield ""
    yield (
        f"Nearer in {len(helped)} of {len(tried)} lines: hymell uses runs for the model that they "
        "are of, and for no other."
    )


def _energy(result: EnergyResult) -> Iterator[str]:
    yield "## Energy of served runs, as a report gives it"
    yield ""
    yield (
        "ML.ENERGY v3, each run with its time and its energy per output token, as "
        "`--calibrate-with` takes them. The estimate is that of a report: shipped calibrations and "
        "systems, none fitted to these runs, so that time starts farther off than above; a report "
        "has no prefill of other requests in its decode steps. Energy is at predicted time. The "
        "width of the factor of energy is chosen on the models of the other kind."
    )
    yield ""
    yield (
        "| models | GPU | engine | configurations | runs | TPOT before | 1 / 2 / 3 runs "
        "| energy before | 1 / 2 / 3 runs | width |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for line in result.lines:
        after = [" / ".join(f"{e[n][1]:.1f}" for n in COUNTS) for e in (line.tpot, line.energy)]
        yield (
            f"| {line.kind} | {line.gpu} | {line.engine} | {line.configurations} | {line.runs} "
            f"| {line.tpot[1][0]:.1f} | {after[0]} | {line.energy[1][0]:.1f} | {after[1]} "
            f"| {line.width:g} |"
        )
    yield ""
    yield f"hymell uses the width {ENERGY_WIDTH:g}; best over all lines: {result.best:g}."
    yield ""
    left = "; ".join(f"{why} {rows}" for why, rows in result.left_out.items())
    yield f"Runs left out: {left or 'none'}."


def _where(line: Line) -> str:
    return f"{line.campaign} | {line.gpu} | {line.library}"
