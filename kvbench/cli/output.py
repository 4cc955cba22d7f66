"""What commands print or write, with texts that models and anybody's folders may hold."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from kvbench.base.errors import Fault, UserError

_CONTROL = re.compile(r"\x1b(?!\[[\d;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\ud800-\udfff]")
"""What acts on a terminal instead of showing on it, tabs, line ends and colors left out."""


def say(text: str, err: bool = False) -> None:
    """Print a text; control characters, which a model or a folder may hold, show as their codes."""
    typer.echo(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text), nl=False, err=err)


@contextmanager
def reading_records() -> Iterator[None]:
    """Say in one line that an unexpected error is a fault of kvbench's own.

    A folder may be anybody's, and what it holds that kvbench does not write is refused as it is
    read (`kvbench.records`), in the name of the file and the value. What fails later is no fault
    of the folder's.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise Fault(
            f"{type(error).__name__}: {error}, in {Path(place.filename).name}:{place.lineno}"
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
