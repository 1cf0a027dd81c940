"""A `CostReport` as the page an engineer reads, and as one CSV record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from hymell.cost_report import Accuracy, CostReport, KernelCost, PhaseCost
from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View
from hymell.report.kernel_text import sizes_text

#: Kernels shown per phase; `hymell kernels` lists all of them.
TOP_KERNELS = 6
_PHASES = ("prefill", "decode")

Show: TypeAlias = Callable[[float], str]


def report_view(report: CostReport) -> View:
    """The whole report: page, JSON (docs/report.schema.json) and a flat record of its totals."""
    data = report.to_dict()
    record = {key: value for key, value in data.items() if key not in ("blocks", "kernels")}
    record["intervals"] = {
        f"{name}_{end}": value
        for name, ends in report.intervals.items()
        for end, value in zip(("low", "high"), ends, strict=True)
    }
    return View(report_document(report), data, (record,))


def report_document(report: CostReport) -> Document:
    """What it costs, where the time goes, what fills the memory, and what was assumed."""
    sections: list[Section] = [headline(report)]
    if report.warnings:
        sections.append(Notes("Warnings", report.warnings))
    if report.accuracy:
        sections.append(Notes("Accuracy", accuracy_lines(report)))
    sections += [
        time_by_block(report),
        top_kernels(report),
        memory_table(report),
        Notes("Assumptions", assumptions(report.assumptions)),
        Notes("Coverage", coverage_lines(report)),
    ]
    return Document(report.model, tuple(sections), setting(report))


def setting(report: CostReport) -> str:
    """``h100-sxm, vllm, bfloat16; batch 1, prompt 1024, output 128``."""
    workload = ", ".join(f"{key} {value}" for key, value in report.workload.items())
    where = setting_of(report.gpu, report.engine, report.dtype, report.parallel)
    return f"{where}; {workload}"


def setting_of(gpu: str, engine: str, dtype: str, parallel: Mapping[str, int]) -> str:
    """``4 x h100-sxm (tp 4), vllm, bfloat16``."""
    gpus = parallel["gpus"]
    where = gpu if gpus == 1 else f"{gpus} x {gpu} ({_spread(parallel)})"
    return f"{where}, {engine}, {dtype}"


def _spread(parallel: Mapping[str, int]) -> str:
    """``tp 4, pp 2``: what is not 1."""
    names = ("tp", "ep", "pp", "microbatches")
    return ", ".join(f"{name} {parallel[name]}" for name in names if parallel[name] > 1)


def _energy_basis(report: CostReport) -> str:
    """How much of the energy rests on power that was measured, in a word or three."""
    if report.energy_calibrated:
        return "calibrated"
    own = report.coverage.calibrated_share_of_energy
    if own:
        return f"{units.share(own)} calibrated"
    lent = any(kernel.energy_calibration for kernel in report.kernels)
    return "part transferred" if lent else "uncalibrated"


def headline(report: CostReport) -> Facts:
    """The numbers that people came for."""
    batch = report.workload["batch"]
    whole = f"whole run of {batch} sequences" if batch > 1 else "whole run"
    flops = report.prefill.flops + report.decode.flops
    counted = "FLOPs of the run, as PyTorch counts"
    energy = _energy_basis(report)
    if report.parallel["gpus"] > 1:
        energy = f"all {report.parallel['gpus']} GPUs, {energy}"
        counted = "FLOPs of the run on one GPU of each stage"
    ends = report.intervals.get
    per_token_j = units.joules(report.energy_per_output_token_j, ends("energy_per_output_token_j"))
    rate = units.with_interval(
        f"{units.number(report.tokens_per_s)} tokens/s", ends("tokens_per_s")
    )
    first = units.seconds(report.ttft_s, ends("ttft_s"))
    facts = [Fact("TTFT", first, "time to first token: one prefill")]
    if report.tpot_s is not None:
        remark = f"time per output token, mean over {report.decode.steps:,} decode steps"
        facts.append(Fact("TPOT", units.seconds(report.tpot_s, ends("tpot_s")), remark))
    facts.append(Fact("Latency", units.seconds(report.latency_s, ends("latency_s")), whole))
    if _generates(report):
        facts.append(Fact("Throughput", rate, "output tokens"))
    request_j = units.joules(report.energy_per_request_j)
    share = f", {request_j} per request" if batch > 1 else ""
    joules = units.joules(report.energy_j, ends("energy_j"))
    facts.append(Fact("Energy", joules, f"{energy}; {whole}{share}"))
    if _generates(report):
        facts.append(Fact("Energy per token", per_token_j, f"{energy}; J per output token"))
    facts += [
        Fact("Mean power", units.watts(report.power_w), _power_by_phase(report)),
        Fact("Memory", units.memory(report.memory.total_bytes), _fit(report)),
        Fact("Parameters", units.parameters(report.parameters["total"]), _active(report)),
        Fact("Compute", units.flops(flops), counted),
    ]
    facts += _per_unit("Cost", report.cost, units.number)
    facts += _per_unit("CO2", report.gco2, units.grams)
    return Facts("", tuple(facts))


def _power_by_phase(report: CostReport) -> str:
    """``prefill 612 W, decode 431 W, TDP 700 W``."""
    phases = [f"prefill {units.watts(report.prefill.power_w)}"]
    if report.decode.steps:
        phases.append(f"decode {units.watts(report.decode.power_w)}")
    return ", ".join((*phases, f"TDP {units.watts(report.tdp_w)}"))


def _generates(report: CostReport) -> bool:
    """False for encoders: asked for more than one token, they decode none."""
    return report.decode.steps > 0 or report.workload["output"] == 1


def _fit(report: CostReport) -> str:
    memory = report.memory
    per = "" if report.parallel["gpus"] == 1 else " on the fullest GPU"
    room = f"of {units.memory(memory.usable_bytes)} usable{per}"
    if not memory.fits:
        return f"{room}; DOES NOT FIT, {_largest(memory.max_batch)}"
    return f"{room}; fits, {_largest(memory.max_batch)}"


def _largest(max_batch: int) -> str:
    return f"largest batch {max_batch:,}" if max_batch else "no batch does"


def _active(report: CostReport) -> str:
    total, active = report.parameters["total"], report.parameters["active"]
    return "all active" if active == total else f"{units.parameters(active)} active per token"


def _per_unit(label: str, values: Mapping[str, float] | None, show: Show) -> list[Fact]:
    if values is None:
        return []
    million = f"per request; {show(values['per_million_output_tokens'])} per million output tokens"
    return [Fact(label, show(values["per_request"]), million)]


def time_by_block(report: CostReport) -> Table:
    """Time, energy and share per block, prefill and decode side by side.

    Shares are of the whole phase, so that what passes outside kernels has its row too.
    """
    phases = [phase for phase in _PHASES if any(b.phase == phase for b in report.blocks)]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for block in report.blocks:
        row = rows.setdefault((block.part, block.block), {"part": block.part, "block": block.block})
        row |= _spent(block.phase, block.time_s, block.energy_j, report)
    outside = rows.setdefault(("", ""), {"part": "", "block": "outside kernels"})
    for phase in phases:
        whole = _phase_cost(report, phase)
        inside_j = sum(block.energy_j for block in report.blocks if block.phase == phase)
        outside |= _spent(phase, whole.overhead_s, max(whole.energy_j - inside_j, 0.0), report)
    columns = [Column("block", "Block")]
    if len({block.part for block in report.blocks}) > 1:
        columns.insert(0, Column("part", "Part"))
    for phase in phases:
        columns += [
            Column(f"{phase}_time_s", phase.capitalize(), units.seconds, right=True),
            Column(f"{phase}_energy_j", "energy", units.joules, right=True),
            Column(f"{phase}_share", "share of time", units.share, bar=True),
        ]
    note = "outside kernels: gaps between launches, waiting for the host, work per step"
    return Table("Where the time goes", tuple(columns), tuple(rows.values()), note)


def _spent(phase: str, time_s: float, energy_j: float, report: CostReport) -> dict[str, float]:
    return {
        f"{phase}_time_s": time_s,
        f"{phase}_energy_j": energy_j,
        f"{phase}_share": time_s / _phase_cost(report, phase).time_s,
    }


def _phase_cost(report: CostReport, phase: str) -> PhaseCost:
    return report.prefill if phase == "prefill" else report.decode


def top_kernels(report: CostReport) -> Table:
    """The kernels that take most time in each phase."""
    rows = tuple(
        _kernel_row(kernel, _phase_cost(report, phase))
        for phase in _PHASES
        for kernel in _slowest(k for k in report.kernels if k.phase == phase)
    )
    columns = (
        Column("phase", "Phase"),
        Column("name", "Kernel", whole=True, code=True),
        Column("sizes", "Sizes", code=True),
        Column("launches", "Launches", units.count, right=True),
        Column("time_s", "Time", units.seconds, right=True),
        Column("share", "Share", units.share, right=True),
        Column("regime", "Bound by"),
    )
    hidden = len(report.kernels) - len(rows)
    note = f"{hidden} more: see `hymell kernels`; decode sums all its steps" if hidden > 0 else ""
    return Table("Top kernels", columns, rows, note)


def _slowest(kernels: Iterable[KernelCost]) -> list[KernelCost]:
    return sorted(kernels, key=lambda kernel: -kernel.time_s)[:TOP_KERNELS]


def _kernel_row(kernel: KernelCost, phase: PhaseCost) -> dict[str, Any]:
    return {
        "phase": kernel.phase,
        "name": kernel.name,
        "sizes": sizes_text(kernel.sizes),
        "launches": kernel.launches,
        "time_s": kernel.time_s,
        "share": kernel.time_s / phase.time_s,
        "regime": kernel.regime,
    }


def memory_table(report: CostReport) -> Table:
    """What fills the GPU at the longest point of the run."""
    memory = report.memory
    sizes = {
        "weights": memory.weights_bytes,
        "KV cache and state": memory.kv_cache_bytes,
        "activations": memory.activation_bytes,
        "context and framework": memory.reserve_bytes,
        "total needed": memory.total_bytes,
        "usable by the engine": memory.usable_bytes,
        "memory of the GPU": memory.capacity_bytes,
    }
    rows = [
        {"item": item, "bytes": size, "share": size / memory.capacity_bytes}
        for item, size in sizes.items()
    ]
    columns = (
        Column("item", "For"),
        Column("bytes", "Size", units.memory, right=True),
        Column("share", "of the GPU", units.share, bar=True),
    )
    per_token = f"KV cache grows by {units.memory(memory.kv_bytes_per_token)} per token"
    return Table("Memory", columns, tuple(rows), "; ".join((per_token, *memory.advice)))


def assumptions(values: Mapping[str, Any]) -> tuple[str, ...]:
    """One line per assumption."""
    return tuple(f"{key.replace('_', ' ')}: {units.text(value)}" for key, value in values.items())


def priced_by(kernel: KernelCost) -> str:
    """The estimator, and what to know about it: transferred, or beyond the sizes measured."""
    words = []
    if kernel.calibration and not kernel.calibrated:
        words.append("transferred")
    if kernel.calibration and not kernel.in_range:
        words.append("out of range")
    return f"{kernel.estimator} ({', '.join(words)})" if words else kernel.estimator


def _measured_lines(report: CostReport) -> Iterator[str]:
    """Whose measurements price which share of the time in kernels."""
    total = sum(kernel.time_s for kernel in report.kernels)
    shares: dict[str, float] = {}
    beyond = 0.0
    for kernel in report.kernels:
        if kernel.calibration and total:
            part = kernel.time_s / total
            shares[kernel.calibration] = shares.get(kernel.calibration, 0.0) + part
            beyond += 0.0 if kernel.in_range else part
    for name, part in sorted(shares.items(), key=lambda item: -item[1]):
        yield f"{units.share(part)} of the time: {name}"
    if shares:
        yield f"sizes beyond those measured: {units.share(beyond)} of the time"


def coverage_lines(report: CostReport) -> tuple[str, ...]:
    """How much of the model is understood, and what is not."""
    coverage = report.coverage
    lines = [
        f"understood: {units.share(coverage.understood_share_of_ops)} of ops, "
        f"{units.share(coverage.understood_share_of_flops)} of FLOPs, "
        f"{units.share(coverage.understood_share_of_bytes)} of bytes",
        f"priced by estimators fitted on measurements of this GPU: "
        f"{units.share(coverage.calibrated_share_of_time)} of the time, "
        f"{units.share(coverage.calibrated_share_of_energy)} of the kernels' energy",
        *_measured_lines(report),
    ]
    lines += [
        f"not understood: {op}, {times:,} times, {units.share(part)} of bytes"
        for op, times, part in coverage.unknown
    ]
    return tuple(lines)


#: What the quantities of `CostReport.accuracy` are called.
QUANTITY_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "energy_j": "Energy"}


def accuracy_lines(report: CostReport) -> tuple[str, ...]:
    """How near the very estimators of this report were to models that they had not seen."""
    lines = [f"{QUANTITY_NAMES[name]}: {near(found)}" for name, found in report.accuracy.items()]
    if report.intervals:
        lines.append(
            f"in brackets: {report.interval_level:.0%} intervals, from errors on models left out"
        )
    return tuple(lines)


def near(found: Accuracy) -> str:
    if found.mape is None:
        return f"no interval: {found.note}"
    one = "one GPU" if found.gpus == "one" else "several GPUs"
    served = ", served" if found.load == "served" else ""
    kind = found.kind if found.models > 1 else found.kind.replace("models", "model", 1)
    text = (
        f"{found.estimator}, {found.mape:.1f}% off on {found.models} {kind} left out "
        f"({found.rows} {'runs' if found.rows > 1 else 'run'} on {one}{served})"
    )
    return f"{text}; {found.note}" if found.note else text
