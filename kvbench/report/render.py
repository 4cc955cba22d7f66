"""A report of a run in the form asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvbench.errors import UserError
from kvbench.report.analysis_sheets import analysis_sheets
from kvbench.report.heatmap import needle_figures
from kvbench.report.latex import latex
from kvbench.report.look import Look
from kvbench.report.markdown import markdown
from kvbench.report.paper_shape import published_sheets
from kvbench.report.published import published_csv, published_table
from kvbench.report.score_sheets import sheets_of
from kvbench.report.sheet import Sheet
from kvbench.report.table_csv import sheet_csv, table_csv
from kvbench.report.tables import tables_of
from kvbench.report.terminal import terminal


def report(folder: Path, look: Look) -> str:
    """Return the tables of a run folder as text.

    Raises:
        UserError: the folder holds no records, no row has the label of the reference, or what is
            there has no such form.
    """
    analyses = analysis_sheets(folder)
    if analyses and look.form == "html":
        raise UserError(f"{folder} holds an analysis, which has no page: give another --format")
    if analyses:
        return sheet_csv(analyses) if look.form == "csv" else drawn(analyses, look)
    tables = tables_of(folder)
    if look.form == "csv":
        return table_csv(tables, look)
    if look.form == "html":
        from kvbench.report.page import page

        return page(tables, look)
    return "\n".join(drawn(sheets_of(table, look), look) for table in tables)


def figure_files(folder: Path) -> list[Path]:
    """Draw the figures that a run's tables call for: heatmaps of needles; return the files."""
    if analysis_sheets(folder):
        return []
    return needle_figures(tables_of(folder), folder / "figures")


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
        return terminal(sheets, look.coloured)
    return {"markdown": markdown, "latex": latex}[look.form](sheets)
