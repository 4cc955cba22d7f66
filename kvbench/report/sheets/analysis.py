"""What an analysis left in a run folder, as tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvbench.plan.names import FIGURES
from kvbench.report.figures.style import FOLDER
from kvbench.report.paper.classifier import classifier_sheets, tested_classifier
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells
from kvbench.report.sheets.speed import speed_runs, speed_sheet

_Values = Mapping[str, Mapping[str, str]]
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


def analysis_lines(folder: Path) -> list[str]:
    """Return what analyses a folder holds, in a line each; none where it holds none."""
    lines = []
    for run in speed_runs(folder):
        measured = ", ".join(speed.label for speed in run.speeds)
        lengths = f"{run.lengths.context} prompt tokens, {run.lengths.generate} generated"
        lines.append(f"speed: {measured} on {run.model}, {lengths}.")
    if (classifier := tested_classifier(folder)) is not None:
        lines.append(f"classifier: {classifier.name}, {classifier.trained_on} prompts.")
    for name in FIGURES:
        path = folder / f"{name}.csv"
        if path.is_file():
            held = [d.name for d in analysis_drawings(folder) if d.stem == name]
            drawn = f"drawn in {FOLDER}/{held[0]}, PNG and PDF" if held else "not drawn"
            lines.append(f"{name}: {', '.join(_panels(path))}; numbers in {path.name}, {drawn}.")
    return lines and [*lines, f"Shown by: kvbench report {folder}"]


def analysis_drawings(folder: Path) -> list[Path]:
    """Return the analyses' figures of a folder as SVG files."""
    paths = (folder / FOLDER / f"{name}.svg" for name in FIGURES)
    return [path for path in paths if path.is_file()]


def _panels(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Panel -> row or line -> column -> value."""
    panels: dict[str, dict[str, dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for panel, *row, column, value in list(csv.reader(file))[1:]:
            panels.setdefault(panel, {}).setdefault(", ".join(row), {})[column] = value
    return panels


def _sheets(name: str, panels: Mapping[str, _Values], folder: Path) -> list[Sheet]:
    figure = f"Drawn in {folder / FOLDER / f'{name}.svg'}, and as PNG and PDF."
    # The rows of a map are numbers.
    if any(row[0].isdigit() for values in panels.values() for row in values):
        return [_maps(name, panels, figure)]
    return [_by_layer(title, values, figure) for title, values in panels.items()]


def _by_layer(title: str, values: _Values, figure: str) -> Sheet:
    layers = dict.fromkeys(layer for line in values.values() for layer in line)
    rows = [
        SheetRow(cells(layer, *(f"{float(line[layer]):.3f}" for line in values.values())))
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
