"""`kvbench show`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.cli.app import app


@app.command()
def show(
    words: Annotated[
        list[str], typer.Argument(help="A choice, such as method=spindlekv, and overrides of it.")
    ],
) -> None:
    """Show the resolved configuration of a choice, each field with where its default comes from."""
    from kvbench.config.show import shown

    typer.echo(shown(words), nl=False)
