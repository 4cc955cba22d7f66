"""A sheet as a terminal shows it: as wide as that is, further columns below."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.report.sheet import MARKS, Cell, Heading, Sheet

_NARROWEST_LABEL = 12
_NARROWEST, _WIDEST = 40, 160


def width() -> int:
    """Columns of the terminal or of the variable COLUMNS; 100 where there is neither."""
    columns = shutil.get_terminal_size((100, 24)).columns
    return min(_WIDEST, max(_NARROWEST, columns))


def terminal(sheets: Sequence[Sheet], colored: bool = False) -> str:
    """Draw sheets one below the other, then the protocol of the last that states one."""
    out = io.StringIO()
    console = Console(file=out, width=width(), force_terminal=colored, highlight=False)
    for number, sheet in enumerate(sheets):
        if number:
            console.print()
        console.print(sheet.title, style="bold", markup=False)
        for columns in _parts(sheet):
            console.print(_drawn(sheet, columns))
        _print_lines(console, sheet.notes)
    for card in [sheet.card for sheet in sheets if sheet.card][-1:]:
        console.print()
        _print_lines(console, card, style="dim")
    return out.getvalue()


def _print_lines(console: Console, lines: Sequence[str], style: str = "") -> None:
    for line in lines:
        console.print(line, markup=False, style=style)


def _parts(sheet: Sheet) -> list[list[int]]:
    """Cut the columns into as few tables as fit the width, about equally wide.

    Each begins with the row's labels.
    """
    labels = list(range(sheet.labels))
    widths = [_width(sheet, column) for column in range(len(sheet.headings))]
    room = width() - sum(widths[: sheet.labels])
    fewest = len(_filled(widths, sheet.labels, room))
    narrowest = next(r for r in range(room + 1) if len(_filled(widths, sheet.labels, r)) == fewest)
    return [labels + part for part in _filled(widths, sheet.labels, narrowest)]


def _filled(widths: Sequence[int], first: int, room: int) -> list[list[int]]:
    """Fill one table after the other; a column that is too wide for any stands alone."""
    parts: list[list[int]] = [[]]
    left = room
    for column in range(first, len(widths)):
        if widths[column] > left and parts[-1]:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= widths[column]
    return parts


def _width(sheet: Sheet, column: int) -> int:
    """Characters that a column takes, its gaps included."""
    texts = [*sheet.headings[column].lines]
    for row in sheet.rows:
        texts += [row.cells[column].text, *row.cells[column].below.split("\n")]
    return max(len(_slotted(text)) for text in texts) + 1


def _drawn(sheet: Sheet, columns: Sequence[int]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        heading = _heading_text(sheet.headings[column])
        if column < sheet.labels:
            drawn.add_column(heading, overflow="fold", min_width=_NARROWEST_LABEL * (column == 0))
        else:
            drawn.add_column(heading, justify="right")
    for row in sheet.rows:
        drawn.add_row(*(_cell_text(row.cells[c]) for c in columns), end_section=row.ends_section)
    return drawn


def _heading_text(heading: Heading) -> Text:
    return Text("\n".join(map(_slotted, heading.lines)))


def _cell_text(cell: Cell) -> Text:
    shown = Text(_slotted(cell.text), style="bold" if cell.bold else "")
    if cell.below:
        below = [_slotted(line) for line in cell.below.split("\n")]
        shown.append("\n".join(["", *below]), style="not bold dim")
    return shown


def _slotted(text: str) -> str:
    """End in one mark or in a gap, so that the digits of a column stand below each other."""
    return text if text.endswith(MARKS) else text + " "
