"""`kvbench report`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvbench.base.errors import UserError
from kvbench.cli.app import Format, app
from kvbench.cli.output import deliver, reading_records


@app.command()
def report(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER | experiment=NAME]",
            help="Run folder, default: the newest in results/runs; or an experiment's table.",
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the table.")] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(help="File to write instead of the terminal.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="One column per task, no groups.")] = False,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Tokens kept and both readings of Formula 15 too.")
    ] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="The 95% interval of each score.")
    ] = False,
    differences: Annotated[
        bool, typer.Option("--differences", help="Paired differences to FullKV, with p.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(help="Compare with this row, such as snapkv@0.2; implies --differences."),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option("--figures", help="Draw score against bytes: figures/scores.png, .pdf, .svg."),
    ] = False,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of each task that the HTML page shows.")
    ] = 25,
    published: Annotated[
        str | None,
        typer.Option(help="A paper's table alone, such as windowkv/table1; no run is read."),
    ] = None,
) -> None:
    """Print the table of a run: methods x budgets, LongBench groups, measured ratios."""
    from kvbench.report import render
    from kvbench.report.look import Look
    from kvbench.report.paper.experiment import experiment_folder, experiment_report
    from kvbench.report.run import load_run, newest_run

    look = Look(
        form=form.value,
        per_task=tasks,
        ratios=ratios,
        intervals=intervals,
        differences=differences or reference is not None,
        reference=reference,
        samples=samples,
        colored=output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    )
    folder = None
    if published is not None:
        if figures:
            raise UserError("--figures draws a run: leave --published out, or --figures")
        text = render.published_report(published, look)
    elif words and any(word.startswith("experiment=") for word in words):
        folder = experiment_folder(words)
        text = experiment_report(words, look)
    elif words and len(words) > 1:
        raise UserError(f"{len(words)} folders are given: one report reads one")
    else:
        opened = load_run(words[0]) if words else newest_run()
        folder = opened.folder
        with reading_records():
            text = opened.report(look)
    if folder is not None:
        with reading_records():
            drawn = render.figure_files(folder, scores=figures)
        if drawn:
            said = f"kvbench: {len(drawn)} figure files (PNG, PDF, SVG) in {folder / 'figures'}"
            typer.echo(said, err=True)
    deliver(text, output)
