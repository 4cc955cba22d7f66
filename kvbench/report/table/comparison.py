"""How sure the numbers of a table are: intervals, and differences to a reference row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean
from kvbench.report.table.stats import Difference, Interval, holm, mean_interval, paired_difference
from kvbench.report.table.table import Row, Table, TaskColumn

if TYPE_CHECKING:
    from kvbench.report.table.table import Column

SIGNIFICANT = 0.05
"""A corrected p below it is marked."""


@dataclass(frozen=True)
class Compared:
    """One row's difference to the reference in one column."""

    difference: Difference
    """Of scores x100."""
    corrected_p: float
    """By Holm, for all comparisons of the table."""

    @property
    def significant(self) -> bool:
        """Whether chance alone hardly differs as much."""
        return self.corrected_p < SIGNIFICANT


@dataclass(frozen=True)
class Comparison:
    """All rows of a table against one of them."""

    reference: Row
    rows: tuple[Row, ...]
    """The others, in the table's order."""
    columns: tuple[Column, ...]
    cells: tuple[tuple[Compared | None, ...], ...]
    """By row, by column; None where either row has no value."""

    @property
    def count(self) -> int:
        """Comparisons made, for which p is corrected."""
        return sum(cell is not None for row in self.cells for cell in row)


def score_interval(row: Row, tasks: Sequence[TaskColumn]) -> Interval | None:
    """The 95% interval of the mean over tasks of a row's scores x100.

    Samples are drawn within tasks. None where a task has fewer than two.
    """
    return mean_interval([[100 * s for s in row.scores.get(t.name, {}).values()] for t in tasks])


def difference(row: Row, reference: Row, tasks: Sequence[TaskColumn]) -> Difference | None:
    """Compare two rows on the samples that both have scored, x100.

    Returns:
        None where there is no task, or one has no such sample.
    """
    if not tasks:
        return None
    ours, theirs = [], []
    for task in tasks:
        mine, others = row.scores.get(task.name, {}), reference.scores.get(task.name, {})
        shared = [sample for sample in mine if sample in others]
        if not shared:
            return None
        ours.append([100 * mine[sample] for sample in shared])
        theirs.append([100 * others[sample] for sample in shared])
    return paired_difference(ours, theirs)


def comparison(table: Table, columns: Sequence[Column], reference: str | None = None) -> Comparison:
    """Compare every row with a reference in every column.

    Args:
        table: the rows.
        columns: what is compared.
        reference: label of a row; None: the baseline.

    Raises:
        UserError: the table has no such row.
    """
    base = _reference_row(table, reference)
    at = table.rows.index(base)
    rows = tuple(row for row in table.rows if row is not base)
    found = [
        [
            None
            if None in (column.values[table.rows.index(row)], column.values[at])
            else difference(row, base, column.tasks)
            for column in columns
        ]
        for row in rows
    ]
    corrected = iter(holm([cell.p for cells in found for cell in cells if cell is not None]))
    cells = tuple(
        tuple(None if cell is None else Compared(cell, next(corrected)) for cell in line)
        for line in found
    )
    return Comparison(base, rows, tuple(columns), cells)


def _reference_row(table: Table, label: str | None) -> Row:
    if label is None:
        for row in table.rows:
            if row.is_baseline:
                return row
        known = ", ".join(row.label for row in table.rows)
        raise UserError(f"the run has no FullKV to compare with: give --reference, one of {known}")
    for row in table.rows:
        if row.label == label:
            return row
    known_labels = [row.label for row in table.rows]
    raise UserError(f"--reference {label} is not a row: {did_you_mean(label, known_labels)}")
