"""`serve`: requests under load."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hymell.api.setting import CalibrationChoice, setting_of
from hymell.api.tracing import Model, Progress, graph_of, silent
from hymell.graph import OpGraph
from hymell.workload import Parallel

if TYPE_CHECKING:
    from hymell.analysis.arrivals import Arrivals
    from hymell.analysis.serving import Serving


def serve(
    model: Model | OpGraph,
    *,
    gpu: str | os.PathLike[str] = "h100-sxm",
    engine: str = "vllm",
    engine_version: str | None = None,
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

    # All of it before the trace, which can take long.
    coming = (
        poisson(rate, requests, prompt, output, seed) if arrivals is None else arrivals_of(arrivals)
    )
    setting = setting_of(
        gpu,
        engine,
        engine_version=engine_version,
        dtype=dtype,
        kv_dtype=kv_dtype,
        skew=skew,
        calibration=calibration,
        parallel=Parallel(tp, ep),
    )
    graph = graph_of(
        model,
        revision=revision,
        trust_remote_code=trust_remote_code,
        use_cache=use_cache,
        progress=progress,
    )
    (progress or silent)("serving the requests")
    return find_serving(
        graph,
        coming,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_pool_bytes=kv_pool_bytes,
        exchanges=exchanges,
        **setting.setup(graph),
    )
