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

RATIOS = {
    "ratio_bytes": "ratio_\nbytes",
    "kept_ratio": "kept_\nratio",
    "ratio_formula15": "ratio_\nformula15",
    "ratio_formula15_printed": "ratio_formula15_\nprinted",
}
"""Ratio fields of a record -> heading in the terminal; the first stands in every table."""

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


@dataclass(frozen=True)
class Look:
    """What a reader asked to see."""

    form: str = "terminal"
    """`terminal`, `markdown` or `csv`."""
    per_task: bool = False
    """One column per task instead of one per group."""
    ratios: bool = False
    """Every ratio instead of `ratio_bytes` alone; CSV always has them all."""
    to_file: bool = False
    """Leave out colours and bold face of terminals."""

    @property
    def ratio_names(self) -> tuple[str, ...]:
        """The ratio fields to show."""
        return tuple(RATIOS) if self.ratios or self.form == "csv" else ("ratio_bytes",)


def report(folder: Path, look: Look) -> str:
    """Return the tables of a run folder as text."""
    tables = tables_of(folder)
    if look.form == "csv":
        return _csv(tables, look)
    draw = _markdown if look.form == "markdown" else _terminal
    return "\n".join(draw(table, look) for table in tables)


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


def _ratio(row: Row, name: str) -> str:
    ratio = row.ratio(name)
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


def _terminal(table: Table, look: Look) -> str:
    from rich.console import Console

    out = io.StringIO()
    coloured = not look.to_file and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    console = Console(file=out, width=TERMINAL_WIDTH, force_terminal=coloured, highlight=False)
    columns = columns_of(table, look.per_task)
    console.print(_title(table), style="bold")
    if look.ratios:
        console.print(_rich_table(table, [], look.ratio_names))
        console.print()
    for number, part in enumerate(_parts(columns)):
        console.print(_rich_table(table, part, ("ratio_bytes",) if number == 0 else ()))
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


def _rich_table(table: Table, columns: list[Column], ratios: tuple[str, ...]) -> object:
    """Draw the columns, after budget and ratios where ratios are named."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    drawn.add_column("method", overflow="fold", min_width=12)
    for heading in ["budget", *(RATIOS[name] for name in ratios)] if ratios else []:
        drawn.add_column(heading, justify="right")
    for column in columns:
        drawn.add_column(column.short, justify="right")
    best = [best_rows(table, column) for column in columns]
    for i, row in enumerate(table.rows):
        cells = [
            Text(_cell(column, i), style="bold" if i in rows else "")
            for column, rows in zip(columns, best, strict=True)
        ]
        facts = [row.budget, *(_ratio(row, name) for name in ratios)] if ratios else []
        drawn.add_row(Text(row.label), *facts, *cells, end_section=row.is_baseline)
    return drawn


def _markdown(table: Table, look: Look) -> str:
    columns = columns_of(table, look.per_task)
    names = ["method", "budget", *look.ratio_names, *(c.name for c in columns)]
    lines = [f"**{_title(table)}**", "", f"| {' | '.join(names)} |"]
    lines.append("|---|" + "---:|" * (len(names) - 1))
    best = [best_rows(table, column) for column in columns]
    for i, row in enumerate(table.rows):
        cells = [
            f"**{_cell(c, i)}**" if i in rows else _cell(c, i)
            for c, rows in zip(columns, best, strict=True)
        ]
        label = row.label.replace("|", "\\|").replace("[", "\\[")
        ratios = [_ratio(row, name) for name in look.ratio_names]
        lines.append(f"| {' | '.join([label, row.budget, *ratios, *cells])} |")
    lines.append("")
    lines += [f"- {line}" for line in _all_notes(table, columns) + protocol_card(table)]
    return "\n".join(lines) + "\n"


def _csv(tables: list[Table], look: Look) -> str:
    """One line a row; the same columns for all tables, in the order they first appear."""
    lines: list[dict[str, str]] = []
    for table in tables:
        columns = columns_of(table, look.per_task)
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
            for name in look.ratio_names:
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
