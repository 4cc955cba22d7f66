"""A report of a run in the form asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvbench.base.errors import UserError
from kvbench.report.figures.curves import curve_figures
from kvbench.report.figures.heatmap import needle_figures
from kvbench.report.figures.style import FOLDER
from kvbench.report.forms.csv import sheet_csv, table_csv
from kvbench.report.forms.latex import latex
from kvbench.report.forms.markdown import markdown
from kvbench.report.forms.terminal import terminal
from kvbench.report.look import Look
from kvbench.report.paper.published import published_csv, published_table
from kvbench.report.paper.shape import published_sheets
from kvbench.report.sheet import Sheet
from kvbench.report.sheets.analysis import analysis_drawings, analysis_sheets
from kvbench.report.sheets.scores import sheets_of
from kvbench.report.table.table import holds_records, tables_of


def report(
    folder: Path, look: Look, paper: Sequence[Sheet] = (), drawings: Sequence[Path] = ()
) -> str:
    """Return the tables of a run folder as text.

    Args:
        folder: of the run.
        look: the form.
        paper: a paper's table beside ours, which a page shows first.
        drawings: SVG files of a paper's figure, likewise.

    Raises:
        UserError: the folder holds no records, or no row has the label of the reference.
    """
    analyses = analysis_sheets(folder)
    tables = [] if analyses and not holds_records(folder) else tables_of(folder)
    if look.form == "html":
        from kvbench.report.page.page import page

        title = "Beside the paper" if paper else "Measured"
        drawings = [*drawings, *analysis_drawings(folder)]
        return page(tables, look, [*paper, *analyses], drawings, title)
    if look.form == "csv":
        return table_csv(tables, look) if tables else sheet_csv(analyses)
    parts = [sheets_of(table, look) for table in tables] + [analyses] * bool(analyses)
    return "\n".join(drawn(sheets, look) for sheets in parts)


def figure_files(folder: Path, scores: bool = False) -> list[Path]:
    """Draw the figures that a run's tables call for, heatmaps of needles; return the files.

    Args:
        folder: of the run.
        scores: whether score against bytes is drawn as well.

    Raises:
        UserError: scores are asked for, and the folder holds none.
    """
    if analysis_sheets(folder) and not holds_records(folder):
        if scores:
            raise UserError(f"{folder} holds an analysis and no scores: leave --figures out")
        return []
    tables = tables_of(folder)
    curves = curve_figures(tables, folder / FOLDER) if scores else []
    if scores and not curves:
        raise UserError(f"{folder} holds no complete column to draw: leave --figures out")
    return [*curves, *needle_figures(tables, folder / FOLDER)]


def published_report(name: str, look: Look) -> str:
    """Return a published table, such as `windowkv/table1`, in its paper's shape.

    Raises:
        UserError: no table has the name.
    """
    table = published_table(name)
    return published_csv(table) if look.form == "csv" else drawn(published_sheets(table), look)


def drawn(sheets: Sequence[Sheet], look: Look) -> str:
    """Return sheets in the form of a look."""
    if look.form == "terminal":
        return terminal(sheets, look.colored)
    return {"markdown": markdown, "latex": latex}[look.form](sheets)
