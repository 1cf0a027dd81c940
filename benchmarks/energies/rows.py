"""Measured energies of whole models with the work that each run does; kept in build/.

A run of a served set is one decode step of the batch, with its share of the prompts: energy per
token x batch over batch / throughput seconds, the mean time of a step. A run of another set is
whole: prompts and all output tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from systems.keeping import kept, state_of
from systems.rows import TWINS

import hymell
from hymell.errors import HymellError
from hymell.estimators.base import Deployment, Estimator
from hymell.estimators.calibrated import choose
from hymell.estimators.energy import PowerModel
from hymell.estimators.level3.energy_terms import Work, energy_columns
from hymell.estimators.memory import PREFILL_CHUNK
from hymell.estimators.predict import deploy
from hymell.estimators.rollup import PhaseTotals, decode_totals, prefill_totals
from hymell.graph import OpGraph
from hymell.hardware import Gpu, find_gpu
from hymell.measure.e2e import read_runs
from hymell.op_registry.engines import get_engine
from hymell.workload import AS_STORED, Parallel, Precision

Array = NDArray[np.float64]

#: What is known of a run.
LABELS: Final = tuple(
    "set gpu library version dtype model zoo task moe n_gpus batch prompt output group".split()
)

#: Sets whose runs are steps of a server in steady state.
SERVED: Final = ("mlenergy_v3", "mlenergy_v2")

SETS: Final = (*SERVED, "splitwise", "wilkins_grid_a100", "argonne_power")

#: Prompts of version 2, whose lengths are not published: mean of ShareGPT (vLLM, arXiv 2309.06180,
#: figure 11: 161 tokens) and of HumanEval's problems (about 150).
_PROMPTS_V2: Final = {"chat": 161.0, "code": 150.0}

_WORK: Final = ("matrix_s", "padded_s", "bytes", "weight_bytes", "cache_bytes", "activation_bytes")
#: Folders and files of the package that neither work nor prices depend on.
_APART: Final = frozenset(
    "report cli analysis systems energies energies.py energy_fit.py energy_terms.py".split()
    + "cost_report.py breakdown.py api".split()
    + "conformal.py intervals.py intervals.json bounded.py".split()
)

_PRICED: Final = ("kernel_s", "kernel_j", "time_s")

#: Prices beside the work: by the data sheet, and by level-1 calibrations.
SHEET, KERNELS = "sheet", "kernels"


@dataclass(frozen=True)
class Runs:
    """Runs with their work over all GPUs, measured joules and seconds, and what level 1 says.

    ``work``: the `Work` by field but for ``prompt_s``. ``prompt_share``: part of the measured time
    in which prompts are processed. ``priced``: (SHEET or KERNELS, name) to kernel seconds and
    joules, and composed seconds, of one GPU; ``prompt_s`` those of prompts.
    """

    labels: pd.DataFrame
    work: Mapping[str, Array]
    energy_j: Array
    time_s: Array
    prompt_share: Array
    priced: Mapping[tuple[str, str], Array]

    def __len__(self) -> int:
        return len(self.energy_j)

    @property
    def n_gpus(self) -> Array:
        """GPUs of each run."""
        return self.labels["n_gpus"].to_numpy(float)

    @property
    def tdp_w(self) -> Array:
        """Power limit of one GPU of each run."""
        return self.labels["gpu"].map(lambda name: find_gpu(name).tdp_w).to_numpy(float)

    def take(self, rows: NDArray[Any]) -> Runs:
        """The runs that a mask or an index array picks."""
        return Runs(
            self.labels[rows] if rows.dtype == bool else self.labels.iloc[rows],
            {name: values[rows] for name, values in self.work.items()},
            self.energy_j[rows],
            self.time_s[rows],
            self.prompt_share[rows],
            {name: values[rows] for name, values in self.priced.items()},
        )

    def columns(self, time_s: Array, prompt_share: Array, gpu: Gpu) -> dict[str, Array]:
        """Columns of `ENERGY_TERMS` of runs that take ``time_s`` on ``gpu``."""
        gpu_s = time_s * self.n_gpus
        return energy_columns(Work(**self.work, prompt_s=prompt_share * gpu_s), gpu_s, gpu)

    def by_kernels(self, how: str, time_s: Array) -> Array:
        """Joules by the power of kernels, idle power for the rest of ``time_s``; TDP at most."""
        idle_w = self.labels["gpu"].map(lambda name: PowerModel.of(find_gpu(name)).idle_w)
        idle_j = idle_w.to_numpy(float) * (time_s - self.priced[how, "kernel_s"])
        one_j = self.priced[how, "kernel_j"] + idle_j
        low, high = idle_w.to_numpy(float) * time_s, self.tdp_w * time_s
        return np.asarray(self.n_gpus * np.clip(one_j, low, high))


def joined(parts: list[Runs]) -> Runs:
    """Runs of several configurations one after another."""
    first = parts[0]
    return Runs(
        pd.concat([part.labels for part in parts], ignore_index=True),
        {name: np.concatenate([part.work[name] for part in parts]) for name in first.work},
        np.concatenate([part.energy_j for part in parts]),
        np.concatenate([part.time_s for part in parts]),
        np.concatenate([part.prompt_share for part in parts]),
        {name: np.concatenate([part.priced[name] for part in parts]) for name in first.priced},
    )


@dataclass(frozen=True)
class Left:
    """Runs of a set that could not be used, and why."""

    set: str
    model: str
    rows: int
    why: str


def load(name: str, cache: Path) -> tuple[Runs, list[Left]]:
    """The runs of a set with a measured energy, from ``cache`` where nothing has changed."""
    return kept(cache / f"{name}-{state(name)}.pkl", partial(_make, name))


def state(name: str) -> str:
    """Of everything that work and prices follow from: the set, data sheets and code."""
    return state_of(name, _APART, __file__)


def measured(name: str) -> pd.DataFrame:
    """The rows of a set that have an energy, with the lengths that are taken for unstated ones."""
    rows = read_runs(name).to_frame()
    rows = rows[rows[["energy_j", "energy_per_token_j"]].notna().any(axis=1)]
    if name == "mlenergy_v2":
        prompt = rows["task"].map(_PROMPTS_V2)
        rows = rows.assign(prompt=prompt, context=prompt + rows["output"] / 2)
    if name in SERVED:
        return rows.assign(
            time_s=rows["batch"] / rows["throughput"],
            energy_j=rows["energy_per_token_j"] * rows["batch"],
        )
    return rows.assign(time_s=rows["latency_s"])


def parallel_of(key: Mapping[str, Any]) -> Parallel:
    """How a configuration is spread over GPUs. Raises HymellError for what hymell cannot spread."""
    tp, ep, dp, pp = (int(key[name]) for name in ("tp", "ep", "dp", "pp"))
    if pp > 1:
        raise HymellError("stages of layers are not judged here")
    if dp == 1:
        return Parallel(tp, ep)
    if tp == 1 and ep == dp:
        return Parallel(1, ep)
    raise HymellError(f"attention over {tp} x {dp} GPUs beside experts over {ep} is not supported")


def _make(name: str) -> tuple[Runs, list[Left]]:
    parts: list[Runs] = []
    left: list[Left] = []
    keys = ["model", "zoo", "gpu", "engine", "dtype", "tp", "ep", "dp", "pp"]
    for key, mine in measured(name).groupby(keys, sort=True):
        try:
            parts.append(_priced(name, dict(zip(keys, key, strict=True)), mine))
        except HymellError as error:
            left.append(Left(name, f"{key[0]} on {key[2]}", len(mine), str(error)))
    if not parts:
        raise HymellError(f"no run of {name} can be priced; the first: {left[0].why}")
    return joined(parts), left


def _priced(name: str, key: Mapping[str, Any], rows: pd.DataFrame) -> Runs:
    if not key["zoo"]:
        raise HymellError("the zoo has no model of this shape")
    if not key["engine"]:
        raise HymellError("no engine of hymell runs like this library")
    board, engine = find_gpu(key["gpu"]), get_engine(key["engine"])
    graph = hymell.trace(key["zoo"])
    parallel = parallel_of(key)

    def deployed(priced_by: Estimator | None) -> Deployment:
        return deploy(
            graph,
            gpu=board,
            engine=engine,
            precision=_precision(graph, key["dtype"]),
            estimator=priced_by,
            parallel=parallel,
        )

    calibrated = choose(board, engine.name)
    models = {
        SHEET: deployed(None),
        KERNELS: deployed(None if calibrated is None else replace(calibrated, system=None)),
    }
    priced: dict[tuple[str, str], Array] = {}
    for how, model in models.items():
        decode, prompts = _phases(name, model, rows)
        for field in _PRICED:
            priced[how, field] = decode[field] + prompts[field]
        priced[how, "prompt_s"] = prompts["time_s"]
        if how == SHEET:
            work = {field: parallel.per_stage * (decode[field] + prompts[field]) for field in _WORK}
    composed = priced[KERNELS, "prompt_s"] / priced[KERNELS, "time_s"]
    labels = rows.assign(moe=work["padded_s"] > 0, group=TWINS.get(key["zoo"], key["zoo"]))
    return Runs(
        labels[list(LABELS)],
        work,
        rows["energy_j"].to_numpy(float),
        rows["time_s"].to_numpy(float),
        _prompt_share(name, rows, composed),
        priced,
    )


def _precision(graph: OpGraph, dtype: str) -> Precision:
    """A checkpoint's own 8-bit format, blocks included, else the format that was stated."""
    stored = graph.facts.quantization
    return AS_STORED if stored and dtype.startswith("float8") else Precision.of(dtype)


def _prompt_share(name: str, rows: pd.DataFrame, composed: Array) -> Array:
    """Part of the measured time that goes to prompts; where it was not measured, as composed."""
    time_s = rows["time_s"].to_numpy(float)
    if name in SERVED:
        # Between two tokens of the median sequence no prompt is processed.
        return np.clip(1 - rows["tpot_s"].to_numpy(float) / time_s, 0.0, 1.0)
    if name == "splitwise":
        return np.asarray(rows["ttft_s"].to_numpy(float) / time_s)
    return composed


def _phases(
    name: str, model: Deployment, rows: pd.DataFrame
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """What decode and prompts of each run take, on one GPU."""
    batch, prompt, output = (rows[n].to_numpy(float) for n in ("batch", "prompt", "output"))
    replicas = float(model.parallel.replicas)
    if name in SERVED:
        # One step at the mean context, and the prompts that take the place of answered requests.
        context = np.maximum(np.round(rows["context"].to_numpy(float)), 1)
        spread = np.maximum(batch, replicas)
        decode = _fields(decode_totals(model, spread, context, np.full(len(rows), 2.0)))
        # Prompts share chunks of tokens, and thus reads of the weights.
        together = replicas * np.ceil(PREFILL_CHUNK / prompt)
        prompts = _fields(prefill_totals(model, together, prompt))
        share = batch / together / output
        return decode, {field: values * share for field, values in prompts.items()}
    if not rows["kv_cache"].all():
        recomputed = _without_cache(model, batch, prompt, output)
        return {field: 0.0 * values for field, values in recomputed.items()}, recomputed
    decode = _fields(decode_totals(model, batch, prompt, output))
    return decode, _fields(prefill_totals(model, batch, prompt))


def _without_cache(
    model: Deployment, batch: Array, prompt: Array, output: Array
) -> Mapping[str, Array]:
    """Every token recomputes the whole prefix: prefills of prompt .. prompt + output - 1 tokens."""
    lengths = np.arange(1, int((prompt + output).max()), dtype=np.float64)
    found = {field: np.zeros(len(batch)) for field in (*_WORK, *_PRICED)}
    for size in np.unique(batch):
        once = _fields(prefill_totals(model, np.full_like(lengths, size), lengths))
        mine = batch == size
        first, last = prompt[mine].astype(int), (prompt + output)[mine].astype(int)
        for field, values in once.items():
            total = np.concatenate([[0.0], np.cumsum(values)])
            found[field][mine] = total[last - 1] - total[first - 1]
    return found


def _fields(totals: PhaseTotals) -> dict[str, Array]:
    return {field: getattr(totals, field) for field in (*_WORK, *_PRICED)}
