"""`predict`: what one workload of a model costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hymell.api.own_runs import Runs
from hymell.api.setting import CalibrationChoice, setting_of
from hymell.api.tracing import Model, Progress, graph_of
from hymell.cost_report import CostReport
from hymell.graph import OpGraph
from hymell.workload import Parallel, Workload


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
    from hymell.estimators.predict import predict_graph

    setting = setting_of(
        gpu,
        engine,
        engine_version=engine_version,
        dtype=dtype,
        kv_dtype=kv_dtype,
        skew=skew,
        calibration=calibration,
        calibrate_with=calibrate_with,
        calibrated=calibrated,
        parallel=Parallel(tp, ep, pp, microbatches),
    )
    graph = graph_of(
        model,
        args=args,
        kwargs=kwargs,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    offsets, warnings = setting.offsets(graph, model)
    report = predict_graph(
        graph,
        workload or Workload(),
        price_per_hour=price_per_hour,
        gco2_per_kwh=gco2_per_kwh,
        kv_pool_bytes=kv_pool_bytes,
        offsets=offsets,
        **setting.setup(graph),
    )
    return replace(report, warnings=(*report.warnings, *warnings))
