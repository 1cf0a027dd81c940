"""A `CostReport` as one self-contained piece of HTML for a notebook cell."""

from __future__ import annotations

from html import escape

from hymell.cost_report import CostReport
from hymell.report.document import Column, Facts, Row, Table
from hymell.report.summary import headline, memory_table, setting, time_by_block

_LEFT = "text-align:left"
_RIGHT = "text-align:right"
_MUTED = "opacity:.65;text-align:left"


def to_html(report: CostReport) -> str:
    """Headline numbers, time per block, memory and warnings; every text is escaped.

    Styles are inline and take the notebook's colours; there is no script and no outside resource.
    """
    warnings = "".join(f"<li>{escape(text)}</li>" for text in report.warnings)
    return (
        "<div>"
        f"<p><strong>{escape(report.model)}</strong><br>{escape(setting(report))}</p>"
        f"{_facts(headline(report))}"
        f"{_table(time_by_block(report))}"
        f"{_table(memory_table(report))}"
        f"{f'<ul>{warnings}</ul>' if warnings else ''}"
        "</div>"
    )


def _facts(facts: Facts) -> str:
    rows = "".join(
        f'<tr><th style="{_LEFT}">{escape(fact.label)}</th>'
        f'<td style="{_RIGHT}">{escape(fact.value)}</td>'
        f'<td style="{_MUTED}">{escape(fact.remark)}</td></tr>'
        for fact in facts.items
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _table(table: Table) -> str:
    head = "".join(
        f'<th style="{_align(column)}">{escape(column.title)}</th>' for column in table.columns
    )
    body = "".join(_row(table.columns, row) for row in table.rows)
    return (
        f"<table><caption>{escape(table.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _row(columns: tuple[Column, ...], row: Row) -> str:
    cells = (f'<td style="{_align(c)}">{escape(c.cell(row))}</td>' for c in columns)
    return f"<tr>{''.join(cells)}</tr>"


def _align(column: Column) -> str:
    return _RIGHT if column.right or column.bar else _LEFT
