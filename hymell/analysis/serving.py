"""A server under load: requests as they come, their time to first token and per further token.

The scheduler (`hymell.analysis.scheduler`) batches as vLLM does; every step is priced from the
model's own kernels (`hymell.estimators.step_prices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from hymell.analysis.arrivals import Arrival
from hymell.analysis.scheduler import (
    BLOCK_TOKENS,
    Limits,
    Run,
    Served,
    check_limits,
    simulate,
)
from hymell.errors import HymellError
from hymell.estimators.base import Deployment, Estimator
from hymell.estimators.memory import cache_bytes, is_serving, memory_cost
from hymell.estimators.predict import deploy, predict_graph
from hymell.estimators.step_prices import Curve, price_steps
from hymell.graph import OpGraph
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.workload import SINGLE, Parallel, Precision, Workload

SCHEMA_VERSION = 1

#: vLLM's own where a card has less than 70 GB; larger servers are started with 8192.
MAX_NUM_BATCHED_TOKENS: Final = 2048
MAX_NUM_SEQS: Final = 256

#: A larger multiple of exchanges is taken for a mistake.
MOST_EXCHANGES: Final = 100.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds over requests: mean, median, 99th percentile, largest."""

    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Of some seconds."""
        found = np.array(list(values))
        p50, p99 = np.percentile(found, [50, 99])
        return Spread(float(found.mean()), float(p50), float(p99), float(found.max()))


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request of the answer; ``tpot_s`` is None for an answer of one token."""

    arrival_s: float
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float | None
    latency_s: float


@dataclass(frozen=True, slots=True)
class Serving:
    """See `hymell.serve`. ``tpot`` is None where every answer has one token.

    ``duration_s`` runs from the first arrival to the last token; ``requests_per_s`` and
    ``output_tokens_per_s`` are over it. ``offered_per_s`` are the requests that came per second.
    ``kv_pool_bytes`` is that of one GPU.
    """

    model: str
    gpu: str
    engine: str
    dtype: str
    parallel: Mapping[str, int]
    max_num_seqs: int
    max_num_batched_tokens: int
    ttft: Spread
    tpot: Spread | None
    latency: Spread
    duration_s: float
    offered_per_s: float | None
    requests_per_s: float
    output_tokens_per_s: float
    mean_running: float
    mean_step_s: float
    steps: int
    preemptions: int
    kv_pool_bytes: float
    kv_pool_tokens: int
    peak_kv_share: float
    requests: tuple[ServedRequest, ...]
    assumptions: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts and lists, ready for JSON."""
        return asdict(self)


def find_serving(
    graph: OpGraph,
    requests: Sequence[Arrival],
    *,
    gpu: Gpu,
    engine: Engine,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
    precision: Precision | None = None,
    skew: float = 0.0,
    kv_pool_bytes: float | None = None,
    estimator: Estimator | None = None,
    parallel: Parallel = SINGLE,
    exchanges: float = 1.0,
) -> Serving:
    """Requests served by a traced model; arguments as `hymell.serve` explains them.

    Raises HymellError for limits that make no sense, an engine that does not batch continuously, a
    model that cannot be served, weights that leave no room, and a request that does not fit.
    """
    check_limits(max_num_seqs, max_num_batched_tokens)
    if not 0 < exchanges <= MOST_EXCHANGES:
        raise HymellError(
            f"exchanges take more than 0 and up to {MOST_EXCHANGES:g} times what is estimated, "
            f"not {exchanges:g}"
        )
    if not is_serving(engine):
        raise HymellError(
            f"{engine.name} runs one batch to its end: choose vllm, sglang or trtllm to serve"
        )
    setup: dict[str, Any] = {
        "gpu": gpu,
        "engine": engine,
        "precision": precision,
        "skew": skew,
        "estimator": estimator,
        "parallel": parallel,
    }
    model = deploy(graph, **setup)
    longest = max(r.prompt + r.output for r in requests)
    replicas = parallel.replicas
    prices = price_steps(
        model,
        replicas * max_num_batched_tokens,
        replicas * max_num_seqs,
        longest,
        exchanges,
    )
    pool = _pool_bytes(model, max_num_batched_tokens, kv_pool_bytes)
    limits = Limits(max_num_seqs, max_num_batched_tokens, pool, _kv_bytes(model, longest))
    run = simulate(requests, limits, prices, replicas)
    mean = Workload(
        replicas * max(1, round(run.mean_running / replicas)),
        round(float(np.mean([r.prompt for r in requests]))),
        round(float(np.mean([r.output for r in requests]))),
    )
    report = predict_graph(graph, mean, kv_pool_bytes=kv_pool_bytes, **setup)
    return Serving(
        model=report.model,
        gpu=report.gpu,
        engine=report.engine,
        dtype=report.dtype,
        parallel=report.parallel,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        **_figures(run, requests),
        kv_pool_bytes=pool,
        kv_pool_tokens=_tokens(limits, longest),
        assumptions={
            **{
                name: text
                for name, text in report.assumptions.items()
                if name not in ("batch", "prompt", "output", "ttft", "energy", "cost")
            },
            **_ASSUMED,
            **(
                {}
                if exchanges == 1
                else {"exchanges": f"x {exchanges:g} of the estimate, as asked"}
            ),
        },
        warnings=report.warnings,
        not_understood=tuple(op for op, _, _ in report.coverage.unknown),
    )


_ASSUMED: Final = {
    "scheduler": (
        "vLLM's: decode first, chunks of prompts in what is left of a step's tokens, first come "
        "first served, a prompt is admitted when the pool has room for all of it, the last "
        "admitted gives way where there is none"
    ),
    "caching": "no prompt shares a prefix with another",
    "ttft": "from arrival to the first token, waiting included; no tokenising, no network",
}


def _figures(run: Run, requests: Sequence[Arrival]) -> dict[str, Any]:
    start = requests[0].arrival_s
    came_s = requests[-1].arrival_s - start
    end = max(served.finish_s for served in run.served)
    tpots = [served.tpot_s for served in run.served if served.tpot_s is not None]
    return {
        "ttft": Spread.of(served.ttft_s for served in run.served),
        "tpot": Spread.of(tpots) if tpots else None,
        "latency": Spread.of(s.finish_s - s.request.arrival_s for s in run.served),
        "duration_s": end - start,
        "offered_per_s": len(requests) / came_s if came_s else None,
        "requests_per_s": len(requests) / (end - start),
        "output_tokens_per_s": sum(r.output for r in requests) / (end - start),
        "mean_running": run.mean_running,
        "mean_step_s": run.busy_s / run.steps,
        "steps": run.steps,
        "preemptions": run.preemptions,
        "peak_kv_share": run.peak_kv_share,
        "requests": tuple(map(_request, run.served)),
    }


def _request(served: Served) -> ServedRequest:
    asked = served.request
    return ServedRequest(
        asked.arrival_s,
        asked.prompt,
        asked.output,
        served.ttft_s,
        served.tpot_s,
        served.finish_s - asked.arrival_s,
    )


def _pool_bytes(model: Deployment, tokens: int, given: float | None) -> float:
    """Room for the cache on one GPU: what is left of the engine's share, or what was measured."""
    if given is not None:
        memory_cost(model, Workload(model.parallel.replicas, 1, 1), given)
        return given
    held = memory_cost(model, Workload(model.parallel.replicas, tokens, 1))
    room = held.usable_bytes - held.weights_bytes - held.activation_bytes - held.reserve_bytes
    if room <= 0:
        raise HymellError(
            f"{model.graph.facts.name} leaves no room for a KV cache on {model.gpu.name}: weights "
            f"take {held.weights_bytes / 1e9:.3g} GB of the {held.usable_bytes / 1e9:.3g} GB that "
            f"{model.engine.name} claims; a larger GPU, --tp or --dtype fp8 would"
        )
    return room


def _kv_bytes(model: Deployment, longest: int) -> Callable[[int], float]:
    """Bytes on one GPU of the cache of one request, by its tokens; windows and states included."""
    lengths = np.unique(np.round(np.geomspace(BLOCK_TOKENS, longest + BLOCK_TOKENS, 24)))
    held = [cache_bytes(model, model.parallel.replicas, int(n), 1)[0] for n in lengths]
    return Curve(lengths.tolist(), held)


def _tokens(limits: Limits, longest: int) -> int:
    """Tokens that the pool holds of requests as long as the longest."""
    return int(limits.pool_bytes / max(limits.kv_bytes(longest), 1.0) * longest)
