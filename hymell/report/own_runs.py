"""Own runs under their names: configurations, offsets, and how near estimates come with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hymell.report import units
from hymell.report.document import Column, Document, Notes, Section, Table, View

if TYPE_CHECKING:
    from hymell.analysis.own_store import Judged, SavedRuns


def _factor(value: float) -> str:
    return f"x {value:.2f}"


def _added(value: float) -> str:
    return units.seconds(value) if value else "-"


_COLUMNS = (
    Column("name", "Name", whole=True, code=True),
    Column("configuration", "Configuration"),
    Column("rows", "Runs", units.count, right=True),
    Column("prefill", "Prefill", _factor, right=True),
    Column("decode", "Decode", _factor, right=True),
    Column("step_s", "per step", _added, right=True),
    Column("sequence_s", "per sequence", _added, right=True),
    Column("energy", "Energy", _factor, right=True),
)

_ERRORS = (
    Column("name", "Name", whole=True, code=True),
    Column("configuration", "Configuration"),
    *(
        Column(name, title, right=True)
        for name, title in (
            ("ttft", "TTFT"),
            ("tpot", "TPOT"),
            ("latency", "Latency"),
            ("energy", "Energy"),
        )
    ),
)

_NOTE = (
    "errors are mean absolute errors in % of what was measured; after: each run by offsets fitted "
    "to the others, which takes two runs; when the runs were added"
)


def runs_view(saved: Sequence[SavedRuns]) -> View:
    """One row per configuration of each name."""
    records = [record for each in saved for record in _records(each)]
    sections: tuple[Section, ...] = (
        Table("Offsets", _COLUMNS, tuple(records)),
        Table("Errors before -> after", _ERRORS, tuple(map(_errors, records)), _NOTE),
    )
    if not records:
        sections = (Notes("", ("none are kept; `hymell runs add NAME FILE` keeps some",)),)
    return View(Document("Own runs", sections), {"runs": records}, records)


def _records(saved: SavedRuns) -> Iterator[dict[str, Any]]:
    for judged in saved.configurations:
        yield {"name": saved.name, **_record(judged)}


def _record(judged: Judged) -> dict[str, Any]:
    configuration, offsets = judged.configuration, judged.offsets
    return {
        **configuration._asdict(),
        "configuration": str(configuration),
        "rows": offsets.rows,
        "prefill": offsets.prefill,
        "decode": offsets.decode,
        "step_s": offsets.step_s,
        "sequence_s": offsets.sequence_s,
        "energy": offsets.energy,
        "error_before": dict(offsets.before or {}),
        "error_after": dict(offsets.after or {}),
    }


def _errors(record: dict[str, Any]) -> dict[str, str]:
    after = record["error_after"]
    errors = {
        name: f"{before:.1f}" + (f" -> {after[name]:.1f}" if name in after else "")
        for name, before in record["error_before"].items()
    }
    return {"name": record["name"], "configuration": record["configuration"], **errors}
