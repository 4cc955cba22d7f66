"""Panels as one figure in PNG, PDF and SVG, and as numbers in CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.analysis.panels import PrefillPanel
from kvbench.base.errors import UserError
from kvbench.report.figures import style as figures

_COLUMNS = 6
"""Maps side by side."""


def write_figure(panels: Sequence[PrefillPanel], folder: Path, name: str) -> list[Path]:
    """Draw all panels on one page; the same panels give the same bytes.

    Raises:
        UserError: the folder cannot be written to.
    """
    columns = 1 if panels[0].lines else min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = figures.COLUMN_INCHES if columns == 1 else figures.PAGE_INCHES
    height = 2.1 if panels[0].lines else 1.3 * rows * (6 / columns if columns > 1 else 1.8) + 0.3
    with figures.style():
        figure = figures.figure(width, height)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            (_lines if panel.lines else _map)(axes, panel)
        return figures.save(figure, folder, name)


def write_numbers(panels: Sequence[PrefillPanel], path: Path) -> None:
    """Write every number: panel, line or row, column, value.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["panel", "row", panels[0].x, "value"])
            for panel in panels:
                names = panel.lines or tuple(map(str, range(len(panel.values))))
                for row, values in zip(names, panel.values.tolist(), strict=True):
                    writer.writerows(
                        [panel.title, row, column, f"{value:.6f}"]
                        for column, value in enumerate(values)
                    )
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): give another out=") from error


def _lines(axes: Any, panel: PrefillPanel) -> None:
    for name, values, color in zip(panel.lines, panel.values, figures.PALETTE, strict=False):
        axes.plot(values.tolist(), marker="o", label=name, color=color)
    axes.set(xlabel=panel.x, ylabel=panel.y, title=panel.title)
    axes.set_ylim(0, panel.top)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()


def _map(axes: Any, panel: PrefillPanel) -> None:
    values = panel.values.numpy()
    top = panel.top
    if top is None:
        # A few cells that take nearly all would hide the rest.
        top = max(float(panel.values.flatten().quantile(0.99)), 1e-6)
    axes.imshow(values, cmap="viridis", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    axes.set_title(panel.title)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=4)
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    axes.label_outer()
