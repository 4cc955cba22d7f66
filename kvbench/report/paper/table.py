"""Our numbers beside those that a paper printed: ours, published, difference.

Where ours come from (scores, speeds, a classifier's test) is `Numbers`' business. What differs in
model, data, samples or protocol is said, and marked on every difference.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from kvbench.compress.budget import Budget
from kvbench.config.catalog import choices
from kvbench.report.paper.published import Figure, PublishedTable, published_table
from kvbench.report.paper.shape import (
    block_sheet,
    blocks,
    footnote_lines,
    footnote_marks,
    marks_within,
)
from kvbench.report.sheet import NOT_COMPARABLE, Cell, Heading, Sheet, SheetRow, cells

_WORD = re.compile(r"[\w.]+")

NEAR = 0.03
"""How far a printed share may lie from the budget it was aimed at."""


@dataclass(frozen=True)
class Beside:
    """What an experiment says of a paper's table."""

    published: PublishedTable
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Method and setting as printed -> our rows without their budget; of several, the best on each
    task counts."""
    scores: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Column as printed -> our task and metric, where it is not a task's main score."""
    budgets: Mapping[str, str] = field(default_factory=dict)
    """Tokens as printed -> our budget that stands for them, where it is another."""
    notes: Sequence[str] = ()
    """What else a reader must know of the rows."""

    @classmethod
    def of(cls, node: Mapping[str, Any] | None) -> Beside | None:
        """Read an experiment's node; None where no table was printed."""
        if node is None or "published" not in node:
            return None
        scores = {name: (task, metric) for name, (task, metric) in node.get("scores", {}).items()}
        budgets = {str(printed): str(ours) for printed, ours in node.get("budgets", {}).items()}
        table = published_table(str(node["published"]))
        return cls(table, node.get("rows", {}), scores, budgets, node.get("notes", ()))

    def names(self, figure: Figure) -> Sequence[str]:
        """Our rows, without their budget, that stand for a printed one."""
        printed = f"{figure.method} {figure.setting}".strip()
        return self.rows.get(printed, self.rows.get(figure.method, ()))

    def at_our_budget(self, figure: Figure) -> Figure:
        """The printed number, under the budget of ours that stands for its own."""
        return replace(
            figure, budget_tokens=self.budgets.get(figure.budget_tokens, figure.budget_tokens)
        )

    def codes(self) -> tuple[str, ...]:
        """Which code our rows stand for: each row's methods, then what each preset says of itself.

        Methods that are no preset follow their paper, as their files say.
        """
        ours = {printed: names for printed, names in self.rows.items() if [*names] != ["fullkv"]}
        if not ours:
            return ()
        rows = "; ".join(f"{printed} by {' or '.join(names)}" for printed, names in ours.items())
        named = {word for names in ours.values() for name in names for word in _WORD.findall(name)}
        return (
            f"Our rows: {rows}.",
            *(
                f"{choice.name}: {choice.about.partition('. ')[0].rstrip('.')}."
                for choice in choices("method")
                if choice.name in named and "_target_" not in choice.config
            ),
        )


@dataclass(frozen=True)
class Number:
    """Ours for a printed one."""

    value: float | None
    """In the printed number's unit; None: not measured."""
    partial: bool = False
    """Whether samples are missing from it."""


@dataclass(frozen=True)
class Shares:
    """What ours hold of the native cache, in [0, 1], in two readings; None: not measured."""

    formula15: float | None
    """SpindleKV's Formula 15 as printed, by which papers count."""
    bytes: float | None
    """Every tensor held, by which kvbench counts."""


class Numbers(Protocol):
    """What a run folder holds, as numbers to lay beside a paper's."""

    @property
    def card(self) -> tuple[str, ...]:
        """What our numbers are worthless without."""

    def ours(self, figure: Figure, beside: Beside, columns: set[str]) -> Number:
        """Ours for a printed number, in a block with these columns."""

    def shares(self, figure: Figure, beside: Beside) -> Shares | None:
        """What ours hold where a number was printed; None: not measured, or the whole cache."""

    def obstacles(self, figure: Figure, beside: Beside) -> list[str]:
        """What keeps ours from being compared with it."""


class Measured(Protocol):
    """What was measured of a method at a budget."""

    @property
    def budget(self) -> Budget:
        """What it was allowed to keep."""

    @property
    def is_baseline(self) -> bool:
        """Whether no budget counts."""


def at_budget(figure: Figure, rows: Sequence[Measured]) -> int | None:
    """Place of the row whose budget a number was printed for; None where there is none."""
    if rows and rows[0].is_baseline:
        return 0
    if figure.budget_tokens:
        tokens = int(figure.budget_tokens)
        return next((i for i, row in enumerate(rows) if row.budget.tokens == tokens), None)
    share = float(figure.reserve_ratio.rstrip("%") or "nan") / 100
    distances = [
        (abs(row.budget.fraction - share), i)
        for i, row in enumerate(rows)
        if row.budget.fraction is not None
    ]
    distance, i = min(distances, default=(1.0, 0))
    return i if distance <= NEAR else None


def paper_sheets(beside: Beside, numbers: Numbers) -> list[Sheet]:
    """Return the paper's table with ours, published and difference in each cell.

    Where shares of the cache were printed, a second table lays ours beside them.
    """
    published = beside.published
    marks = footnote_marks(published)
    sheets = []
    for block in blocks(published):
        columns = _columns(f for line in block.lines for f in line.figures)
        values = []
        for line in block.lines:
            here = marks_within(line, marks)
            values.append(
                [
                    Cell("") if f is None else _cell(f, here.get(f, ""), beside, numbers, columns)
                    for f in line.figures
                ]
            )
        sheets.append(block_sheet(block, values, marks))
    sheets += _share_sheets(beside, numbers)
    notes = ("In each cell: ours, published, difference.", *_differences(beside, numbers))
    notes += (*beside.codes(), *beside.notes, *footnote_lines(published))
    return [*sheets[:-1], replace(sheets[-1], notes=notes, card=numbers.card)]


def paper_csv(beside: Beside, numbers: Numbers) -> str:
    """One line for each printed number, with ours and what stands between them."""
    out = io.StringIO()
    names = [field.name for field in fields(Figure)]
    writer = csv.writer(out, lineterminator="\n")
    shares = ("ours ratio_formula15_printed", "ours ratio_bytes")
    writer.writerow([*names, "ours", "difference", *shares, "not comparable"])
    for block in blocks(beside.published):
        printed = [f for line in block.lines for f in line.figures if f is not None]
        columns = _columns(printed)
        for figure in printed:
            value = numbers.ours(figure, beside, columns).value
            ours, difference = ("", "") if value is None else _texts(figure, value)
            known = (getattr(figure, name) for name in names)
            held = numbers.shares(figure, beside) or Shares(None, None)
            texts = ("" if x is None else f"{x:.4f}" for x in (held.formula15, held.bytes))
            obstacles = "; ".join(numbers.obstacles(figure, beside))
            writer.writerow([*known, ours, difference, *texts, obstacles])
    return out.getvalue()


def _share_sheets(beside: Beside, numbers: Numbers) -> list[Sheet]:
    """What ours hold beside the shares that were printed; no sheet where none was measured."""
    printed: dict[tuple[str, ...], Figure] = {}
    for figure in beside.published.figures:
        if figure.reserve_ratio:
            labels = (figure.model, figure.method, figure.setting, figure.reserve_ratio)
            printed.setdefault(labels, figure)
    held = [(figure, numbers.shares(figure, beside)) for figure in printed.values()]
    measured = [(figure, shares) for figure, shares in held if shares is not None]
    if not measured:
        return []
    names = [
        name
        for name in ("model", "method", "setting")
        if name == "method" or len({getattr(figure, name) for figure in printed.values()}) > 1
    ]
    reading = "Formula 15 as printed, %"
    headings = (*map(Heading, names), Heading(reading, "Formula 15\nas printed, %"))
    rows = tuple(
        SheetRow(
            (
                *cells(*(getattr(figure, name) for name in names)),
                _share(shares.formula15, figure),
                _share(shares.bytes, figure),
            )
        )
        for figure, shares in measured
    )
    title = "Share of the native cache that is held"
    return [Sheet(title, (*headings, Heading("bytes, %")), rows, labels=len(names))]


def _share(value: float | None, figure: Figure) -> Cell:
    printed = figure.reserve_ratio.rstrip("%")
    if value is None:
        return Cell("-", printed)
    return Cell(f"{100 * value:.1f}", f"{printed}\n{100 * value - float(printed):+.1f}")


def _columns(figures: Iterable[Figure | None]) -> set[str]:
    return {figure.task for figure in figures if figure is not None}


def _cell(
    figure: Figure, footnotes: str, beside: Beside, numbers: Numbers, columns: set[str]
) -> Cell:
    ours = numbers.ours(figure, beside, columns)
    printed = figure.score + footnotes
    if ours.value is None:
        return Cell("-", printed)
    mark = NOT_COMPARABLE if numbers.obstacles(figure, beside) else ""
    text, difference = _texts(figure, ours.value)
    return Cell(text + "*" * ours.partial, f"{printed}\n{difference}{mark}")


def _texts(figure: Figure, value: float) -> tuple[str, str]:
    """Our number and its difference, in the printed number's digits."""
    digits = len(figure.score.partition(".")[2])
    return f"{value:.{digits}f}", f"{value - float(figure.score):+.{digits}f}"


def _differences(beside: Beside, numbers: Numbers) -> list[str]:
    figures = beside.published.figures
    obstacles = dict.fromkeys(o for figure in figures for o in numbers.obstacles(figure, beside))
    if not obstacles:
        return []
    ours: dict[str, list[str]] = {}
    for obstacle in obstacles:  # those of several models differ in what was published alone
        head, _, printed = obstacle.partition(", published ")
        ours.setdefault(head, []).append(printed.removesuffix(")"))
    told = [
        head + (f", published {' and '.join(printed)})" if printed != [""] else "")
        for head, printed in ours.items()
    ]
    return [f"{NOT_COMPARABLE} cannot be compared: {'; '.join(told)}."]
