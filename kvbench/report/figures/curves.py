"""Score against the measured share of bytes: a panel for each column, a line for each method.

Bars are 95% intervals; the dashed line is the baseline. The same table gives the same figure, in
files as on a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from kvbench.report.figures import style as figures
from kvbench.report.sheets.scores import title
from kvbench.report.table.columns import columns_of
from kvbench.report.table.comparison import score_interval
from kvbench.report.table.needle import is_needle
from kvbench.report.table.table import Column, Row, Table

SIGNS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
"""Markers: of a chart -> of text."""

X_LABEL = "share of the native cache's bytes"

_LABEL_WIDTH = 26

_ACROSS = 4
"""Panels side by side."""

_LEGEND_INCHES = 0.13
"""Height of one line of the legend."""


@dataclass(frozen=True)
class Series:
    """A method, in one setting, over its budgets."""

    name: str
    color: str
    marker: str
    rows: tuple[Row, ...]

    @property
    def sign(self) -> str:
        """The marker as text."""
        return SIGNS[self.marker]


def series_of(table: Table) -> list[Series]:
    """Group the rows that differ in their budget alone; the baseline is none of them."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        if not row.is_baseline:
            found.setdefault(row.series, []).append(row)
    markers, colors = list(SIGNS), figures.PALETTE
    return [
        Series(
            name,
            colors[i % len(colors)],
            markers[(i + i // len(colors)) % len(markers)],
            tuple(rows),
        )
        for i, (name, rows) in enumerate(found.items())
    ]


def drawn_columns(table: Table) -> list[Column]:
    """Return the columns with a value: what says most first, AVG or a needle's accuracy."""
    columns = columns_of(table, per_task=False)
    if not is_needle(table):
        columns = [columns[-1], *columns[:-1]]
    return [column for column in columns if any(value is not None for value in column.values)]


def curve_figures(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Draw a figure for each table of a run: AVG, then each group.

    Args:
        tables: of one run; one without a single value is passed over.
        folder: where to write; made if there is something to draw.

    Returns:
        The files written, PNG, PDF and SVG of each figure.

    Raises:
        UserError: the folder cannot be written to.
    """
    paths: list[Path] = []
    with figures.style():
        for table in tables:
            if columns := drawn_columns(table):
                number = len(paths) // 3 + 1
                name = "scores" if number == 1 else f"scores-{number}"
                paths += figures.save(_figure(table, columns), folder, name)
    return paths


def _figure(table: Table, columns: Sequence[Column]) -> Any:
    across = min(_ACROSS, len(columns))
    down = math.ceil(len(columns) / across)
    series = series_of(table)
    legend_columns = 2 if len(columns) == 1 else 4
    lines = math.ceil((len(series) + 1) / legend_columns)
    width = figures.COLUMN_INCHES if len(columns) == 1 else figures.PAGE_INCHES
    height = (2.0 if across < 3 else 1.5) * down + _LEGEND_INCHES * lines + 0.35
    drawn = figures.figure(width, height)
    grid = drawn.subplots(down, across, squeeze=False)
    for axes in list(grid.flat)[len(columns) :]:
        axes.set_visible(False)
    for axes, column in zip(grid.flat, columns, strict=False):
        draw_curve(axes, table, column, series)
        axes.set_title(column.name)
    for axes in grid[:, 0]:
        axes.set_ylabel("score")
    for axes in grid[-1]:
        axes.set_xlabel(fill(X_LABEL, _LABEL_WIDTH))
    drawn.suptitle(title(table), fontsize=7)
    named: dict[str, Any] = {}
    for axes in grid.flat:  # a method without a value in one column has one in another
        lines_of, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, lines_of, strict=True))
    if named:
        drawn.legend(
            list(named.values()), list(named), loc="outside lower center", ncols=legend_columns
        )
    return drawn


def draw_curve(axes: Any, table: Table, column: Column, series: Sequence[Series]) -> None:
    """Draw one column into axes, in matplotlib's colors of text and grid.

    Each mark's group is named after its series, so that a page can show one alone.
    """
    import matplotlib

    thin = matplotlib.rcParams["lines.linewidth"] * 2 / 3
    for base in (row for row in table.rows if row.is_baseline):
        value = column.values[table.rows.index(base)]
        if value is not None:
            dashes = {"linewidth": thin, "linestyle": (0, (5, 3))}
            ink = matplotlib.rcParams["text.color"]
            line = axes.axhline(value, color=ink, label=base.label, **dashes)
            line.set_gid(f"series:{base.label}")
    for one in series:
        for artist in _marks(axes, table, column, one, thin):
            artist.set_gid(f"series:{one.name}")
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(1, axes.get_ylim()[1]))  # where all scores are 0, too
    axes.locator_params(nbins=5)
    axes.grid(axis="y", linewidth=0.6 * thin)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _marks(axes: Any, table: Table, column: Column, series: Series, thin: float) -> Iterator[Any]:
    """The line of a series, then its intervals."""
    points = []
    for row in series.rows:
        value, ratio = column.values[table.rows.index(row)], row.ratio("ratio_bytes")
        if value is not None and ratio is not None:
            points.append((ratio, value, score_interval(row, column.tasks)))
    if not points:
        return
    points.sort(key=lambda point: point[:2])
    style = {"color": series.color, "zorder": 3}
    x, y = [p[0] for p in points], [p[1] for p in points]
    (line,) = axes.plot(x, y, marker=series.marker, label=series.name, **style)
    yield line
    for ratio, _, interval in points:
        if interval is not None:
            ends = [interval.low, interval.high]
            (bar,) = axes.plot([ratio, ratio], ends, linewidth=thin, alpha=0.45, **style)
            yield bar
