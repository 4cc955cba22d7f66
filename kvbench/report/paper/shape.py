"""A published table in the shape its paper gave it: what makes a row, what makes a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvbench.report.paper.published import Figure, PublishedTable
from kvbench.report.sheet import SUPERSCRIPTS, Cell, Heading, Sheet, SheetRow, cells
from kvbench.report.table.columns import short_name

_PIVOTS = {
    "spindlekv/table4": ("method", "model"),
    "spindlekv/table8": ("reserve_ratio", "method"),
    "spindlekv/table9": ("model", "method"),
    "windowkv/table3": ("model", "setting"),
}
"""Tables of one quantity -> the field of its rows and that of its columns."""

_LABELS = {"reserve_ratio": "ratio", "budget_tokens": "KV size"}


@dataclass(frozen=True)
class Line:
    """A row of a block."""

    labels: tuple[str, ...]
    figures: tuple[Figure | None, ...]
    """By column; None where the paper printed nothing."""


@dataclass(frozen=True)
class Block:
    """The part of a table that shares its headings."""

    title: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def blocks(table: PublishedTable) -> list[Block]:
    """Cut a table as its paper does: one block for each model, unless models are rows."""
    if table.name in _PIVOTS:
        axes = _PIVOTS[table.name]
        title = ", ".join([table.title, *_constants(table.figures, axes)])
        return [_block(title, table.figures, axes[:1], axes[1])]
    found = []
    for model in table.models:
        figures = [figure for figure in table.figures if figure.model == model]
        constants = _constants(figures, ("method", "reserve_ratio", "budget_tokens", "task"))
        fields = ["method"]
        for name in ("setting", "reserve_ratio", "budget_tokens"):
            told = {getattr(f, name) for f in figures if f.method != "FullKV"} - {*constants, ""}
            fields += [name] * bool(told)
        found.append(_block(", ".join([table.title, *constants]), figures, tuple(fields), "task"))
    return found


def published_sheets(table: PublishedTable) -> list[Sheet]:
    """Return a table's numbers alone, with the footnotes below the last block."""
    marks = footnote_marks(table)
    parts = []
    for block in blocks(table):
        values = []
        for line in block.lines:
            here = marks_within(line, marks)
            texts = [f.score + here.get(f, "") if f is not None else "" for f in line.figures]
            values.append(cells(*texts))
        parts.append(block_sheet(block, values, marks))
    return [*parts[:-1], replace(parts[-1], notes=footnote_lines(table))]


def block_sheet(
    block: Block, values: Sequence[Sequence[Cell]], marks: Mapping[Figure, str]
) -> Sheet:
    """Return a sheet of a block with these cells, by line and column.

    A mark that a whole line shares stands behind its first label.
    """
    headings = [Heading(name) for name in block.labels]
    headings += [Heading(name, short_name(name).replace("_", "_\n")) for name in block.columns]
    rows = tuple(
        SheetRow((*cells(line.labels[0] + _shared(line, marks), *line.labels[1:]), *found), ends)
        for line, found, ends in zip(block.lines, values, _section_ends(block), strict=True)
    )
    return Sheet(block.title, tuple(headings), rows, labels=len(block.labels))


def footnote_marks(table: PublishedTable) -> dict[Figure, str]:
    """Number -> the marks of what is odd about it."""
    numbered = [note for note in table.footnotes if note.where]
    found: dict[Figure, str] = {}
    for number, note in enumerate(numbered):
        for figure in filter(note.means, table.figures):
            found[figure] = found.get(figure, "") + SUPERSCRIPTS[number]
    return found


def marks_within(line: Line, marks: Mapping[Figure, str]) -> Mapping[Figure, str]:
    """The marks of a line's numbers; one behind the line's label is not repeated behind each."""
    return {} if _shared(line, marks) else marks


def footnote_lines(table: PublishedTable) -> tuple[str, ...]:
    """The footnotes, numbered as their marks; what is about the whole table has no number."""
    numbered = [note for note in table.footnotes if note.where]
    lines = [f"{SUPERSCRIPTS[i]} {note.text}" for i, note in enumerate(numbered)]
    return (*lines, *(note.text for note in table.footnotes if not note.where))


def _shared(line: Line, marks: Mapping[Figure, str]) -> str:
    """The mark of all figures of a line, where they are several and have the same."""
    found = [marks.get(figure, "") for figure in line.figures if figure is not None]
    return found[0] if len(found) > 1 and len(set(found)) == 1 else ""


def _constants(figures: Sequence[Figure], axes: Sequence[str]) -> list[str]:
    """What all figures share, beside the fields that the table's rows and columns tell."""
    names = ("model", "setting", "task", "reserve_ratio", "budget_tokens")
    found = [{getattr(f, name) for f in figures} for name in names if name not in axes]
    return [next(iter(values)) for values in found if len(values) == 1 and "" not in values]


def _block(title: str, figures: Sequence[Figure], rows: tuple[str, ...], column: str) -> Block:
    columns = tuple(dict.fromkeys(getattr(figure, column) for figure in figures))
    if column == "setting":
        # Such as shared_layers=14, which not every model has.
        columns = tuple(sorted(columns, key=lambda name: int(name.rpartition("=")[2])))
    found: dict[tuple[str, ...], dict[str, Figure]] = {}
    for figure in figures:
        labels = tuple(_label(figure, name) for name in rows)
        found.setdefault(labels, {})[getattr(figure, column)] = figure
    lines = tuple(
        Line(labels, tuple(by_column.get(name) for name in columns))
        for labels, by_column in found.items()
    )
    return Block(title, tuple(_LABELS.get(name, name) for name in rows), columns, lines)


def _label(figure: Figure, field: str) -> str:
    value = str(getattr(figure, field))
    return "full" if field == "budget_tokens" and not value else value


def _section_ends(block: Block) -> list[bool]:
    """A section ends after FullKV, and where a method in its setting comes again."""
    sizes = sum(name in _LABELS.values() for name in block.labels)
    names = [line.labels[: len(line.labels) - sizes] for line in block.lines]
    ends = []
    seen: set[tuple[str, ...]] = set()
    for name, following in zip(names, [*names[1:], None], strict=True):
        seen.add(name)
        end = following is not None and (
            name[:1] == ("FullKV",) or (following in seen and len(seen) > 1)
        )
        ends.append(end)
        seen = set() if end else seen
    return ends
