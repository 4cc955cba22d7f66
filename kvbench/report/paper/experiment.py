"""The report of an experiment, by name: its paper's table beside what its run folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.config.catalog import check_choice, choices
from kvbench.plan.names import CLASSIFIER, SPEED
from kvbench.report.figures.style import FOLDER
from kvbench.report.look import Look
from kvbench.report.paper.classifier import ClassifierNumbers, tested_classifier
from kvbench.report.paper.drawing import draw
from kvbench.report.paper.figure import FigurePart, FigureSpec, figure_csv, figure_sheets, parts
from kvbench.report.paper.scores import ScoreNumbers
from kvbench.report.paper.speed import SpeedNumbers
from kvbench.report.paper.table import Beside, Numbers, paper_csv, paper_sheets
from kvbench.report.render import drawn, report
from kvbench.report.sheets.speed import speed_card, speed_runs
from kvbench.report.table.table import Table, tables_of


def experiment_report(words: Sequence[str], look: Look) -> str:
    """Return an experiment's numbers in its paper's shape.

    Args:
        words: `experiment=spindlekv/table10`, and `out=FOLDER` where the run was given one.
        look: the form. A page shows the run as well; where no numbers were printed, all forms do.

    Raises:
        UserError: there is no such experiment, it was not run, or a word is neither of these.
    """
    name, _ = _named(words)
    folder, config = experiment_folder(words), _config(name)
    node = config.get("experiment")
    drawings: list[Path] = []
    if (spec := FigureSpec.of(node)) is not None:
        tables, found = _figure(spec, folder, name)
        if look.form == "csv":
            return figure_csv(found, spec)
        drawings = draw(found, spec, folder / FOLDER, name.partition("/")[2])[-1:]
        sheets = figure_sheets(found, tables, spec, drawings[0])
    elif (beside := Beside.of(node)) is not None:
        numbers = _numbers(config.get("analysis"), folder)
        if look.form == "csv":
            return paper_csv(beside, numbers)
        sheets = paper_sheets(beside, numbers)
    else:
        return report(folder, look)
    return report(folder, look, sheets, drawings) if look.form == "html" else drawn(sheets, look)


def experiment_folder(words: Sequence[str]) -> Path:
    """Return the run folder of an experiment: the preset's, or what `out=` says.

    Raises:
        UserError: there is no such experiment, it was not run, or a word is neither of these.
    """
    name, out = _named(words)
    folder = out or _config(name).get("out")
    if folder is None:
        raise UserError(f"experiment={name} names no run folder: give out=FOLDER as well")
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a folder: make it with `kvbench run experiment={name}`")
    return Path(folder)


def _config(name: str) -> Mapping[str, Any]:
    return next(c.config for c in choices("experiment") if c.name == name)


def _figure(spec: FigureSpec, folder: Path, name: str) -> tuple[list[Table], list[FigurePart]]:
    """A run's tables, and the points of a paper's figure in them.

    Raises:
        UserError: the folder holds none of its rows.
    """
    tables = tables_of(folder)
    found = parts(tables, spec)
    if not found:
        raise UserError(f"{folder} holds no row of experiment={name}: kvbench report {folder}")
    return tables, found


def _numbers(analysis: str | None, folder: Path) -> Numbers:
    """What an experiment left in its folder.

    Raises:
        UserError: nothing of the kind is there.
    """
    if analysis == SPEED and (runs := speed_runs(folder)):
        return SpeedNumbers(runs, speed_card(runs[-1]))
    if analysis == CLASSIFIER and (classifier := tested_classifier(folder)) is not None:
        return ClassifierNumbers(classifier)
    if analysis is not None:
        raise UserError(f"{folder} holds no {analysis}: make it with `kvbench run`")
    return ScoreNumbers(tables_of(folder))


def _named(words: Sequence[str]) -> tuple[str, str | None]:
    found = {"out": ""}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in ("experiment", "out") or not equals:
            raise UserError(
                f"{word!r} is not a word of a report: give experiment=NAME and out=FOLDER"
            )
        found[key] = value
    check_choice("experiment", found["experiment"])
    return found["experiment"], found["out"] or None
