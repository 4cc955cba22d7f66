"""A report in the form asked for; the forms know nothing of records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvbench.report.look import Look
from kvbench.report.markdown import markdown
from kvbench.report.table_csv import table_csv
from kvbench.report.tables import Table, tables_of
from kvbench.report.terminal import terminal

_DRAWN: dict[str, Callable[[Table, Look], str]] = {"terminal": terminal, "markdown": markdown}


def report(folder: Path, look: Look) -> str:
    """Return the tables of a run folder as text.

    Raises:
        UserError: the folder holds no records, or no row has the label of the reference.
    """
    tables = tables_of(folder)
    if look.form == "csv":
        return table_csv(tables, look)
    return "\n".join(_DRAWN[look.form](table, look) for table in tables)
