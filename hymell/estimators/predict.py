"""Pricing: a traced model and a workload to a `CostReport`, or a million workloads to arrays.

Both go the same way: regions lowered by the engine, kernels priced and summed by the roll-up,
energy from the power model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hymell.cost_report import CostReport, KernelCost, PhaseCost
from hymell.errors import HymellError
from hymell.estimators.base import Array, Deployment, Estimator
from hymell.estimators.bounded import accuracies, intervals
from hymell.estimators.breakdown import (
    beyond_measured,
    block_costs,
    calibrated_share_of_energy,
    corrected_blocks,
    coverage,
    kernel_costs,
)
from hymell.estimators.calibrated import Calibrated
from hymell.estimators.conformal import LEVEL
from hymell.estimators.energy import PowerModel
from hymell.estimators.level1.roofline import Roofline
from hymell.estimators.links import Linked
from hymell.estimators.memory import PREFILL_CHUNK, RESERVE_BYTES, is_serving, memory_cost
from hymell.estimators.offsets import Offsets
from hymell.estimators.pipeline import energy_j, outside_j, overlap
from hymell.estimators.rollup import KernelDetail, PhaseTotals, decode_totals, prefill_totals
from hymell.graph import OpGraph, Phase
from hymell.hardware import Gpu
from hymell.op_registry.engines.base import Engine
from hymell.op_registry.kernels import Kernel, Lowered
from hymell.op_registry.lower import lower
from hymell.op_registry.primitives import Experts, GroupedGemm
from hymell.workload import (
    MACHINE_GPUS,
    MAX_BATCH,
    MAX_TOKENS,
    SINGLE,
    Parallel,
    Precision,
    Workload,
)

#: Workloads priced together: large enough for numpy, small enough for a core's cache.
CHUNK_ROWS = 32_768

_JOULES_PER_KWH = 3.6e6


def deploy(
    graph: OpGraph,
    *,
    gpu: Gpu,
    engine: Engine,
    precision: Precision | None = None,
    skew: float = 0.0,
    estimator: Estimator | None = None,
    parallel: Parallel = SINGLE,
    offsets: Offsets | None = None,
) -> Deployment:
    """A model on a GPU, or on several, under an engine; each region is lowered once, when needed.

    ``skew`` is the Zipf exponent of expert popularity, ``offsets`` what a user's own runs say of
    this configuration. Raises HymellError for a negative skew; lowering raises it for a model that
    ``parallel`` cannot split.
    """
    if not (math.isfinite(skew) and skew >= 0):
        raise HymellError(f"the routing skew must be 0 (uniform) or more, not {skew}")
    formats = Precision() if precision is None else precision

    @cache
    def lowered(index: int) -> Lowered:
        return lower(
            graph.regions[index], engine, graph.facts, formats, skew=skew, parallel=parallel
        )

    priced_by = estimator or Roofline()
    # Systems were fitted to models whose layers are all in one stage, its GPUs on the same tokens.
    plain = parallel.pp == 1 and parallel.replicas == 1
    system = estimator.system if isinstance(estimator, Calibrated) and plain else None
    # Energies to models on all GPUs at once: none of them waits for another stage.
    at_once = parallel.pp == 1
    energies = estimator.energies if isinstance(estimator, Calibrated) and at_once else None
    if parallel != SINGLE:
        priced_by = Linked(priced_by, custom=is_serving(engine))
    blocks = estimator.blocks if isinstance(estimator, Calibrated) else None
    return Deployment(
        graph,
        gpu,
        engine,
        priced_by,
        lowered,
        formats,
        parallel,
        system=system,
        offsets=offsets,
        energies=energies,
        blocks=blocks,
    )


def price(
    graph: OpGraph,
    B: ArrayLike,
    prompt: ArrayLike,
    output: ArrayLike,
    *,
    gpu: Gpu,
    engine: Engine,
    precision: Precision | None = None,
    skew: float = 0.0,
    estimator: Estimator | None = None,
    parallel: Parallel = SINGLE,
    offsets: Offsets | None = None,
    bounds: bool = False,
) -> dict[str, Array]:
    """Cost of many workloads of one model; ``B``, ``prompt``, ``output`` broadcast to one shape.

    Energy is that of all GPUs of ``parallel``; FLOPs, bytes and launches are those of one GPU of
    each stage.

    Returns arrays of that shape: ``ttft_s``, ``tpot_s`` (0 where output is 1: nothing is decoded),
    ``latency_s``, ``tokens_per_s``, ``energy_j``, ``energy_per_output_token_j``, and per phase
    ``prefill_*`` and ``decode_*``: ``flops``, ``flops_causal``, ``bytes``, ``weight_bytes``,
    ``time_s``, ``energy_j``, ``launches``. With ``bounds`` also ``*_low`` and ``*_high`` of what
    has an interval (`bounded.intervals`; ranges of kernels are not looked at). Memory is not
    checked. Raises HymellError for values
    below 1 or absurdly large, and for a workload that no traced region holds.
    """
    model = deploy(
        graph,
        gpu=gpu,
        engine=engine,
        precision=precision,
        skew=skew,
        estimator=estimator,
        parallel=parallel,
        offsets=offsets,
    )
    arrays = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (B, prompt, output)))
    _check(arrays)
    if parallel.batch_parts > 1:
        for batch in np.unique(arrays[0]):
            parallel.check_batch(int(batch))
    shape, rows = arrays[0].shape, arrays[0].size
    flat = [np.ascontiguousarray(values).reshape(-1) for values in arrays]
    found: dict[str, Array] = {}
    for start in range(0, rows, CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        for name, values in _price_rows(model, [v[part] for v in flat], bounds).items():
            found.setdefault(name, np.empty(rows))[part] = values
    return {name: values.reshape(shape) for name, values in found.items()}


def _check(arrays: Iterable[Array]) -> None:
    for name, values, most in zip(
        ("batch", "prompt", "output"), arrays, (MAX_BATCH, MAX_TOKENS, MAX_TOKENS), strict=True
    ):
        if values.size == 0:
            raise HymellError("no workload to price: give at least one batch, prompt and output")
        # Written so that NaN fails.
        if not ((values >= 1) & (values <= most) & (values == np.floor(values))).all():
            raise HymellError(f"every {name} must be a whole number from 1 to {most}")


def _price_rows(model: Deployment, workloads: Sequence[Array], bounds: bool) -> dict[str, Array]:
    B, prompt, output = workloads
    prefill = prefill_totals(model, B, prompt)
    decode = decode_totals(model, B, prompt, output)
    power = PowerModel.of(model.gpu)
    costs: dict[str, Array] = {}
    phases: dict[Phase, PhaseTotals] = {"prefill": prefill, "decode": decode}
    for phase, totals in phases.items():
        for name in ("flops", "flops_causal", "bytes", "weight_bytes", "time_s", "launches"):
            costs[f"{phase}_{name}"] = getattr(totals, name)
        costs[f"{phase}_energy_j"] = energy_j(model, phase, totals, power)
    latency_s = prefill.time_s + decode.time_s
    joules = costs["prefill_energy_j"] + costs["decode_energy_j"]
    tokens = B * output
    costs |= {
        "ttft_s": prefill.time_s,
        "tpot_s": decode.time_s / np.maximum(output - 1, 1),
        "latency_s": latency_s,
        "tokens_per_s": tokens / latency_s,
        "energy_j": joules,
        "energy_per_output_token_j": joules / tokens,
    }
    if bounds:
        for name, (low, high) in intervals(model, costs, B, prompt, output).items():
            costs |= {f"{name}_low": low, f"{name}_high": high}
    return costs


def predict_graph(
    graph: OpGraph,
    workload: Workload,
    *,
    gpu: Gpu,
    engine: Engine,
    precision: Precision | None = None,
    skew: float = 0.0,
    price_per_hour: float | None = None,
    gco2_per_kwh: float | None = None,
    kv_pool_bytes: float | None = None,
    estimator: Estimator | None = None,
    parallel: Parallel = SINGLE,
    offsets: Offsets | None = None,
) -> CostReport:
    """What one workload of a traced model costs, kernel by kernel.

    ``price_per_hour`` is that of one GPU, in any currency; ``gco2_per_kwh`` the carbon intensity
    of its power; ``kv_pool_bytes`` a measured KV pool of one GPU. A workload that does not fit is
    priced all the same, with ``memory.fits`` False and advice. Raises HymellError for a negative
    price or intensity, an impossible pool, a workload that no traced region holds, and a model or
    a batch that ``parallel`` cannot split.
    """
    parallel.check_batch(workload.batch)
    for name, value in (("price per hour", price_per_hour), ("gCO2 per kWh", gco2_per_kwh)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise HymellError(f"the {name} must be 0 or more, not {value}")
    model = deploy(
        graph,
        gpu=gpu,
        engine=engine,
        precision=precision,
        skew=skew,
        estimator=estimator,
        parallel=parallel,
        offsets=offsets,
    )
    B, prompt, output = (
        np.array([float(n)]) for n in (workload.batch, workload.prompt, workload.output)
    )
    power = PowerModel.of(gpu)
    details: dict[Phase, list[KernelDetail]] = {"prefill": [], "decode": []}
    totals: dict[Phase, PhaseTotals] = {
        "prefill": prefill_totals(model, B, prompt, details["prefill"]),
        "decode": decode_totals(model, B, prompt, output, details["decode"]),
    }
    prefill, decode = (_phase_cost(model, phase, totals[phase], power) for phase in totals)
    kernels = tuple(
        cost
        for phase, found in details.items()
        for cost in kernel_costs(
            phase, found, model, _kernels_j(model, phase, totals[phase], power)
        )
    )
    memory = memory_cost(model, workload, kv_pool_bytes)
    latency_s = prefill.time_s + decode.time_s
    joules = prefill.energy_j + decode.energy_j
    tokens = workload.batch * workload.output
    lowered = [detail.kernel for found in details.values() for detail in found]
    beyond = beyond_measured(kernels)
    costs = {
        "ttft_s": totals["prefill"].time_s,
        "tpot_s": totals["decode"].time_s / max(decode.steps, 1),
        "decode_time_s": totals["decode"].time_s,
        "energy_j": np.array([joules]),
        "energy_per_output_token_j": np.array([joules / tokens]),
    }
    spans = intervals(model, costs, B, prompt, output, beyond=beyond)
    return CostReport(
        model=graph.facts.name,
        gpu=gpu.name,
        engine=engine.name,
        dtype=_dtype(model),
        workload={"batch": workload.batch, "prompt": workload.prompt, "output": workload.output},
        ttft_s=prefill.time_s,
        tpot_s=decode.time_s / decode.steps if decode.steps else None,
        latency_s=latency_s,
        tokens_per_s=tokens / latency_s,
        energy_j=joules,
        energy_per_output_token_j=joules / tokens,
        energy_per_request_j=joules / workload.batch,
        power_w=joules / latency_s,
        tdp_w=parallel.gpus * gpu.tdp_w,
        energy_calibrated=_calibrated(model, kernels),
        prefill=prefill,
        decode=decode,
        memory=memory,
        parameters={"total": graph.facts.parameters, "active": graph.facts.active_parameters},
        coverage=coverage(lowered, kernels),
        blocks=block_costs(kernels, corrected_blocks(details)),
        kernels=kernels,
        assumptions=_assumptions(model, workload, skew, power, details, kernels),
        warnings=tuple(_warnings(model, workload, lowered, skew)),
        cost=_per_unit(price_per_hour, parallel.gpus * latency_s / 3600, workload),
        gco2=_per_unit(gco2_per_kwh, joules / _JOULES_PER_KWH, workload),
        parallel=parallel.to_dict(),
        intervals={
            name: (float(low[0]), float(high[0]))
            for name, (low, high) in spans.items()
            if name != "tpot_s" or decode.steps
        },
        interval_level=LEVEL,
        accuracy=accuracies(model, workload.batch, workload.prompt, workload.output, beyond=beyond),
    )


def _kernels_j(
    model: Deployment, phase: Phase, totals: PhaseTotals, power: PowerModel
) -> float | None:
    """What fitted energies leave for the kernels of a phase beside idle gaps; None without any."""
    if model.energies is None:
        return None
    inside_j = energy_j(model, phase, totals, power) - outside_j(model, totals, power)
    return float(inside_j[0])


def _phase_cost(
    model: Deployment, phase: Phase, totals: PhaseTotals, power: PowerModel
) -> PhaseCost:
    joules, time_s = float(energy_j(model, phase, totals, power)[0]), float(totals.time_s[0])
    return PhaseCost(
        steps=int(totals.steps[0]),
        flops=float(totals.flops[0]),
        flops_causal=float(totals.flops_causal[0]),
        bytes=float(totals.bytes[0]),
        weight_bytes=float(totals.weight_bytes[0]),
        time_s=time_s,
        energy_j=joules,
        launches=float(totals.launches[0]),
        overhead_s=time_s - overlap(model) * float(totals.kernel_s[0]),
        power_w=joules / time_s if time_s else 0.0,
    )


def _per_unit(rate: float | None, amount: float, workload: Workload) -> Mapping[str, float] | None:
    """``rate`` times the amount that the whole batch took, per request and per 10^6 tokens."""
    if rate is None:
        return None
    total = rate * amount
    return {
        "per_request": total / workload.batch,
        "per_million_output_tokens": total / (workload.batch * workload.output) * 1e6,
    }


def _dtype(model: Deployment) -> str:
    formats = model.precision
    return formats.weights or formats.activations or model.graph.facts.dtype


def _formats(model: Deployment) -> str:
    facts, formats = model.graph.facts, model.precision
    weights = formats.weights or facts.quantization or formats.activations or facts.dtype
    activations = formats.activations or facts.dtype
    kv = formats.kv or f"{activations} or as the model keeps it"
    return f"weights {weights}, activations {activations}, KV cache {kv}"


def _assumptions(
    model: Deployment,
    workload: Workload,
    skew: float,
    power: PowerModel,
    details: Mapping[Phase, Sequence[KernelDetail]],
    costs: Iterable[KernelCost],
) -> dict[str, Any]:
    engine = model.engine
    chunk = (
        f"prefill in chunks of {PREFILL_CHUNK} tokens" if is_serving(engine) else "whole prefill"
    )
    made: dict[str, Any] = {
        "batch": f"{workload.batch}: sequences of equal length, started together, no queueing",
        "prompt": f"{workload.prompt} tokens, none of them cached before",
        "output": f"{workload.output} tokens: 1 from prefill, {workload.output - 1} decode steps",
        "dtype": _formats(model),
        "engine": "; ".join((engine.title, *engine.notes)),
        "overheads": _overheads(model),
        "kernels": model.estimator.describe(model.gpu),
        "blocks": _blocks(details),
        "attention": "time counts unmasked scores only; flops is the full S^2, flops_causal not",
        "ttft": "prefill step with its host, gap and per-step time; no tokenising, no queue",
        "energy": _energy(model, power, costs),
        "memory": (
            f"{RESERVE_BYTES / 2**20:.0f} MiB for CUDA context and framework; activations of the "
            f"{chunk}; engine uses up to {engine.memory_fraction:.0%} of the GPU"
        ),
    }
    if model.encoder_decoder and model.longest_source == 1:
        made["prompt"] = "the source has its fixed length, whatever the prompt"
    elif model.encoder_decoder:
        made["prompt"] = f"{workload.prompt} source tokens, encoded once"
    elif {"vision", "language"} <= set(model.graph.facts.parts):
        made["prompt"] = f"{workload.prompt} tokens, those of one image per sequence among them"
    lowered = [detail.kernel for found in details.values() for detail in found]
    if any(isinstance(kernel.primitive, Experts | GroupedGemm) for kernel in lowered):
        made["routing"] = "uniform" if skew == 0 else f"popularity of experts ~ rank^-{skew:g}"
    if model.parallel != SINGLE:
        made["parallel"] = _spread(model)
    if model.offsets is not None:
        made["own_runs"] = model.offsets.describe()
    made["cost"] = "GPU hours only; CO2 of the GPU's energy at PUE 1"
    return made


def _blocks(details: Mapping[Phase, Sequence[KernelDetail]]) -> str:
    """Which blocks level 2 prices, by whose measurements, and how near it is."""
    entries = {
        d.corrected.key: d.corrected for found in details.values() for d in found if d.corrected
    }
    if not entries:
        return "sum of level 1: nobody measured whole blocks of this kind on this GPU and library"
    return "; ".join((*(e.describe() for e in entries.values()), "others: sum of level 1"))


def _overheads(model: Deployment) -> str:
    """What the engine adds to the kernels, and whether it was fitted."""
    typical, system = model.engine.overheads, model.system
    host = "prefill only, decode replays CUDA graphs" if typical.cuda_graphs_in_decode else "always"
    launches = f"{typical.host_s_per_launch * 1e6:g} us of host per launch ({host})"
    if system is not None:
        return f"{system.describe()}; typical, not fitted: {launches}"
    words = (
        f"{launches}, {typical.gap_s * 1e6:g} us between kernels, "
        f"{typical.step_s * 1e6:g} us per step"
    )
    return f"typical, not fitted: {words}" if isinstance(_inner(model), Calibrated) else words


def _inner(model: Deployment) -> Estimator:
    priced_by = model.estimator
    return priced_by.inner if isinstance(priced_by, Linked) else priced_by


def _spread(model: Deployment) -> str:
    """How the GPUs share the model, and which figures are one GPU's."""
    parallel = model.parallel
    words = [f"{parallel.gpus} GPUs: tp {parallel.tp}, ep {parallel.ep}, pp {parallel.pp}"]
    if parallel.pp > 1:
        words.append(f"{parallel.microbatches} micro-batches, idle stages draw idle power")
    if parallel.replicas > 1:
        words.append("each GPU runs its part of the batch, tokens travel to their experts")
    whole = model.rank(0).whole
    if parallel.tp > 1 and whole:
        words.append(f"whole on every GPU: {', '.join(whole)}")
    words.append(
        "energy, power and money are those of all GPUs; FLOPs, bytes, launches and kernel sizes "
        "those of one GPU of each stage, memory that of the fullest GPU"
    )
    return "; ".join(words)


def _calibrated(model: Deployment, kernels: Iterable[KernelCost]) -> bool:
    """Whether all of the energy rests on power that was measured on this GPU."""
    if model.energies is not None:
        return not model.energies.transferred
    return calibrated_share_of_energy(kernels) == 1.0


def _energy(model: Deployment, power: PowerModel, costs: Iterable[KernelCost]) -> str:
    """Whose runs the energy of phases comes from, and by what power kernels share it."""
    kernels = _energy_of_kernels(power, costs)
    if model.energies is None:
        return kernels
    return (
        f"{model.energies.describe(model.gpu)}; idle power or more in the gaps, the rest of a "
        f"phase shared among its kernels, none above TDP, in proportion to: {kernels}"
    )


def _energy_of_kernels(power: PowerModel, costs: Iterable[KernelCost]) -> str:
    """Whose measurements the power of kernels comes from, then the form of the others."""
    costs = list(costs)
    whole = sum(cost.energy_j for cost in costs)
    shares: dict[str, float] = {}
    for cost in costs:
        if cost.energy_calibration:
            own = cost.energy_calibrated
            name = f"fitted on {cost.energy_calibration}" if own else cost.energy_calibration
            shares[name] = shares.get(name, 0.0) + cost.energy_j / whole
    fitted = [
        f"{share:.0%} of the kernels' energy by power {name}" for name, share in shares.items()
    ]
    return (
        "; ".join((*fitted, f"the rest uncalibrated: {power.describe()}"))
        if fitted
        else (f"uncalibrated: {power.describe()}")
    )


def _warnings(
    model: Deployment, workload: Workload, kernels: Iterable[Kernel], skew: float
) -> Iterable[str]:
    facts = model.graph.facts
    yield from facts.notes
    length = workload.output if model.encoder_decoder else workload.prompt + workload.output
    if facts.max_context is not None and length > facts.max_context:
        yield (
            f"{length} tokens are more than the {facts.max_context} that {facts.name} "
            "was made for; priced all the same"
        )
    if model.parallel.per_stage > MACHINE_GPUS:
        yield (
            f"{model.parallel.per_stage} GPUs share each layer, priced as if all were in one "
            "machine: the network between machines is not modelled"
        )
    kernels = list(kernels)
    if "decode" not in model.graph.phases() and workload.output > 1:
        yield f"{facts.name} does not generate: only the pass over the prompt is priced"
    if skew and not any(isinstance(kernel.primitive, Experts) for kernel in kernels):
        yield f"{facts.name} has no routed experts: the routing skew changes nothing"
    maths = {kernel.primitive.math for kernel in kernels}
    for math_format in sorted(maths):
        note = model.gpu.compute_dtype(math_format)[1]
        if note is not None:
            yield note
