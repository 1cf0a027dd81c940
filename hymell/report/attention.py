"""An `AttentionComparison` as the page, the JSON and the CSV that `hymell attention` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View
from hymell.report.summary import assumptions, setting_of

if TYPE_CHECKING:
    from hymell.analysis.attention_variant import AttentionComparison, Cost, Crossover, Row
    from hymell.attention_findings import Measurement

_ONE_GPU = {"tp": 1, "ep": 1, "pp": 1, "microbatches": 1, "gpus": 1}


def attention_view(found: AttentionComparison) -> View:
    """Both sides per context length, crossovers, cache, checks, times; CSV has the lengths."""
    return View(_document(found), found.to_dict(), tuple(_record(row) for row in found.rows))


def _record(row: Row) -> dict[str, Any]:
    sides = {"original": row.original, "variant": row.variant}
    return {
        "context": row.context,
        **{f"{side}_{key}": v for side, cost in sides.items() for key, v in asdict(cost).items()},
    }


def _document(found: AttentionComparison) -> Document:
    sections: list[Section] = [_headline(found)]
    if found.warnings:
        sections.append(Notes("Warnings", found.warnings))
    sections += [_crossovers(found)]
    sections += [
        _pairs(found, title, figures, note)
        for title, figures, note in (
            (
                "Prefill of the whole context",
                (("ttft_s", "Time", units.seconds), ("prefill_energy_j", "Energy", units.joules)),
                "the whole model",
            ),
            (
                "One decode step after it",
                (("tpot_s", "Time", units.seconds), ("decode_energy_j", "Energy", units.joules)),
                "the whole model, one token per sequence",
            ),
            (
                "Attention alone, prefill",
                (
                    ("attention_prefill_flops", "FLOPs", units.flops),
                    ("attention_prefill_bytes", "Bytes", units.data),
                    ("attention_prefill_s", "Time", units.seconds),
                ),
                "kernels of the attention modules of all layers; masked work is not counted",
            ),
            (
                "Attention alone, one decode step",
                (
                    ("attention_decode_flops", "FLOPs", units.flops),
                    ("attention_decode_bytes", "Bytes", units.data),
                    ("attention_decode_s", "Time", units.seconds),
                ),
                "kernels of the attention modules of all layers",
            ),
        )
    ]
    sections.append(_memory(found))
    sections.append(_kernels(found))
    if found.checks:
        sections.append(_checks(found))
    if found.measurement is not None:
        sections += _measured(found.measurement)
    sections.append(Notes("Assumptions", assumptions(found.assumptions)))
    where = setting_of(found.gpu, found.engine, found.dtype, _ONE_GPU)
    return Document(
        f"{found.variant} in {found.model}", tuple(sections), f"{where}; batch {found.batch}"
    )


def _headline(found: AttentionComparison) -> Facts:
    original, variant = (found.parameters[side] for side in ("original", "variant"))
    more = variant - original
    known = (
        "every op is understood"
        if not found.not_understood
        else f"not understood: {', '.join(found.not_understood)}"
    )
    facts = [
        Fact("Layers", f"{len(found.layers)}", f"replaced: {_indices(found.layers)}"),
        Fact(
            "Parameters",
            units.parameters(variant),
            "as before" if not more else f"{'+' if more > 0 else '-'}{units.count(abs(more))}",
        ),
        Fact("Ops", units.share(found.understood_share_of_ops), known),
    ]
    for side in ("original", "variant"):
        size = found.cache[side]
        facts.append(
            Fact(
                f"Cache, {side}",
                f"{units.data(size.bytes_per_token)} per token",
                f"and {units.data(max(size.fixed_bytes, 0.0))} fixed, per sequence",
            )
        )
    if found.checks:
        passed = len(found.checks) - len(found.failed)
        words = ", ".join(check.name for check in found.failed)
        facts.append(
            Fact(
                "Checks",
                f"{passed} of {len(found.checks)} passed",
                f"FAILED: {words}" if words else "on a small model on the CPU",
            )
        )
    return Facts("", tuple(facts))


def _indices(layers: tuple[int, ...]) -> str:
    """``0 to 31``, ``0 to 30 in steps of 2`` or ``0, 5, 7``."""
    if len(layers) > 2:
        step = layers[1] - layers[0]
        if layers == tuple(range(layers[0], layers[-1] + 1, step)):
            words = f"{layers[0]} to {layers[-1]}"
            return words if step == 1 else f"{words} in steps of {step}"
    return ", ".join(map(str, layers))


def _crossovers(found: AttentionComparison) -> Table:
    columns = (
        Column("measure", "Cheaper by"),
        Column("cheaper", "is the"),
        Column("from", "from context", right=True),
    )
    first, last = found.rows[0].context, found.rows[-1].context
    rows = tuple(
        {
            "measure": crossover.measure,
            "cheaper": crossover.cheaper,
            "from": _from(crossover),
        }
        for crossover in found.crossovers
    )
    note = (
        f"looked for between {first:,} and {last:,} tokens; less than 0.5% is no difference; "
        "times and energy of the whole model"
    )
    return Table("Crossovers", columns, rows, note)


def _from(crossover: Crossover) -> str:
    return "everywhere" if crossover.context is None else units.count(crossover.context)


def _pairs(
    found: AttentionComparison,
    title: str,
    figures: tuple[tuple[str, str, Callable[[float], str]], ...],
    note: str,
) -> Table:
    columns = [Column("context", "Context", units.count, right=True)]
    for key, name, show in figures:
        columns += [
            Column(f"original_{key}", name, show, right=True),
            Column(f"variant_{key}", "variant", show, right=True),
            Column(f"ratio_{key}", "ratio", _ratio, right=True),
        ]
    rows = tuple(
        {
            "context": row.context,
            **{name: value for key, _, _ in figures for name, value in _both(row, key)},
        }
        for row in found.rows
    )
    return Table(title, tuple(columns), rows, note)


def _both(row: Row, key: str) -> Iterator[tuple[str, Any]]:
    a, b = (getattr(cost, key) for cost in (row.original, row.variant))
    yield f"original_{key}", a
    yield f"variant_{key}", b
    yield f"ratio_{key}", b / a if a else None


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else units.number(value)


def _memory(found: AttentionComparison) -> Table:
    columns = (
        Column("context", "Context", units.count, right=True),
        Column("original_cache_bytes", "Cache", units.data, right=True),
        Column("variant_cache_bytes", "variant", units.data, right=True),
        Column("ratio_cache_bytes", "ratio", _ratio, right=True),
        Column("original_total", "Total", right=True),
        Column("variant_total", "variant", right=True),
    )
    rows = tuple(
        {
            "context": row.context,
            **dict(_both(row, "cache_bytes")),
            "original_total": _total(row.original),
            "variant_total": _total(row.variant),
        }
        for row in found.rows
    )
    return Table("Memory", columns, rows, "of the whole batch; *: does not fit the GPU")


def _total(cost: Cost) -> str:
    return units.data(cost.memory_bytes) + ("" if cost.fits else " *")


def _kernels(found: AttentionComparison) -> Table:
    columns = (
        Column("side", "Attention"),
        Column("phase", "Phase"),
        Column("name", "Kernel", code=True),
        Column("time_s", "Time", units.seconds, right=True),
        Column("estimator", "Priced by"),
        Column("calibration", "Measured on"),
        Column("in_range", "In range"),
    )
    rows = tuple(
        {**asdict(kernel), "calibration": kernel.calibration or "nothing like it"}
        for kernel in found.kernels
    )
    note = "of all layers, the prefill or one decode step; in range: its sizes were measured around"
    title = f"Kernels of the attention at {found.rows[-1].context:,} tokens"
    return Table(title, columns, rows, note)


def _checks(found: AttentionComparison) -> Table:
    columns = (
        Column("name", "Check"),
        Column("result", "Result"),
        Column("deviation", "Off by", units.number, right=True),
        Column("remark", "How"),
    )
    rows = tuple(
        {
            "name": check.name,
            "result": "passed" if check.passed else "FAILED",
            "deviation": check.deviation,
            "remark": check.remark,
        }
        for check in found.checks
    )
    return Table("Checks", columns, rows, "random weights, fp32; off by: of the largest output")


def _measured(measurement: Measurement) -> list[Section]:
    columns = (
        Column("phase", "Phase"),
        Column("context", "Context", units.count, right=True),
        Column("side", "Attention"),
        Column("measured_s", "Measured", units.seconds, right=True),
        Column("predicted_s", "Predicted", units.seconds, right=True),
        Column("ratio", "predicted / measured", _ratio, right=True),
        Column("runs", "Runs", units.count, right=True),
    )
    rows = tuple(
        {
            **asdict(time),
            "ratio": None if time.predicted_s is None else time.predicted_s / time.measured_s,
        }
        for time in measurement.times
    )
    title = (
        f"One attention layer on {measurement.device}, {measurement.dtype}, "
        f"batch {measurement.batch}"
    )
    return [
        Table(title, columns, rows, measurement.remark),
        Notes("Predicted", (measurement.basis.removeprefix("predicted: "),)),
    ]
