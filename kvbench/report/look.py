"""What a reader asked to see, and the texts that all forms of a table share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.report.card import notes
from kvbench.report.columns import Column, best_rows
from kvbench.report.compare import SIGNIFICANT, Compared, Comparison

if TYPE_CHECKING:
    from kvbench.report.tables import Row, Table
    from kvbench.stats import Interval

RATIOS = ("ratio_bytes", "kept_ratio", "ratio_formula15", "ratio_formula15_printed")
"""Ratio fields of a record; the first stands in every table."""


@dataclass(frozen=True)
class Look:
    """The parts of a report, and its form."""

    form: str = "terminal"
    """`terminal`, `markdown`, `csv`, `latex` or `html`."""
    per_task: bool = False
    """One column per task instead of one per group."""
    ratios: bool = False
    """Every ratio instead of `ratio_bytes` alone; CSV always has them all."""
    intervals: bool = False
    """The 95% interval of each score; CSV and HTML always have it."""
    differences: bool = False
    """A table of differences to the reference as well."""
    reference: str | None = None
    """Label of the row to compare with; None: FullKV."""
    coloured: bool = False
    """Bold face and colours of a terminal."""

    @property
    def ratio_names(self) -> tuple[str, ...]:
        """The ratio fields to show."""
        return RATIOS if self.ratios or self.form in ("csv", "html") else RATIOS[:1]


def title(table: Table) -> str:
    """Model, suite and protocol, in one line."""
    header = table.headers[-1]
    suite = "sample suite (not LongBench)" if header["data"]["setting"] == "sample" else "LongBench"
    return f"{header['model']['name']} on {suite}, protocol {header['protocol']['name']}"


def score_text(column: Column, i: int, best: dict[int, bool]) -> str:
    """A score with its marks: `*` lacks samples, `~` is best without a clear lead; `-` is none."""
    value = column.values[i]
    if value is None:
        return "-"
    return f"{value:.2f}" + "*" * column.partial[i] + "~" * (best.get(i) is False)


def ratio_text(row: Row, name: str) -> str:
    """A mean ratio to three digits."""
    ratio = row.ratio(name)
    return "-" if ratio is None else f"{ratio:.3f}"


def range_text(interval: Interval | None) -> str:
    """An interval to whole points, such as `31..46`; empty where there is none."""
    return "" if interval is None else f"{round(interval.low)}..{round(interval.high)}"


def difference_text(cell: Compared | None) -> str:
    """A signed difference, `*` where it is significant."""
    if cell is None:
        return "-"
    return f"{cell.difference.mean:+.2f}" + "*" * cell.significant


def p_text(p: float) -> str:
    """A p-value to three digits."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def score_notes(table: Table, columns: list[Column]) -> list[str]:
    """What a reader must know of a table of scores, its marks explained."""
    lines = notes(table)
    best = [best_rows(table, column) for column in columns]
    if any(best):
        lines.append("Bold: best of the methods at one budget, FullKV excluded.")
    if any(clear is False for rows in best for clear in rows.values()):
        lines.append("~: its lead is not clear: the 95% interval of the difference to the next")
        lines[-1] += " holds zero, or cannot be known from one sample per task."
    if any(any(column.partial) for column in columns):
        lines.append("*: samples are missing from this mean.")
    return lines


INTERVAL_NOTE = (
    "Intervals: 95%, percentile bootstrap over samples, drawn within tasks; none where a task has"
    " one sample."
)


def difference_notes(compared: Comparison) -> list[str]:
    """How differences were tested."""
    return [
        f"Differences to {compared.reference.label}, paired per sample; 95% interval by bootstrap"
        " within tasks.",
        f"*: p below {SIGNIFICANT} in a sign-flip test, corrected by Holm for the"
        f" {compared.count} comparisons of this table.",
    ]
