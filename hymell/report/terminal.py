"""A document as text for a terminal or a pipe, laid out by rich."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hymell.report.document import Column, Document, Facts, Notes, Row, Section, Table

#: Width of output that no terminal shows.
PIPE_WIDTH = 100
#: Wide enough for any identifier: lines are never cropped, tables choose their own width.
_UNBOUNDED = 100_000
_BAR_CELLS = 10
#: Spaces between the columns of a table.
_GAP = 2


def to_text(
    document: Document, *, width: int = PIPE_WIDTH, color: bool = False, ascii_only: bool = False
) -> str:
    """The document as lines of ``width`` columns.

    Only a table whose identifiers need more is wider: nothing is shortened. ``color`` asks for
    styles (NO_COLOR in the environment still turns colours off); ``ascii_only`` keeps to ASCII.
    """
    console = Console(
        file=io.StringIO(), width=_UNBOUNDED, force_terminal=color, highlight=False, emoji=False
    )
    with console.capture() as capture:
        console.print(Text(document.title, style="bold"), soft_wrap=True)
        if document.subtitle:
            console.print(Text(document.subtitle), soft_wrap=True)
        for section in document.sections:
            console.print()
            _print(console, section, width, ascii_only)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")[:-1])


def _print(console: Console, section: Section, width: int, ascii_only: bool) -> None:
    if section.title:
        console.print(Text(section.title, style="bold cyan"), soft_wrap=True)
    match section:
        case Facts():
            _print_facts(console, section)
        case Notes():
            _print_lines(console, section.lines, width)
        case Table():
            _print_table(console, section, width, ascii_only)


def _print_facts(console: Console, facts: Facts) -> None:
    label = max((len(fact.label) for fact in facts.items), default=0)
    value = max((len(fact.value) for fact in facts.items if fact.remark), default=0)
    for fact in facts.items:
        line = Text.assemble(
            ("  " + fact.label.ljust(label + 2)),
            (fact.value.ljust(value), "bold"),
            (f"  {fact.remark}" if fact.remark else "", "dim"),
        )
        console.print(line, soft_wrap=True)


def _print_lines(console: Console, lines: tuple[str, ...], width: int) -> None:
    for line in lines:
        wrapped = textwrap.fill(
            line,
            width,
            initial_indent="  - ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        console.print(Text(wrapped), soft_wrap=True)


def _print_table(console: Console, table: Table, width: int, ascii_only: bool) -> None:
    if not table.rows:
        console.print(Text("  (none)"))
        return
    cells = [[_cell(column, row, ascii_only) for column in table.columns] for row in table.rows]
    grid = RichTable(
        box=None if ascii_only else SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP if ascii_only else _GAP - 1, 0, 0),
    )
    # Widths are decided here, not by rich: it shortens what does not fit, and measures slowly.
    for column, cells_wide in zip(table.columns, _widths(table.columns, cells, width), strict=True):
        grid.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            width=cells_wide,
            no_wrap=not _folds(column),
            overflow="fold",
            header_style="bold",
        )
    for row in cells:
        grid.add_row(*map(Text, row))
    console.print(grid)
    if table.note:
        _print_lines(console, (table.note,), width)


def _folds(column: Column) -> bool:
    return not (column.whole or column.right or column.bar)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Width of each column: its widest text, or where it folds a fair share of what is left.

    A word is never broken, so a table may come out wider than ``width``.
    """
    texts = list(zip((column.title for column in columns), *cells, strict=True))
    widths = [max(map(cell_len, column)) for column in texts]
    folding = [i for i, column in enumerate(columns) if _folds(column)]
    left = width - _GAP * (len(columns) - 1) - sum(widths) + sum(widths[i] for i in folding)
    for rank, index in enumerate(sorted(folding, key=lambda i: widths[i])):
        longest_word = max(cell_len(word) for text in texts[index] for word in text.split())
        share = left // (len(folding) - rank)
        widths[index] = min(widths[index], max(share, longest_word))
        left -= widths[index]
    return widths


def _cell(column: Column, row: Row, ascii_only: bool) -> str:
    text = column.cell(row)
    if not column.bar:
        return text
    return f"{text:>6} {_bar(row.get(column.key) or 0.0, ascii_only)}"


def _bar(share: float, ascii_only: bool) -> str:
    full = "#" if ascii_only else "█"
    return full * round(min(max(share, 0.0), 1.0) * _BAR_CELLS)
