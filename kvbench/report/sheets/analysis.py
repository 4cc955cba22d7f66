"""What an analysis left in a run folder, as tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvbench.plan.names import FIGURES
from kvbench.report.paper.classifier import classifier_sheets, tested_classifier
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells
from kvbench.report.sheets.speed import speed_runs, speed_sheet

_Values = Mapping[str, Mapping[int, str]]
"""Row or line -> column -> value."""


def analysis_sheets(folder: Path) -> list[Sheet]:
    """Return the analyses of a folder; none where it holds none.

    Lines are printed in full. Maps are left to the figure, whose name is given.
    """
    found = [speed_sheet(run) for run in speed_runs(folder)]
    if (classifier := tested_classifier(folder)) is not None:
        found += classifier_sheets(classifier)
    for name in FIGURES:
        path = folder / f"{name}.csv"
        if path.is_file():
            found += _sheets(name, _panels(path), folder)
    return found


def analysis_drawings(folder: Path) -> list[Path]:
    """Return the analyses' figures of a folder as SVG files."""
    paths = (folder / f"{name}.svg" for name in FIGURES)
    return [path for path in paths if path.is_file()]


def _panels(path: Path) -> dict[str, dict[str, dict[int, str]]]:
    """Panel -> row or line -> column -> value."""
    panels: dict[str, dict[str, dict[int, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for panel, row, column, value in list(csv.reader(file))[1:]:
            panels.setdefault(panel, {}).setdefault(row, {})[int(column)] = value
    return panels


def _sheets(name: str, panels: Mapping[str, _Values], folder: Path) -> list[Sheet]:
    figure = f"Drawn in {folder / f'{name}.svg'}, and as PNG and PDF."
    lines = [_by_layer(title, values, figure) for title, values in panels.items()]
    # The rows of a map are numbers.
    if not any(row.isdigit() for values in panels.values() for row in values):
        return lines
    return [_maps(name, panels, figure)]


def _by_layer(title: str, values: _Values, figure: str) -> Sheet:
    layers = sorted({layer for line in values.values() for layer in line})
    rows = [
        SheetRow(cells(str(layer), *(f"{float(line[layer]):.3f}" for line in values.values())))
        for layer in layers
    ]
    headings = (Heading("layer"), *(Heading(line) for line in values))
    return Sheet(title, headings, tuple(rows), notes=(figure,))


def _maps(name: str, panels: Mapping[str, _Values], figure: str) -> Sheet:
    rows = []
    for title, values in panels.items():
        numbers: Sequence[float] = [float(v) for row in values.values() for v in row.values()]
        mean = sum(numbers) / len(numbers)
        rows.append(SheetRow(cells(title, f"{min(numbers):.3f}", f"{mean:.3f}")))
    headings = (Heading("map"), Heading("least"), Heading("mean"))
    return Sheet(name, headings, tuple(rows), notes=(figure,))
