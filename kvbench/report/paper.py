"""An experiment's results beside what its paper printed: ours, published, difference.

An experiment says which printed row is which of ours; what differs in model, data, samples or
protocol is said, and marked on every difference.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from kvbench.report.card import protocol_card
from kvbench.report.columns import FULL_AVERAGE
from kvbench.report.needle import is_needle
from kvbench.report.paper_shape import block_sheet, blocks, footnote_lines, footnote_marks
from kvbench.report.published import Figure, PublishedTable
from kvbench.report.sheet import NOT_COMPARABLE, Cell, Sheet
from kvbench.report.tables import Row, Table, TaskColumn

_NEEDLE = "needle"
"""The task whose accuracy is printed as a share of 1."""

_NEAR = 0.03
"""How far a printed share may lie from the budget it was aimed at."""


@dataclass(frozen=True)
class Beside:
    """What an experiment says of a paper's table."""

    published: PublishedTable
    rows: Mapping[str, Sequence[str]]
    """Method and setting as printed -> our rows without their budget; of several, the best on each
    task counts."""


@dataclass(frozen=True)
class _Ours:
    """Our number for a printed one."""

    value: float | None
    partial: bool = False
    """Whether samples are missing from it."""


def paper_sheets(tables: Sequence[Table], beside: Beside) -> list[Sheet]:
    """Return the paper's table with ours, published and difference in each cell."""
    published = beside.published
    marks = footnote_marks(published)
    sheets = []
    for block in blocks(published):
        tasks = {f.task for line in block.lines for f in line.figures if f is not None}
        values = [
            [_cell(figure, tables, beside, tasks) for figure in line.figures]
            for line in block.lines
        ]
        sheets.append(block_sheet(block, values, marks))
    notes = ["In each cell: ours, published, difference.", *_differences(tables, published)]
    last = sheets[-1]
    notes += footnote_lines(published)
    card = protocol_card(tables[-1])
    sheets[-1] = Sheet(last.title, last.headings, last.rows, last.labels, tuple(notes), tuple(card))
    return sheets


def paper_csv(tables: Sequence[Table], beside: Beside) -> str:
    """One line for each printed number, with ours and what stands between them."""
    published = beside.published
    out = io.StringIO()
    names = [field.name for field in fields(Figure)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "ours", "difference", "not comparable"])
    for block in blocks(published):
        printed = [f for line in block.lines for f in line.figures if f is not None]
        tasks = {figure.task for figure in printed}
        for figure in printed:
            table = _table_for(figure, tables)
            value = _ours(figure, table, beside, tasks).value
            ours, difference = ("", "") if value is None else _texts(figure, value)
            known = (getattr(figure, name) for name in names)
            writer.writerow([*known, ours, difference, "; ".join(_obstacles(table, figure.model))])
    return out.getvalue()


def _cell(figure: Figure | None, tables: Sequence[Table], beside: Beside, tasks: set[str]) -> Cell:
    if figure is None:
        return Cell("")
    table = _table_for(figure, tables)
    ours = _ours(figure, table, beside, tasks)
    if ours.value is None:
        return Cell("-", figure.score)
    mark = NOT_COMPARABLE if _obstacles(table, figure.model) else ""
    text, difference = _texts(figure, ours.value)
    return Cell(text + "*" * ours.partial, f"{figure.score}\n{difference}{mark}")


def _texts(figure: Figure, value: float) -> tuple[str, str]:
    """Our score x100, and its difference, in the printed number's unit and digits."""
    digits = len(figure.score.partition(".")[2])
    value = value / 100 if figure.task == _NEEDLE else value
    return f"{value:.{digits}f}", f"{value - float(figure.score):+.{digits}f}"


def _table_for(figure: Figure, tables: Sequence[Table]) -> Table:
    """Our table of the same model; else the newest of any."""
    same = [table for table in tables if _model(table) == figure.model]
    return (same or list(tables))[-1]


def _ours(figure: Figure, table: Table, beside: Beside, tasks: set[str]) -> _Ours:
    """Our number; the mean of the printed tasks for AVG."""
    rows = _rows_for(figure, table, beside)
    if figure.task != "AVG":
        columns = [task for task in table.tasks if task.name == figure.task]
        return _best(rows, columns[0], table) if columns else _Ours(None)
    printed = tasks - {"AVG"}
    columns = [task for task in table.tasks if task.name in printed or not printed]
    # Where the average alone is printed, it is over all of LongBench.
    if len(columns) < (len(printed) or FULL_AVERAGE):
        return _Ours(None)
    found = [_best(rows, column, table) for column in columns]
    known = [ours.value for ours in found if ours.value is not None and not ours.partial]
    return _Ours(fmean(known) if len(known) == len(columns) else None)


def _best(rows: Sequence[Row], task: TaskColumn, table: Table) -> _Ours:
    scores = [(table.task_score(row, task), table.missing(row, task) > 0) for row in rows]
    known = [(score, partial) for score, partial in scores if score is not None]
    return _Ours(*max(known)) if known else _Ours(None)


def _rows_for(figure: Figure, table: Table, beside: Beside) -> list[Row]:
    """Our rows of the same method, setting and budget."""
    printed = f"{figure.method} {figure.setting}".strip()
    names = beside.rows.get(printed, beside.rows.get(figure.method, ()))
    found = [_at_budget(figure, [r for r in table.rows if r.series == n]) for n in names]
    return [row for row in found if row is not None]


def _at_budget(figure: Figure, rows: Sequence[Row]) -> Row | None:
    if rows and rows[0].is_baseline:
        return rows[0]
    if figure.budget_tokens:
        return next((row for row in rows if row.budget == figure.budget_tokens), None)
    share = float(figure.reserve_ratio.rstrip("%") or "nan") / 100
    distances = [
        (abs(float(row.budget) - share), i) for i, row in enumerate(rows) if float(row.budget) <= 1
    ]
    distance, i = min(distances, default=(1.0, 0))
    return rows[i] if distance <= _NEAR else None


def _differences(tables: Sequence[Table], published: PublishedTable) -> list[str]:
    found = dict.fromkeys(
        obstacle
        for figure in published.figures
        for obstacle in _obstacles(_table_for(figure, tables), figure.model)
    )
    return [f"{NOT_COMPARABLE} cannot be compared: {'; '.join(found)}."] if found else []


def _obstacles(table: Table, model: str) -> list[str]:
    """What keeps our numbers from being compared with those of a paper on this model."""
    header = table.headers[-1]
    found = []
    if _model(table) != model:
        found.append(f"other model (ours {_model(table)}, published {model})")
    if header["data"]["setting"] == "sample":
        found.append("other data (kvbench's own sample suite)")
    task = header["config"]["task"]
    if is_needle(table) and task.get("haystack") is None:
        found.append("other data (kvbench's own haystack)")
    limit = header["config"].get("limit")
    if limit is not None:
        found.append(f"fewer samples (the first {limit} of each task)")
    protocol = header["protocol"]["name"]
    if protocol != "paper":
        found.append(f"other protocol (ours {protocol}, published paper)")
    return found


def _model(table: Table) -> str:
    return str(table.headers[-1]["model"]["name"])
