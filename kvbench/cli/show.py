"""`kvbench show`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.cli.app import app
from kvbench.cli.completion import words_that_begin


@app.command()
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A choice, such as method=spindlekv, and overrides of it; or a part: needle.",
            autocompletion=words_that_begin,
        ),
    ] = None,
) -> None:
    """Show every key of the configuration with its meaning; of a choice: its resolved fields."""
    from kvbench.config.show import shown

    typer.echo(shown(words or []), nl=False)
