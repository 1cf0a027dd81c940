"""The calls that do everything: `trace` a model, `predict` what a workload of it costs, find its
`sweet_spot`, `compare` it with others, `serve` requests as they come, `sweep` over architectures,
GPUs and workloads, `compare_attention` of one's own with that of a model, and `save_runs` of one's
own to calibrate with.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from hymell import sources, store
from hymell.cost_report import CostReport
from hymell.errors import HymellError
from hymell.graph import OpGraph
from hymell.op_registry.opaque import OPAQUE_MODULES
from hymell.workload import SINGLE, Parallel, Precision, Workload

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from hymell.analysis.arrivals import Arrivals
    from hymell.analysis.attention_variant import AttentionComparison
    from hymell.analysis.compare import Comparison
    from hymell.analysis.context_curve import ContextCurve
    from hymell.analysis.own_runs import OwnRun
    from hymell.analysis.own_store import SavedRuns
    from hymell.analysis.serving import Serving
    from hymell.analysis.sweep.result import SweepResult
    from hymell.analysis.sweep.run import Report
    from hymell.analysis.sweet_spot import SweetSpot
    from hymell.analysis.traffic import Traffic
    from hymell.estimators.calibrated import Calibrated
    from hymell.estimators.offsets import Offsets
    from hymell.hardware import Gpu

Progress: TypeAlias = Callable[[str], None]
#: "auto", "none" or the file of a calibration.
CalibrationChoice: TypeAlias = "str | os.PathLike[str]"
#: A CSV file of own runs, or runs.
Runs: TypeAlias = "str | os.PathLike[str] | Sequence[OwnRun]"
Model: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | PretrainedConfig | nn.Module"


def _silent(_: str) -> None:
    return None


def trace(
    model: Model,
    *,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    logits_to_keep: int = 1,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> OpGraph:
    """The op graph of a model, every size a formula in B, S and L. No weights are loaded.

    ``model``: a Hugging Face id (``name@revision`` works), a local folder or config.json, a zoo
    name, the content of a config, a ``PretrainedConfig``, a Hugging Face model on any device, or
    any ``nn.Module`` with example inputs in ``args`` and ``kwargs``. ``logits_to_keep`` 0 computes
    logits for every prompt token instead of the last. Graphs of configs are kept in the cache
    directory (`hymell.store`). Code of a model repository runs only with ``trust_remote_code``.

    Raises HymellError for input that makes no sense and TraceError for a model that cannot be
    traced, each with one sentence.
    """
    say = progress or _silent
    if isinstance(model, (str, os.PathLike, Mapping)):
        if not isinstance(model, Mapping):
            say(f"reading the config of {os.fspath(model)}")
        source = _config_source(model, revision)
    else:
        return _trace_object(model, args, kwargs or {}, logits_to_keep, say)
    key = store.key_of(
        source.config,
        hf_quant=source.hf_quant,
        trust_remote_code=trust_remote_code and source.auto_map,
        logits_to_keep=logits_to_keep,
        opaque=sorted(f"{c.__module__}.{c.__qualname__}={n}" for c, n in OPAQUE_MODULES.items()),
    )
    if use_cache and (kept := store.get(key)) is not None:
        notes = tuple(dict.fromkeys((*source.notes, *kept.facts.notes)))
        return kept.with_facts(name=source.name, notes=notes)
    say("importing torch and transformers")
    from hymell.tracer.assemble import scheme_of, trace_config
    from hymell.tracer.configs import to_config

    scheme = scheme_of(source.config, source.hf_quant)
    config = to_config(source, trust_remote_code=trust_remote_code)
    notes = source.notes
    if config.model_type != source.config["model_type"]:
        notes += (f"the config describes the language model alone ({config.model_type})",)
    graph = trace_config(
        config,
        source.name,
        scheme=scheme,
        notes=notes,
        trust_remote_code=trust_remote_code,
        logits_to_keep=logits_to_keep,
        opaque_modules=OPAQUE_MODULES,
        progress=say,
    )
    if use_cache:
        store.put(key, graph)
    return graph


def _config_source(
    model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None
) -> sources.ConfigSource:
    """The config that a name, a path or a mapping stands for."""
    if isinstance(model, (str, os.PathLike)):
        return sources.resolve(model, revision=revision)
    if not isinstance(model, Mapping):
        raise HymellError(
            f"cannot read a config from a {type(model).__name__}; pass a Hugging Face id, a folder "
            "or a config"
        )
    if "model_type" not in model:
        raise HymellError("the config has no model_type; add the field, e.g. 'llama'")
    return sources.ConfigSource(
        name=str(model.get("_name_or_path") or model.get("model_type") or "config"),
        config=dict(model),
        origin="file",
        location="a config passed as a mapping",
    )


def _trace_object(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    logits_to_keep: int,
    say: Progress,
) -> OpGraph:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    from hymell.tracer.assemble import scheme_of, trace_config, trace_model

    if isinstance(model, PretrainedConfig):
        return trace_config(
            model,
            model.name_or_path or model.model_type,
            scheme=scheme_of(model.to_dict(), None),
            logits_to_keep=logits_to_keep,
            opaque_modules=OPAQUE_MODULES,
            progress=say,
        )
    if not isinstance(model, nn.Module):
        raise HymellError(
            f"cannot trace a {type(model).__name__}; pass a Hugging Face id, a config, a folder "
            "or an nn.Module"
        )
    if isinstance(model, PreTrainedModel) and not args and not kwargs:
        from hymell.tracer.concrete import meta_copy

        return trace_model(
            meta_copy(model),
            model.name_or_path or model.config.model_type,
            scheme=scheme_of(model.config.to_dict(), None),
            logits_to_keep=logits_to_keep,
            opaque_modules=OPAQUE_MODULES,
            progress=say,
        )
    from hymell.tracer.modules import trace_plain_module

    return trace_plain_module(
        model, tuple(args), kwargs, opaque_modules=OPAQUE_MODULES, progress=say
    )


def _graph_of(model: Model | OpGraph, **how: Any) -> OpGraph:
    """The graph itself, or a trace of anything else; ``how`` as `trace` takes it."""
    return model if isinstance(model, OpGraph) else trace(model, **how)


def _estimator(
    gpu: Gpu,
    engine: str,
    calibration: CalibrationChoice,
    version: str | None,
    parallel: Parallel,
) -> Calibrated | None:
    """`calibrated.choose`; a version is refused where no system would be used."""
    from hymell.estimators.calibrated import choose

    if version is not None and (parallel.pp > 1 or parallel.replicas > 1):
        raise HymellError(
            f"engine version {version!r} names a fitted system, and none holds for stages (pp) or "
            "for experts spread beside whole attention (ep with tp 1): leave the version out"
        )
    return choose(gpu, engine, calibration, version)


def predict(
    model: Model | OpGraph,
    workload: Workload | None = None,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    price_per_hour: float | None = None,
    gco2_per_kwh: float | None = None,
    kv_pool_bytes: float | None = None,
    calibration: CalibrationChoice = "auto",
    calibrate_with: Runs | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    microbatches: int = 1,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> CostReport:
    """What one workload of a model costs on one GPU, or on several, under one engine.

    ``model`` is whatever `trace` takes, or a graph it returned. ``gpu`` is a name
    (`hymell.hardware.find_gpu`) or a data-sheet JSON of your own; ``engine`` one of eager, compile,
    vllm, sglang, trtllm. ``dtype`` and ``kv_dtype`` override the checkpoint's formats; ``skew`` is
    the Zipf exponent of expert popularity (0: uniform); ``price_per_hour`` is in your money,
    ``gco2_per_kwh`` in grams. ``calibration`` "auto" prices kernels with what was fitted for the
    engine on this GPU or its nearest relative, "none" with the data sheet alone, a file of `hymell
    calibrate` with that. ``engine_version`` takes what was fitted on whole models under that
    version of the engine, by default the newest there is. ``calibrate_with``, a CSV file of your
    own measured runs (docs/own_runs.md), offsets the estimate of the configuration that they are
    of; ``calibrated`` names such runs that `save_runs` keeps. ``tp``, ``ep``, ``pp`` and
    ``microbatches`` spread the model over GPUs (`hymell.workload.Parallel`); ``price_per_hour`` and
    ``kv_pool_bytes`` are those of one GPU. A workload that does not fit returns a report with
    ``memory.fits`` False and advice. Raises HymellError for bad input.
    """
    from hymell.estimators.eager import in_eager
    from hymell.estimators.predict import predict_graph
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    precision = Precision.of(dtype, kv_dtype)
    parallel = Parallel(tp, ep, pp, microbatches)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    fitted = _estimator(chosen_gpu, chosen_engine.name, calibration, engine_version, parallel)
    runs, source = _own_runs(calibrate_with, calibrated)
    graph = _graph_of(
        model,
        args=args,
        kwargs=kwargs,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    estimator, chosen_engine = in_eager(
        fitted, graph, chosen_gpu, chosen_engine, calibration, precision
    )
    setup: dict[str, Any] = {
        "gpu": chosen_gpu,
        "engine": chosen_engine,
        "precision": precision,
        "skew": skew,
        "estimator": estimator,
        "parallel": parallel,
    }
    offsets, warnings = _offsets(graph, model, runs, source, setup)
    report = predict_graph(
        graph,
        workload or Workload(),
        price_per_hour=price_per_hour,
        gco2_per_kwh=gco2_per_kwh,
        kv_pool_bytes=kv_pool_bytes,
        offsets=offsets,
        **setup,
    )
    return replace(report, warnings=(*report.warnings, *warnings))


def _own_runs(given: Runs | None, calibrated: str | None) -> tuple[Sequence[OwnRun], str]:
    """Own runs and what to call them; none where none are asked for."""
    if given is not None and calibrated is not None:
        raise HymellError("give runs to calibrate with or the name of some that are kept, not both")
    if calibrated is not None:
        from hymell.analysis.own_store import load

        return load(calibrated).runs, calibrated
    if given is None:
        return (), ""
    if isinstance(given, (str, os.PathLike)):
        from hymell.analysis.own_runs import read_runs

        return read_runs(given), os.path.basename(os.fspath(given))
    from hymell.analysis.own_runs import known_run

    if not given:
        raise HymellError("there are no runs to calibrate with; give at least one")
    return tuple(known_run(asdict(run)) for run in given), "as given"


def _offsets(
    graph: OpGraph,
    model: Model | OpGraph,
    runs: Sequence[OwnRun],
    source: str,
    setup: Mapping[str, Any],
) -> tuple[Offsets | None, tuple[str, ...]]:
    """What own runs say of this configuration, or a warning that they are of another one."""
    if not runs:
        return None, ()
    from hymell.analysis.own_fit import not_applicable, offsets_for
    from hymell.estimators.predict import deploy

    names = [graph.facts.name]
    if isinstance(model, (str, os.PathLike)):
        names.append(os.fspath(model))
    found = offsets_for(deploy(graph, **setup), runs, names, source)
    return found, () if found is not None else (not_applicable(runs, source),)


def save_runs(
    name: str,
    runs: Runs,
    *,
    calibration: CalibrationChoice = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> SavedRuns:
    """Keep your own measured runs under a name, for ``predict(..., calibrated=name)``.

    ``runs`` as ``calibrate_with`` of `predict` takes them. Every configuration is priced, so that
    runs which cannot be are refused by name, and its offsets and errors are kept beside the runs.
    The other arguments are those of `predict`. Raises HymellError for bad input, and for a name
    that has runs already.
    """
    from hymell.analysis.own_fit import fit_offsets, price_runs
    from hymell.analysis.own_store import Judged, SavedRuns, check_free, configurations, save
    from hymell.estimators.calibrated import choose
    from hymell.estimators.eager import in_eager
    from hymell.estimators.predict import deploy
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    check_free(name)
    rows, _ = _own_runs(runs, None)
    judged = []
    for configuration, mine in configurations(rows).items():
        gpu, engine = find_gpu(configuration.gpu), get_engine(configuration.engine)
        graph = trace(
            configuration.model,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=use_cache,
            progress=progress,
        )
        precision = Precision.of(configuration.dtype)
        fitted = choose(gpu, engine.name, calibration)
        estimator, engine = in_eager(fitted, graph, gpu, engine, calibration, precision)
        deployed = deploy(
            graph,
            gpu=gpu,
            engine=engine,
            precision=precision,
            estimator=estimator,
            parallel=mine[0].parallel,
        )
        judged.append(Judged(configuration, fit_offsets(price_runs(deployed, mine), name)))
    saved = SavedRuns(name, tuple(rows), tuple(judged))
    save(saved)
    return saved


def sweet_spot(
    model: Model | OpGraph,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
    batch: int = 1,
    inputs: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    by: str = "energy",
    within: float = 0.1,
    traffic: Traffic | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    kv_pool_bytes: float | None = None,
    calibration: CalibrationChoice = "auto",
    calibrate_with: Runs | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    microbatches: int = 1,
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> SweetSpot:
    """The lengths at which a model costs least per output token, after arXiv 2602.05695.

    Every prompt length of ``inputs`` with every output length of ``outputs`` (default: 64 to 4096
    tokens in powers of 2) is priced as `predict` prices it. Of the pairs that fit the GPU and the
    model, the answer has the one of least energy (``by`` "latency": latency) per output token, all
    within a share ``within`` of it, and the closed form of three coefficients fitted to them.
    ``traffic``, a CSV file of input, output and weight or such tuples, is priced as it is and moved
    to better lengths. The other arguments are those of `predict`. Raises HymellError for bad input,
    for a model that does not generate, and where nothing fits.
    """
    from hymell.analysis.sweet_spot import LENGTHS, check_choice, check_lengths, find_sweet_spot
    from hymell.analysis.traffic import traffic_of
    from hymell.estimators.eager import in_eager
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    # All of it before the trace, which can take long.
    asked_inputs = check_lengths("inputs", LENGTHS if inputs is None else inputs)
    asked_outputs = check_lengths("outputs", LENGTHS if outputs is None else outputs)
    check_choice(by, within)
    Workload(batch)
    requests = () if traffic is None else traffic_of(traffic)
    precision = Precision.of(dtype, kv_dtype)
    parallel = Parallel(tp, ep, pp, microbatches)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    fitted = _estimator(chosen_gpu, chosen_engine.name, calibration, engine_version, parallel)
    runs, source = _own_runs(calibrate_with, calibrated)
    graph = _graph_of(
        model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    (progress or _silent)("pricing the grid")
    estimator, chosen_engine = in_eager(
        fitted, graph, chosen_gpu, chosen_engine, calibration, precision
    )
    setup: dict[str, Any] = {
        "gpu": chosen_gpu,
        "engine": chosen_engine,
        "precision": precision,
        "skew": skew,
        "estimator": estimator,
        "parallel": parallel,
    }
    offsets, warnings = _offsets(graph, model, runs, source, setup)
    spot = find_sweet_spot(
        graph,
        batch=batch,
        inputs=asked_inputs,
        outputs=asked_outputs,
        by=by,
        within=within,
        traffic=requests,
        kv_pool_bytes=kv_pool_bytes,
        offsets=offsets,
        **setup,
    )
    return replace(spot, warnings=(*spot.warnings, *warnings))


def serve(
    model: Model | OpGraph,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    arrivals: Arrivals | None = None,
    rate: float = 1.0,
    requests: int = 256,
    prompt: int = 1024,
    output: int = 128,
    seed: int = 0,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    kv_pool_bytes: float | None = None,
    calibration: CalibrationChoice = "auto",
    tp: int = 1,
    ep: int = 1,
    exchanges: float = 1.0,
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Serving:
    """What requests wait for and get from a server that batches continuously, by simulation.

    ``requests`` of ``prompt`` and ``output`` tokens come as a Poisson process of ``rate`` per
    second, the same for the same ``seed``; or ``arrivals``, a CSV file with the columns arrival_s,
    prompt and output or such tuples, says when and how long. ``max_num_seqs`` requests run together
    at most, a step has ``max_num_batched_tokens`` tokens at most: set both as the server's are;
    with ``ep`` beside ``tp`` 1 both are those of one replica. ``exchanges`` multiplies what
    messages between GPUs are estimated to take. The other arguments are those of `predict`. Nothing
    is random but the arrivals. Raises HymellError for bad input, an engine that does not batch
    continuously, and a request that does not fit the GPU.
    """
    from hymell.analysis.arrivals import arrivals_of, poisson
    from hymell.analysis.serving import find_serving
    from hymell.estimators.calibrated import choose
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    # All of it before the trace, which can take long.
    coming = (
        poisson(rate, requests, prompt, output, seed) if arrivals is None else arrivals_of(arrivals)
    )
    precision = Precision.of(dtype, kv_dtype)
    parallel = Parallel(tp, ep)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    estimator = choose(chosen_gpu, chosen_engine.name, calibration)
    graph = _graph_of(
        model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    (progress or _silent)("serving the requests")
    return find_serving(
        graph,
        coming,
        gpu=chosen_gpu,
        engine=chosen_engine,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        precision=precision,
        skew=skew,
        kv_pool_bytes=kv_pool_bytes,
        estimator=estimator,
        parallel=parallel,
        exchanges=exchanges,
    )


def over_context(
    model: Model | OpGraph,
    workload: Workload | None = None,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
    prompts: Sequence[int] | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 0.0,
    calibration: CalibrationChoice = "auto",
    calibrate_with: Runs | None = None,
    calibrated: str | None = None,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    microbatches: int = 1,
) -> ContextCurve:
    """What a workload costs at each of ``prompts`` (default: powers of 2 that the model takes).

    Memory is not checked. The other arguments are those of `predict`. Raises HymellError for bad
    input.
    """
    from hymell.analysis.context_curve import context_curve, prompts_of
    from hymell.estimators.eager import in_eager
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    asked = workload or Workload()
    precision = Precision.of(dtype, kv_dtype)
    parallel = Parallel(tp, ep, pp, microbatches)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    fitted = _estimator(chosen_gpu, chosen_engine.name, calibration, engine_version, parallel)
    runs, source = _own_runs(calibrate_with, calibrated)
    graph = _graph_of(model)
    estimator, chosen_engine = in_eager(
        fitted, graph, chosen_gpu, chosen_engine, calibration, precision
    )
    setup: dict[str, Any] = {
        "gpu": chosen_gpu,
        "engine": chosen_engine,
        "precision": precision,
        "skew": skew,
        "estimator": estimator,
        "parallel": parallel,
    }
    offsets, _ = _offsets(graph, model, runs, source, setup)
    lengths = prompts_of(graph, asked.output) if prompts is None else prompts
    return context_curve(graph, asked, lengths, offsets=offsets, **setup)


def compare(
    models: Sequence[Model | OpGraph] | Model | OpGraph,
    workload: Workload | None = None,
    *,
    gpus: Sequence[str | os.PathLike[str]] = ("h100-sxm",),
    engines: Sequence[str] = ("vllm",),
    dtypes: Sequence[str | None] = (None,),
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
    **how: Any,
) -> Comparison:
    """Models, GPUs, engines or formats side by side on one workload; the first is the baseline.

    Every model is priced on every one of ``gpus`` under every one of ``engines`` in every one of
    ``dtypes`` (None: as the checkpoint is). ``how`` are the other arguments of `predict`. The
    answer says which figures differ by more than their intervals allow, and which blocks and kinds
    of kernels make the difference. Raises HymellError for bad input, for fewer than two cases and
    for a case that is named twice.
    """
    from hymell.analysis.compare import compare_reports

    several = isinstance(models, Sequence) and not isinstance(models, str)
    asked: Sequence[Any] = models if several else [models]  # type: ignore[assignment]
    names = [_name_of(model) for model in asked]
    axes = (names, [os.fspath(gpu) for gpu in gpus], list(engines), [d or "auto" for d in dtypes])
    shown = [len(axis) > 1 for axis in axes]
    if len(names) != len(set(names)) or not all(axes):
        raise HymellError(
            f"name each model once, and at least one GPU, engine and format; got {', '.join(names)}"
        )
    cases: dict[str, CostReport] = {}
    for model, name in zip(asked, names, strict=True):
        graph = _graph_of(
            model,
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_cache=use_cache,
            progress=progress,
        )
        for gpu, engine, dtype in product(*axes[1:]):
            parts = (name, gpu, engine, dtype)
            label = ", ".join(p for p, show in zip(parts, shown, strict=True) if show) or name
            if label in cases:
                raise HymellError(f"{label} is named twice; name every case once")
            chosen = None if dtype == "auto" else dtype
            cases[label] = predict(graph, workload, gpu=gpu, engine=engine, dtype=chosen, **how)
    return compare_reports(cases)


def _name_of(model: Any) -> str:
    """What a case is called: as the user wrote it, or the model's own name."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    if isinstance(model, OpGraph):
        return model.facts.name
    named = getattr(model, "name_or_path", "") or getattr(model, "model_type", "")
    return str(named or type(model).__name__)


def compare_attention(
    attention: str | type[nn.Module],
    model: str | os.PathLike[str] | Mapping[str, Any] | PretrainedConfig,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
    batch: int = 1,
    contexts: Sequence[int] | None = None,
    layers: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    calibration: CalibrationChoice = "auto",
    check: bool = True,
    measure: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> AttentionComparison:
    """What a model costs with the attention of a class of yours, beside its own.

    ``attention`` is a class of ``torch.nn.Module`` or ``"FILE.py:Class"``, a file that is then run.
    It is made with the config and the layer's index, as far as its constructor takes them, and
    ``options`` by name; its forward is called as docs/attention_variants.md says. It stands in
    ``layers`` of the model (indices; None: all). Both are priced over ``contexts`` (default: powers
    of 2 from 128 to 1M tokens) as `predict` prices them. ``check`` runs it on a small model on the
    CPU; ``measure`` times one layer of both on the GPU or CPU at hand, as PyTorch runs it.

    Raises HymellError for a class, a model or lengths that do not fit, TraceError for a module that
    cannot be traced, each in one sentence.
    """
    from hymell.analysis.attention_variant import CONTEXTS, check_contexts, compare_graphs
    from hymell.analysis.measured_blocks import price_blocks
    from hymell.estimators.eager import in_eager
    from hymell.hardware import find_gpu
    from hymell.op_registry.engines import get_engine

    say = progress or _silent
    # All of it before the trace, which can take long.
    lengths = check_contexts(CONTEXTS if contexts is None else contexts)
    Workload(batch)
    precision = Precision.of(dtype, kv_dtype)
    chosen_gpu, chosen_engine = find_gpu(os.fspath(gpu)), get_engine(engine)
    fitted = _estimator(chosen_gpu, chosen_engine.name, calibration, engine_version, SINGLE)
    chosen = None if layers is None else frozenset(layers)
    if chosen is not None and not chosen:
        raise HymellError("layers: name at least one layer, or none for all of them")
    known = None if isinstance(model, (str, os.PathLike, Mapping)) else model
    source = _config_source(model, revision) if known is None else None
    say("importing torch and transformers")
    from hymell.tracer.variant.session import prepare

    ready = prepare(
        attention,
        source if source is not None else known,
        options=options or {},
        layers=chosen,
        trust_remote_code=trust_remote_code,
        opaque_modules=OPAQUE_MODULES,
        progress=say,
    )
    original = trace(
        model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    say("pricing both over the context lengths")
    estimator, chosen_engine = in_eager(
        fitted, original, chosen_gpu, chosen_engine, calibration, precision
    )
    found = compare_graphs(
        original,
        ready.graph,
        name=ready.label,
        layers=ready.layers,
        gpu=chosen_gpu,
        engine=chosen_engine,
        batch=batch,
        contexts=lengths,
        precision=precision,
        estimator=estimator,
    )
    checks = ready.checks(say) if check else ()
    if not measure:
        return found.with_findings(checks, None)
    timed = ready.timings(precision.activations, batch, lengths[-1], say)
    beside = price_blocks(
        timed.blocks,
        device=timed.device,
        on_gpu=timed.kind == "cuda",
        dtype=timed.dtype,
        batch=batch,
        remark=timed.remark,
        asked=chosen_gpu,
    )
    return found.with_findings(checks, beside)


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

    say = progress or _silent
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
    source = _config_source(model, revision)
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
    tracer = functools.partial(_trace_architecture, source.name, source.hf_quant)
    priced_by = backend_of(backend, setup, tracer, workers=workers, address=address)
    if values:
        say("importing torch and transformers")
        from hymell.tracer.configs import known_fields

        plan = replace(plan, axes=axes_of(values, known_fields(source), source.config, source.name))
    say("pricing")
    to = None if out is None else Path(os.fspath(out))
    return run(plan, priced_by, out=to, overwrite=overwrite, report=report)


def _trace_architecture(
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
