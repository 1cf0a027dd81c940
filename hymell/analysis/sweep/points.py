"""The points of a sweep: what is priced of an architecture, and the columns that come out."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hymell.analysis.sweep.axes import Plain
from hymell.analysis.sweep.expressions import Expression, parse
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.bounded import intervals
from hymell.estimators.calibrated import Calibrated, choose
from hymell.estimators.eager import in_eager
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.memory_grid import memory_of
from hymell.estimators.predict import deploy
from hymell.estimators.workload_grid import price_grid
from hymell.graph import OpGraph
from hymell.hardware import find_gpu
from hymell.op_registry.engines import get_engine
from hymell.workload import Parallel, Precision

#: A config's content -> its graph.
Tracer: TypeAlias = Callable[[Mapping[str, Any]], OpGraph]
Column: TypeAlias = NDArray[Any]

#: What is priced, in the order of the table; units stand in the names.
COSTS: Final = (
    "ttft_s",
    "tpot_s",
    "latency_s",
    "tokens_per_s",
    "energy_j",
    "energy_per_output_token_j",
    "memory_bytes",
)
#: Costs that have a 90% interval where whole runs were measured; its ends, NaN where none were.
WITH_INTERVAL: Final = ("ttft_s", "tpot_s", "latency_s", "energy_j")
BOUNDS: Final = tuple(f"{name}_{end}" for name in WITH_INTERVAL for end in ("low", "high"))
#: What holds of a row: it fits the GPU, the model was made for its length, constraints are met too.
TRUTHS: Final = ("fits", "in_context", "feasible")
SIZES: Final = ("parameters", "active_parameters")
WORKLOAD: Final = ("batch", "prompt", "output")

#: Other units that constraints and objectives may name: (column, factor).
UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "params_b": ("parameters", 1e-9),
    "active_params_b": ("active_parameters", 1e-9),
    "memory_gb": ("memory_bytes", 1e-9),
    "ttft_ms": ("ttft_s", 1e3),
    "tpot_ms": ("tpot_s", 1e3),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What all architectures of a sweep have in common; plain values, so that it travels."""

    gpus: tuple[str, ...]
    engines: tuple[str, ...]
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    constraints: tuple[str, ...] = ()
    dtype: str | None = None
    kv_dtype: str | None = None
    skew: float = 0.0
    calibration: str = "auto"
    tp: int = 1
    ep: int = 1
    fields: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Points of one architecture."""
        lengths = len(self.batches) * len(self.prompts) * len(self.outputs)
        return len(self.gpus) * len(self.engines) * lengths

    def names(self) -> set[str]:
        """What constraints may name."""
        return {*COSTS, *SIZES, *WORKLOAD, *UNITS, *self.fields}


@dataclass(frozen=True, slots=True)
class Task:
    """One architecture to price, under a number that orders the sweep.

    ``only`` picks one point by its positions in (gpus, engines, batches, prompts, outputs); without
    it all are priced. ``reason`` says why there is nothing to price.
    """

    number: int
    architecture: int
    values: Mapping[str, Plain]
    config: Mapping[str, Any]
    only: tuple[int, int, int, int, int] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task: columns by name, or the reason why it was skipped."""

    number: int
    columns: Mapping[str, Column]
    reason: str = ""


def evaluate(setup: Setup, tracer: Tracer, task: Task) -> Outcome:
    """Trace an architecture and price its points; a HymellError becomes the reason to skip it."""
    if task.reason:
        return Outcome(task.number, {}, task.reason)
    try:
        return Outcome(task.number, _columns(setup, tracer, task))
    except HymellError as error:
        return Outcome(task.number, {}, str(error))


def _columns(setup: Setup, tracer: Tracer, task: Task) -> dict[str, Column]:
    graph = _graph(tracer, task.config)
    if "decode" not in graph.phases():
        raise HymellError(f"{graph.facts.name} does not generate tokens")
    if task.only is not None:
        setup = picked(setup, task.only)
    parts = [_priced(setup, model) for model in _deployments(setup, graph)]
    rows = setup.rows
    columns: dict[str, Column] = {"architecture": np.full(rows, task.architecture)}
    columns |= {field: _constant(value, rows) for field, value in task.values.items()}
    facts = graph.facts
    columns["parameters"] = np.full(rows, facts.parameters)
    columns["active_parameters"] = np.full(rows, facts.active_parameters)
    columns |= _places(setup)
    for name in (*COSTS, *BOUNDS, "fits"):
        columns[name] = np.concatenate([part[name] for part in parts])
    longest = np.inf if facts.max_context is None else facts.max_context
    columns["in_context"] = columns["prompt"] + columns["output"] <= longest
    columns["feasible"] = columns["fits"] & columns["in_context"]
    names = with_units(columns)
    for constraint in constraints_of(setup):
        columns["feasible"] &= np.asarray(constraint.value(names), dtype=bool)
    return columns


def picked(setup: Setup, only: tuple[int, int, int, int, int]) -> Setup:
    """A setup of one point."""
    gpu, engine, batch, prompt, output = only
    return replace(
        setup,
        gpus=(setup.gpus[gpu],),
        engines=(setup.engines[engine],),
        batches=(setup.batches[batch],),
        prompts=(setup.prompts[prompt],),
        outputs=(setup.outputs[output],),
    )


def constraints_of(setup: Setup) -> list[Expression]:
    """The constraints, parsed. Raises HymellError for one that is no condition on known names."""
    found = [parse(text, setup.names(), "the constraint") for text in setup.constraints]
    for constraint in found:
        if not constraint.is_condition:
            raise HymellError(
                f"the constraint {constraint.text!r} compares nothing; write e.g. params_b < 9"
            )
    return found


def with_units(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns together with the same in other units."""
    others = {name: factor * columns[c] for name, (c, factor) in UNITS.items() if c in columns}
    return {**columns, **others}


def _deployments(setup: Setup, graph: OpGraph) -> list[Deployment]:
    """A deployment per GPU and engine; GPUs share what an engine's lowering makes."""
    precision = Precision.of(setup.dtype, setup.kv_dtype)
    parallel = Parallel(setup.tp, setup.ep)
    lowered: dict[str, Any] = {}
    found = []
    for name in setup.gpus:
        gpu = find_gpu(name)
        for engine_name in setup.engines:
            engine = get_engine(engine_name)
            fitted = _estimator(name, engine.name, setup.calibration)
            estimator, engine = in_eager(fitted, graph, gpu, engine, setup.calibration, precision)
            model = deploy(
                graph,
                gpu=gpu,
                engine=engine,
                precision=precision,
                skew=setup.skew,
                estimator=estimator,
                parallel=parallel,
            )
            found.append(replace(model, lowered=lowered.setdefault(engine.name, model.lowered)))
    return found


_ESTIMATORS: dict[tuple[str, str, str], Calibrated | None] = {}


def _estimator(gpu: str, engine: str, calibration: str) -> Calibrated | None:
    """What prices kernels, made once per process."""
    key = (gpu, engine, calibration)
    if key not in _ESTIMATORS:
        _ESTIMATORS[key] = choose(find_gpu(gpu), engine, calibration)
    return _ESTIMATORS[key]


def assumptions_of(setup: Setup) -> tuple[str, ...]:
    """What prices kernels and energy on each GPU under each engine, a line each."""
    found = []
    for name in setup.gpus:
        for engine in setup.engines:
            gpu = find_gpu(name)
            estimator = _estimator(name, engine, setup.calibration) or Roofline()
            found.append(f"{gpu.name}, {engine}: {estimator.describe(gpu)}")
            energies = estimator.energies if isinstance(estimator, Calibrated) else None
            power = (
                "power of its kernels, by the data sheet where none was measured"
                if energies is None
                else energies.describe(gpu)
            )
            found.append(f"{gpu.name}, {engine}, energy: {power}")
    return tuple(found)


#: Graphs of the latest architectures, by what they were traced from.
_GRAPHS: OrderedDict[str, OpGraph] = OrderedDict()
_MOST_GRAPHS = 32


def _graph(tracer: Tracer, config: Mapping[str, Any]) -> OpGraph:
    key = json.dumps(config, sort_keys=True, default=repr)
    if key not in _GRAPHS:
        _GRAPHS[key] = tracer(config)
        while len(_GRAPHS) > _MOST_GRAPHS:
            _GRAPHS.popitem(last=False)
    _GRAPHS.move_to_end(key)
    return _GRAPHS[key]


def _priced(setup: Setup, model: Deployment) -> dict[str, Column]:
    for batch in setup.batches:
        model.parallel.check_batch(batch)
    costs = price_grid(model, setup.batches, setup.prompts, setup.outputs)
    lengths = (setup.batches, setup.prompts, setup.outputs)
    grid = np.meshgrid(*(np.array(v, dtype=np.float64) for v in lengths), indexing="ij")
    workloads = [values.reshape(-1) for values in grid]
    memory, fits = memory_of(model, *workloads)
    columns = {name: values.reshape(-1) for name, values in costs.items()}
    return {**columns, **_bounds(model, columns, workloads), "memory_bytes": memory, "fits": fits}


def _bounds(
    model: Deployment, costs: Mapping[str, Column], workloads: Sequence[Column]
) -> dict[str, Column]:
    """The columns of `BOUNDS`; ranges of kernels are not looked at, as in `predict.price`."""
    decode_s = costs["latency_s"] - costs["ttft_s"]
    found = intervals(model, {**costs, "decode_time_s": decode_s}, *workloads)
    nothing = np.full(len(decode_s), np.nan)
    ends = (end for name in WITH_INTERVAL for end in found.get(name, (nothing, nothing)))
    return dict(zip(BOUNDS, ends, strict=True))


def _places(setup: Setup) -> dict[str, Column]:
    """GPU, engine and workload of each row; GPU and engine as positions in the setup's tuples."""
    lengths = (setup.batches, setup.prompts, setup.outputs)
    found = np.meshgrid(
        np.arange(len(setup.gpus), dtype=np.int32),
        np.arange(len(setup.engines), dtype=np.int32),
        *(np.array(values, dtype=np.int64) for values in lengths),
        indexing="ij",
    )
    names = ("gpu", "engine", *WORKLOAD)
    flat: dict[str, Column] = {n: v.reshape(-1) for n, v in zip(names, found, strict=True)}
    flat["gpu"], flat["engine"] = (
        np.array(setup.gpus)[flat["gpu"]],
        np.array(setup.engines)[flat["engine"]],
    )
    return flat


def _constant(value: Plain, rows: int) -> Column:
    return np.full(rows, value, dtype=object if value is None else None)


def joined(parts: Sequence[Mapping[str, Column]], order: Sequence[str]) -> dict[str, Column]:
    """Columns of several outcomes one after the other, in the order of the table."""
    held = [part for part in parts if part]
    return {name: np.concatenate([part[name] for part in held]) for name in order} if held else {}


def table_order(fields: Sequence[str]) -> tuple[str, ...]:
    """The columns of a sweep's table."""
    return ("architecture", *fields, *SIZES, "gpu", "engine", *WORKLOAD, *COSTS, *BOUNDS, *TRUTHS)
