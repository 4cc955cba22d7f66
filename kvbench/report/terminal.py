"""A table as a terminal shows it: at most 100 columns, more scores below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvbench.report.card import protocol_card
from kvbench.report.columns import Column, best_rows, columns_of
from kvbench.report.compare import Comparison, comparison, score_interval
from kvbench.report.look import (
    INTERVAL_NOTE,
    Look,
    difference_notes,
    difference_text,
    p_text,
    range_text,
    ratio_text,
    score_notes,
    score_text,
    title,
)
from kvbench.report.tables import Row, Table

WIDTH = 100

_T = TypeVar("_T")

_RATIO_HEADINGS = {
    "ratio_bytes": "ratio_\nbytes",
    "kept_ratio": "kept_\nratio",
    "ratio_formula15": "ratio_\nformula15",
    "ratio_formula15_printed": "ratio_formula15_\nprinted",
}


def terminal(table: Table, look: Look) -> str:
    """Draw a table, its notes and its protocol."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, force_terminal=look.coloured, highlight=False)
    columns = columns_of(table, look.per_task)
    console.print(title(table), style="bold")
    if look.ratios:
        console.print(_ratio_table(table, look.ratio_names))
        console.print()
    for number, part in enumerate(_parts(columns, first=8, later=9)):
        console.print(_score_table(table, part, look, with_ratio=number == 0))
    lines = score_notes(table, columns) + [INTERVAL_NOTE] * look.intervals
    _print_lines(console, lines)
    if look.differences:
        console.print()
        compared = comparison(table, columns, look.reference)
        for places in _parts(list(range(len(columns))), first=7, later=7):
            console.print(_difference_table(compared, places))
        _print_lines(console, difference_notes(compared))
    console.print()
    _print_lines(console, protocol_card(table), style="dim")
    return out.getvalue()


def _print_lines(console: Console, lines: Sequence[str], style: str = "") -> None:
    for line in lines:
        console.print(line, markup=False, style=style)


def _parts(columns: list[_T], first: int, later: int) -> list[list[_T]]:
    """Cut many columns into tables that fit the terminal's width."""
    starts = range(first, len(columns), later)
    return [columns[:first], *(columns[i : i + later] for i in starts)]


def _empty(headings: Sequence[str]) -> RichTable:
    """A table without rows. Its cells are `_cell`s, which bring their own gap."""
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    drawn.add_column(_cell("method"), overflow="fold", min_width=12)
    for heading in headings:
        drawn.add_column(_cell(heading), justify="right")
    return drawn


def _cell(text: str, below: str = "", style: str = "") -> Text:
    """Text whose lines end in a mark or in the gap to the next column, so that digits line up."""
    cell = Text(style=style)
    for line in text.split("\n"):
        cell.append(("\n" if cell else "") + line + " " * (not line.endswith(("*", "~"))))
    if below:
        cell.append(f"\n{below} ", style="not bold dim")
    return cell


def _ratio_table(table: Table, names: Sequence[str]) -> RichTable:
    drawn = _empty(["budget", *(_RATIO_HEADINGS[name] for name in names)])
    for row in table.rows:
        cells = [row.label, *_ratio_cells(row, names)]
        drawn.add_row(*map(_cell, cells), end_section=row.is_baseline)
    return drawn


def _ratio_cells(row: Row, names: Sequence[str]) -> list[str]:
    return [row.budget, *(ratio_text(row, name) for name in names)]


def _score_table(
    table: Table, columns: Sequence[Column], look: Look, *, with_ratio: bool
) -> RichTable:
    ratios = look.ratio_names[:1] if with_ratio else ()
    facts = ["budget", *(_RATIO_HEADINGS[name] for name in ratios)] if with_ratio else []
    drawn = _empty([*facts, *(column.short for column in columns)])
    cells = [_score_cells(table, column, look) for column in columns]
    for i, row in enumerate(table.rows):
        facts = _ratio_cells(row, ratios) if with_ratio else []
        scores = [column[i] for column in cells]
        drawn.add_row(*map(_cell, [row.label, *facts]), *scores, end_section=row.is_baseline)
    return drawn


def _score_cells(table: Table, column: Column, look: Look) -> list[Text]:
    best = best_rows(table, column)
    cells = []
    for i, row in enumerate(table.rows):
        known = column.values[i] is not None
        interval = score_interval(row, column.tasks) if look.intervals and known else None
        text = score_text(column, i, best)
        cells.append(_cell(text, range_text(interval), "bold" if i in best else ""))
    return cells


def _difference_table(compared: Comparison, columns: Sequence[int]) -> RichTable:
    """Differences above their intervals; AVG, the last column, with its p."""
    last = len(compared.columns) - 1
    headings = [compared.columns[c].short for c in columns] + ["p\n(AVG)"] * (last in columns)
    drawn = _empty(headings)
    for row, line in zip(compared.rows, compared.cells, strict=True):
        intervals = [None if cell is None else cell.difference.interval for cell in line]
        cells = [_cell(difference_text(line[c]), range_text(intervals[c])) for c in columns]
        average = line[last]
        p = "-" if average is None else p_text(average.corrected_p)
        drawn.add_row(_cell(row.label), *cells, *([_cell(p)] if last in columns else []))
    return drawn
