"""`kvbench list`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from kvbench.cli.app import app


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
) -> None:
    """List what can be run: methods, tasks, models, experiments; or tables of published numbers."""
    from kvbench.config import catalog
    from kvbench.report.paper.published import published_tables

    if kind is Kind.published:
        found = {table.name: table.about for table in published_tables().values()}
    else:
        found = {c.name: c.about for c in catalog.choices(kind.value.removesuffix("s"))}
    if not found:
        typer.echo(f"no {kind.value} in kvbench.conf")
        return
    width = max(map(len, found))
    for name, about in found.items():
        typer.echo(f"{name:<{width}}  {about}".rstrip())
