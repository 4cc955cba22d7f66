"""`kvbench list`."""

from __future__ import annotations

import enum
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from kvbench.cli.app import app
from kvbench.cli.output import say


class Kind(str, enum.Enum):
    """What `kvbench list` lists."""

    methods = "methods"
    tasks = "tasks"
    models = "models"
    experiments = "experiments"
    published = "published"


@app.command("list")
def list_choices(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    config_dir: Annotated[
        Path | None, typer.Option(help="Folder of your own choices, as after kvbench run.")
    ] = None,
) -> None:
    """List what can be run: methods, tasks, models, experiments; or tables of published numbers."""
    from kvbench.config import catalog
    from kvbench.report.forms.terminal import width
    from kvbench.report.paper.published import published_tables

    if kind is Kind.published:
        found = {table.name: table.about for table in published_tables().values()}
    else:
        group = kind.value.removesuffix("s")
        listed = catalog.choices(group)
        if config_dir is not None:
            listed += catalog.choices_of_folder(config_dir, group)
        found = {c.name: c.about for c in listed}
    if not found:
        typer.echo(f"no {kind.value} in kvbench.conf")
        return
    names = max(map(len, found))
    for name, about in found.items():
        first, *more = textwrap.wrap(about, max(20, width() - names - 2)) or [""]
        say(f"{name:<{names}}  {first}".rstrip() + "\n")
        for line in more:
            say(" " * (names + 2) + line + "\n")
