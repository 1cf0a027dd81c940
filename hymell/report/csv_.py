"""Records as CSV (RFC 4180 quoting, one header row, line feeds)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from hymell.report.document import Row


def to_csv(records: Sequence[Row]) -> str:
    """One line per record in SI units; nested mappings become dotted columns.

    Columns stand in the order in which the records first have them.
    """
    rows = [flatten(record) for record in records]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def flatten(record: Row, prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``; lists are joined by ``"; "``."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            flat[prefix + key] = "; ".join(map(str, value))
        else:
            flat[prefix + key] = value
    return flat
