"""`kvbench status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.cli.app import app
from kvbench.cli.output import reading_records, say


@app.command()
def status(
    path: Annotated[
        Path | None, typer.Argument(help="Run folder; default: the newest in results/runs.")
    ] = None,
) -> None:
    """Show what a run folder holds: results done, missing and failed, by variant and task."""
    from kvbench.report.run import load_run, newest_run

    opened = load_run(path) if path else newest_run()
    with reading_records():
        text = opened.status()
    say(text)
