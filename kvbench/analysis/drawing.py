"""Panels as one figure in PNG, PDF and SVG, and as numbers in CSV."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

from kvbench.analysis.panels import PrefillPanel
from kvbench.base.errors import UserError
from kvbench.report.figures import style as figures

_COLUMNS = 6
"""Maps side by side."""

_TICKS = 5
"""Layers named on an axis at most."""

_PARTED = 12
"""Layers up to which lines part them."""

_BELOW = 0.99
"""Share of values below the end of an open scale: the few that take nearly all would hide them."""


def write_figure(panels: Sequence[PrefillPanel], folder: Path, name: str, title: str) -> list[Path]:
    """Draw all panels on one page; the same panels give the same bytes.

    Args:
        panels: all of lines, or all maps of one scale of colors.
        folder: where to write.
        name: of the files, without the ending.
        title: stands above: model, task, what is shown.

    Raises:
        UserError: the folder cannot be written to.
    """
    with figures.style():
        drawn = _lines(panels, title) if panels[0].lines else _maps(panels, title)
        return figures.save(drawn, folder, name)


def write_numbers(panels: Sequence[PrefillPanel], path: Path) -> None:
    """Write every number: panel, its place on each axis, value.

    A thing such as a layer is counted from 0; a cell of a scale is named by where it begins.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["panel", *(axis.name for axis in panels[0].axes), "value"])
            for panel in panels:
                places = [
                    [f"{axis.place(i, size):g}" for i in range(size)]
                    for axis, size in zip(panel.axes, panel.values.shape, strict=True)
                ]
                if panel.lines:
                    places[0] = list(panel.lines)
                values = panel.values.flatten().tolist()
                for place, value in zip(itertools.product(*places), values, strict=True):
                    writer.writerow([panel.title, *place, f"{value:.6f}"])
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): give another out=") from error


def _lines(panels: Sequence[PrefillPanel], title: str) -> Any:
    """One panel below the other."""
    drawn = figures.figure(figures.COLUMN_INCHES, 2.1 * len(panels))
    for axes, panel in zip(drawn.subplots(len(panels), squeeze=False).flat, panels, strict=True):
        for name, values, color in zip(panel.lines, panel.values, figures.PALETTE, strict=False):
            axes.plot(values.tolist(), marker="o", label=name, color=color)
        axes.set(xlabel=panel.axes[1].name, ylabel=panel.unit)
        axes.set_ylim(0, panel.top)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend()
    drawn.suptitle(fill(title, 60), fontsize=7)
    return drawn


def _maps(panels: Sequence[PrefillPanel], title: str) -> Any:
    """Side by side, with one scale of colors."""
    across = min(_COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    width = figures.COLUMN_INCHES if across == 1 else figures.PAGE_INCHES
    drawn = figures.figure(width, min(2.4, 0.85 * width / across + 0.25) * down + 0.5)
    grid = drawn.subplots(down, across, squeeze=False)
    top = panels[0].top
    if top is None:
        every = torch.cat([panel.values.flatten() for panel in panels])
        # Sorted by hand: torch's quantile takes no more than 16 million values.
        top = max(float(every.sort().values[int(_BELOW * (len(every) - 1))]), 1e-6)
    shown = list(grid.flat)[: len(panels)]
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(shown, panels, strict=True):
        mesh = _map(axes, panel, top)
    for i, axes in enumerate(shown):
        axes.set_ylabel(_upright_name(panels[0]) if i % across == 0 else "")
        axes.tick_params(labelleft=i % across == 0)
        lowest = i + across >= len(shown)
        axes.set_xlabel(panels[0].axes[-1].name if lowest else "")
        axes.tick_params(labelbottom=lowest)
    drawn.suptitle(fill(title, 60 if across == 1 else 120), fontsize=7)
    beyond = "max" if panels[0].top is None else "neither"
    look = {"fraction": 0.08, "aspect": 20 * down, "extend": beyond, "extendfrac": 0.05 / down}
    figures.color_bar(drawn, mesh, shown, panels[0].unit, **look)
    return drawn


def _map(axes: Any, panel: PrefillPanel, top: float) -> Any:
    """Draw a map whose axes carry their own units; the first layer is at the bottom."""
    upright, across = panel.axes[0], panel.axes[-1]
    rows, columns = panel.values.shape[0], panel.values.shape[-1]
    right, height = across.end or columns, upright.end or rows
    mesh = axes.imshow(
        panel.values.reshape(-1, columns).numpy(),
        cmap="viridis",
        vmin=0,
        vmax=top,
        aspect="auto",
        interpolation="nearest",
        origin="upper" if upright.down else "lower",
        extent=(0, right, height, 0) if upright.down else (0, right, 0, height),
    )
    axes.set_title(panel.title)
    for axis, of, size in ((axes.xaxis, across, columns), (axes.yaxis, upright, rows)):
        if of.end is not None:
            axis.set_ticks([of.end * i / 4 for i in range(5)])
            continue
        # A thing's number stands at the middle of its cell.
        numbers = range(0, size, math.ceil(size / _TICKS))
        axis.set_ticks([number + 0.5 for number in numbers], list(map(str, numbers)))
    if panel.values.ndim > 2 and rows <= _PARTED:
        axes.hlines(range(1, rows), 0, right, color="white", linewidth=0.3)
    return mesh


def _upright_name(panel: PrefillPanel) -> str:
    name = panel.axes[0].name
    return f"{name} (a row for each {panel.axes[1].name})" if len(panel.axes) > 2 else name
