"""`kvbench bench`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from kvbench.base.errors import UserError
from kvbench.cli.app import Format, app
from kvbench.cli.output import deliver


class Measured(str, enum.Enum):
    """What `kvbench bench` measures."""

    speed = "speed"


@app.command()
def bench(
    what: Annotated[Measured, typer.Argument(help="What to measure.")],
    words: Annotated[
        list[str] | None, typer.Argument(help="Words of a run: model=..., method=..., budget=...")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the table.")] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(help="File to write instead of the terminal.")
    ] = None,
) -> None:
    """Measure prefill, compression and decoding of FullKV and any variants, and their memory.

    speed.context=4096 speed.generate=64 speed.repeats=3 say what is measured, and
    model.random_weights=true builds the model's shape with random weights: nothing is downloaded.
    """
    if form in (Format.csv, Format.html):
        raise UserError(
            f"--format {form.value} is not a form of bench: give markdown, latex or terminal"
        )
    from kvbench.analysis.speed import speed_sheets
    from kvbench.config.sweeper import plans_of_words
    from kvbench.report.look import Look
    from kvbench.report.render import drawn

    deliver(drawn(speed_sheets(plans_of_words(words or [])), Look(form.value)), output)
