"""A paper's figure of scores, from our own runs: its points as numbers, as a table and as CSV.

An experiment says which of our rows is which point of the figure; the papers print no numbers
beside theirs. `kvbench.report.paper.drawing` draws it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from kvbench.compress.budget import Budget
from kvbench.plan.names import LM_EVAL
from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow
from kvbench.report.sheets.card import notes, protocol_card
from kvbench.report.table.columns import columns_of
from kvbench.report.table.comparison import SIGNIFICANT, difference, score_interval
from kvbench.report.table.stats import Interval, holm
from kvbench.report.table.table import Column, Row, Table

_HEADING_WIDTH = 20
_MEASURED = {
    "ratio_bytes": "share of the native cache's bytes",
    "ratio_formula15_printed": "share of the native cache (Formula 15 as printed)",
}
"""Ratio of a record that series can be drawn over -> the axis' title."""


@dataclass(frozen=True)
class FigureSpec:
    """What an experiment says of a paper's figure."""

    title: str
    x: str
    """Title of the axis; `ratio_bytes` or `ratio_formula15_printed`: a series is drawn over its
    measured share of the native cache."""
    series: Mapping[str, Mapping[str, Sequence[str]]]
    """Name -> place on the axis -> our rows without their budget, of which a run has one."""
    y: str = "score"
    """What is drawn."""
    over: Sequence[str] = ()
    """Rows, one at each budget or the baseline, that the others' gains are over; none: scores."""
    per_task: bool = False
    """One panel per task instead of one per group."""
    seconds: bool = False
    """A panel of the seconds that compressing took as well."""
    note: str = "The paper prints no numbers beside its figure."

    @classmethod
    def of(cls, node: Mapping[str, Any] | None) -> FigureSpec | None:
        """Read an experiment's node; None where it describes no figure."""
        if node is None or "figure" not in node:
            return None
        values = dict(node["figure"])
        series = {
            name: {str(x): rows for x, rows in places.items()}
            for name, places in values.pop("series").items()
        }
        return cls(series=series, **values)

    @property
    def is_measured(self) -> bool:
        """Whether places are measured."""
        return self.x in _MEASURED

    @property
    def x_title(self) -> str:
        """Title of the axis in words."""
        return _MEASURED.get(self.x, self.x)

    @property
    def lines(self) -> bool:
        """Whether places are numbers, joined by lines; else there are bars."""
        places = {x for of_series in self.series.values() for x in of_series}
        return self.is_measured or all(x.replace(".", "", 1).isdigit() for x in places)


@dataclass(frozen=True)
class Point:
    """One row of a run in one panel."""

    series: str
    x: str
    value: float | None
    """Score or gain x100; or seconds."""
    interval: Interval | None
    p: float | None = None
    """Of a gain, corrected by Holm for all gains of the part."""


@dataclass(frozen=True)
class FigurePart:
    """The panels of one model at one budget."""

    title: str
    columns: tuple[Column, ...]
    points: tuple[tuple[Point, ...], ...]
    """By row, by column."""
    baseline: tuple[float | None, ...]
    """By column: what a line across the panel stands at, 0 for gains."""


def parts(tables: Sequence[Table], spec: FigureSpec) -> list[FigurePart]:
    """Return the figure's points, by model and, unless budgets are the axis, by budget."""
    found = []
    for table in tables:
        model = table.headers[-1].model.name
        if spec.is_measured:
            found.append(_part(table, spec, model, None))
            continue
        budgets = dict.fromkeys(row.budget for row in table.rows if not row.is_baseline)
        found += [_part(table, spec, f"{model}, budget {b}", b) for b in budgets]
    return [part for part in found if part.points]


def _part(table: Table, spec: FigureSpec, title: str, budget: Budget | None) -> FigurePart:
    columns = _columns(table, spec)
    reference = next((r for r in table.rows if _is_reference(r, spec, budget)), None)
    points = [
        tuple(_point(series, x, row, column, table, reference) for column in columns)
        for series, x, row in _places(table, spec, budget)
    ]
    at = [i for i, row in enumerate(table.rows) if row.is_baseline]
    full = [column.values[at[0]] if at and column.tasks else None for column in columns]
    zero = [0.0 if column.tasks else None for column in columns]
    return FigurePart(
        title, tuple(columns), tuple(_corrected(points)), tuple(zero if spec.over else full)
    )


def _columns(table: Table, spec: FigureSpec) -> list[Column]:
    """Main scores, their mean where it means something, and seconds."""
    columns = columns_of(table, spec.per_task)
    shown = [c for c in columns[:-1] if set(c.tasks) <= set(table.tasks)]
    if len(shown) > 1 and table.headers[-1].suite != LM_EVAL:
        shown.append(columns[-1])
    if spec.seconds:
        seconds = tuple(_compress_seconds(row) for row in table.rows)
        shown.append(
            Column("seconds to compress", "compress\ns", (), seconds, (False,) * len(seconds))
        )
    return shown


def _compress_seconds(row: Row) -> float | None:
    found = [r.compress_s for r in row.records if r.compress_s is not None]
    return fmean(found) if found else None


def _is_reference(row: Row, spec: FigureSpec, budget: Budget | None) -> bool:
    return row.series in spec.over and (row.is_baseline or budget in (None, row.budget))


def _places(
    table: Table, spec: FigureSpec, budget: Budget | None
) -> Iterator[tuple[str, str, Row]]:
    """Series, place and row of each point."""
    for series, of_series in spec.series.items():
        for x, names in of_series.items():
            rows = [row for row in table.rows if row.series in names]
            if spec.is_measured:
                ratios = [(row.ratio(spec.x), row) for row in rows]
                for ratio, row in sorted((r for r in ratios if r[0] is not None), key=_first):
                    yield series, f"{ratio:.3f}", row
            else:
                yield from ((series, x, row) for row in rows if row.budget == budget)


def _first(pair: tuple[float | None, Row]) -> float:
    return pair[0] or 0.0


def _point(
    series: str, x: str, row: Row, column: Column, table: Table, reference: Row | None
) -> Point:
    value = column.values[table.rows.index(row)]
    if reference is None or not column.tasks:
        return Point(series, x, value, score_interval(row, column.tasks) if column.tasks else None)
    gain = difference(row, reference, column.tasks)
    if gain is None or value is None:
        return Point(series, x, None, None)
    return Point(series, x, gain.mean, gain.interval, gain.p)


def _corrected(rows: Sequence[tuple[Point, ...]]) -> Iterator[tuple[Point, ...]]:
    corrected = iter(holm([point.p for row in rows for point in row if point.p is not None]))
    for row in rows:
        yield tuple(p if p.p is None else replace(p, p=next(corrected)) for p in row)


def figure_sheets(
    found: Sequence[FigurePart], tables: Sequence[Table], spec: FigureSpec, drawing: Path
) -> list[Sheet]:
    """Return the points as tables: a row for each point, a column for each panel.

    Args:
        found: the points.
        tables: the run's, for their protocol.
        spec: what is drawn.
        drawing: the figure's SVG file, beside its PNG and PDF.
    """
    sheets = []
    for part in found:
        headings = [Heading("series"), Heading(spec.x_title, fill(spec.x_title, _HEADING_WIDTH))]
        headings += [Heading(column.name, column.short) for column in part.columns]
        rows = [
            SheetRow((Cell(row[0].series), Cell(row[0].x), *map(_cell, row, part.columns)), ends)
            for row, ends in zip(part.points, _ends(part), strict=True)
        ]
        sheets.append(Sheet(f"{spec.title}, {part.title}", tuple(headings), tuple(rows), labels=2))
    lines = [f"In each cell: {spec.y}, x100, and its 95% interval."]
    if spec.over:
        lines.append(
            "Gains are paired per sample. *: p below"
            f" {SIGNIFICANT}, corrected by Holm for a table's comparisons."
        )
    lines += [*notes(tables[-1]), spec.note, f"Drawn in {drawing}, and as PNG and PDF."]
    card = tuple(protocol_card(tables[-1]))
    return [*sheets[:-1], *(replace(s, notes=tuple(lines), card=card) for s in sheets[-1:])]


def _cell(point: Point, column: Column) -> Cell:
    if point.value is None:
        return Cell("-")
    if point.p is None:
        text = f"{point.value:.2f}" if column.tasks else f"{point.value:.3f}"
    else:
        text = f"{point.value:+.2f}" + "*" * (point.p < SIGNIFICANT)
    ends = point.interval
    return Cell(text, "" if ends is None else f"{round(ends.low)}..{round(ends.high)}")


def _ends(part: FigurePart) -> list[bool]:
    names = [row[0].series for row in part.points]
    return [name != after for name, after in zip(names, [*names[1:], names[-1]], strict=True)]


def figure_csv(found: Sequence[FigurePart], spec: FigureSpec) -> str:
    """One line for each point of each panel."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["part", "series", spec.x_title, "panel", spec.y, "low", "high", "p"])
    for part in found:
        for row in part.points:
            for column, point in zip(part.columns, row, strict=True):
                ends = point.interval
                numbers = (point.value, ends and ends.low, ends and ends.high, point.p)
                texts = ("" if number is None else f"{number:.4f}" for number in numbers)
                writer.writerow([part.title, point.series, point.x, column.name, *texts])
    return out.getvalue()
