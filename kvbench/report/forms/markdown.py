"""A sheet in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.report.sheet import Cell, Sheet


def markdown(sheets: Sequence[Sheet]) -> str:
    """Write sheets one below the other."""
    return "\n".join(_written(sheet) for sheet in sheets)


def _written(sheet: Sheet) -> str:
    names = [heading.name for heading in sheet.headings]
    lines = [f"**{sheet.title}**", "", f"| {' | '.join(names)} |"]
    lines.append("|" + "---|" * sheet.labels + "---:|" * (len(names) - sheet.labels))
    for row in sheet.rows:
        shown = [_label(cell) for cell in row.cells[: sheet.labels]]
        shown += [_number(cell) for cell in row.cells[sheet.labels :]]
        lines.append(f"| {' | '.join(shown)} |")
    lines.append("")
    lines += [f"- {line}" for line in (*sheet.notes, *sheet.card)]
    return "\n".join(lines) + "\n"


def _label(cell: Cell) -> str:
    return cell.text.replace("|", "\\|").replace("[", "\\[").replace("*", "\\*")


def _number(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.bold else cell.text.replace("*", "\\*")
    return f"{text} {cell.below}".rstrip()
