"""A document with pictures as one HTML file that needs nothing else: no network, no other file.

Style and script stand in the page. It follows the reader's light or dark preference, fits a phone,
and everything in it is reached by keyboard. Text is escaped by Jinja.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

from hymell._version import __version__
from hymell.errors import HymellError
from hymell.report.document import Column, Document, Facts, Notes, Row, Section, Table

_TEMPLATES = Path(__file__).parent / "templates"

#: Tables of more rows get a field that narrows them.
_SEARCHABLE_ROWS = 12


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: SVG whose text takes the page's colour, and what it shows, in words.

    ``after`` is the title of the section it stands behind, "" the first one.
    """

    title: str
    svg: str
    alternative: str
    after: str = ""


def check_html() -> None:
    """Raise HymellError where a package that pages need is missing."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise HymellError(
            f"an HTML page needs {' and '.join(missing)}; install with: pip install 'hymell[html]'"
        )


def to_page(document: Document, pictures: Sequence[Picture] = (), command: str = "") -> str:
    """The whole file; ``command`` is what made it. Raises HymellError as `check_html`."""
    check_html()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        document=document,
        sections=list(_sections(document, pictures)),
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=(_TEMPLATES / "page.js").read_text(encoding="utf-8"),
        command=command,
        version=__version__,
    )


def _sections(document: Document, pictures: Sequence[Picture]) -> Iterator[Mapping[str, Any]]:
    left = list(pictures)
    for place, section in enumerate(document.sections):
        yield _section(section)
        here = [p for p in left if p.after == section.title or (not p.after and place == 0)]
        for picture in here:
            left.remove(picture)
            yield _drawn(picture)
    yield from map(_drawn, left)


def _drawn(picture: Picture) -> Mapping[str, Any]:
    return {"kind": "picture", "title": picture.title, "content": picture}


def _section(section: Section) -> Mapping[str, Any]:
    match section:
        case Facts():
            return {"kind": "facts", "title": section.title, "content": section.items}
        case Notes():
            return {"kind": "notes", "title": section.title, "content": section.lines}
        case Table():
            return {"kind": "table", "title": section.title, "content": _table(section)}


def _table(table: Table) -> Mapping[str, Any]:
    return {
        "columns": [{"title": c.title, "right": c.right or c.bar} for c in table.columns],
        "rows": [[_cell(column, row) for column in table.columns] for row in table.rows],
        "note": table.note,
        "searchable": len(table.rows) > _SEARCHABLE_ROWS,
    }


def _cell(column: Column, row: Row) -> Mapping[str, Any]:
    """Text, and the value that sorting goes by, "" where there is none."""
    value, text = row.get(column.key), column.cell(row)
    number = isinstance(value, Real) and not isinstance(value, bool)
    return {
        "text": text,
        "value": float(value) if number else "" if value is None else text,  # type: ignore[arg-type]
        "right": column.right,
        "whole": column.whole and not column.right,
        "code": column.code and value is not None,
        "bar": min(max(float(value or 0.0), 0.0), 1.0) if column.bar else None,
    }
