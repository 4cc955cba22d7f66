"""The application that every command joins: one-line errors, exit codes, the version."""

from __future__ import annotations

import enum
import os
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvbench.base.errors import Fault, UserError
from kvbench.base.version import __version__
from kvbench.cli.output import say


class _OneLineErrors(TyperGroup):
    """Prints a user's mistake as one line on stderr and exits 2; Ctrl-C exits 130.

    A fault of kvbench's own is a line too and exits 1. KVBENCH_DEBUG=1 prints tracebacks of both.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (UserError, Fault) as error:
            debugging = os.environ.get("KVBENCH_DEBUG", "") not in ("", "0")
            if debugging:
                say(traceback.format_exc(), err=True)
            said = " ".join(str(error).split())
            if isinstance(error, UserError):
                say(f"kvbench: {said}\n", err=True)
                raise typer.Exit(2) from error
            hint = "" if debugging else "; KVBENCH_DEBUG=1 shows the traceback"
            say(f"kvbench: a fault of kvbench's own, please report it ({said}){hint}\n", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stopped:
            said = "kvbench: stopped; what is recorded stays, and the same command goes on"
            typer.echo(said, err=True)
            raise typer.Exit(130) from stopped


app = typer.Typer(
    cls=_OneLineErrors,
    help="Evaluate KV cache compression methods on real models.",
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
