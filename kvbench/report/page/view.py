"""What the page shows of a table beside its sheets: leaders, memory, samples. Plain values only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvbench.records.record import Record
from kvbench.report.table.columns import best_rows
from kvbench.report.table.comparison import score_interval
from kvbench.report.table.stats import Interval
from kvbench.report.table.table import Column, Row, Table, TaskColumn


@dataclass(frozen=True)
class Leader:
    """The best of a column at one budget, or the baseline."""

    label: str
    score: float
    interval: Interval | None
    ratio_bytes: float | None
    clear: bool | None
    """Whether its lead over the next is; None: it does not compete."""


@dataclass(frozen=True)
class CachePart:
    """One kind of what a cache holds."""

    name: str
    share: float
    """Of the native cache's bytes, mean over tasks."""


@dataclass(frozen=True)
class Memory:
    """What one row's caches hold."""

    label: str
    parts: tuple[CachePart, ...]
    layers: tuple[tuple[float, float], ...]
    """By layer: vectors stored / native vectors, and tokens kept / tokens; means over samples."""

    @property
    def share(self) -> float:
        """Of the native cache's bytes."""
        return sum(part.share for part in self.parts)


@dataclass(frozen=True)
class Prediction:
    """What one row answered to a sample."""

    label: str
    score: float
    text: str
    as_baseline: bool
    """Whether the baseline answered the same."""


@dataclass(frozen=True)
class SampleView:
    """One sample with every row's answer."""

    name: str
    prompt_tokens: int
    tokens_cut: int
    prompt_tail: str | None
    answers: tuple[str, ...]
    metric: str
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class TaskView:
    """The samples of a task that the page shows."""

    name: str
    group: str
    scored: int
    """Samples that any row has scored."""
    samples: tuple[SampleView, ...]


def leaders(table: Table, column: Column) -> list[Leader]:
    """Return the baseline, then the best rows at each budget."""
    best = best_rows(table, column)
    found = []
    for i, (row, value) in enumerate(zip(table.rows, column.values, strict=True)):
        if value is not None and (row.is_baseline or i in best):
            interval = score_interval(row, column.tasks)
            ratio = row.ratio("ratio_bytes")
            found.append(Leader(row.label, value, interval, ratio, best.get(i)))
    return found


def memory(table: Table) -> list[Memory]:
    """Return what each row holds, rows without a weighed record left out."""
    return [Memory(row.label, _parts(row), _layers(row)) for row in table.rows if _weighed(row)]


def task_views(table: Table, most: int) -> list[TaskView]:
    """Return each task with the first samples of it, `most` at most."""
    return [_task_view(table, task, most) for task in table.tasks]


def _weighed(row: Row) -> list[Record]:
    return [record for record in row.records if record.native_bytes and record.r1]


def _parts(row: Row) -> tuple[CachePart, ...]:
    records = _weighed(row)
    # What follows compression is no part of the compressed cache.
    names = dict.fromkeys(n for r in records for n, size in r.bytes_by_part.items() if size)
    names.pop("tail", None)
    return tuple(CachePart(name, _mean_share(records, name)) for name in names)


def _mean_share(records: Sequence[Record], part: str) -> float:
    """Mean over tasks of the mean over samples, as of every ratio."""
    by_task: dict[str, list[float]] = {}
    for record in records:
        assert record.native_bytes
        share = record.bytes_by_part.get(part, 0) / record.native_bytes
        by_task.setdefault(record.task, []).append(share)
    return fmean(fmean(shares) for shares in by_task.values())


def _layers(row: Row) -> tuple[tuple[float, float], ...]:
    records = _weighed(row)
    count = len(records[0].r1)
    return tuple(
        (
            fmean(r.r1[layer] * r.r2[layer] for r in records),
            fmean(r.kept_tokens[layer] / r.prefill_tokens for r in records),
        )
        for layer in range(count)
    )


def _task_view(table: Table, task: TaskColumn, most: int) -> TaskView:
    by_sample: dict[str, list[tuple[Row, Record]]] = {}
    for row in table.rows:
        for record in row.records:
            if record.task == task.name and record.score is not None:
                by_sample.setdefault(record.sample, []).append((row, record))
    samples = tuple(_sample_view(answers) for answers in list(by_sample.values())[:most])
    return TaskView(task.name, task.group, len(by_sample), samples)


def _sample_view(answers: Sequence[tuple[Row, Record]]) -> SampleView:
    first = answers[0][1]
    return SampleView(
        name=first.sample,
        prompt_tokens=first.prompt_tokens,
        tokens_cut=first.tokens_cut,
        prompt_tail=next((r.prompt_tail for _, r in answers if r.prompt_tail), None),
        answers=tuple(first.answers),
        metric=first.metric or "",
        predictions=tuple(_predictions(answers)),
    )


def _predictions(answers: Sequence[tuple[Row, Record]]) -> Iterator[Prediction]:
    base = next((record.prediction for row, record in answers if row.is_baseline), None)
    for row, record in answers:
        same = not row.is_baseline and record.prediction == base
        yield Prediction(row.label, record.score or 0.0, record.prediction or "", same)
