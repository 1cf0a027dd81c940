"""Answers and errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_json(data: Mapping[str, Any]) -> str:
    """Indented JSON that any parser reads: no NaN, no Infinity, text kept as it is."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=_number) + "\n"


def error_to_json(kind: str, message: str, exit_code: int) -> str:
    """The one shape of every error: its type, its sentence and the exit status."""
    return to_json({"error": {"type": kind, "message": message, "exit_code": exit_code}})


def _number(value: Any) -> Any:
    """numpy scalars as the Python numbers they hold."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
