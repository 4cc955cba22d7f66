"""What of a run is done: a cell for each variant and task."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

from rich.console import Console

from kvbench.records.summary import commonest, reason_of
from kvbench.report.forms.terminal import width
from kvbench.report.sheets.analysis import analysis_lines
from kvbench.report.table.table import Row, Table, TaskColumn, holds_records, tables_of


def status_text(folder: Path) -> str:
    """Return the text that `kvbench status` prints: done, missing and failed results.

    Of analyses and measured speeds: what there is, and where.

    Raises:
        UserError: the folder does not exist or holds no records.
    """
    if (measured := analysis_lines(folder)) and not holds_records(folder):
        return "".join(f"{line}\n" for line in measured)
    out = io.StringIO()
    console = Console(file=out, width=width(), highlight=False)
    for table in tables_of(folder):
        console.print(_cells(table))
        done, missing, failed = (sum(counts) for counts in zip(*_counts(table), strict=True))
        line = f"{done} results done, {missing} missing, {failed} failed."
        if missing:
            line += " The command that began the run goes on with it."
        if failed:
            line += " With --retry-failed it computes the failed ones again."
        console.print(line, markup=False)
        reasons = Counter(reason_of(r.error or "") for row in table.rows for r in row.errors)
        if reasons:
            console.print(commonest(reasons), markup=False, soft_wrap=True)
        for note in table.code_notes():
            console.print(note, markup=False)
    for line in measured:
        console.print(line, markup=False)
    return out.getvalue()


def _cells(table: Table) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    header = table.headers[-1]
    title = f"{header.model.name}, protocol {header.protocol.name}"
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    drawn.title, drawn.title_justify, drawn.title_style = title, "left", "bold"
    for name in ("variant", "task"):
        drawn.add_column(name, overflow="fold")
    for name in ("done", "missing", "failed"):
        drawn.add_column(name, justify="right")
    for row in table.rows:
        complete = [t for t in table.tasks if _state(table, row, t)[1:] == (0, 0)]
        if complete:
            done = sum(_state(table, row, t)[0] for t in complete)
            named = f"{len(complete)} tasks" if len(complete) > 1 else complete[0].name
            drawn.add_row(Text(row.label), named, str(done), "0", "0")
        for task in table.tasks:
            if task not in complete:
                counts = map(str, _state(table, row, task))
                drawn.add_row(Text(row.label), task.name, *counts)
    return drawn


def _counts(table: Table) -> list[tuple[int, int, int]]:
    return [_state(table, row, task) for row in table.rows for task in table.tasks]


def _state(table: Table, row: Row, task: TaskColumn) -> tuple[int, int, int]:
    """Results of one cell: done, missing, failed."""
    done = len(row.scores.get(task.name, ()))
    failed = sum(record.task == task.name for record in row.errors)
    return done, max(0, task.samples - done - failed), failed
