"""Calibrations and measurements as lists: held-out errors, rows kept and left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hymell.report import units
from hymell.report.document import Column, Document, Notes, Table, View

if TYPE_CHECKING:
    from hymell.estimators.calibration import Calibration
    from hymell.measure.table import Tally


def _percent(value: float) -> str:
    return f"{value:.1f}"


_ERROR_COLUMNS = (
    Column("op", "Op", whole=True, code=True),
    Column("format", "Format", whole=True),
    Column("split", "Held out", whole=True),
    Column("rows", "Rows", units.count, right=True),
    Column("roofline", "Roofline", _percent, right=True),
    Column("analytical", "Analytical", _percent, right=True),
    Column("mape", "Corrected", _percent, right=True),
    Column("median", "median", _percent, right=True),
    Column("p90", "P90", _percent, right=True),
    Column("max", "max", _percent, right=True),
    Column("bias", "bias", _percent, right=True),
)


def accuracy_view(calibrations: Sequence[Calibration]) -> View:
    """Errors in % on held-out rows, one table per calibration, one row per op and hold-out."""
    tables, records = [], []
    for calibration in calibrations:
        rows = list(_error_rows(calibration))
        plain = [
            {"gpu": calibration.gpu, "library": calibration.library, **_about(entry), **error}
            for entry in calibration.entries.values()
            for error in entry.errors
        ]
        records += plain
        tables.append(
            Table(f"{calibration.gpu}, {calibration.library}", _ERROR_COLUMNS, tuple(rows))
        )
    notes = (
        "mean absolute error in % of the measured time, or energy for ops that end in _energy, on "
        "rows that were not fitted on; median to bias are of the corrected estimator",
        "roofline: data-sheet time + 3 us, or data-sheet power; analytical: the fitted form "
        "without its correction",
    )
    document = Document("Accuracy of the calibrations", (*tables, Notes("", notes)))
    return View(document, {"accuracy": records}, records)


def _about(entry: Any) -> dict[str, Any]:
    return {
        "op": entry.op,
        "dtype": entry.dtype,
        "variant": entry.variant,
        "measured": entry.origin,
        "form": entry.fitted["form"],
    }


def _error_rows(calibration: Calibration) -> Iterable[dict[str, Any]]:
    for entry in calibration.entries.values():
        about = {
            "op": entry.op,
            "format": "/".join(part for part in (entry.dtype, entry.variant) if part),
        }
        by_split: dict[str, dict[str, Any]] = {}
        for error in entry.errors:
            by_split.setdefault(str(error["split"]), {})[str(error["estimator"])] = error
        if not by_split:
            yield {**about, "rows": int(entry.fitted["rows"]), "split": "not judged"}
        for split, found in by_split.items():
            best = found.get("corrected") or found.get("analytical") or {}
            yield {
                **about,
                **best,
                "split": split,
                "roofline": found.get("roofline", {}).get("mape"),
                "analytical": found.get("analytical", {}).get("mape"),
            }


_DATA_COLUMNS = (
    Column("source", "Source", whole=True),
    Column("gpu", "GPU", whole=True, code=True),
    Column("library", "Library", whole=True),
    Column("version", "Version", whole=True),
    Column("op", "Op", whole=True, code=True),
    Column("dtype", "Format", whole=True),
    Column("rows", "Rows", units.count, right=True),
    Column("power_rows", "with power", units.count, right=True),
    Column("dropped", "Left out"),
)


def data_view(tallies: Sequence[Tally], folder: str) -> View:
    """What was read from a folder of measurements, and what was left out and why."""
    records = [
        {
            "source": t.source,
            "gpu": t.gpu,
            "library": t.library,
            "version": t.version,
            "op": t.op,
            "dtype": t.dtype,
            "rows_in": t.rows_in,
            "rows": t.rows,
            "power_rows": t.power_rows,
            "dropped": dict(t.dropped),
            "power_unusable": dict(t.power_unusable),
        }
        for t in tallies
    ]
    rows = tuple(
        {**record, "dropped": _reasons(t)} for record, t in zip(records, tallies, strict=True)
    )
    flat = [{**r, "dropped": _reasons(t)} for r, t in zip(records, tallies, strict=True)]
    flat = [{k: v for k, v in r.items() if k != "power_unusable"} for r in flat]
    total = sum(t.rows for t in tallies)
    note = f"{units.count(total)} rows; reasons are explained in docs/data.md"
    table = Table("", _DATA_COLUMNS, rows, note)
    document = Document("Measurements", (table,), folder)
    return View(document, {"folder": folder, "tables": records}, flat)


def _reasons(tally: Tally) -> str | None:
    return ", ".join(f"{n} {reason}" for reason, n in tally.dropped.items()) or None
