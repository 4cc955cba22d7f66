"""From a table of results to what is printed of it: scores, ratios, differences."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.plan.names import LM_EVAL
from kvbench.report.look import COMPRESSING, RATIOS, Look
from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow, cells
from kvbench.report.sheets.card import notes, protocol_card
from kvbench.report.table.columns import best_rows, columns_of
from kvbench.report.table.comparison import SIGNIFICANT, Compared, comparison, score_interval
from kvbench.report.table.needle import sized_suite
from kvbench.report.table.stats import Interval
from kvbench.report.table.table import Column, Row, Table

_RATIO_SHORT = {
    "ratio_bytes": "ratio_\nbytes",
    "ratio_decoding": "ratio_\ndecoding",
    "kept_ratio": "kept_\nratio",
    "ratio_formula15": "ratio_\nformula15",
    "ratio_formula15_printed": "ratio_formula15_\nprinted",
}

_INTERVAL_NOTE = (
    "Intervals: 95%, percentile bootstrap over samples, drawn within tasks; none where a task has"
    " one sample."
)


def sheets_of(table: Table, look: Look) -> list[Sheet]:
    """Return what a look shows of a table.

    Raises:
        UserError: differences are asked for and the table has no row of that reference.
    """
    columns = columns_of(table, look.per_task)
    shown = [_score_sheet(table, columns, look)]
    if look.ratios:
        shown.append(_ratio_sheet(table))
    if look.differences:
        shown.append(_difference_sheet(table, columns, look.reference))
    return shown


def title(table: Table) -> str:
    """Model, suite and protocol, in one line."""
    header = table.headers[-1]
    suite = "sample suite (not LongBench)" if header.data.is_sample_suite else "LongBench"
    if header.suite == LM_EVAL:
        suite = "lm-evaluation-harness"
    suite = sized_suite(table) or suite
    return f"{header.model.name} on {suite}, protocol {header.protocol.name}"


def _score_sheet(table: Table, columns: Sequence[Column], look: Look) -> Sheet:
    headings = [Heading("method"), Heading("budget"), _ratio_heading("ratio_bytes")]
    headings += [Heading(column.name, column.short) for column in columns]
    best = [best_rows(table, column) for column in columns]
    rows = []
    for i, row in enumerate(table.rows):
        facts = cells(row.label, str(row.budget), _ratio(row, "ratio_bytes"))
        scores = tuple(
            _score(row, column, i, leaders, look.intervals)
            for column, leaders in zip(columns, best, strict=True)
        )
        rows.append(SheetRow(facts + scores, ends_section=_ends_budget(table, i)))
    lines = notes(table) + _mark_notes(columns, best) + [_INTERVAL_NOTE] * look.intervals
    return Sheet(
        title(table),
        tuple(headings),
        tuple(rows),
        notes=tuple(lines),
        card=tuple(protocol_card(table)),
    )


def _ends_budget(table: Table, i: int) -> bool:
    """Whether the next row has another budget, or the row is the baseline."""
    following = table.rows[i + 1 : i + 2]
    here = table.rows[i]
    return here.is_baseline or any(row.budget != here.budget for row in following)


def _score(row: Row, column: Column, i: int, best: dict[int, bool], intervals: bool) -> Cell:
    """A score with its marks: `*` lacks samples, `~` is best without a clear lead."""
    value = column.values[i]
    if value is None:
        return Cell("-")
    text = f"{value:.2f}" + "*" * column.partial[i] + "~" * (best.get(i) is False)
    below = _range(score_interval(row, column.tasks)) if intervals else ""
    return Cell(text, below, bold=i in best)


def _mark_notes(columns: Sequence[Column], best: Sequence[dict[int, bool]]) -> list[str]:
    lines = []
    if any(best):
        lines.append("Bold: best of the methods at one budget, FullKV excluded.")
    if any(clear is False for leaders in best for clear in leaders.values()):
        lines.append(
            "~: its lead is not clear: the 95% interval of the difference to the next holds zero,"
            " or cannot be known from one sample per task."
        )
    if any(any(column.partial) for column in columns):
        lines.append("*: samples are missing from this mean.")
    return lines


def _ratio_sheet(table: Table) -> Sheet:
    rows = [
        SheetRow(
            cells(
                row.label,
                str(row.budget),
                *(_ratio(row, name) for name in RATIOS),
                _ratio(row, COMPRESSING),
            )
        )
        for row in table.rows
    ]
    cost = Heading(COMPRESSING, "compress_s")
    headings = (Heading("method"), Heading("budget"), *map(_ratio_heading, RATIOS), cost)
    notes = (
        "ratio_bytes: bytes held / bytes of the native cache. ratio_decoding: bytes held while"
        " decoding, at most, with the tokens fed and generated / the same. kept_ratio: tokens kept"
        " / tokens.",
        "ratio_formula15: SpindleKV's Formula 15 with native denominators and r3 added; printed:"
        " exactly as typeset.",
        "compress_s: seconds that compressing one prompt took, the prefill left out.",
    )
    return Sheet("What is kept, and what compressing costs", headings, tuple(rows), notes=notes)


def _ratio_heading(name: str) -> Heading:
    return Heading(name, _RATIO_SHORT[name])


def _difference_sheet(table: Table, columns: Sequence[Column], reference: str | None) -> Sheet:
    compared = comparison(table, columns, reference)
    rows = []
    for row, line in zip(compared.rows, compared.cells, strict=True):
        average = line[-1]
        p = "-" if average is None else p_text(average.corrected_p)
        rows.append(SheetRow((Cell(row.label), *map(_difference, line), Cell(p))))
    return Sheet(
        f"Differences to {compared.reference.label}",
        (
            Heading("method"),
            *(Heading(column.name, column.short) for column in columns),
            Heading(f"p of {columns[-1].name}", "p of\nthe last"),
        ),
        tuple(rows),
        notes=(
            f"Differences to {compared.reference.label}, paired per sample, with 95% intervals:"
            " percentile bootstrap, pairs drawn within tasks.",
            f"*: p below {SIGNIFICANT} in a sign-flip test, corrected by Holm for the"
            f" {compared.count} comparisons of this table.",
        ),
    )


def _difference(cell: Compared | None) -> Cell:
    if cell is None:
        return Cell("-")
    text = f"{cell.difference.mean:+.2f}" + "*" * cell.significant
    return Cell(text, _range(cell.difference.interval))


def _ratio(row: Row, name: str) -> str:
    ratio = row.ratio(name)
    return "-" if ratio is None else f"{ratio:.3f}"


def _range(interval: Interval | None) -> str:
    """An interval to whole points, such as `31..46`; empty where there is none."""
    return "" if interval is None else f"{round(interval.low)}..{round(interval.high)}"


def p_text(p: float) -> str:
    """A p-value to three digits."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
