"""Measured runs of whole models as what a system's terms make of them; kept in build/.

A run is one time: a latency, a time to first token (a run of one output token), or a time per
output token, which is that of the decode step at the mean context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import hymell
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.calibrated import choose
from hymell.estimators.calibration import Calibration
from hymell.estimators.level3.features import features
from hymell.estimators.level3.groups import GROUPS
from hymell.estimators.level3.terms import columns, stacked
from hymell.estimators.memory import PREFILL_CHUNK
from hymell.estimators.predict import deploy
from hymell.estimators.rollup import decode_totals, prefill_totals
from hymell.graph import ModelFacts
from hymell.hardware import find_gpu
from hymell.measure.e2e import read_runs
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Precision
from systems.keeping import kept, state_of

Array = NDArray[np.float64]

#: What is known of a run; ``what`` is latency, ttft or tpot, ``moe`` whether it has experts.
LABELS: Final = tuple(
    "set gpu library version dtype model zoo task what moe n_gpus batch prompt output".split()
)

#: Models of one shape, or nearly: never one in the fit and the other in the judgement.
TWINS: Final[Mapping[str, str]] = {
    "mistral-7b-v0.1": "llama-3-8b",
    "mistral-7b-v0.2": "llama-3-8b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-7b": "llama-2-7b",
    "codellama-7b": "llama-2-7b",
    "codellama-13b": "llama-2-13b",
    "codellama-70b": "llama-2-70b",
    "llama-3-70b": "llama-2-70b",
    "llama-3.1-70b": "llama-2-70b",
    "llama-3.1-405b-fp8": "llama-3.1-405b",
    "qwen3-30b-a3b-2507": "qwen3-30b-a3b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b-2507": "qwen3-235b-a22b",
    "qwen3-235b-a22b-2507-fp8": "qwen3-235b-a22b",
    "qwen3-coder-480b-a35b-fp8": "qwen3-coder-480b-a35b",
    "nemotron-nano-9b-v2": "nemotron-nano-12b-v2",
}

_TIMES: Final = {"latency": "latency_s", "ttft": "ttft_s", "tpot": "tpot_s"}


@dataclass(frozen=True)
class Runs:
    """Runs with their terms, measured seconds, and what compositions say that were not fitted.

    ``analytic_s`` are kernels alone, by the analytical forms without their learned corrections.
    ``sizes`` are the global parameters that `level3.residual` looks at.
    """

    labels: pd.DataFrame
    terms: Mapping[str, Array]
    time_s: Array
    sheet_s: Array
    analytic_s: Array
    composed_s: Array
    sizes: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def group(self) -> NDArray[Any]:
        """The model of each run, near twins under one name."""
        return self.labels["zoo"].map(lambda zoo: TWINS.get(zoo, zoo)).to_numpy()

    def take(self, rows: NDArray[Any]) -> Runs:
        """The runs that a mask or an index array picks."""
        return Runs(
            self.labels[rows] if rows.dtype == bool else self.labels.iloc[rows],
            {name: values[rows] for name, values in self.terms.items()},
            self.time_s[rows],
            self.sheet_s[rows],
            self.analytic_s[rows],
            self.composed_s[rows],
            {name: values[rows] for name, values in self.sizes.items()},
        )


def joined(parts: Sequence[Runs]) -> Runs:
    """Runs of several sets one after another."""
    return Runs(
        pd.concat([part.labels for part in parts], ignore_index=True),
        stacked([part.terms for part in parts]),
        np.concatenate([part.time_s for part in parts]),
        np.concatenate([part.sheet_s for part in parts]),
        np.concatenate([part.analytic_s for part in parts]),
        np.concatenate([part.composed_s for part in parts]),
        {n: np.concatenate([part.sizes[n] for part in parts]) for n in parts[0].sizes},
    )


@dataclass(frozen=True)
class Left:
    """Runs of a set that could not be priced, and why."""

    set: str
    model: str
    rows: int
    why: str


def load(name: str, what: str, cache: Path) -> tuple[Runs, list[Left]]:
    """The runs of a set with a measured ``what``, from ``cache`` where nothing has changed."""
    file = cache / f"{name}-{what}-{state_of(name, _NOT_PRICES, __file__)}.pkl"
    return kept(file, partial(_make, name, what))


#: Parts of the package that no price of a kernel comes from.
_NOT_PRICES: Final = frozenset(
    {
        "report",
        "cli",
        "systems",
        "energies",
        "api",
        "fit.py",
        "residual.py",
        "system.py",
        "training.py",
    }
    | {"conformal.py", "intervals.py", "intervals.json", "bounded.py", "cost_report.py"}
)


def _make(name: str, what: str) -> tuple[Runs, list[Left]]:
    rows = read_runs(name).to_frame()
    rows = rows[rows[_TIMES[what]].notna()].assign(what=what, time_s=lambda r: r[_TIMES[what]])
    parts: list[Runs] = []
    left: list[Left] = []
    keys = ["model", "zoo", "gpu", "engine", "dtype", "tp", "ep", "dp", "pp"]
    for key, mine in rows.groupby(keys, sort=True):
        try:
            parts.append(_priced(dict(zip(keys, key, strict=True)), mine, what))
        except HymellError as error:
            left.append(Left(name, f"{key[0]} on {key[2]}", len(mine), str(error)))
    if not parts:
        raise HymellError(f"no run of {name} can be priced; the first: {left[0].why}")
    return joined(parts), left


def _priced(key: Mapping[str, Any], rows: pd.DataFrame, what: str) -> Runs:
    if not key["zoo"]:
        raise HymellError("the zoo has no model of this shape")
    if not key["engine"]:
        raise HymellError("no engine of hymell runs like this library")
    board, engine = find_gpu(key["gpu"]), get_engine(key["engine"])
    graph = hymell.trace(key["zoo"])
    parallel = _parallel(key)
    B, prompt, output = _workloads(rows, what)
    if not np.isfinite(B * prompt * output).all():
        raise HymellError("a length or the batch is not stated")
    if parallel.replicas > 1:
        # As many sequences on each GPU as there are on average.
        B = np.maximum(B, parallel.replicas)

    def deployed(calibration: str, *, corrected: bool = True) -> Deployment:
        chosen = choose(board, engine.name, calibration)
        if chosen is not None and not corrected:
            chosen = replace(chosen, sources=tuple(map(_analytical, chosen.sources)))
        return deploy(
            graph,
            gpu=board,
            engine=engine,
            precision=Precision.of(key["dtype"]),
            # What is judged here is fitted here.
            estimator=None if chosen is None else replace(chosen, system=None),
            parallel=parallel,
        )

    fitted, sheet = deployed("auto"), deployed("none")
    found = features(fitted, B, prompt, output)
    sizes = _sizes(graph.facts, parallel, found, B, prompt, output)
    if what == "tpot":
        found |= _between(fitted, rows, B)
    moe = any(found[f"{phase}_experts"].any() for phase in ("prefill", "decode"))
    return Runs(
        rows.assign(moe=moe)[list(LABELS)],
        columns(found, float(graph.facts.vocab_size or 0)),
        rows["time_s"].to_numpy(float),
        _composed(sheet, B, prompt, output, what),
        _kernels_s(deployed("auto", corrected=False), B, prompt, output, what),
        _composed(fitted, B, prompt, output, what),
        sizes,
    )


def _analytical(calibration: Calibration) -> Calibration:
    """The same coefficients without the learned corrections."""
    entries = {
        key: replace(entry, fitted={**entry.fitted, "corrected": False})
        for key, entry in calibration.entries.items()
    }
    return replace(calibration, entries=entries, _made={})


def _sizes(
    facts: ModelFacts,
    parallel: Parallel,
    found: Mapping[str, Array],
    B: Array,
    prompt: Array,
    output: Array,
) -> dict[str, Array]:
    """Global parameters of each run: the model's, the workload's, and what the host starts."""
    steps = np.maximum(found["prefill_steps"] + found["decode_steps"], 1)
    mixers = found["prefill_attention_layers"] + found["decode_attention_layers"]
    constant = {
        "parameters": float(facts.parameters),
        "active_parameters": float(facts.active_parameters),
        "gpus": float(parallel.gpus),
    }
    varying = {
        "layers": mixers / steps,
        "batch": B,
        "prompt": prompt,
        "output": output,
        "prefill_launches": found["prefill_launches"],
        "decode_launches": found["decode_launches"],
    }
    return {name: np.full(len(B), value) for name, value in constant.items()} | varying


def _between(model: Deployment, rows: pd.DataFrame, B: Array) -> dict[str, Array]:
    """Prefill that a decode step of a server waits for: a prompt per sequence and output.

    Prompts share chunks of tokens, with each other and with decode. Nothing of a prefill is in the
    decode step of a batch that started together.
    """
    replicas = float(model.parallel.replicas)
    prompt, output = rows["prompt"].to_numpy(float), rows["output"].to_numpy(float)
    together = replicas * np.ceil(PREFILL_CHUNK / prompt)
    found = features(model, together, prompt, np.ones(len(rows)))
    share = np.where(rows["queued"].to_numpy(bool), B / together / output, 0.0)
    seconds = [f"prefill_{group}" for group in GROUPS]
    return {n: found[n] * (share if n in seconds else 0.0) for n in found if n[:8] == "prefill_"}


def _parallel(key: Mapping[str, Any]) -> Parallel:
    tp, ep, dp, pp = (int(key[name]) for name in ("tp", "ep", "dp", "pp"))
    if pp > 1:
        raise HymellError("stages of layers are not judged here")
    if dp == 1:
        return Parallel(tp, ep)
    if tp == 1 and ep == dp:
        return Parallel(1, ep)
    raise HymellError(f"attention over {tp} x {dp} GPUs beside experts over {ep} is not supported")


def _workloads(rows: pd.DataFrame, what: str) -> Iterator[Array]:
    """Batch, prompt, output of workloads that take the measured time."""
    batch, prompt, output = (rows[name].to_numpy(float) for name in ("batch", "prompt", "output"))
    if what == "ttft":
        output = np.ones(len(rows))
    elif what == "tpot":
        # One decode step that finds the mean context in the cache.
        prompt = np.maximum(np.round(rows["context"].to_numpy(float)), 1)
        output = np.full(len(rows), 2.0)
    yield from (batch, prompt, output)


def _kernels_s(model: Deployment, B: Array, prompt: Array, output: Array, what: str) -> Array:
    """Seconds of kernels alone, one after another."""
    decode = decode_totals(model, B, prompt, output).kernel_s
    return decode if what == "tpot" else prefill_totals(model, B, prompt).kernel_s + decode


def _composed(model: Deployment, B: Array, prompt: Array, output: Array, what: str) -> Array:
    """Seconds by the typical overheads of the engine."""
    decode = decode_totals(model, B, prompt, output).time_s
    return decode if what == "tpot" else prefill_totals(model, B, prompt).time_s + decode
