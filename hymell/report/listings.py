"""The lists that commands print: kernels, blocks, GPUs, models, the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hymell.cost_report import CostReport, KernelCost
from hymell.errors import HymellError
from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Table, View
from hymell.report.kernel_text import formats_text, sizes_text
from hymell.report.summary import priced_by, setting

if TYPE_CHECKING:
    from hymell.hardware import Gpu
    from hymell.store import CacheInfo
    from hymell.zoo import ZooModel

#: Of one kernel, as `kernel_row` gives it.
KERNEL_COLUMNS = (
    Column("name", "Kernel", whole=True, code=True),
    Column("sizes_text", "Sizes", code=True),
    Column("formats", "Format", whole=True),
    Column("repeat", "Repeat", units.count, right=True),
    Column("flops", "FLOPs", units.flops, right=True),
    Column("bytes", "Bytes", units.data, right=True),
    Column("time_s", "Time", units.seconds, right=True),
    Column("share_of_time", "Share", units.share, right=True),
    Column("regime", "Bound by"),
    Column("priced_by", "Priced by", whole=True),
)


_CACHE = "Cache of traced graphs"


def kernels_view(report: CostReport) -> View:
    """Every kernel in launch order, one table per phase and kind of layer."""
    records = [asdict(kernel) for kernel in report.kernels]
    tables = [
        _kernel_table(phase, layer, path, list(kernels))
        for (phase, layer, path), kernels in groupby(report.kernels, _layer_kind)
    ]
    notes = (
        "sizes are formulas in B (batch), S (new tokens per sequence), L (tokens in the cache)",
        "FLOPs, bytes and time are totals over all repeats, in decode over all its steps "
        f"({report.decode.steps:,}); shares are of the time in kernels of the phase",
    )
    document = Document(f"Kernels of {report.model}", (*tables, Notes("", notes)), setting(report))
    return View(document, {**_head(report), "kernels": records}, records)


def _head(report: CostReport) -> dict[str, Any]:
    return {
        "schema_version": report.schema_version,
        "model": report.model,
        "gpu": report.gpu,
        "engine": report.engine,
        "dtype": report.dtype,
        "workload": dict(report.workload),
        "parallel": dict(report.parallel),
    }


def _layer_kind(kernel: KernelCost) -> tuple[str, str, str]:
    return kernel.phase, kernel.layer, layer_path(kernel.path) if kernel.layer else ""


def layer_path(path: str) -> str:
    """``model.layers.3.mlp`` -> ``model.layers.3``: up to the first index."""
    parts = path.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[: index + 1])


def _kernel_table(phase: str, layer: str, path: str, kernels: list[KernelCost]) -> Table:
    where = f"{layer} ({path})" if layer else "outside the layers"
    rows = tuple(kernel_row(kernel) for kernel in kernels)
    return Table(f"{phase.capitalize()}: {where}", KERNEL_COLUMNS, rows)


def kernel_row(kernel: KernelCost) -> dict[str, Any]:
    """A kernel as a row of `KERNEL_COLUMNS`."""
    return {
        "name": kernel.name if kernel.understood else f"{kernel.name} (not understood)",
        "sizes_text": sizes_text(kernel.sizes),
        "formats": formats_text(kernel.sizes),
        "repeat": kernel.repeat,
        # What an unknown op computes is not known; zero would be a lie.
        "flops": kernel.flops if kernel.understood else None,
        "bytes": kernel.bytes,
        "time_s": kernel.time_s,
        "share_of_time": kernel.share_of_time,
        "regime": kernel.regime,
        "priced_by": priced_by(kernel),
    }


def blocks_view(report: CostReport) -> View:
    """What each block costs, per phase; shares are of the phase's kernels and sum to 100%."""
    records = [asdict(block) for block in report.blocks]
    columns = (
        Column("part", "Part"),
        Column("block", "Block"),
        Column("flops", "FLOPs", units.flops, right=True),
        Column("bytes", "Bytes", units.data, right=True),
        Column("time_s", "Time", units.seconds, right=True),
        Column("energy_j", "Energy", units.joules, right=True),
        Column("share_of_flops", "of FLOPs", units.share, right=True),
        Column("share_of_time", "Share of time", units.share, bar=True),
        Column("estimator", "Priced by"),
    )
    tables = [
        Table(phase.capitalize(), columns, tuple(rows))
        for phase, rows in groupby(records, lambda record: str(record["phase"]))
    ]
    document = Document(f"Blocks of {report.model}", tuple(tables), setting(report))
    return View(document, {**_head(report), "blocks": records}, records)


_GPU_COLUMNS = (
    Column("name", "Name", whole=True, code=True),
    Column("memory_bytes", "Memory", units.gib, right=True),
    Column("memory_bandwidth_bytes_per_s", "TB/s", units.tera, right=True),
    *(Column(name, name, units.tera, right=True) for name in ("bf16", "fp16", "fp8", "fp4")),
    Column("l2_bytes", "L2", units.data, right=True),
    Column("sm_count", "SMs", units.count, right=True),
    Column("boost_clock_hz", "Boost", units.hertz, right=True),
    Column("tdp_w", "TDP", units.watts, right=True),
    Column("idle_power_w", "Idle", units.watts, right=True),
)


def gpus_view(gpus: Iterable[Gpu]) -> View:
    """The data sheets: dense peak rates, memory, power."""
    sheets = [gpu.to_dict() for gpu in gpus]
    rows = tuple({**sheet, **_mapping(sheet["peak_flops"])} for sheet in sheets)
    note = "bf16 to fp4: dense peak in TFLOP/s, no sparsity; --json has all figures and sources"
    table = Table("", _GPU_COLUMNS, rows, note)
    records = [{k: v for k, v in sheet.items() if k != "sources"} for sheet in sheets]
    return View(Document("GPUs", (table,)), {"gpus": sheets}, records)


def _mapping(value: Any) -> Mapping[str, Any]:
    return dict(value)


def cache_view(info: CacheInfo) -> View:
    """Where traced graphs are kept and what they take."""
    data = {"path": str(info.path), "entries": info.entries, "bytes": info.bytes}
    facts = (
        Fact("Folder", str(info.path)),
        Fact("Graphs", units.count(info.entries)),
        Fact("Size", units.data(info.bytes)),
    )
    return View(Document(_CACHE, (Facts("", facts),)), data, (data,))


def cleared_view(path: Path, removed: int) -> View:
    """What clearing the cache removed."""
    data = {"path": str(path), "removed": removed}
    facts = (Fact("Folder", str(path)), Fact("Removed", f"{units.count(removed)} graphs"))
    return View(Document(_CACHE, (Facts("", facts),)), data, (data,))


_MODEL_COLUMNS = (
    Column("name", "Name", whole=True, code=True),
    Column("parameters", "Parameters", units.parameters, right=True),
    Column("active_parameters", "Active", units.parameters, right=True),
    Column("architecture", "Class", whole=True, code=True),
    Column("ids", "Hugging Face ids", code=True),
)


def models_view(models: Iterable[ZooModel], wanted: str = "") -> View:
    """The known models whose name, ids or class hold ``wanted``, case ignored.

    Raises HymellError when there is none.
    """
    text = wanted.strip().casefold()
    records = [
        record
        for record in map(_model_record, models)
        if any(text in name.casefold() for name in _names(record))
    ]
    if not records:
        raise HymellError(
            f"no known model holds {wanted!r}; `hymell models` lists all, and any other "
            "Hugging Face id, folder or config.json works too"
        )
    table = Table("", _MODEL_COLUMNS, tuple(records))
    return View(Document("Models that work offline", (table,)), {"models": records}, records)


def _model_record(model: ZooModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "ids": list(model.ids),
        "model_type": model.config.get("model_type"),
        "architecture": next(iter(model.config.get("architectures") or ()), None),
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "source": model.source,
        "notes": model.notes,
    }


def _names(record: Mapping[str, Any]) -> tuple[str, ...]:
    return (record["name"], *record["ids"], record["architecture"] or "")
