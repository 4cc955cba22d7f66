r"""A sheet in LaTeX, for `\usepackage{booktabs}` and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "→": r"$\rightarrow$",
    "†": r"\dag{}",
    **{digit: f"$^{n}$" for n, digit in enumerate("¹²³⁴⁵⁶⁷⁸⁹", start=1)},
}
_NARROW = r"\footnotesize\setlength{\tabcolsep}{3pt}"
_WIDE = r"\tiny\setlength{\tabcolsep}{1.3pt}"
_MOST_NUMBERS = 10
"""Columns of numbers that fit a text width of 345pt (`article`) in footnotesize."""
_NEW_LINE = " \\\\{}\n"
"""Closed: a star or a bracket that follows would be taken for part of it."""
_SIGNED = re.compile(r"^[+-]\d")


def latex(sheets: Sequence[Sheet]) -> str:
    """Write one table environment for each sheet, its notes below the rows."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_written(sheet) for sheet in sheets)


def _written(sheet: Sheet) -> str:
    numbers = len(sheet.headings) - sheet.labels
    lines = [
        r"\begin{table}",
        rf"\centering{_WIDE if numbers > _MOST_NUMBERS else _NARROW}",
        rf"\caption{{{_escaped(sheet.title)}}}",
        r"\makebox[\linewidth][c]{%  a wide table reaches into both margins",
        rf"\begin{{tabular}}{{{'l' * sheet.labels}{'r' * numbers}}}",
        r"\toprule",
        *_heading_lines(sheet.headings),
        r"\midrule",
    ]
    for row in sheet.rows:
        lines += _row_lines(row)
        lines += [r"\midrule"] * row.ends_section
    lines += [r"\bottomrule", r"\end{tabular}}"]
    notes = [_escaped(note) for note in (*sheet.notes, *sheet.card)]
    if notes:
        lines += ["", r"\medskip\raggedright\scriptsize", _NEW_LINE.join(notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _heading_lines(headings: Sequence[Heading]) -> list[str]:
    """Headings of several lines stand on the last of them."""
    height = max(len(heading.lines) for heading in headings)
    stacked = [[""] * (height - len(h.lines)) + h.lines for h in headings]
    return [_line([_escaped(column[i]) for column in stacked]) for i in range(height)]


def _row_lines(row: SheetRow) -> list[str]:
    lines = [_line([_number(cell) for cell in row.cells])]
    if any(cell.below for cell in row.cells):
        below = [part.split("\n") for part in (cell.below for cell in row.cells)]
        for i in range(max(map(len, below))):
            texts = [part[i] if i < len(part) else "" for part in below]
            lines.append(_line([rf"\tiny {_escaped(t)}" if t else "" for t in texts]))
    return lines


def _number(cell: Cell) -> str:
    text = _escaped(cell.text)
    if _SIGNED.match(cell.text):
        # In text a hyphen would stand for the minus sign.
        text = f"${text[0]}${text[1:]}"
    return rf"\textbf{{{text}}}" if cell.bold else text


def _line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _escaped(text: str) -> str:
    """Text that any LaTeX can set: beyond Latin-1, its fonts would need further packages."""
    known = (_SPECIAL.get(c, c if ord(c) < 256 else "?") for c in text)
    return "".join(known)
