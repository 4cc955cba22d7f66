"""How a table looks: terminal, Markdown, CSV. Knows nothing of records."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvbench.report.card import notes, protocol_card, summary_of_missing
from kvbench.report.needle import is_needle, needle_columns, sized_suite
from kvbench.report.tables import Row, Table, tables_of

FULL_AVERAGE = 16
"""Tasks of the papers' AVG; over another number the column says over how many."""

TERMINAL_WIDTH = 100

_SHORT = {
    "Single-Document QA": "Single-\nDoc QA",
    "Multi-Document QA": "Multi-\nDoc QA",
    "Summarization": "Summ.",
    "Few-shot Learning": "Few-\nshot",
    "Synthetic": "Synth.",
    # As SpindleKV's tables abbreviate them.
    "narrativeqa": "Na.QA",
    "qasper": "Qasp",
    "multifieldqa_en": "Mu.QA",
    "hotpotqa": "Ho.QA",
    "2wikimqa": "Wi.QA",
    "musique": "Musq",
    "gov_report": "Gv.Rp",
    "qmsum": "QMSm",
    "multi_news": "M.New",
    "trec": "TREC",
    "triviaqa": "Tr.QA",
    "samsum": "SASm",
    "passage_count": "PCnt",
    "passage_retrieval_en": "Pa.Rt",
    "lcc": "Lcc",
    "repobench-p": "RB.P",
}


@dataclass(frozen=True)
class Column:
    """A column of scores."""

    name: str
    short: str
    values: tuple[float | None, ...]
    """Scores x100, by row."""
    partial: tuple[bool, ...]
    """By row: whether samples are missing from the value."""


def report(folder: Path, form: str, *, per_task: bool, to_file: bool) -> str:
    """Return the tables of a run folder as text.

    Args:
        folder: run folder.
        form: `terminal`, `markdown` or `csv`.
        per_task: one column per task instead of one per group.
        to_file: leave out colours and bold face of terminals.
    """
    tables = tables_of(folder)
    if form == "csv":
        return _csv(tables, per_task)
    draw = _markdown if form == "markdown" else _terminal
    return "\n".join(draw(table, per_task, to_file) for table in tables)


def columns_of(table: Table, per_task: bool) -> list[Column]:
    """Return the score columns: tasks or groups, then AVG."""
    if is_needle(table):
        return [Column(*column) for column in needle_columns(table)]
    columns = []
    rows = table.rows
    if per_task:
        for task in table.tasks:
            values = tuple(table.task_score(row, task) for row in rows)
            lacking = tuple(
                table.missing(row, task) > 0 and value is not None
                for row, value in zip(rows, values, strict=True)
            )
            columns.append(Column(task.name, _SHORT.get(task.name, task.name), values, lacking))
    else:
        for group in table.groups:
            values = tuple(table.mean_score(row, group) for row in rows)
            short = _SHORT.get(group, group)
            columns.append(Column(group, short, values, (False,) * len(rows)))
    count = len(table.tasks)
    name, short = ("AVG", "AVG")
    if count != FULL_AVERAGE:
        name, short = f"AVG of {count} tasks", f"AVG of\n{count} tasks"
    average = tuple(table.mean_score(row) for row in rows)
    return [*columns, Column(name, short, average, (False,) * len(rows))]


def best_rows(table: Table, column: Column) -> set[int]:
    """Return the rows that are best in a column among the methods at their budget.

    The baseline does not compete, nor does a value from which samples are missing. Where all
    rivals are equal, or there is one, none is best.
    """
    best: set[int] = set()
    for budget in {row.budget for row in table.rows if not row.is_baseline}:
        rivals = {
            i: round(value, 2)
            for i, (row, value) in enumerate(zip(table.rows, column.values, strict=True))
            if row.budget == budget
            and not row.is_baseline
            and value is not None
            and not column.partial[i]
        }
        if len(set(rivals.values())) > 1:
            best |= {i for i, value in rivals.items() if value == max(rivals.values())}
    return best


def _cell(column: Column, i: int) -> str:
    value = column.values[i]
    return "-" if value is None else f"{value:.2f}" + ("*" if column.partial[i] else "")


def _ratio(row: Row) -> str:
    ratio = row.ratio("ratio_bytes")
    return "-" if ratio is None else f"{ratio:.3f}"


def _all_notes(table: Table, columns: list[Column]) -> list[str]:
    lines = notes(table)
    if any(any(column.partial) for column in columns):
        lines.append("*: samples are missing from this mean.")
    return lines


def _title(table: Table) -> str:
    header = table.headers[-1]
    suite = "sample suite (not LongBench)" if header["data"]["setting"] == "sample" else "LongBench"
    if header["suite"] == "lm-eval":
        suite = "lm-evaluation-harness"
    suite = sized_suite(table) or suite
    return f"{header['model']['name']} on {suite}, protocol {header['protocol']['name']}"


def _terminal(table: Table, per_task: bool, to_file: bool) -> str:
    from rich.console import Console

    out = io.StringIO()
    coloured = not to_file and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    console = Console(file=out, width=TERMINAL_WIDTH, force_terminal=coloured, highlight=False)
    columns = columns_of(table, per_task)
    console.print(_title(table), style="bold")
    for number, part in enumerate(_parts(columns)):
        console.print(_rich_table(table, part, with_ratio=number == 0))
    for line in _all_notes(table, columns):
        console.print(line, markup=False)
    console.print()
    for line in protocol_card(table):
        console.print(line, markup=False, style="dim")
    return out.getvalue()


def _parts(columns: list[Column]) -> list[list[Column]]:
    """Cut many columns into tables that fit the terminal's width; only the first has ratios."""
    first, later = 8, 9
    starts = range(first, len(columns), later)
    return [columns[:first], *(columns[i : i + later] for i in starts)]


def _rich_table(table: Table, columns: list[Column], *, with_ratio: bool) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    drawn.add_column("method", overflow="fold", min_width=12)
    if with_ratio:
        drawn.add_column("budget", justify="right")
        drawn.add_column("ratio_\nbytes", justify="right")
    for column in columns:
        drawn.add_column(column.short, justify="right")
    best = [best_rows(table, column) for column in columns]
    for i, row in enumerate(table.rows):
        cells = [
            Text(_cell(column, i), style="bold" if i in rows else "")
            for column, rows in zip(columns, best, strict=True)
        ]
        facts = [row.budget, _ratio(row)] if with_ratio else []
        drawn.add_row(Text(row.label), *facts, *cells, end_section=row.is_baseline)
    return drawn


def _markdown(table: Table, per_task: bool, to_file: bool) -> str:
    columns = columns_of(table, per_task)
    names = ["method", "budget", "ratio_bytes", *(c.name for c in columns)]
    lines = [f"**{_title(table)}**", "", f"| {' | '.join(names)} |"]
    lines.append("|---|" + "---:|" * (len(names) - 1))
    best = [best_rows(table, column) for column in columns]
    for i, row in enumerate(table.rows):
        cells = [
            f"**{_cell(c, i)}**" if i in rows else _cell(c, i)
            for c, rows in zip(columns, best, strict=True)
        ]
        label = row.label.replace("|", "\\|").replace("[", "\\[")
        lines.append(f"| {' | '.join([label, row.budget, _ratio(row), *cells])} |")
    lines.append("")
    lines += [f"- {line}" for line in _all_notes(table, columns) + protocol_card(table)]
    return "\n".join(lines) + "\n"


def _csv(tables: list[Table], per_task: bool) -> str:
    """One line a row; the same columns for all tables, in the order they first appear."""
    lines: list[dict[str, str]] = []
    for table in tables:
        columns = columns_of(table, per_task)
        header = table.headers[-1]
        for i, row in enumerate(table.rows):
            line = {
                "model": header["model"]["name"],
                "data": header["data"]["description"],
                "protocol": header["protocol"]["name"],
                "variant": row.label,
                "method": row.method,
                "budget": row.budget,
            }
            for name in ("ratio_bytes", "kept_ratio", "ratio_formula15", "ratio_formula15_printed"):
                ratio = row.ratio(name)
                line[name] = "" if ratio is None else f"{ratio:.4f}"
            for column in columns:
                value = column.values[i]
                line[column.name] = "" if value is None else f"{value:.2f}"
            line["samples"] = str(sum(len(values) for values in row.scores.values()))
            line["missing"] = summary_of_missing(table, row)
            lines.append(line)
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
