"""A page before it is rendered: facts, tables and notes, independent of where they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hymell.report.units import text

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: which value of a row it shows, and how.

    ``whole``: the text is never folded. ``code``: it is an identifier or a formula, literal text
    in Markdown. ``bar``: the value is a share, drawn as a bar where the medium can.
    """

    key: str
    title: str
    show: Callable[[Any], str] = text
    right: bool = False
    whole: bool = False
    code: bool = False
    bar: bool = False

    def cell(self, row: Row) -> str:
        """The text of this column in a row; "-" where the row has no value."""
        value = row.get(self.key)
        return "-" if value is None else self.show(value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under a title; rows may hold more keys than columns show."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value, with a remark that says what it means."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled values under a title."""

    title: str
    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences under a title."""

    title: str
    lines: tuple[str, ...]


Section: TypeAlias = Table | Facts | Notes


@dataclass(frozen=True, slots=True)
class Document:
    """A title with a line below it, and its sections in order."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One answer in the three shapes that a command can print.

    ``document`` for people (terminal, Markdown), ``data`` for JSON, ``records`` for CSV; the last
    two hold SI units.
    """

    document: Document
    data: Mapping[str, Any]
    records: Sequence[Row]
