"""`sweet_spot` and `over_context`: what lengths of prompts and outputs do to the cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hymell.api.own_runs import Runs
from hymell.api.setting import CalibrationChoice, setting_of
from hymell.api.tracing import Model, Progress, graph_of, silent
from hymell.graph import OpGraph
from hymell.workload import Parallel, Workload

if TYPE_CHECKING:
    from hymell.analysis.context_curve import ContextCurve
    from hymell.analysis.sweet_spot import SweetSpot
    from hymell.analysis.traffic import Traffic


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

    # All of it before the trace, which can take long.
    asked_inputs = check_lengths("inputs", LENGTHS if inputs is None else inputs)
    asked_outputs = check_lengths("outputs", LENGTHS if outputs is None else outputs)
    check_choice(by, within)
    Workload(batch)
    requests = () if traffic is None else traffic_of(traffic)
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
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    (progress or silent)("pricing the grid")
    offsets, warnings = setting.offsets(graph, model)
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
        **setting.setup(graph),
    )
    return replace(spot, warnings=(*spot.warnings, *warnings))


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

    asked = workload or Workload()
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
    graph = graph_of(model)
    offsets, _ = setting.offsets(graph, model)
    lengths = prompts_of(graph, asked.output) if prompts is None else prompts
    return context_curve(graph, asked, lengths, offsets=offsets, **setting.setup(graph))
