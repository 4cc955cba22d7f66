"""Draws a paper's figure of our scores: lines over numbers, bars over names, a panel a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from kvbench.report.figures import style as figures
from kvbench.report.paper.figure import FigurePart, FigureSpec, Point

_MOST_COLUMNS = 4
_PANEL_INCHES = 1.35
_LABEL_WIDTH = 26
_MARKERS = "osD^vPX*"


def draw(found: Sequence[FigurePart], spec: FigureSpec, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG, PDF and SVG; the same points give the same bytes.

    Raises:
        UserError: the folder cannot be written to.
    """
    panels = [(part, i) for part in found for i in range(len(part.columns))]
    across = min(_MOST_COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    width = figures.COLUMN_INCHES if len(panels) == 1 else figures.PAGE_INCHES
    height = _PANEL_INCHES * down * (1.5 if across < 3 else 1.15) + 0.45
    with figures.style():
        figure = figures.figure(width, height)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        for axes, (part, i) in zip(grid.flat, panels, strict=False):
            _panel(axes, part, i, spec)
            told = f"{part.title}\n" if len(found) > 1 else ""
            axes.set_title(told + part.columns[i].name)
        for axes in list(grid.flat)[max(0, len(panels) - across) : len(panels)]:
            axes.set_xlabel(fill(spec.x_title, _LABEL_WIDTH))
        for axes in grid[:, 0]:
            axes.set_ylabel(fill(spec.y, _LABEL_WIDTH))
        model = "" if len(found) > 1 else f" ({found[0].title})"
        figure.suptitle(f"{spec.title}{model}", fontsize=7)
        if len(spec.series) > 1:
            names = grid.flat[0].get_legend_handles_labels()
            figure.legend(*names, loc="outside lower center", ncols=2 if len(panels) == 1 else 4)
        return figures.save(figure, folder, name)


def _panel(axes: Any, part: FigurePart, i: int, spec: FigureSpec) -> None:
    """One column of a part, with a line for what it is compared with."""
    points = [row[i] for row in part.points]
    baseline = part.baseline[i]
    if baseline is not None:
        label = None if spec.over else "FullKV"
        dashes = {"color": "#444444", "linewidth": 0.6, "linestyle": (0, (4, 3))}
        axes.axhline(baseline, label=label, **dashes)
    (_lines if spec.lines else _bars)(axes, points, list(spec.series))
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_ylim()
    if not spec.over:
        axes.set_ylim(0, max(high, 1))
    elif baseline is not None:
        # Gains of nothing, or of hundredths, shall not look like gains.
        axes.set_ylim(min(low, -1), max(high, 1))


def _lines(axes: Any, points: Sequence[Point], series: Sequence[str]) -> None:
    """Points joined in the order of the axis, each with its interval."""
    for number, name in enumerate(series):
        own = [p for p in points if p.series == name and p.value is not None]
        own.sort(key=lambda point: float(point.x))
        axes.errorbar(
            [float(p.x) for p in own],
            [p.value for p in own],
            yerr=_reach(own),
            label=name,
            color=figures.PALETTE[number % len(figures.PALETTE)],
            marker=_MARKERS[number % len(_MARKERS)],
            elinewidth=0.6,
        )

    places = sorted({int(p.x) for p in points if p.x.isdigit()})
    if places:  # sizes, which double
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places], minor=False)


def _bars(axes: Any, points: Sequence[Point], series: Sequence[str]) -> None:
    """Bars side by side at each place, a color for each series."""
    places = list(dict.fromkeys(point.x for point in points))
    present = {x: [p for p in points if p.x == x] for x in places}
    widest = max((len(found) for found in present.values()), default=1)
    breadth = 0.8 / widest
    for number, name in enumerate(series):
        own = [p for p in points if p.series == name and p.value is not None]
        left = [
            places.index(p.x) + breadth * (present[p.x].index(p) - (len(present[p.x]) - 1) / 2)
            for p in own
        ]
        axes.bar(
            left,
            [p.value for p in own],
            breadth * 0.92,
            yerr=_reach(own),
            label=name,
            color=figures.PALETTE[number % len(figures.PALETTE)],
            error_kw={"elinewidth": 0.6},
        )
    axes.set_xticks(range(len(places)), places)


def _reach(points: Sequence[Point]) -> list[list[float]]:
    """How far the intervals reach below and above; 0 where there is none."""
    below = [p.value - p.interval.low if p.interval and p.value is not None else 0 for p in points]
    above = [p.interval.high - p.value if p.interval and p.value is not None else 0 for p in points]
    return [[max(0.0, x) for x in below], [max(0.0, x) for x in above]]
