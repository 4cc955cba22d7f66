"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.report.card import protocol_card
from kvbench.report.columns import best_rows, columns_of
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
from kvbench.report.tables import Table


def markdown(table: Table, look: Look) -> str:
    """Write a table, its notes and its protocol."""
    columns = columns_of(table, look.per_task)
    best = [best_rows(table, column) for column in columns]
    rows = []
    for i, row in enumerate(table.rows):
        cells = []
        for column, leaders in zip(columns, best, strict=True):
            text = score_text(column, i, leaders)
            cell = f"**{text}**" if i in leaders else text
            if look.intervals and text != "-":
                cell += f" {range_text(score_interval(row, column.tasks))}"
            cells.append(cell.rstrip())
        ratios = [ratio_text(row, name) for name in look.ratio_names]
        rows.append([row.label, row.budget, *ratios, *cells])
    names = ["method", "budget", *look.ratio_names, *(c.name for c in columns)]
    lines = [f"**{title(table)}**", "", *grid(names, rows), ""]
    notes = score_notes(table, columns) + [INTERVAL_NOTE] * look.intervals
    lines += [f"- {line}" for line in notes + protocol_card(table)]
    if look.differences:
        lines += _differences(comparison(table, columns, look.reference))
    return "\n".join(lines) + "\n"


def grid(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is text and whose others are numbers."""
    lines = [f"| {' | '.join(names)} |", "|---|" + "---:|" * (len(names) - 1)]
    return lines + [f"| {' | '.join([_escaped(first), *rest])} |" for first, *rest in rows]


def _differences(compared: Comparison) -> list[str]:
    names = ["method", *(column.name for column in compared.columns), "p (AVG)"]
    rows = []
    for row, line in zip(compared.rows, compared.cells, strict=True):
        cells = [
            f"{difference_text(c)} {range_text(c.difference.interval) if c else ''}".rstrip()
            for c in line
        ]
        average = line[-1]
        p = "-" if average is None else p_text(average.corrected_p)
        rows.append([row.label, *cells, p])
    notes = [f"- {line}" for line in difference_notes(compared)]
    return [
        "",
        f"**Differences to {compared.reference.label}**",
        "",
        *grid(names, rows),
        "",
        *notes,
    ]


def _escaped(label: str) -> str:
    return label.replace("|", "\\|").replace("[", "\\[")
