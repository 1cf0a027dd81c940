"""A document as GitHub-flavoured Markdown."""

from __future__ import annotations

import re

from hymell.report.document import Column, Document, Facts, Notes, Row, Section, Table

_SPECIAL = re.compile(r"([\\`*_<>\[\]|#~])")


def to_markdown(document: Document) -> str:
    """Headings, bullet lists and tables; every text is escaped."""
    parts = [f"# {_escape(document.title)}"]
    if document.subtitle:
        parts.append(_escape(document.subtitle))
    for section in document.sections:
        if section.title:
            parts.append(f"## {_escape(section.title)}")
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> list[str]:
    match section:
        case Facts():
            return ["\n".join(_fact(item.label, item.value, item.remark) for item in section.items)]
        case Notes():
            return ["\n".join(f"- {_escape(line)}" for line in section.lines)]
        case Table():
            return _table(section)


def _fact(label: str, value: str, remark: str) -> str:
    return f"- {_escape(label)}: **{_escape(value)}**" + (f" ({_escape(remark)})" if remark else "")


def _table(table: Table) -> list[str]:
    if not table.rows:
        return ["(none)"]
    head = "| " + " | ".join(_escape(column.title) for column in table.columns) + " |"
    rule = "|" + "|".join("---:" if c.right or c.bar else "---" for c in table.columns) + "|"
    rows = [
        "| " + " | ".join(_cell(column, row) for column in table.columns) + " |"
        for row in table.rows
    ]
    return ["\n".join((head, rule, *rows)), *([_escape(table.note)] if table.note else [])]


def _cell(column: Column, row: Row) -> str:
    text = column.cell(row)
    if column.code and "`" not in text and text != "-":
        # Inside a table even code must escape the pipe (GFM, section 4.10).
        return "`" + " ".join(text.split()).replace("|", "\\|") + "`"
    return _escape(text)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
