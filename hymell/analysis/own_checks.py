"""Own runs that cannot be: faster than the data sheet, hotter than the boards, of another unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hymell.analysis.own_runs import OwnRun
from hymell.errors import HymellError
from hymell.estimators.base import Deployment
from hymell.estimators.level1.roofline import limits
from hymell.op_registry.primitives import Experts, Gemm, GroupedGemm, at

#: A time that is so many times the estimate, or so many times shorter, has another unit.
ABSURD: Final = 10.0

_SHOWN: Final = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}


def check_run(model: Deployment, run: OwnRun, estimate_s: Mapping[str, float]) -> None:
    """Raise HymellError, naming the row, for a run that cannot be.

    ``model`` is its configuration, ``estimate_s`` the estimated ttft, tpot and latency.
    """
    try:
        if run.output > 1 and "decode" not in model.graph.phases():
            raise HymellError(f"{run.model} does not generate; its runs have an output of 1")
        _check_fast(model, run)
        _check_power(model, run)
        _check_unit(run, estimate_s)
    except HymellError as error:
        raise HymellError(f"{run.where}: {error}") from None


def least_s(model: Deployment, run: OwnRun) -> tuple[float, float]:
    """Least seconds of the prefill and of one decode step that the data sheet allows.

    What no engine can avoid: each step reads the weights that one token meets, but for those that
    the L2 cache may hold, and multiplies every token by them. Attention, embeddings, experts beyond
    one token's, launches and communication are left out.
    """
    return (
        _least_step_s(model, model.region_index("prefill", run.batch, run.prompt, 0), run, True),
        0.0 if run.output == 1 else _least_step_s(model, _decode_index(model, run), run, False),
    )


def _decode_index(model: Deployment, run: OwnRun) -> int:
    if model.encoder_decoder:
        source = int(min(run.prompt, model.longest_source))
        return model.region_index("decode", run.batch, source, 1)
    return model.region_index("decode", run.batch, 1, run.prompt)


def _least_step_s(model: Deployment, index: int, run: OwnRun, prefill: bool) -> float:
    S, L = (run.prompt, 0) if prefill else (1, run.prompt)
    work_s = read = 0.0
    for kernel in model.lowered(index).kernels:
        if isinstance(kernel.primitive, Gemm | Experts | GroupedGemm):
            whole = at(kernel.primitive, run.batch, S, L)
            work_s += kernel.repeat * float(limits(whole, model.gpu).matrix_s)
            token = at(kernel.primitive, run.parallel.batch_parts, 1, L)
            read += kernel.repeat * float(token.weight_bytes)
    beyond_l2 = max(read - model.gpu.l2_bytes, 0.0)
    return max(work_s, beyond_l2 / model.gpu.memory_bandwidth_bytes_per_s)


def _check_fast(model: Deployment, run: OwnRun) -> None:
    prefill_s, step_s = least_s(model, run)
    whole_s = prefill_s + (run.output - 1) * step_s
    for name, least in (("ttft", prefill_s), ("tpot", step_s), ("latency", whole_s)):
        measured = getattr(run, f"{name}_s")
        if measured is not None and measured < least:
            raise HymellError(
                f"{_SHOWN[name]} {measured * 1e3:.4g} ms is faster than the data sheet of "
                f"{model.gpu.name} allows ({least * 1e3:.4g} ms); "
                "did the run do all its work, and is the unit right?"
            )


def _check_power(model: Deployment, run: OwnRun) -> None:
    watts = _watts(run)
    limit_w = model.gpu.tdp_w * run.parallel.gpus
    if watts is not None and watts > limit_w:
        gpus = f"{run.parallel.gpus} x " if run.parallel.gpus > 1 else ""
        raise HymellError(
            f"a mean power of {watts:.4g} W is more than the {limit_w:.4g} W that "
            f"{gpus}{model.gpu.name} may draw; is the energy that of the GPUs alone?"
        )


def _watts(run: OwnRun) -> float | None:
    """Mean power of a run, None where it does not follow from what was measured."""
    if run.power_w is not None or run.whole_s is None:
        return run.power_w
    joules = run.measured_j(run.whole_s)
    return None if joules is None else joules / run.whole_s


def _check_unit(run: OwnRun, plain: Mapping[str, float]) -> None:
    for name in _SHOWN:
        measured = getattr(run, f"{name}_s")
        if measured is not None and not 1 / ABSURD < measured / plain[name] < ABSURD:
            raise HymellError(
                f"{_SHOWN[name]}: {measured * 1e3:.4g} ms were measured where "
                f"{plain[name] * 1e3:.4g} ms are estimated, too far apart for an offset; "
                "is the unit right, and did nothing wait?"
            )
