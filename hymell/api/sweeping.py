"""`sweep`: many architectures of a model, priced on GPUs, engines and workloads."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hymell import sources
from hymell.api.setting import CalibrationChoice
from hymell.api.tracing import Progress, config_source, silent
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.op_registry.opaque import OPAQUE_MODULES
from hymell.workload import Parallel, Precision, Workload

if TYPE_CHECKING:
    from hymell.analysis.sweep.result import SweepResult
    from hymell.analysis.sweep.run import Report


def sweep(
    model: str | os.PathLike[str] | Mapping[str, Any],
    values: Mapping[str, Sequence[Any]] | None = None,
    *,
    gpu: str | Sequence[str] = "h100-sxm",
    engine: str | Sequence[str] = "vllm",
    batch: int | Sequence[int] = 1,
    prompt: int | Sequence[int] = 1024,
    output: int | Sequence[int] = 128,
    sample: int | None = None,
    optimize: Sequence[str] | None = None,
    trials: int = 100,
    seed: int = 0,
    constraints: Sequence[str] = (),
    pareto: Sequence[str] = ("tpot", "energy_per_token"),
    workers: int = 1,
    backend: str = "local",
    address: str | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    calibration: CalibrationChoice = "auto",
    tp: int = 1,
    ep: int = 1,
    revision: str | None = None,
    progress: Progress | None = None,
    report: Report | None = None,
) -> SweepResult:
    """Price many architectures of a model on GPUs, engines and workloads; find the best of them.

    ``values`` are the values of config fields: numbers, words, ranges ("16..64+16", "8..64*2") or
    arithmetic over other fields ("hq": as many as query heads; "num_attention_heads/4"). Every
    combination is traced anew and priced on every ``gpu``, ``engine``, ``batch``, ``prompt`` and
    ``output``; combinations that are no model are skipped, counted by reason. ``sample`` draws so
    many architectures of the grid; ``optimize`` names objectives (tpot, energy_per_token, ...) for
    which ``trials`` points are searched instead (hymell[sweep]). ``constraints`` are conditions on
    a row such as "params_b < 9"; rows that miss one, do not fit the GPU or are longer than the
    model was made for take no part in the ``pareto`` front.

    ``workers`` are processes here (hymell[sweep]); ``backend`` "ray" prices on the Ray cluster at
    ``address``, or one that it starts (hymell[ray]). ``out`` is a Parquet file that rows stream to:
    an interrupted sweep goes on where it stopped when it is called again, ``overwrite`` starts
    anew. ``report`` is called with (architectures done, of how many, points). Raises HymellError
    for bad input and where nothing can be priced.
    """
    from pathlib import Path

    from hymell.analysis.sweep.axes import axes_of
    from hymell.analysis.sweep.backends import backend_of
    from hymell.analysis.sweep.pareto import objectives_of
    from hymell.analysis.sweep.points import Setup
    from hymell.analysis.sweep.run import Plan, check_plan, run

    say = progress or silent
    setup = Setup(
        gpus=_gpu_names(gpu),
        engines=_engine_names(engine),
        batches=_sizes("batch", batch),
        prompts=_sizes("prompt", prompt),
        outputs=_sizes("output", output),
        constraints=tuple(constraints),
        dtype=dtype,
        kv_dtype=kv_dtype,
        skew=skew,
        calibration=os.fspath(calibration),
        tp=tp,
        ep=ep,
        fields=tuple(values or ()),
    )
    Precision.of(dtype, kv_dtype)
    parallel = Parallel(tp, ep)
    for size in setup.batches:
        parallel.check_batch(size)
    objectives = objectives_of(optimize or pareto)
    source = config_source(model, revision)
    plan = Plan(
        model=source.name,
        config=source.config,
        axes=(),
        setup=setup,
        objectives=objectives,
        sample=sample,
        trials=trials if optimize else None,
        seed=seed,
        extras=(source.name, json.dumps(source.hf_quant, sort_keys=True)),
    )
    check_plan(plan)
    tracer = functools.partial(trace_architecture, source.name, source.hf_quant)
    priced_by = backend_of(backend, setup, tracer, workers=workers, address=address)
    if values:
        say("importing torch and transformers")
        from hymell.tracer.configs import known_fields

        plan = replace(plan, axes=axes_of(values, known_fields(source), source.config, source.name))
    say("pricing")
    to = None if out is None else Path(os.fspath(out))
    return run(plan, priced_by, out=to, overwrite=overwrite, report=report)


def trace_architecture(
    name: str, hf_quant: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> OpGraph:
    """The graph of one architecture of a sweep: that of `trace`, kept nowhere."""
    from hymell.tracer.assemble import scheme_of, trace_config
    from hymell.tracer.configs import to_config

    held = dict(hf_quant) if hf_quant is not None else None
    source = sources.ConfigSource(name, dict(config), "file", "a sweep", hf_quant=held)
    return trace_config(
        to_config(source),
        name,
        scheme=scheme_of(source.config, held),
        opaque_modules=OPAQUE_MODULES,
    )


def _gpu_names(gpu: str | Sequence[str]) -> tuple[str, ...]:
    """GPUs by the name that a report shows; a data sheet of one's own by its path."""
    from hymell.hardware import find_gpu

    asked = [os.fspath(gpu)] if isinstance(gpu, (str, os.PathLike)) else list(gpu)
    if not asked:
        raise HymellError("no GPU was given; name at least one (`hymell gpus` lists them)")
    return tuple(
        dict.fromkeys(name if os.path.exists(name) else find_gpu(name).name for name in asked)
    )


def _engine_names(engine: str | Sequence[str]) -> tuple[str, ...]:
    from hymell.op_registry.engines import get_engine

    asked = [engine] if isinstance(engine, str) else list(engine)
    if not asked:
        raise HymellError("no engine was given; name at least one, e.g. vllm")
    return tuple(dict.fromkeys(get_engine(name).name for name in asked))


def _sizes(name: str, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """Distinct batches or lengths in order. Raises HymellError for none and for absurd ones."""
    asked = [sizes] if isinstance(sizes, int) else list(sizes)
    if not asked:
        raise HymellError(f"{name}: an empty grid; give at least one value")
    for size in asked:
        Workload(**{name: size})
    return tuple(sorted(set(asked)))
