"""What commands print or write, with texts that models and anybody's folders may hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from kvbench.base.errors import UserError

_CONTROL = re.compile(r"\x1b(?!\[[\d;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\ud800-\udfff]")
"""What acts on a terminal instead of showing on it, tabs, line ends and colors left out."""


def say(text: str, err: bool = False) -> None:
    """Print a text; control characters, which a model or a folder may hold, show as their codes."""
    typer.echo(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text), nl=False, err=err)


@contextmanager
def reading_records() -> Iterator[None]:
    """Say in one line what readers of a run folder stumble over: the folder may be anybody's."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"a record holds what kvbench does not write ({type(error).__name__}: {error}): move"
            " the file away"
        ) from error


def deliver(text: str, output: Path | None, append: bool = False) -> None:
    """Print a text, or write it to a file or its end.

    Raises:
        UserError: the file cannot be written.
    """
    if output is None:
        say(text)
        return
    try:
        mode = "a" if append else "w"
        with output.open(mode, encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {output} ({error.strerror}): give another file") from error
