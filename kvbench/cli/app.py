"""The application that every command joins: one-line errors, exit codes, the version."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvbench.base.errors import UserError
from kvbench.base.version import __version__
from kvbench.cli.output import say


class _OneLineErrors(TyperGroup):
    """Prints a user's mistake as one line on stderr and exits 2; Ctrl-C exits 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            say(f"kvbench: {' '.join(str(error).split())}\n", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stopped:
            said = "kvbench: stopped; what is recorded stays, and the same command goes on"
            typer.echo(said, err=True)
            raise typer.Exit(130) from stopped


app = typer.Typer(
    cls=_OneLineErrors,
    help="Evaluate KV cache compression methods on real models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(str, enum.Enum):
    """Form of a table."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    pass
