"""Charts of a table as SVG that a page can hold: no fonts, scripts or colors of their own.

The same table gives the same bytes. Text and grid take the page's colors, and each method's marks
carry its name, so that a page can show one method alone.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kvbench.report.figures.curves import X_LABEL, Series, draw_curve
from kvbench.report.table.table import Column, Table

UNDATED = dict.fromkeys(("Date", "Creator"))
"""Metadata of an SVG file: none, so that the same chart is the same bytes."""

_INK, _GRID = "#010203", "#040506"
"""Stand-ins that become the page's variables."""


@dataclass(frozen=True)
class Chart:
    """One drawing."""

    title: str
    svg: str
    wide: bool = False
    """Whether it takes the page's width."""


def curves(table: Table, columns: Sequence[Column], series: Sequence[Series]) -> list[Chart]:
    """Draw score against the measured share of bytes, one chart for each column."""
    return [
        Chart(column.name, Markup(_curve(table, column, series, f"curve{number}")))
        for number, column in enumerate(columns)
    ]


def _curve(table: Table, column: Column, series: Sequence[Series], salt: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.0, 2.9), layout="constrained")
        axes = figure.add_subplot()
        draw_curve(axes, table, column, series)
        axes.set(xlabel=X_LABEL, ylabel="score")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=UNDATED)
    return inline(out.getvalue(), f"Score against share of bytes, {column.name}")


_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "grid.color": _GRID,
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
