"""Charts of a table as SVG that a page can hold: no fonts, scripts or colors of their own.

The same table gives the same bytes. Text and grid take the page's colors, and each method's marks
carry its name, so that a page can show one method alone.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.report.figures.style import PALETTE
from kvbench.report.table.comparison import score_interval
from kvbench.report.table.table import Column, Row, Table

UNDATED = dict.fromkeys(("Date", "Creator"))
"""Metadata of an SVG file: none, so that the same chart is the same bytes."""

_MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
"""Of a chart -> of text."""
_INK, _GRID = "#010203", "#040506"
"""Stand-ins that become the page's variables."""


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
        return _MARKERS[self.marker]


@dataclass(frozen=True)
class Chart:
    """One drawing."""

    title: str
    svg: str
    wide: bool = False
    """Whether it takes the page's width."""


def series_of(table: Table) -> list[Series]:
    """Group the rows that differ in their budget alone; the baseline is none of them."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        if not row.is_baseline:
            found.setdefault(row.series, []).append(row)
    markers = list(_MARKERS)
    return [
        Series(
            name,
            PALETTE[i % len(PALETTE)],
            markers[(i + i // len(PALETTE)) % len(markers)],
            tuple(rows),
        )
        for i, (name, rows) in enumerate(found.items())
    ]


def curves(table: Table, columns: Sequence[Column], series: Sequence[Series]) -> list[Chart]:
    """Draw score against the measured share of bytes, one chart for each column.

    Bars are 95% intervals; the dashed line is the baseline. A column without a value has no chart.
    """
    drawn = []
    for number, column in enumerate(columns):
        if any(value is not None for value in column.values):
            drawn.append(Chart(column.name, _curve(table, column, series, f"curve{number}")))
    return drawn


def _curve(table: Table, column: Column, series: Sequence[Series], salt: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.0, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for base in (row for row in table.rows if row.is_baseline):
            value = column.values[table.rows.index(base)]
            if value is not None:
                line = axes.axhline(value, color=_INK, linewidth=1, linestyle=(0, (5, 3)))
                line.set_gid("series:fullkv")
        for one in series:
            for artist in _marks(axes, table, column, one):
                artist.set_gid(f"series:{one.name}")
        axes.set_xlabel("share of the native cache's bytes")
        axes.set_ylabel("score")
        axes.set_xlim(left=0)
        axes.set_ylim(0, max(1, axes.get_ylim()[1]))  # where all scores are 0, too
        axes.locator_params(nbins=5)
        axes.grid(axis="y", color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=UNDATED)
    return inline(out.getvalue(), f"Score against share of bytes, {column.name}")


def _marks(axes: Any, table: Table, column: Column, series: Series) -> Iterator[Any]:
    """The line of a series, then its intervals."""
    points = []
    for row in series.rows:
        value, ratio = column.values[table.rows.index(row)], row.ratio("ratio_bytes")
        if value is not None and ratio is not None:
            points.append((ratio, value, score_interval(row, column.tasks)))
    points.sort(key=lambda point: point[:2])
    style = {"color": series.color, "zorder": 3}
    x, y = [p[0] for p in points], [p[1] for p in points]
    (line,) = axes.plot(x, y, marker=series.marker, markersize=4.5, linewidth=1.5, **style)
    yield line
    for ratio, _, interval in points:
        if interval is not None:
            ends = [interval.low, interval.high]
            (bar,) = axes.plot([ratio, ratio], ends, linewidth=1, alpha=0.45, **style)
            yield bar


_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "savefig.transparent": True,
}


def inline(svg: str, label: str) -> str:
    """Turn a file into an element of a page: named, without a size, in the page's colors.

    What would reach beyond the element goes: its style sheet, its fonts, and the names of groups,
    which several charts share.
    """
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<(metadata|style)\b.*?</\1>", "", element, flags=re.DOTALL)
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    element = re.sub(r'id="series:([^"]*)"', r'class="series" data-series="\1"', element)
    element = re.sub(r'<g id="[^"]*"', "<g", element)
    element = re.sub(r'font-family: [^;"]*(?:; )?', "", element)
    element = re.sub(r"\s*\n\s*", " ", element)
    named = f'<svg role="img" aria-label="{html.escape(label)}" '
    element = element.replace("<svg ", named, 1)
    return element.replace(_INK, "var(--ink)").replace(_GRID, "var(--line)").strip()
