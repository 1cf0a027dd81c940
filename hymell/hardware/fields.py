"""Typed reads of a JSON object whose errors name the file and the field."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hymell.errors import HymellError

T = TypeVar("T")

#: No figure of a data sheet comes near it; a larger one is a slip, or beyond a float.
_LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object at ``path`` (empty: the top) of the file ``where``."""

    data: Mapping[str, object]
    where: str
    path: str = ""

    def allow(self, names: Iterable[str]) -> None:
        """Raise HymellError for a field outside ``names``: most often a misspelt one."""
        known = tuple(names)
        for key in self.data:
            if key not in known:
                from difflib import get_close_matches

                close = get_close_matches(key[:60], known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
                raise HymellError(f"{self.where}: unknown field {self._full(key)}; {hint}")

    def text(self, key: str) -> str:
        """A non-empty string."""
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "non-empty text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty strings."""
        value = self._get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list of texts")
        texts = tuple(item for item in value if isinstance(item, str) and item.strip())
        if len(texts) != len(value):
            raise self.wrong(key, "a list of non-empty texts")
        return texts

    def number(self, key: str) -> float:
        """A finite number above zero."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        if not 0 < value < _LARGEST:
            raise self.wrong(key, f"a number above zero and below {_LARGEST:g}")
        return float(value)

    def count(self, key: str) -> int:
        """A whole number above zero; 80e9 counts as whole."""
        value = self.number(key)
        if not value.is_integer():
            raise self.wrong(key, "a whole number")
        return int(value)

    def child(self, key: str) -> JsonObject:
        """A nested object."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object {...}")
        return JsonObject(value, self.where, f"{self.path}{key}.")

    def children(self, key: str) -> tuple[JsonObject, ...]:
        """A list of nested objects."""
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "a list of objects {...}")
        return tuple(
            JsonObject(item, self.where, f"{self.path}{key}[{i}].") for i, item in enumerate(value)
        )

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """``read(key)``, or None for a field that is absent or null."""
        return None if self.data.get(key) is None else read(key)

    def wrong(self, key: str, expected: str) -> HymellError:
        """The error for a field that is not what it must be."""
        value = reprlib.repr(self.data[key])
        return HymellError(f"{self.where}: field {self._full(key)} must be {expected}, not {value}")

    def _get(self, key: str) -> object:
        if key not in self.data:
            raise HymellError(
                f"{self.where}: field {self._full(key)} is missing; "
                "docs/hardware.md lists the fields"
            )
        return self.data[key]

    def _full(self, key: str) -> str:
        return repr(f"{self.path}{key}"[:80])
