"""What is printed, before its form: headings, cells, notes. Knows nothing of records or forms."""

from __future__ import annotations

from dataclasses import dataclass

SUPERSCRIPTS = "¹²³⁴⁵⁶⁷⁸⁹"
NOT_COMPARABLE = "†"
MARKS = ("*", "~", NOT_COMPARABLE, *SUPERSCRIPTS)
"""Signs that follow a number."""


@dataclass(frozen=True)
class Cell:
    """One value as text."""

    text: str
    below: str = ""
    """An aside, such as the interval of the value; a line each."""
    bold: bool = False

    @property
    def mark(self) -> str:
        """The sign behind the number, if any."""
        return self.text[-1:] if self.text.endswith(MARKS) else ""

    @property
    def unmarked(self) -> str:
        """The text without its mark."""
        return self.text.removesuffix(self.mark)


@dataclass(frozen=True)
class Heading:
    """Names of a column."""

    name: str
    short: str = ""
    """In few narrow lines; empty: the name."""

    @property
    def lines(self) -> list[str]:
        """The short name's lines."""
        return (self.short or self.name).split("\n")


@dataclass(frozen=True)
class SheetRow:
    """One line of a sheet."""

    cells: tuple[Cell, ...]
    ends_section: bool = False
    """Whether a gap follows."""


@dataclass(frozen=True)
class Sheet:
    """A table with its title above and its notes below."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[SheetRow, ...]
    labels: int = 1
    """Leading columns that name the row: text, not numbers."""
    notes: tuple[str, ...] = ()
    card: tuple[str, ...] = ()
    """The protocol that the numbers are worthless without."""


def cells(*texts: str) -> tuple[Cell, ...]:
    """Plain cells."""
    return tuple(Cell(text) for text in texts)
