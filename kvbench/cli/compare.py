"""`kvbench compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.base.errors import UserError
from kvbench.cli.app import Format, app
from kvbench.cli.output import reading_records, say


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder.")],
    form: Annotated[Format, typer.Option("--format", help="terminal or markdown.")] = (
        Format.terminal
    ),
    changed: Annotated[int, typer.Option(min=0, help="Samples shown with both predictions.")] = 10,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also runs of another model, protocol or data.")
    ] = False,
) -> None:
    """Compare two runs sample by sample: paired scores, and the samples that changed most."""
    from kvbench.report.look import Look
    from kvbench.report.render import drawn
    from kvbench.report.table.runs import changed_samples, compare_runs, comparison_sheet

    if form in (Format.csv, Format.html):
        raise UserError(f"--format {form.value} has no comparison: give terminal or markdown")
    with reading_records():
        found = compare_runs(before, after, anyway)
        sheet = drawn([comparison_sheet(found, before, after)], Look(form=form.value))
    say(sheet + "\n" + changed_samples(found.cells, changed))
