"""Two runs side by side: paired scores of each variant and task, and the samples that changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvbench.base.errors import UserError
from kvbench.records.record import Record
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells
from kvbench.report.table.stats import Difference, holm, paired_difference
from kvbench.report.table.table import tables_of

SHOWN_CHARACTERS = 300
"""Of a prediction."""


class ResultName(NamedTuple):
    """What pairs results of two runs, whatever else differs."""

    variant: str
    task: str
    sample: str


@dataclass(frozen=True)
class Results:
    """What a run folder holds."""

    scored: Mapping[ResultName, Record]
    failed: Mapping[ResultName, str]
    """With what went wrong."""
    planned: Set[tuple[str, str]]
    """Variants and tasks that it was to do."""


@dataclass(frozen=True)
class Pair:
    """One sample of one variant in both runs."""

    before: Record
    after: Record

    @property
    def change(self) -> float:
        """Score after - before, in [-1, 1]."""
        return (self.after.score or 0.0) - (self.before.score or 0.0)

    @property
    def same_prediction(self) -> bool:
        """Whether both runs generated the same text."""
        return self.before.prediction == self.after.prediction


@dataclass(frozen=True)
class PairedTask:
    """All pairs of one variant on one task."""

    variant: str
    task: str
    pairs: tuple[Pair, ...]
    difference: Difference
    """Of scores x100, after - before."""
    corrected_p: float
    """By Holm, for all cells of the comparison."""


def compare_runs(before: Path, after: Path) -> tuple[PairedTask, ...]:
    """Pair the results of two runs by variant, task and sample, whatever else differs.

    Returns:
        A cell for each variant and task that both runs scored, in the first run's order.

    Raises:
        UserError: a folder holds no records, or they share no scored sample.
    """
    ours, theirs = results_of(before).scored, results_of(after).scored
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for name, record in ours.items():
        if name in theirs:
            pairs.setdefault(name[:2], []).append(Pair(record, theirs[name]))
    if not pairs:
        raise UserError(
            f"{before} and {after} share no sample of the same variant and task: see kvbench status"
        )
    found = [
        paired_difference(
            [[100 * (pair.after.score or 0.0) for pair in of_cell]],
            [[100 * (pair.before.score or 0.0) for pair in of_cell]],
        )
        for of_cell in pairs.values()
    ]
    corrected = holm([difference.p for difference in found])
    return tuple(
        PairedTask(*names, tuple(of_cell), difference, p)
        for (names, of_cell), difference, p in zip(pairs.items(), found, corrected, strict=True)
    )


def results_of(folder: Path) -> Results:
    """Read what a run folder holds, its tables together.

    Raises:
        UserError: the folder holds no records, or two scores for one sample and variant.
    """
    scored: dict[ResultName, Record] = {}
    failed: dict[ResultName, str] = {}
    planned: set[tuple[str, str]] = set()
    tables = tables_of(folder)
    for table in tables:
        here = {
            ResultName(row.label, record.task, record.sample): record
            for row in table.rows
            for record in row.records
            if record.score is not None
        }
        if here.keys() & scored.keys():
            raise UserError(
                f"{folder} holds results of {len(tables)} models, protocols or data sets: give a"
                " folder of one"
            )
        scored |= here
        for row in table.rows:
            planned |= {(row.label, task.name) for task in table.tasks}
            for record in row.errors:
                failed[ResultName(row.label, record.task, record.sample)] = record.error or ""
    return Results(scored, failed, planned)


def comparison_sheet(found: Sequence[PairedTask], before: Path, after: Path) -> Sheet:
    """Lay the cells out as a table."""
    names = ("variant", "task", "samples", "before", "after", "change", "95%", "p", "same text")
    return Sheet(
        title=f"{before} before, {after} after",
        headings=tuple(Heading(name) for name in names),
        rows=tuple(SheetRow(cells(*_texts(cell))) for cell in found),
        labels=2,
        notes=(
            "Scores x100 of the samples that both runs scored; the interval is of the change;"
            " p by sign flips, corrected for all rows (Holm).",
        ),
    )


def changed_samples(found: Sequence[PairedTask], most: int) -> str:
    """Return the samples whose score changed most, with both predictions, as text.

    Samples of equal score but another text come last.
    """
    changed = [pair for cell in found for pair in cell.pairs if not pair.same_prediction]
    largest = sorted(changed, key=lambda pair: -abs(pair.change))[:most]
    total = sum(len(cell.pairs) for cell in found)
    lines = [f"{len(changed)} of {total} predictions differ."]
    for pair in largest:
        one = pair.before
        lines += [
            "",
            f"{one.variant}, {one.task}, sample {one.sample}: {100 * pair.change:+.2f}",
            f"  before  {_shown(pair.before.prediction)}",
            f"  after   {_shown(pair.after.prediction)}",
            f"  answers {_shown(' | '.join(one.answers))}",
        ]
    return "\n".join(lines) + "\n"


def _texts(cell: PairedTask) -> Iterator[str]:
    count = len(cell.pairs)
    interval = cell.difference.interval
    yield from (cell.variant, cell.task, str(count))
    for side in ("before", "after"):
        scores = [getattr(pair, side).score for pair in cell.pairs]
        yield f"{100 * sum(scores) / count:.2f}"
    yield f"{cell.difference.mean:+.2f}"
    yield "-" if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"
    yield f"{cell.corrected_p:.3f}"
    yield f"{sum(pair.same_prediction for pair in cell.pairs)}/{count}"


def _shown(text: str | None) -> str:
    """A text in one line, its controls escaped; cut where it is long."""
    line = " ".join((text or "").split())
    safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)
    return safe if len(safe) <= SHOWN_CHARACTERS else safe[:SHOWN_CHARACTERS] + " ..."
