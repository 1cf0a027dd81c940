"""Closed forms of cost over lengths on published grids: docs/accuracy_sweet_spot.md and .json.

Every form is fitted per model without one input length, and without one output length, and judged
on the rows of that length, each length in turn. Needs the measurements (docs/data.md) and scipy.

    python benchmarks/sweet_spot.py [-o docs/accuracy_sweet_spot.md]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np

from hymell.analysis.length_form import Array, cache_terms, fit_relative
from hymell.errors import HymellError
from hymell.measure.e2e import read_runs
from hymell.measure.e2e.filters import REASONS
from hymell.measure.location import locate
from hymell.measure.table import Table

PAGE = Path(__file__).parents[1] / "docs" / "accuracy_sweet_spot.md"

#: The sets, and the column of `read_runs` that is the cost.
COSTS = {"argonne_grid_a100": "latency_s", "wilkins_grid_a100": "energy_j"}

#: Lengths in thousands keep the terms of like size.
_SCALE = 1e3

#: Predicts the cost per output token at input and output lengths in thousands.
Predictor: TypeAlias = Callable[[Array, Array], Array]
#: A predictor fitted to input lengths, output lengths and costs per output token.
Fit: TypeAlias = Callable[[Array, Array, Array], Predictor]


@dataclass(frozen=True)
class Grid:
    """Runs of one model over lengths; ``output`` is what was generated, ``asked`` what was asked.

    ``cost`` is that of the whole run, in s or J.
    """

    set: str
    model: str
    gpus: int
    input: Array
    output: Array
    asked: Array
    cost: Array


@dataclass(frozen=True)
class Errors:
    """Relative errors in % of one form on one model, every length of one kind left out in turn."""

    set: str
    model: str
    gpus: int
    form: str
    held_out: str
    rows: int
    mape: float
    median: float
    p90: float
    max: float
    bias: float


def read_grids(name: str, cost: str, root: Path | None = None) -> tuple[list[Grid], str]:
    """The grid of every model of a set, and how many rows were kept; ``cost`` names the column."""
    table = read_runs(name, root)
    grids = []
    for model in dict.fromkeys(table["model"]):
        rows = table.where(model=model)
        grids.append(
            Grid(
                set=name,
                model=str(model),
                gpus=int(rows["n_gpus"][0]),
                input=rows["prompt"],
                output=rows["output"],
                # Lengths asked for are powers of 2; some runs stopped a little before.
                asked=2 ** np.ceil(np.log2(rows["output"])),
                cost=rows[cost],
            )
        )
    early = int((table["output"] < 2 ** np.ceil(np.log2(table["output"]))).sum())
    stopped = (
        f"; {early} stopped early on average and count with what they generated" if early else ""
    )
    return grids, f"{name}: {_kept(table)}{stopped}"


def _kept(table: Table) -> str:
    read = sum(tally.rows_in for tally in table.tallies)
    dropped = Counter[str]()
    for tally in table.tallies:
        dropped.update(tally.dropped)
    reasons = "".join(f", {count} dropped ({REASONS[why]})" for why, count in dropped.items())
    return f"{read} rows{reasons}, {len(table)} kept"


# --- the forms, per output token -------------------------------------------------------------


def linear(terms: Callable[[Array, Array], Sequence[Array]]) -> Fit:
    """Least squares of the relative error, no coefficient below 0."""

    def stacked(i: Array, o: Array) -> Array:
        return np.stack(np.broadcast_arrays(*terms(i, o)), axis=1)

    def fit(i: Array, o: Array, cost: Array) -> Predictor:
        held = fit_relative(stacked(i, o), cost)
        return lambda i, o: stacked(i, o) @ held

    return fit


def _step_terms(i: Array, o: Array) -> Sequence[Array]:
    # Means over the steps of 1, of the sequence length and of its square.
    return np.ones_like(i), i + o / 2, i * i + i * o + o * o / 3


def step_floor(power: float) -> Fit:
    """A step without a cache: the softer of a floor and what tokens cost, and the attention.

    ``(a ** power + (d * s) ** power) ** (1 / power) + c * s ** 2`` at sequence length s, averaged
    over the steps. The floor is a host that launches kernels more slowly than the GPU runs them and
    the weights that each step reads; ``power`` 1 adds it up, which has a closed form.
    """
    points, weights = np.polynomial.legendre.leggauss(16)

    def mean(held: Array, i: Array, o: Array) -> Array:
        s = i[:, None] + o[:, None] * (points + 1) / 2
        floor = (held[0] ** power + (held[1] * s) ** power) ** (1 / power)
        return np.asarray((floor + held[2] * s * s) @ weights / 2)

    def fit(i: Array, o: Array, cost: Array) -> Predictor:
        from scipy.optimize import least_squares

        start = fit_relative(np.stack(_step_terms(i, o), axis=1), cost)
        # A coefficient of 0 has no logarithm: one that costs a ten-thousandth will do.
        start = np.maximum(start, 1e-4 * cost.min())
        found = least_squares(lambda log: mean(np.exp(log), i, o) / cost - 1, np.log(start))
        held = np.exp(found.x)
        return lambda i, o: mean(held, i, o)

    return fit


CACHE = "o (a + b i/o + d S)"
SWEETSPOT = "SweetSpot: o (a + b i/o + c i^2/o + d S)"
INTERACTION = "a i + b o + c i o"
PLAIN = "a i + b o"
STEPS = "o (a + d S) + c Q"
FLOOR = "floor: steps of max(a, d s) + c s^2, softened"

FORMS: Mapping[str, Fit] = {
    CACHE: linear(lambda i, o: tuple(cache_terms(i, o).T)),
    SWEETSPOT: linear(lambda i, o: (np.ones_like(i), i / o, i * i / o, i + o / 2)),
    STEPS: linear(_step_terms),
    INTERACTION: linear(lambda i, o: (i / o, np.ones_like(i), i)),
    PLAIN: linear(lambda i, o: (i / o, np.ones_like(i))),
}
#: How soft the floor may be; each model is judged with the one that is best for all others.
POWERS = (1.0, 1.15, 1.25, 1.35, 1.5, 2.0)

#: The form that stands for the project, per set.
OURS = {"argonne_grid_a100": CACHE, "wilkins_grid_a100": FLOOR}


#: What is left out where a form is judged on the rows that it was fitted to.
NOTHING = "nothing"

# --- judging ---------------------------------------------------------------------------------


def left_out(grid: Grid, fit: Fit) -> dict[str, Array]:
    """Relative errors of each row (% of the cost): its input or its output length unseen, or none.

    What a form errs on the very rows that it is fitted to, hardly any hold-out undercuts.
    """
    i, o, cost = grid.input / _SCALE, grid.output / _SCALE, grid.cost / grid.output
    errors = {NOTHING: 100 * (fit(i, o, cost)(i, o) / cost - 1)}
    for name, lengths in (("input length", grid.input), ("output length", grid.asked)):
        found = np.full(len(cost), np.nan)
        for length in np.unique(lengths):
            held = lengths == length
            predict = fit(i[~held], o[~held], cost[~held])
            found[held] = 100 * (predict(i[held], o[held]) / cost[held] - 1)
        errors[name] = found
    return errors


def judged(grid: Grid, form: str, errors: Mapping[str, Array]) -> list[Errors]:
    """The errors of a grid in figures, one record per kind of length left out."""
    found = []
    for held_out, each in errors.items():
        size = np.abs(each)
        figures = (size.mean(), np.median(size), np.quantile(size, 0.9), size.max(), each.mean())
        found.append(
            Errors(grid.set, grid.model, grid.gpus, form, held_out, len(each), *map(float, figures))
        )
    return found


def best_power(of: Grid, mape: Mapping[tuple[str, float], float], grids: Iterable[Grid]) -> float:
    """The power of least mean error on the other models that run on one GPU, or on several."""
    others = [g.model for g in grids if g is not of and (g.gpus == 1) == (of.gpus == 1)]
    return min(POWERS, key=lambda power: fmean(mape[model, power] for model in others))


def judge(grids: Sequence[Grid]) -> tuple[list[Errors], dict[tuple[str, str, str], Array]]:
    """Every form on every grid; the floor's power chosen on the set's other models."""
    records: list[Errors] = []
    kept: dict[tuple[str, str, str], Array] = {}

    def keep(grid: Grid, form: str, errors: Mapping[str, Array]) -> None:
        records.extend(judged(grid, form, errors))
        kept.update({(grid.model, form, held_out): each for held_out, each in errors.items()})

    for grid in grids:
        for form, fit in FORMS.items():
            keep(grid, form, left_out(grid, fit))
    cacheless = [grid for grid in grids if OURS[grid.set] == FLOOR]
    soft = {(g.model, power): left_out(g, step_floor(power)) for g in cacheless for power in POWERS}
    mape = {
        key: fmean(float(np.abs(e).mean()) for held, e in errors.items() if held != NOTHING)
        for key, errors in soft.items()
    }
    for grid in cacheless:
        keep(grid, FLOOR, soft[grid.model, best_power(grid, mape, cacheless)])
    return records, kept


def mean_mape(records: Iterable[Errors]) -> float:
    """Mean over models and over both kinds of length left out."""
    return fmean(record.mape for record in records if record.held_out != NOTHING)


# --- the page --------------------------------------------------------------------------------

_INTRO = f"""# Accuracy of the length forms

Written by `python benchmarks/sweet_spot.py`; every figure is also in
[accuracy_sweet_spot.json](accuracy_sweet_spot.json). What the forms are for:
[sweet_spot.md](sweet_spot.md).

Closed forms of what a run of i input and o output tokens costs, fitted per model to published
grids of lengths without one length and judged on the rows of that length: each input length in
turn, then each output length. Figures are errors in % of the measured value. All forms are fitted
alike: least squares of the relative error, no coefficient negative. S = i + o/2,
Q = i^2 o + i o^2 + o^3/3.

- `{CACHE}`: three coefficients, for runs with a KV cache; what `hymell sweetspot` fits.
- `{SWEETSPOT}`: the four terms of SweetSpot (arXiv 2602.05695): decode, prompt, attention
  among prompt tokens, cache. Rebuilt from the complexity argument of the paper; its own fitting
  procedure may differ. On its own data (H100, TensorRT-LLM) the paper reports 1.79.
- `{STEPS}`: three coefficients, for runs without a KV cache: every output token is a prefill of
  s = i, i + 1, ... tokens that costs a + d s + c s^2.
- `{FLOOR}`: the same three coefficients where the fixed cost of a step is a floor rather than a
  summand, `(a^p + (d s)^p)^(1/p)`; p is the one of {", ".join(f"{p:g}" for p in POWERS)} that is
  best for the set's other models that run on one GPU, or on several. It was thought of when these
  grids were known; the form above it was not.
- `{INTERACTION}`, `{PLAIN}`: the form with one interaction, and the linear one.
"""


def page(
    records: Sequence[Errors],
    kept: Mapping[tuple[str, str, str], Array],
    grids: Sequence[Grid],
    counts: Sequence[str],
) -> str:
    """The page in Markdown."""
    parts = [_INTRO, "## Goals", "", *_goals(records), "", "## Data", ""]
    parts += [f"- {line}" for line in counts]
    parts += [
        "- argonne_grid_a100: latency, Llama 3 8B, TensorRT-LLM, A100 40 GB, batch 1, KV cache "
        "(argonne-lcf/LLM-Inference-Bench).",
        "- wilkins_grid_a100: energy, Hugging Face eager, **no KV cache**, A100 40 GB, batch 1. "
        "Rows of Mistral 7B, the seventh model, are withheld for the project's last judgement.",
    ]
    for name in OURS:
        parts += ["", f"## {name}", "", *_models_table(name, records), ""]
        parts += [f"### Where `{OURS[name]}` errs most", "", *_worst(name, kept, grids)]
    parts += ["", "## Every figure", "", *_every(records)]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class Goal:
    """A mean MAPE in % that the set's form was to reach."""

    what: str
    set: str
    most: float
    one_gpu: bool = False

    def of(self, records: Iterable[Errors]) -> list[Errors]:
        """The records that the goal asks for, of every form."""
        return [r for r in records if r.set == self.set and (r.gpus == 1 or not self.one_gpu)]


GOALS = (
    Goal("argonne grid, latency with a cache", "argonne_grid_a100", 0.2),
    Goal("wilkins grid, models on one GPU", "wilkins_grid_a100", 2.0, one_gpu=True),
    Goal("wilkins grid, all models", "wilkins_grid_a100", 3.4),
)


def _goals(records: Sequence[Errors]) -> Iterator[str]:
    yield "Means over models and over both kinds of length left out."
    yield ""
    yield "`fitted`: on the very rows that the form is fitted to, the most to hope for."
    yield ""
    yield "| goal | models | rows | at most | reached | fitted | by | SweetSpot's form | met |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | --- |"
    for goal in GOALS:
        asked = goal.of(records)
        ours = OURS[goal.set]
        reached = mean_mape(r for r in asked if r.form == ours)
        fitted = fmean(r.mape for r in asked if r.form == ours and r.held_out == NOTHING)
        theirs = mean_mape(r for r in asked if r.form == SWEETSPOT)
        rows = {r.model: r.rows for r in asked}
        yield (
            f"| {goal.what} | {len(rows)} | {sum(rows.values())} | {goal.most:g} "
            f"| **{reached:.2f}** | {fitted:.2f} | `{ours}` | {theirs:.2f} "
            f"| {_met(goal.most, reached, fitted)} |"
        )


def _met(most: float, reached: float, fitted: float) -> str:
    if reached <= most:
        return "yes"
    # Then no other split and no other fit of the form would have met it either.
    return "no" if fitted <= most else "no, nor on the rows it is fitted to"


def _models_table(name: str, records: Sequence[Errors]) -> Iterator[str]:
    mine = [r for r in records if r.set == name]
    forms = list(dict.fromkeys(r.form for r in mine))
    yield "MAPE with the input length left out / the output length left out."
    yield ""
    yield "| model | GPUs | rows | " + " | ".join(f"`{form}`" for form in forms) + " |"
    yield "| --- | ---: | ---: |" + " ---: |" * len(forms)
    for model in dict.fromkeys(r.model for r in mine):
        of_model = [r for r in mine if r.model == model]
        left = [r for r in of_model if r.held_out != NOTHING]
        cells = (" / ".join(f"{r.mape:.2f}" for r in left if r.form == form) for form in forms)
        first = of_model[0]
        yield f"| {model} | {first.gpus} | {first.rows} | " + " | ".join(cells) + " |"
    if len({r.model for r in mine}) > 1:
        means = (f"{mean_mape(r for r in mine if r.form == form):.2f}" for form in forms)
        yield "| mean | | | " + " | ".join(means) + " |"


def _worst(
    name: str, kept: Mapping[tuple[str, str, str], Array], grids: Sequence[Grid]
) -> Iterator[str]:
    found = []
    for grid in (g for g in grids if g.set == name):
        for held_out, lengths in (("input length", grid.input), ("output length", grid.asked)):
            errors = kept[grid.model, OURS[name], held_out]
            for length in np.unique(lengths):
                rows = errors[lengths == length]
                found.append(
                    (float(np.abs(rows).mean()), float(rows.mean()), grid.model, held_out, length)
                )
    yield "| model | left out | MAPE | bias |"
    yield "| --- | --- | ---: | ---: |"
    for mape, bias, model, held_out, length in sorted(found, reverse=True)[:6]:
        yield f"| {model} | {held_out} {length:.0f} | {mape:.1f} | {bias:.1f} |"


def _every(records: Sequence[Errors]) -> Iterator[str]:
    yield "| set | model | form | left out | rows | MAPE | median | P90 | max | bias |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in records:
        yield (
            f"| {r.set} | {r.model} | `{r.form}` | {r.held_out} | {r.rows} | {r.mape:.2f} "
            f"| {r.median:.2f} | {r.p90:.2f} | {r.max:.2f} | {r.bias:.2f} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, then write the page and the JSON beside it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=PAGE, help="page to write")
    output: Path = parser.parse_args(arguments).output
    try:
        folder = locate()
        read = [read_grids(name, cost, folder) for name, cost in COSTS.items()]
    except HymellError as error:
        print(f"sweet_spot: {error}", file=sys.stderr)
        return 2
    grids = [grid for found, _ in read for grid in found]
    records, kept = judge(grids)
    output.write_text(page(records, kept, grids, [count for _, count in read]), encoding="utf-8")
    plain = {
        "goals": [asdict(goal) for goal in GOALS],
        "errors": [_rounded(asdict(r)) for r in records],
    }
    output.with_suffix(".json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return 0


def _rounded(record: Mapping[str, object]) -> dict[str, object]:
    # Digits beyond these differ between machines and would show as changes.
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}


if __name__ == "__main__":
    sys.exit(main())
