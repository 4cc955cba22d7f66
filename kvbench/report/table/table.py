"""From records to tables: which rows stand beside each other and what is averaged.

Knows records and nothing of how a table looks (`kvbench.report.render`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from kvbench.base.errors import UserError
from kvbench.compress.budget import Budget
from kvbench.plan.names import LM_EVAL
from kvbench.records.header import RunHeader, TaskFacts, VariantFacts
from kvbench.records.reader import Shard, distinct, read_shards
from kvbench.records.record import Record

GROUPS = (
    "Single-Document QA",
    "Multi-Document QA",
    "Summarization",
    "Few-shot Learning",
    "Synthetic",
    "Code",
)
"""LongBench's column groups, in the papers' order; other groups follow."""


TaskColumn = TaskFacts
"""A task of a table."""


@dataclass(frozen=True)
class Row:
    """One variant's results."""

    variant: VariantFacts
    scores: Mapping[str, Mapping[str, float]]
    """Task -> sample -> score in [0, 1], of the samples done; a task's other metrics have names of
    their own (`metric_name`)."""
    records: tuple[Record, ...]
    """The successful ones."""
    errors: tuple[Record, ...]
    older: int = 0
    """Successful results that newer ones of the same samples replace: another code made them."""

    @property
    def label(self) -> str:
        """Unique in the table: `spindlekv@0.2`."""
        return self.variant.label

    @property
    def method(self) -> str:
        """File stem in conf/method."""
        return self.variant.method

    @property
    def budget(self) -> Budget:
        """What may be kept; of the baseline: everything."""
        return self.variant.budget

    @property
    def is_baseline(self) -> bool:
        """Whether every other row compares with this one."""
        return self.variant.is_baseline

    @property
    def series(self) -> str:
        """The label without its budget: what rows of one method in one setting share."""
        return self.variant.series

    @property
    def codes(self) -> frozenset[str]:
        """Fingerprints of the codes that made its records; empty text where none was recorded."""
        return frozenset(record.code or "" for record in self.records)

    def ratio(self, name: str) -> float | None:
        """Mean of a ratio field: over the samples of a task, then over tasks."""
        by_task: dict[str, list[float]] = {}
        for record in self.records:
            value = getattr(record, name)
            if value is not None:
                by_task.setdefault(record.task, []).append(value)
        return fmean(fmean(values) for values in by_task.values()) if by_task else None


@dataclass(frozen=True)
class Table:
    """Rows that may be compared: one model, one protocol, the same data."""

    headers: tuple[RunHeader, ...]
    """Run headers, oldest first."""
    tasks: tuple[TaskColumn, ...]
    rows: tuple[Row, ...]
    """The baseline first, then by budget, then as the run names them."""

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Column groups that have a task here."""
        present = dict.fromkeys(task.group for task in self.tasks)
        return tuple(g for g in GROUPS if g in present) + tuple(
            g for g in present if g not in GROUPS
        )

    @cached_property
    def metrics(self) -> Mapping[str, tuple[str, ...]]:
        """Task -> its metrics, the main one first; none of a LongBench task, which has one.

        What stands beside that, such as `rouge_failed`, is no score.
        """
        if self.headers[-1].suite != LM_EVAL:
            return {}
        found: dict[str, dict[str, None]] = {}
        for record in (r for row in self.rows for r in row.records if r.metric):
            found.setdefault(record.task, {str(record.metric): None}).update(
                dict.fromkeys(record.scores)
            )
        return {task: tuple(names) for task, names in found.items()}

    @cached_property
    def other_metrics(self) -> tuple[TaskColumn, ...]:
        """A column for each metric of a task beside its main one."""
        return tuple(
            replace(task, name=metric_name(task.name, metric))
            for task in self.tasks
            for metric in self.metrics.get(task.name, ())[1:]
        )

    def tasks_of(self, group: str | None) -> tuple[TaskColumn, ...]:
        """The tasks of a group; None: all."""
        return tuple(task for task in self.tasks if group in (None, task.group))

    def task_score(self, row: Row, task: TaskColumn) -> float | None:
        """Mean score x100 over the samples done; None where none is."""
        values = row.scores.get(task.name)
        return 100 * fmean(values.values()) if values else None

    def mean_score(self, row: Row, group: str | None = None) -> float | None:
        """Mean of the task scores of a group, or of all tasks; None unless each is complete."""
        return self.mean_of(row, self.tasks_of(group))

    def mean_of(self, row: Row, tasks: Sequence[TaskColumn]) -> float | None:
        """Mean of some tasks' scores; None unless each is complete."""
        if any(self.missing(row, task) for task in tasks):
            return None
        scores = [self.task_score(row, task) for task in tasks]
        return fmean(s for s in scores if s is not None)

    def code_notes(self) -> list[str]:
        """What to know where several codes made the folder's results; none where one did."""
        lines = []
        if older := sum(row.older for row in self.rows):
            lines.append(
                f"{older} results of earlier code are in the folder too: of each sample the newest"
                " result counts."
            )
        roads = {code.partition(".")[0] for row in self.rows for code in row.codes}
        mixed = [row.label for row in self.rows if len(row.codes) > 1]
        if len(roads) > 1 or mixed:
            named = ", ".join(mixed[:4]) + ", ..." * (len(mixed) > 4)
            lines.append(
                "Results of several versions of the code stand side by side"
                + (f" ({named} mix them)" if mixed else "")
                + ": the same command computes again what an older one made."
            )
        return lines

    def missing(self, row: Row, task: TaskColumn) -> int:
        """Samples of a task that a row has not scored."""
        return max(0, task.samples - len(row.scores.get(task.name, ())))


def metric_name(task: str, metric: str) -> str:
    """Name of the scores of a metric that is not its task's main one."""
    return f"{task} {metric}"


def tables_of(folder: Path) -> list[Table]:
    """Read a run folder; results that must not be compared come in separate tables.

    Raises:
        UserError: the folder does not exist or holds no records.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give a run folder such as results/runs/NAME")
    shards = _scored(folder)
    if not any(shard.records for shard in shards):
        raise UserError(f"{folder} holds no records: give a run folder such as results/runs/NAME")
    alike: list[list[Shard]] = []
    for shard in shards:
        for others in alike:
            if all(_comparable(shard.header, other.header) for other in others):
                others.append(shard)
                break
        else:
            alike.append([shard])
    return [_table(others) for others in alike]


def holds_records(folder: Path) -> bool:
    """Whether a run folder holds results of samples."""
    return any(shard.records for shard in _scored(folder))


def _scored(folder: Path) -> list[Shard]:
    """The shards of runs over data; a measurement of speed has none."""
    return [shard for shard in read_shards(folder) if shard.header.data.hashes]


def _comparable(one: RunHeader, other: RunHeader) -> bool:
    """Whether results of two runs may stand in one table."""
    if one.model != other.model or one.protocol != other.protocol:
        return False
    data, others = one.data, other.data
    if (data.setting, data.revision) != (others.setting, others.revision):
        return False
    shared = data.hashes.keys() & others.hashes.keys()
    return all(data.hashes[task] == others.hashes[task] for task in shared)


def _table(shards: Sequence[Shard]) -> Table:
    headers = tuple(shard.header for shard in shards)
    tasks = _task_columns(headers)
    known = {task.name for task in tasks}
    variants: dict[str, VariantFacts] = {}
    for header in headers:
        for variant in header.variants:
            variants.setdefault(variant.label, variant)
    by_label: dict[str, list[Record]] = {label: [] for label in variants}
    for _, record in distinct(list(shards)):
        if record.task in known and record.variant in variants:
            by_label[record.variant].append(record)
    rows = [_row(variants[label], records) for label, records in by_label.items()]
    return Table(headers, tasks, tuple(sorted(rows, key=_place)))


def _task_columns(headers: Iterable[RunHeader]) -> tuple[TaskColumn, ...]:
    columns: dict[str, TaskColumn] = {}
    for header in headers:
        for task in header.tasks:
            before = columns.get(task.name)
            if before is None or before.samples < task.samples:
                columns[task.name] = task
    return tuple(columns.values())


def _row(variant: VariantFacts, records: Sequence[Record]) -> Row:
    done = tuple(_newest_of_each_sample(r for r in records if r.error is None))
    scores: dict[str, dict[str, float]] = {}
    for record in done:
        if record.score is None:
            continue
        scores.setdefault(record.task, {})[record.sample] = record.score
        for metric, value in record.scores.items():
            if metric != record.metric:
                named = metric_name(record.task, metric)
                scores.setdefault(named, {})[record.sample] = value
    succeeded = {(r.task, r.sample) for r in done}
    return Row(
        variant=variant,
        scores=scores,
        records=done,
        errors=tuple(r for r in records if r.error and (r.task, r.sample) not in succeeded),
        older=sum(r.error is None for r in records) - len(done),
    )


def _newest_of_each_sample(records: Iterable[Record]) -> list[Record]:
    """One record a sample: where the code of a method changed, both its results are here."""
    newest: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda r: r.finished):
        newest[record.task, record.sample] = record
    return list(newest.values())


def _place(row: Row) -> tuple[bool, bool, float]:
    """The baseline, shares, then token counts; sorting keeps the run's order within a budget."""
    return (not row.is_baseline, *row.budget.place)



@dataclass(frozen=True)
class Column:
    """A column of scores."""

    name: str
    short: str
    tasks: tuple[TaskColumn, ...]
    """Those that a value is the mean of; none where it is another quantity."""
    values: tuple[float | None, ...]
    """Scores x100, by row."""
    partial: tuple[bool, ...]
    """By row: whether samples are missing from the value."""
