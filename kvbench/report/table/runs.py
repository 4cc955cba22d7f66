"""Two runs side by side: paired scores of each variant and task, and the samples that changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from kvbench.base.errors import UserError
from kvbench.records.header import RunHeader
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
    headers: Mapping[ResultName, RunHeader]
    """What is known of the run that scored each."""


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


@dataclass(frozen=True)
class PairedRuns:
    """Two runs, paired by variant, task and sample."""

    cells: tuple[PairedTask, ...]
    """For each variant and task that both runs scored, in the first run's order."""
    unlike: tuple[str, ...]
    """What of model, protocol and data they do not share, such as `protocol official and paper`."""


def compare_runs(before: Path, after: Path, anyway: bool = False) -> PairedRuns:
    """Pair the results of two runs by variant, task and sample.

    Args:
        before: run folder.
        after: run folder.
        anyway: whether runs of another model, protocol or data are paired too.

    Raises:
        UserError: a folder holds no records, they share no scored sample, or are not alike.
    """
    first, second = results_of(before), results_of(after)
    ours, theirs = first.scored, second.scored
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for name, record in ours.items():
        if name in theirs:
            pairs.setdefault(name[:2], []).append(Pair(record, theirs[name]))
    if not pairs:
        raise UserError(
            f"{before} and {after} share no sample of the same variant and task: see kvbench status"
        )
    made = {(id(first.headers[n]), id(second.headers[n])): n for n in ours if n in theirs}
    unlike = [_unlike(first.headers[name], second.headers[name]) for name in made.values()]
    differing = tuple(dict.fromkeys(itertools.chain(*unlike)))
    if differing and not anyway:
        raise UserError(
            f"{before} and {after} differ in more than their results ({'; '.join(differing)}):"
            " --anyway pairs them all the same"
        )
    found = [
        paired_difference(
            [[100 * (pair.after.score or 0.0) for pair in of_cell]],
            [[100 * (pair.before.score or 0.0) for pair in of_cell]],
        )
        for of_cell in pairs.values()
    ]
    corrected = holm([difference.p for difference in found])
    cells = tuple(
        PairedTask(*names, tuple(of_cell), difference, p)
        for (names, of_cell), difference, p in zip(pairs.items(), found, corrected, strict=True)
    )
    return PairedRuns(cells, differing)


def _unlike(one: RunHeader, other: RunHeader) -> list[str]:
    """What two runs do not share of what scores depend on; what one does not say is no matter."""
    lines = []
    for part in ("model", "protocol"):
        ours, theirs = asdict(getattr(one, part)), asdict(getattr(other, part))
        unknown = ("",) if part == "protocol" else ("", None)
        differing = [n for n in ours if ours[n] != theirs[n]]
        differing = [n for n in differing if ours[n] not in unknown and theirs[n] not in unknown]
        # A name says more than the settings that go with it.
        for name in differing[:1] if "name" in differing else differing:
            what = part if name == "name" else f"{part}.{name}"
            lines.append(f"{what} {_short(ours[name])} and {_short(theirs[name])}")
    hashes, others = one.data.hashes, other.data.hashes
    if any(hashes[task] != others[task] for task in hashes.keys() & others.keys()):
        lines.append(f"data {one.data.setting} and {other.data.setting}, of other content")
    return lines


def _short(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else text[:40] + "..."


def results_of(folder: Path) -> Results:
    """Read what a run folder holds, its tables together.

    Raises:
        UserError: the folder holds no records, or two scores for one sample and variant.
    """
    scored: dict[ResultName, Record] = {}
    failed: dict[ResultName, str] = {}
    planned: set[tuple[str, str]] = set()
    headers: dict[ResultName, RunHeader] = {}
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
        headers |= dict.fromkeys(here, table.headers[-1])
        for row in table.rows:
            planned |= {(row.label, task.name) for task in table.tasks}
            for record in row.errors:
                failed[ResultName(row.label, record.task, record.sample)] = record.error or ""
    return Results(scored, failed, planned, headers)


def comparison_sheet(found: PairedRuns, before: Path, after: Path) -> Sheet:
    """Lay the cells out as a table."""
    names = ("variant", "task", "samples", "before", "after", "change", "95%", "p", "same text")
    return Sheet(
        title=f"{before} before, {after} after",
        headings=tuple(Heading(name) for name in names),
        rows=tuple(SheetRow(cells(*_texts(cell))) for cell in found.cells),
        labels=2,
        notes=(
            *(f"NOT ALIKE: the runs differ in {what}." for what in found.unlike),
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
