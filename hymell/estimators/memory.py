"""What fills the GPU at the longest point of a run, whether it fits, and what would.

At the end of a run the cache holds prompt + output - 1 tokens of every sequence. The total is
weights, cache and recurrent state, the peak of the activations, and a fixed reserve; it has to fit
into the share of the GPU that the engine claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hymell.cost_report import MemoryCost
from hymell.dims import evaluate
from hymell.dtypes import bytes_per_element
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.pipeline import largest_stage
from hymell.graph import Operand, Region, Size, StateSpec
from hymell.hardware import Gpu, list_gpus
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.kernels import Lowered
from hymell.op_registry.lower import prepare
from hymell.op_registry.precision import apply
from hymell.op_registry.primitives import Value
from hymell.workload import MAX_BATCH, SINGLE, Precision, Workload

#: CUDA context (about 300 MB with lazy module loading, pytorch/pytorch#107667) plus the cuBLAS and
#: attention workspaces that the framework keeps (32 MiB each on Hopper, pytorch/pytorch#139442).
RESERVE_BYTES = 512 * 1024**2

#: Tokens per prefill step of a serving engine (vLLM's max_num_batched_tokens on data-center GPUs,
#: SGLang's chunked_prefill_size, TensorRT-LLM's max_num_tokens: all 8192): activations of a longer
#: prefill never exist at once.
PREFILL_CHUNK = 8192


def capacity_bytes(gpu: Gpu) -> float:
    """Memory that a process can see; the marketed size where the data sheet says no more."""
    return float(gpu.visible_memory_bytes or gpu.memory_bytes)


def is_serving(engine: Engine) -> bool:
    """True for engines that claim a share of the GPU as a pool and chunk the prefill."""
    return engine.memory_fraction < 1


def memory_cost(
    model: Deployment, workload: Workload, kv_pool_bytes: float | None = None
) -> MemoryCost:
    """Memory of a run; ``kv_pool_bytes`` replaces the room for the cache that follows from sizes.

    Raises HymellError for a pool that is not a positive size the GPU could hold, and for a
    workload that no traced region holds.
    """
    needs = _needs(model, kv_pool_bytes)
    batch, prompt, output = workload.batch, workload.prompt, workload.output
    used = needs.at(batch, prompt, output)
    usable = needs.usable(used)
    fits = needs.fit(batch, prompt, output)
    parts = model.parallel.batch_parts
    max_batch = parts * _largest(lambda b: needs.fit(b * parts, prompt, output), MAX_BATCH // parts)
    claims = is_serving(model.engine) or kv_pool_bytes is not None
    return MemoryCost(
        weights_bytes=used.weights,
        kv_cache_bytes=used.cache,
        state_bytes=used.state,
        activation_bytes=used.activations,
        total_bytes=used.total,
        capacity_bytes=capacity_bytes(model.gpu),
        usable_bytes=usable,
        pool_bytes=usable if claims else 0.0,
        kv_bytes_per_token=_growth(model, prompt, output),
        fits=fits,
        max_batch=max_batch,
        advice=() if fits else tuple(_advice(needs, workload, max_batch)),
        reserve_bytes=float(RESERVE_BYTES),
    )


def fits(
    model: Deployment,
    batch: int,
    prompt: ArrayLike,
    output: ArrayLike,
    kv_pool_bytes: float | None = None,
) -> NDArray[np.bool_]:
    """Whether runs of these lengths fit; ``prompt`` and ``output`` broadcast to one shape.

    Errors as `memory_cost`.
    """
    needs = _needs(model, kv_pool_bytes)
    prompts, outputs = np.broadcast_arrays(prompt, output)
    found = [
        needs.fit(batch, int(i), int(o)) for i, o in zip(prompts.flat, outputs.flat, strict=True)
    ]
    return np.array(found, dtype=bool).reshape(prompts.shape)


def _needs(model: Deployment, kv_pool_bytes: float | None) -> _Needs:
    room = capacity_bytes(model.gpu)
    if kv_pool_bytes is not None and not 0 < kv_pool_bytes <= room:
        raise HymellError(
            f"a KV pool of {kv_pool_bytes / 1e9:g} GB is not possible on {model.gpu.name}: "
            f"give a size above 0 and up to its {room / 1e9:.1f} GB"
        )
    return _Needs(model, weights_bytes(model), kv_pool_bytes, cache(_peak_finder(model)))


def weights_bytes(model: Deployment, precision: Precision | None = None) -> float:
    """Stored weights, re-counted for the weights whose format ``precision`` changes.

    Everything else (norms, and embeddings unless the whole model is cast) stays as stored. Weights
    that several layers share are read more often than they are stored; their change is scaled down
    so that the model is counted once. Of several GPUs it is what the fullest one holds: its part of
    each weight that they split, of a pipeline's largest stage, with the larger end of the model.
    """
    precision = model.precision if precision is None else precision
    facts = model.graph.facts
    region = model.graph.regions[0]
    stored = _operand_bytes(region)
    changed = _operand_bytes(apply(region, facts, precision)[0])
    read = sum(stored.values())
    once = min(1.0, facts.weight_bytes / read) if read else 0.0
    total = facts.weight_bytes + once * (sum(changed.values()) - read)
    if model.parallel == SINGLE:
        return total
    parts = prepare(region, facts, precision, model.parallel).weights
    held = {name: size * float(parts.get(name, 1)) for name, size in changed.items()}
    total -= once * (sum(changed.values()) - sum(held.values()))
    return total - once * _elsewhere(model, region, held)


def _elsewhere(model: Deployment, region: Region, held: dict[str, float]) -> float:
    """Bytes of ``held`` that lie in other stages of the pipeline than the largest."""
    if model.parallel.pp == 1:
        return 0.0
    layers = region.layers
    first, last = min(s.start for s in layers), max(s.stop for s in layers)
    inside, before, after = (
        sum(held[name] for name in _operand_bytes(replace(region, ops=ops)))
        for ops in (region.ops[first:last], region.ops[:first], region.ops[last:])
    )
    return inside * (1 - largest_stage(model)) + min(before, after)


def _operand_bytes(region: Region) -> dict[str, float]:
    """Bytes of each distinct weight that the ops read, identical layers included."""
    found: dict[str, float] = {}
    for op in region.ops:
        for operand in op.inputs:
            if operand.kind == "weight":
                size = op.repeat * _spec_bytes(operand)
                # A quantised product and a lookup may share one (tied) weight: it is stored once.
                found[operand.name] = max(found.get(operand.name, 0.0), size)
    return found


def _spec_bytes(operand: Operand | StateSpec) -> float:
    return float(evaluate(operand.spec.numel)) * operand.spec.element_bytes


def cache_bytes(model: Deployment, batch: int, prompt: int, output: int) -> tuple[float, float]:
    """(cache and state, the recurrent state in it) when the last token has been generated.

    Layers with a window keep only that unless the engine keeps everything.
    """
    if "decode" not in model.graph.phases():
        return 0.0, 0.0
    source, length = run_end(model, prompt, output)
    region = model.graph.region("decode", batch, source, length)
    entries = state_entries(model, region)
    share = 1.0 if model.parallel.pp == 1 else largest_stage(model)
    held = [
        (e.kind, share * float(entry_bytes(e, model.engine, batch, source, length)))
        for e in entries
    ]
    state = math.fsum(size for kind, size in held if kind in ("recurrent", "conv"))
    return math.fsum(size for _, size in held), state


def state_entries(model: Deployment, region: Region) -> tuple[StateSpec, ...]:
    """The cache that one GPU keeps of a decode region."""
    if model.parallel == SINGLE:
        # The formats of the cache do not depend on the ops, which are many.
        return apply(replace(region, ops=()), model.graph.facts, model.precision)[0].state
    index = next(i for i, known in enumerate(model.graph.regions) if known is region)
    return model.rank(index).region.state


def run_end(model: Deployment, prompt: int, output: int) -> tuple[int, int]:
    """(S, L) after the last decode step; encoder-decoder models count generated tokens."""
    if model.encoder_decoder:
        return int(min(prompt, model.longest_source)), output
    return 1, prompt + output - 1


def entry_bytes(entry: StateSpec, engine: Engine, B: Value, S: Value, L: Value) -> Value:
    """Bytes of one entry of the cache, its repeats together; numbers or arrays."""
    shape: list[Any] = list(entry.spec.shape)
    if entry.window is not None:
        # A cache traced beyond its window has the window (less the new token) as a plain number.
        kept = np.minimum(L, float(entry.window)) if engine.windowed_cache else L
        clipped = (entry.window - 1, entry.window)
        places = [i for i, size in enumerate(shape) if isinstance(size, int) and size in clipped]
        if places and not any(_grows(size) for size in shape):
            shape[places[-1]] = kept
        L = kept
    numel = math.prod(1.0 * evaluate(size, B, S, L) for size in shape)
    return entry.repeat * numel * bytes_per_element(entry.spec.dtype)


def _grows(size: Size) -> bool:
    return not isinstance(size, int) and size.degree("L") > 0


def _growth(model: Deployment, prompt: int, output: int) -> float:
    """Bytes that the last token of one sequence added to the cache: full windows add nothing."""
    one = model.parallel.replicas
    last = cache_bytes(model, one, prompt, output)[0]
    if output > 1:
        return last - cache_bytes(model, one, prompt, output - 1)[0]
    if prompt > 1:
        return last - cache_bytes(model, one, prompt - 1, output)[0]
    return last - cache_bytes(model, one, prompt, output)[1]


def _peak_finder(model: Deployment) -> Callable[[int], _Peak]:
    return lambda index: _Peak.of(model.lowered(index))


@dataclass(frozen=True, slots=True)
class _Peak:
    """The largest sum of live activations of a step, ready for many workloads."""

    sizes: tuple[Size, ...]
    which: NDArray[np.intp]
    born: NDArray[np.intp]
    dies: NDArray[np.intp]

    @staticmethod
    def of(lowered: Lowered) -> _Peak:
        sizes = tuple({tensor.bytes: None for tensor in lowered.live})
        place = {size: i for i, size in enumerate(sizes)}
        columns = [(place[t.bytes], t.born, t.dies + 1) for t in lowered.live]
        which, born, dies = np.array(columns, dtype=np.intp).reshape(-1, 3).T
        return _Peak(sizes, which, born, dies)

    def at(self, B: float, S: float, L: float) -> float:
        if not self.sizes:
            return 0.0
        sizes = np.array([float(evaluate(size, B, S, L)) for size in self.sizes])[self.which]
        last = int(self.dies.max()) + 1
        change = np.bincount(self.born, sizes, last) - np.bincount(self.dies, sizes, last)
        return float(np.cumsum(change).max())


@dataclass(frozen=True, slots=True)
class _Used:
    weights: float
    cache: float
    state: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + RESERVE_BYTES


@dataclass(frozen=True, slots=True)
class _Needs:
    """What any workload of a deployment needs; ``peak`` gives a region's activation peak."""

    model: Deployment
    weights: float
    kv_pool: float | None
    peak: Callable[[int], _Peak]

    def at(self, batch: int, prompt: int, output: int) -> _Used:
        cached, state = cache_bytes(self.model, batch, prompt, output)
        return _Used(self.weights, cached, state, self._activations(batch, prompt, output))

    def usable(self, used: _Used) -> float:
        if self.kv_pool is not None:
            return used.total - used.cache + self.kv_pool
        return self.model.engine.memory_fraction * capacity_bytes(self.model.gpu)

    def fit(self, batch: int, prompt: int, output: int) -> bool:
        used = self.at(batch, prompt, output)
        return used.total <= self.usable(used)

    def _activations(self, batch: int, prompt: int, output: int) -> float:
        model = self.model
        # Formulas of a part of the batch are written in the whole batch.
        parts = model.parallel.batch_parts
        rows: float = batch
        queries = prompt
        if is_serving(model.engine) and batch * prompt > PREFILL_CHUNK * parts:
            queries = min(prompt, PREFILL_CHUNK)
            rows = PREFILL_CHUNK * parts / queries
        index = model.region_index("prefill", math.ceil(rows), queries, 0)
        peak = self.peak(index).at(rows, queries, 0)
        if "decode" in model.graph.phases() and output > 1:
            source, length = run_end(model, prompt, output - 1)
            index = model.region_index("decode", batch, source, length)
            peak = max(peak, self.peak(index).at(batch, source, length))
        return peak


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest whole number from 1 to ``most`` for which ``fits``; 0 when 1 does not.

    Bisection between a number that fits and one that does not.
    """
    if not fits(1):
        return 0
    good, bad = 1, 2
    while bad <= most and fits(bad):
        good, bad = bad, bad * 2
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _advice(needs: _Needs, workload: Workload, max_batch: int) -> Iterator[str]:
    """Sentences that name what would fit."""
    batch, prompt, output = workload.batch, workload.prompt, workload.output
    if max_batch:
        yield f"the largest batch that fits at this prompt and output is {max_batch}"
    shorter = _largest(lambda n: needs.fit(batch, n, output), prompt)
    if shorter:
        yield f"at batch {batch} and output {output}, prompts of up to {shorter} tokens fit"
    else:
        fewer = _largest(lambda n: needs.fit(batch, 1, n), output)
        if fewer > 1:
            yield f"at batch {batch} and a prompt of 1 token, outputs of up to {fewer} tokens fit"
    yield from _lighter_weights(needs, workload)
    if needs.kv_pool is None:
        yield from _more_memory(needs, needs.at(batch, prompt, output))


def _lighter_weights(needs: _Needs, workload: Workload) -> Iterator[str]:
    for stored, flag in (("float8_e4m3", "fp8"), ("int4_g128", "int4")):
        weights = weights_bytes(needs.model, replace(needs.model.precision, weights=stored))
        lighter = replace(needs, weights=weights)
        if weights < needs.weights and lighter.fit(
            workload.batch, workload.prompt, workload.output
        ):
            yield f"{flag} weights ({weights / 1e9:.1f} GB, --dtype {flag}) would make it fit"
            return


def _more_memory(needs: _Needs, used: _Used) -> Iterator[str]:
    gpu, share = needs.model.gpu, needs.model.engine.memory_fraction
    gpus = needs.model.parallel.gpus
    room = share * capacity_bytes(gpu) - RESERVE_BYTES
    if room > 0:
        count = math.ceil((used.total - RESERVE_BYTES) * gpus / room)
        yield f"by memory alone, split evenly, {count} x {gpu.name} would hold it"
    larger = [
        other
        for other in list_gpus()
        if other.name != gpu.name
        and other.compute_capability is not None
        and used.total <= share * capacity_bytes(other)
    ]
    larger.sort(key=capacity_bytes)
    if larger:
        needed = "one" if gpus == 1 else f"{gpus}"
        yield f"{needed} of these would hold it: {', '.join(other.name for other in larger[:6])}"
