"""How near predictions of PyTorch eager in float32 are: docs/accuracy_eager.md and .json.

NeuSight's whole runs (`hymell.measure.e2e.neusight`), judged with the GPU and the model of a run
both left out of the fit and of the choice of its form, and ML.ENERGY's and Wilkins' in 16 bits,
which wait for the host; beside them what peers predict of the very
same rows, the data sheet, and the report's typical overheads. With --ship the multipliers go to
hymell/hardware/systems/eager.json. Needs the measurements (docs/data.md).

    python benchmarks/eager.py [--ship] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import hymell
from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment
from hymell.estimators.eager import FILE, EagerHost, EagerSystem, save_eager, shipped_eager
from hymell.estimators.level3.eager import OPERATORS, SHEET, EagerFit, EagerForm, Work, pass_work
from hymell.estimators.level3.eager_host import HostFit
from hymell.estimators.predict import deploy
from hymell.estimators.rollup import decode_totals, prefill_totals
from hymell.hardware import Gpu, find_gpu, gpu_names
from hymell.measure.e2e import read_runs
from hymell.measure.readers import measured_files, read
from hymell.op_registry.engines import get_engine
from hymell.workload import Precision

ROOT = Path(__file__).resolve().parents[1]
TITLE: Final = "NeuSight (ASPLOS 2025), PyTorch 2.1 eager, float32 without tensor cores"

#: Boards with one die: never one in the fit and the other in the judgement.
TWINS: Final = {"mi250": "mi210"}

FORMS: Final = [EagerForm(*flags) for flags in product((False, True), repeat=3)]

PEERS: Final = {
    "NeuSight": "p_neusight_s",
    "Habitat": "p_habitat_s",
    "roofline of NeuSight's paper": "p_roofline_s",
    "Li et al. (MICRO 2023)": "p_micro_s",
}
BARE, COMPOSED = "data sheet", "typical overheads"
HOST: Final = "eager, host"
UNSEEN, MEASURED, KNOWN = "eager, data sheet", "eager, operators measured", "eager, known GPU"

HOST_TITLE: Final = "ML.ENERGY v1 (2023), Hugging Face eager, float16"

#: Models of one shape, or nearly, in the campaign of the host.
HOST_TWINS: Final = {"llama-2-7b": "llama-7b", "llama-2-13b": "llama-13b"}

#: Tokens in the cache that ML.ENERGY v1 does not state; a step hardly depends on them.
CONTEXT: Final = 100.0

#: Products that a GPU needs more than this for are large: launches and tails are nothing in them.
_LARGE_S: Final = 1e-3

_HOST_S: Final = get_engine("eager").overheads.host_s_per_launch

#: Columns of `held_out_rows`.
COLUMNS: Final = (
    *("set", "gpu", "library", "version", "what", "group", "n_gpus", "moe", "dtype", "batch"),
    *("prompt", "estimator", "predicted_s", "measured_s"),
)


@dataclass(frozen=True)
class Runs:
    """Runs of one engine: labels with ``time_s`` and peers, their work, and two plain answers."""

    labels: pd.DataFrame
    work: Work
    sheet_s: Array
    composed_s: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def time_s(self) -> Array:
        """Measured seconds."""
        return self.labels["time_s"].to_numpy(float)

    @property
    def gpu(self) -> NDArray[Any]:
        """GPU of each run, twins under one name."""
        return self.labels["gpu"].replace(TWINS).to_numpy(str)

    @property
    def model(self) -> NDArray[Any]:
        """Model of each run."""
        return self.labels["zoo"].to_numpy(str)


def of_rows(work: Work, rows: NDArray[Any], measured: bool) -> Work:
    """The work of some runs, by the GPU's operators where ``measured``."""
    slow = work.slowness if measured else np.ones_like(work.slowness)
    return Work(
        *(getattr(work, n)[rows] for n in "gemm_s bmm_s memory_s launches matrix low".split()),
        slow[rows],
    )


def load(engine: str) -> tuple[Runs, dict[str, int]]:
    """The runs of an engine, and how many could not be priced, by model."""
    rows = read_runs("neusight").to_frame()
    rows = rows[rows["engine"] == engine].assign(time_s=lambda r: r["ttft_s"])
    left = rows[rows["zoo"] == ""].groupby("model").size().to_dict()
    labels, works, sheets, plain = [], [], [], []
    for (zoo, name), mine in rows[rows["zoo"] != ""].groupby(["zoo", "gpu"], sort=True):
        gpu = find_gpu(name)
        B, prompt = (mine[n].to_numpy(float) for n in ("batch", "prompt"))
        model = deploy(
            hymell.trace(zoo, logits_to_keep=0),
            gpu=gpu,
            engine=get_engine(engine),
            precision=Precision.of("float32"),
        )
        labels.append(mine)
        works.append(pass_work(model, B, prompt, slowness(gpu) or 1.0))
        totals = prefill_totals(model, B, prompt)
        sheets.append(totals.kernel_s)
        plain.append(totals.time_s)
    names = Work.__dataclass_fields__
    work = Work(*(np.concatenate([getattr(w, n) for w in works]) for n in names))
    whole = pd.concat(labels, ignore_index=True)
    return Runs(whole, work, np.concatenate(sheets), np.concatenate(plain)), left


@cache
def slowness(gpu: Gpu) -> float | None:
    """Median of measured over data-sheet seconds of large products; None without a table."""
    if not any(f.gpu == gpu.name and "gemm" in f.ops and f.library == "pytorch" for f in _files()):
        return None
    table = read("gemm", gpu.name, "pytorch", dtype="float32")
    m, n, k = (table[name] for name in "mnk")
    least_s = np.maximum(
        2 * m * n * k / gpu.peak("fp32"),
        4 * (m * k + k * n + m * n) / gpu.memory_bandwidth_bytes_per_s,
    )
    large = least_s > _LARGE_S
    return float(np.median(table["time_s"][large] / least_s[large])) if large.any() else None


@cache
def _files() -> tuple[Any, ...]:
    from hymell.measure.location import locate

    return tuple(measured_files(locate()))


@dataclass(frozen=True)
class Judge:
    """Fits without some GPUs and models, the form of each chosen without them too."""

    runs: Runs
    measured: bool

    def fitted(self, form: EagerForm, rows: NDArray[Any]) -> EagerFit:
        """Fitted to some runs."""
        work = of_rows(self.runs.work, rows, self.measured)
        return EagerFit(form).fit(work, self.runs.time_s[rows], self.runs.gpu[rows])

    def errors(self, form: EagerForm, rows: NDArray[np.bool_]) -> Array:
        """Relative errors of the runs ``rows``, GPU and model of each left out among them."""
        found = []
        gpu, model = self.runs.gpu, self.runs.model
        for g, m in sorted(set(zip(gpu[rows], model[rows], strict=True))):
            mine = rows & (gpu == g) & (model == m)
            others = rows & (gpu != g) & (model != m)
            if others.any():
                fit = self.fitted(form, others)
                work = of_rows(self.runs.work, mine, self.measured)
                found.append(fit.predict(work, _HOST_S) / self.runs.time_s[mine] - 1)
        return np.concatenate(found)

    def choose(self, rows: NDArray[np.bool_]) -> EagerForm:
        """The form with the least mean over GPUs of the mean error on those left out."""
        return min(FORMS, key=lambda form: float(np.abs(self.errors(form, rows)).mean()))

    def held_out(self, targets: Runs) -> tuple[Array, list[EagerForm]]:
        """Seconds of ``targets``, each by a form and a fit without its GPU and its model."""
        found = np.full(len(targets), np.nan)
        forms = []
        for g, m in sorted(set(zip(targets.gpu, targets.model, strict=True))):
            mine = (targets.gpu == g) & (targets.model == m)
            others = (self.runs.gpu != g) & (self.runs.model != m)
            form = self.choose(others)
            forms.append(form)
            work = of_rows(targets.work, mine, self.measured)
            found[mine] = self.fitted(form, others).predict(work, _HOST_S)
        return found, forms


def known_gpu(runs: Runs) -> Array:
    """Seconds of runs by multipliers of their own GPU, drawn to those of all, without the model."""
    found = np.full(len(runs), np.nan)
    judge = Judge(runs, False)
    for m in np.unique(runs.model):
        form = judge.choose(runs.model != m)
        pooled = judge.fitted(form, runs.model != m).multipliers_
        for g in np.unique(runs.gpu[runs.model == m]):
            own = (runs.gpu == g) & (runs.model != m)
            mine = (runs.gpu == g) & (runs.model == m)
            fit = EagerFit(form, pooled)
            if own.any():
                work = of_rows(runs.work, own, False)
                fit.fit(work, runs.time_s[own], np.full(int(own.sum()), g))
            else:
                fit.multipliers_ = pooled
            found[mine] = fit.predict(of_rows(runs.work, mine, False), _HOST_S)
    return found


@dataclass(frozen=True)
class Answers:
    """Predicted seconds of runs by estimator (NaN: none), and the hold-out of each."""

    runs: Runs
    seconds: Mapping[str, Array]
    splits: Mapping[str, str]
    forms: Sequence[EagerForm]


def answers(runs: Runs, targets: Runs) -> Answers:
    """Everything that is said of ``targets``; fits see ``runs`` alone."""
    unseen, forms = Judge(runs, False).held_out(targets)
    seconds = {BARE: targets.sheet_s, COMPOSED: targets.composed_s, UNSEEN: unseen}
    splits = {BARE: "all runs", COMPOSED: "all runs", UNSEEN: "unseen model and GPU"}
    tables = np.array([slowness(find_gpu(g)) is not None for g in targets.labels["gpu"]])
    by_operators, _ = Judge(runs, True).held_out(targets)
    # Without a table of its operators a GPU is priced by the data sheet.
    seconds[MEASURED] = np.where(tables, by_operators, unseen)
    splits[MEASURED] = "unseen model and GPU, its operators known"
    if targets is runs:
        seconds[KNOWN] = known_gpu(runs)
        splits[KNOWN] = "unseen model"
    for name, column in PEERS.items():
        seconds[name] = targets.labels[column].to_numpy(float)
        splits[name] = "as published"
    return Answers(targets, seconds, splits, forms)


def held_out_rows() -> pd.DataFrame:
    """The eager campaign for conformal intervals, one row per run and held-out estimator.

    Columns `COLUMNS`: ``group`` is the model left out, ``what`` ttft, times in seconds.
    """
    runs, _ = load("eager")
    found = answers(runs, runs)
    parts = [
        runs.labels.assign(
            set="neusight",
            what="ttft",
            group=runs.labels["zoo"],
            moe=False,
            estimator=name,
            predicted_s=found.seconds[name],
            measured_s=runs.time_s,
        )[list(COLUMNS)]
        for name in (UNSEEN, MEASURED, KNOWN)
    ]
    return pd.concat(parts, ignore_index=True)


def records(found: Answers, what: str) -> Iterator[dict[str, Any]]:
    """Errors on all GPUs and on each, in the layout of docs/accuracy_end_to_end.json."""
    labels = found.runs.labels
    gpus = ["all", *sorted(labels["gpu"].unique())]
    for gpu, (name, seconds) in product(gpus, found.seconds.items()):
        rows = np.isfinite(seconds) & ((gpu == "all") | (labels["gpu"] == gpu).to_numpy())
        if rows.any():
            percent = (seconds[rows] / found.runs.time_s[rows] - 1) * 100
            yield {
                "set": f"neusight: {what}",
                "gpu": gpu,
                "library": "pytorch",
                "op": "end_to_end",
                "dtype": "float32",
                "estimator": name,
                "split": found.splits[name],
                "rows": int(rows.sum()),
                **_figures(percent),
                "models": int(labels["zoo"][rows].nunique()),
            }


def peers_rows(found: Answers) -> list[tuple[str, int, float, float, float]]:
    """(peer, rows that it predicts, its error, ours by data sheet, ours by operators)."""
    out = []
    for peer in PEERS:
        rows = np.isfinite(found.seconds[peer])
        if rows.any():
            mine = [mape(found, name, rows) for name in (peer, UNSEEN, MEASURED)]
            out.append((peer, int(rows.sum()), *mine))
    return out


def mape(found: Answers, name: str, rows: NDArray[np.bool_] | None = None) -> float:
    """Mean absolute error in % of an estimator on some of the runs, by default all."""
    taken = np.isfinite(found.seconds[name]) if rows is None else rows
    return float(np.abs(found.seconds[name][taken] / found.runs.time_s[taken] - 1).mean() * 100)


@dataclass(frozen=True)
class HostRuns:
    """Whole answers of one sequence in 16 bits; seconds and launches are summed over steps."""

    labels: pd.DataFrame
    kernel_s: Array
    launches: Array
    composed_s: Array

    @property
    def time_s(self) -> Array:
        """Measured seconds."""
        return self.labels["latency_s"].to_numpy(float)

    @property
    def model(self) -> NDArray[Any]:
        """Model of each run, twins under one name."""
        return self.labels["zoo"].replace(HOST_TWINS).to_numpy(str)


def load_host() -> HostRuns:
    """ML.ENERGY v1: mean answers of a task, prompts not stated, so a step each at `CONTEXT`."""
    rows = read_runs("mlenergy_v1_legacy").to_frame()
    rows = rows[(rows["zoo"] != "") & (rows["engine"] == "eager")]
    parts = []
    for (zoo, name, dtype), mine in rows.groupby(["zoo", "gpu", "dtype"], sort=True):
        steps = np.round(mine["output"].to_numpy(float))
        one = np.ones(len(mine))
        totals = decode_totals(_in_eager(zoo, name, dtype), one, CONTEXT * one, steps + 1)
        parts.append((mine, totals.kernel_s, totals.launches, totals.time_s))
    labels = pd.concat([part[0] for part in parts], ignore_index=True)
    return HostRuns(labels, *(np.concatenate([part[i] for part in parts]) for i in (1, 2, 3)))


def _in_eager(zoo: str, gpu: str, dtype: str) -> Deployment:
    return deploy(
        hymell.trace(zoo),
        gpu=find_gpu(gpu),
        engine=get_engine("eager"),
        precision=Precision.of(dtype),
    )


def host_fit(runs: HostRuns, rows: NDArray[np.bool_]) -> HostFit:
    """Fitted to some runs; those of a model on a GPU weigh as one."""
    group = np.char.add(runs.labels["gpu"].to_numpy(str), runs.model)
    return HostFit().fit(runs.kernel_s[rows], runs.launches[rows], runs.time_s[rows], group[rows])


def host_held_out(runs: HostRuns) -> Array:
    """Seconds of runs by coefficients from other GPUs and other models."""
    found = np.zeros(len(runs.labels))
    gpu, model = runs.labels["gpu"].to_numpy(str), runs.model
    for g, m in sorted(set(zip(gpu, model, strict=True))):
        mine = (gpu == g) & (model == m)
        fit = host_fit(runs, (gpu != g) & (model != m))
        found[mine] = fit.predict(runs.kernel_s[mine], runs.launches[mine])
    return found


def without_cache(fit: HostFit) -> tuple[pd.DataFrame, Array, Array]:
    """Wilkins' runs on one GPU, where every token is a prefill: labels, fitted, typical seconds."""
    rows = read_runs("wilkins_grid_a100").to_frame()
    rows = rows[(rows["n_gpus"] == 1) & rows["latency_s"].notna()].reset_index(drop=True)
    fitted, typical = np.zeros(len(rows)), np.zeros(len(rows))
    for (zoo, name, dtype), mine in rows.groupby(["zoo", "gpu", "dtype"]):
        model = _in_eager(zoo, name, dtype)
        for place, run in zip(mine.index, mine.itertuples(), strict=True):
            lengths = np.unique(np.linspace(run.prompt, run.prompt + run.output - 1, 9).round())
            totals = prefill_totals(model, np.ones(len(lengths)), lengths)
            span = lengths[-1] - lengths[0]
            told = fit.predict(totals.kernel_s, totals.launches)
            fitted[place] = np.trapezoid(told, lengths) / span * run.output
            typical[place] = np.trapezoid(totals.time_s, lengths) / span * run.output
    return rows, fitted, typical


def host_records(
    labels: pd.DataFrame, name: str, answers: Mapping[str, tuple[Array, str]]
) -> Iterator[dict[str, Any]]:
    """Errors of latencies on each GPU and on all, in the layout of `records`."""
    time_s = labels["latency_s"].to_numpy(float)
    gpus = labels["gpu"].to_numpy(str)
    for gpu, (estimator, (seconds, split)) in product(["all", *sorted(set(gpus))], answers.items()):
        rows = (gpus == gpu) | (gpu == "all")
        yield {
            "set": f"{name}: eager, 16 bits",
            "gpu": gpu,
            "library": "pytorch",
            "op": "end_to_end",
            "dtype": "/".join(sorted(labels["dtype"][rows].unique())),
            "estimator": estimator,
            "split": split,
            "rows": int(rows.sum()),
            **_figures((seconds[rows] / time_s[rows] - 1) * 100),
            "models": int(labels["zoo"][rows].nunique()),
        }


def _figures(percent: Array) -> dict[str, float]:
    size = np.abs(percent)
    found = {
        "mape": size.mean(),
        "median": np.median(size),
        "p90": np.percentile(size, 90),
        "max": size.max(),
        "bias": percent.mean(),
    }
    return {name: round(float(value), 2) for name, value in found.items()}


@dataclass(frozen=True)
class HostResult:
    """What came out for the host: records, and what ships."""

    records: Sequence[Mapping[str, Any]]
    host: EagerHost


def judged_host() -> HostResult:
    """Every figure of eager in 16 bits."""
    runs = load_host()
    everything = np.ones(len(runs.labels), dtype=bool)
    fit, held = host_fit(runs, everything), host_held_out(runs)
    v1 = {
        COMPOSED: (runs.composed_s, "all runs"),
        HOST: (held, "unseen model and GPU"),
    }
    labels, fitted, typical = without_cache(fit)
    wilkins = {COMPOSED: (typical, "all runs"), HOST: (fitted, "unseen campaign")}
    found = [
        *host_records(runs.labels, "mlenergy_v1_legacy", v1),
        *host_records(labels, "wilkins_grid_a100", wilkins),
    ]
    whole = {r["estimator"]: r["mape"] for r in found if r["gpu"] == "all" and "v1" in r["set"]}
    host = EagerHost(
        source=HOST_TITLE,
        rows=len(runs.labels),
        gpus=tuple(sorted(runs.labels["gpu"].unique())),
        models=tuple(sorted(runs.labels["zoo"].unique())),
        mape=whole[HOST],
        composed_mape=whole[COMPOSED],
        **fit.coefficients_,
    )
    return HostResult(found, host)


def system_of(runs: Runs, found: Answers, host: EagerHost) -> EagerSystem:
    """The multipliers of all runs, each set of a form chosen over all of them."""
    everything = np.ones(len(runs), dtype=bool)
    multipliers = {}
    for kind, measured in ((SHEET, False), (OPERATORS, True)):
        judge = Judge(runs, measured)
        multipliers[kind] = judge.fitted(judge.choose(everything), everything).multipliers_
        multipliers[kind].setdefault("matrix_gemm", multipliers[kind]["gemm"])
    slow = {name: slowness(find_gpu(name)) for name in gpu_names()}
    return EagerSystem(
        source=TITLE,
        rows=len(runs),
        gpus=tuple(sorted(runs.labels["gpu"].unique())),
        models=tuple(sorted(runs.labels["zoo"].unique())),
        mape=mape(found, MEASURED),
        composed_mape=mape(found, COMPOSED),
        multipliers=multipliers,
        slowness={name: value for name, value in slow.items() if value is not None},
        host=host,
    )


def page(
    eager: Answers,
    fused: Answers,
    left: Mapping[str, int],
    system: EagerSystem,
    host: HostResult,
) -> str:
    """docs/accuracy_eager.md."""
    every = list(records(eager, "eager"))
    names = [n for n in eager.seconds if n not in PEERS]
    cells = {(r["gpu"], r["estimator"]): r for r in every}
    lines = [_INTRO.strip(), "", "## By GPU", ""]
    lines += [f"| GPU | n | {' | '.join(names)} | NeuSight |", "|---" * (len(names) + 3) + "|"]
    for gpu in dict.fromkeys(r["gpu"] for r in every):
        row = [cells.get((gpu, name)) for name in (*names, "NeuSight")]
        shown = ["" if r is None else f"{r['mape']:.1f}" for r in row]
        lines.append(f"| {gpu} | {cells[gpu, BARE]['rows']} | {' | '.join(shown)} |")
    lines += ["", "## By model", ""]
    lines += [f"| model | n | {UNSEEN} | {MEASURED} | {KNOWN} |", "|---|---|---|---|---|"]
    for zoo in sorted(eager.runs.labels["zoo"].unique()):
        rows = (eager.runs.labels["zoo"] == zoo).to_numpy()
        shown = [f"{mape(eager, name, rows):.1f}" for name in (UNSEEN, MEASURED, KNOWN)]
        lines.append(f"| {zoo} | {int(rows.sum())} | {' | '.join(shown)} |")
    lines += ["", "## Peers, on the rows that each predicts", ""]
    lines += [f"| peer | n | peer | {UNSEEN} | {MEASURED} |", "|---|---|---|---|---|"]
    for peer, count, theirs, sheet, operators in peers_rows(eager):
        lines.append(f"| {peer} | {count} | {theirs:.1f} | {sheet:.1f} | {operators:.1f} |")
    lines += ["", "## Fused by torch.compile", "", _FUSED.strip(), ""]
    lines += ["| estimator | n | MAPE | bias |", "|---|---|---|---|"]
    lines += [
        f"| {r['estimator']} | {r['rows']} | {r['mape']:.1f} | {r['bias']:+.1f} |"
        for r in records(fused, "compile")
        if r["gpu"] == "all"
    ]
    lines += ["", "## 16 bits: the host", "", _HOST_WORDS.strip(), ""]
    lines += ["| runs | GPU | n | estimator | hold-out | MAPE | bias |", "|---" * 7 + "|"]
    lines += [
        f"| {r['set']} | {r['gpu']} | {r['rows']} | {r['estimator']} | {r['split']} "
        f"| {r['mape']:.1f} | {r['bias']:+.1f} |"
        for r in host.records
    ]
    shipped = host.host
    lines += ["", f"Kernels x {shipped.kernels:.2f}, {shipped.host_s * 1e6:.1f} us per launch."]
    lines += ["", "## Multipliers", "", "| multiplier | sheet | operators |", "|---|---|---|"]
    sheet, operators = (system.multipliers[kind] for kind in (SHEET, OPERATORS))
    for name in dict.fromkeys((*sheet, *operators)):
        shown = [f"{held[name]:.2f}" if name in held else "" for held in (sheet, operators)]
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    slow = ", ".join(f"{gpu} {value:.2f}" for gpu, value in sorted(system.slowness.items()))
    lines += ["", f"Slowness of large products in tables of operators: {slow}.", ""]
    counts: dict[str, int] = {}
    for form in eager.forms:
        counts[str(form)] = counts.get(str(form), 0) + 1
    lines += ["## Forms chosen", ""]
    lines += [f"- {n} of {len(eager.forms)} hold-outs: `{form}`" for form, n in counts.items()]
    lines += ["", "## Not priced", ""]
    lines += [f"- {model}: {n} runs, no such model in the zoo" for model, n in left.items()]
    return "\n".join(lines).rstrip() + "\n"


_INTRO = f"""
# Accuracy of PyTorch eager in float32

Written by `benchmarks/eager.py`; every figure is also in
[accuracy_eager.json](accuracy_eager.json). The formula is in
[estimators/system.md](estimators/system.md#pytorch-eager-in-float32), the set in
[data.md](data.md#whole-models).

{TITLE}: one pass over a batch of
prompts, logits of every token, attention written out. H100's rows are withheld, training steps left
out.

Errors are mean absolute % of the measured time.

- **{BARE}**: kernels by roofline, fused attention; **{COMPOSED}**: with launches and gaps.
- **{UNSEEN}**: multipliers from other GPUs and other models than the run's, nothing of its
  GPU but the data sheet.
- **{MEASURED}**: the same, and the median slowness of large products in tables
  of single operators of the GPU, where there are any (NVIDIA). No whole run of the GPU or the model
  was seen.
- **{KNOWN}**: multipliers of this GPU, from other models.

The form was chosen without GPU and model, too, by leaving out pairs of GPU and model among those
that remained; MI210 and MI250, one die, are left out together. That boards of 75 W need a
multiplier of their own was seen on these rows; the hold-outs only decide whether it stays. NeuSight
learned from tables of operators of A100, P100, P4, T4 and V100, and saw no whole run. The goal with
GPU and model left out is 8. Largest errors: L4, T4 and P4, which lower their clocks in long float32
runs by as much as their cooling asks for; neither data sheet nor short runs of operators say by how
much. Clocks or power beside the runs would.
"""

_FUSED = """
Runs with operators fused, judged by multipliers fitted to eager runs of other GPUs and models;
four passes over the scores instead of eight.
"""


_HOST_WORDS = f"""
{HOST_TITLE}: mean answers at batch 1. A step lasts as
long as its kernels, by roofline times one number, or as its launches take the host, whichever is
longer; both numbers from other GPUs and other models. Prompts are not stated: {CONTEXT:.0f} tokens
are assumed in the cache. Wilkins' runs (A100 40GB, bfloat16, another host, no cache, so that every
token is a prefill) were not fitted to. What is left is the models' code (GPT-NeoX of 2023 took
twice the host time per launch of Llama, RWKV half), and the hosts of the three GPUs, which differ.
"""


def main(arguments: list[str] | None = None) -> int:
    """Judge, write the page and the records, and with --ship the multipliers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ship", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    chosen = parser.parse_args(arguments)
    try:
        runs, left = load("eager")
        fused_runs, _ = load("compile")
        eager, fused = answers(runs, runs), answers(runs, fused_runs)
        host = judged_host()
    except HymellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    system = system_of(runs, eager, host.host)
    if chosen.ship:
        better = system.mape < system.composed_mape
        if better and host.host.mape < host.host.composed_mape:
            save_eager(system, FILE)
        else:
            FILE.unlink(missing_ok=True)
        shipped_eager.cache_clear()
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = [*records(eager, "eager"), *records(fused, "compile"), *host.records]
    (chosen.out / "accuracy_eager.json").write_text(
        json.dumps(found, indent=1) + "\n", encoding="utf-8"
    )
    text = page(eager, fused, left, system, host)
    (chosen.out / "accuracy_eager.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
