"""Scores of stored predictions, computed again without a model.

Reads a run folder, or prediction files in LongBench's own format; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbench.base.errors import UserError
from kvbench.config.objects import instantiated
from kvbench.plan.names import LM_EVAL
from kvbench.records.header import RunHeader
from kvbench.records.reader import Shard, distinct, read_shards
from kvbench.records.record import Record
from kvbench.tasks.metrics import (
    score_predictions_file,
    score_predictions_file_by_length,
    score_predictions_folder,
)
from kvbench.tasks.task import Sample, Task


@dataclass(frozen=True)
class Scores:
    """Scores x100, two decimals."""

    values: Mapping[str, Any]
    """Of a run folder: variant -> task -> score; else task -> score (or -> bucket -> score)."""
    changes: str | None = None
    """Of a run folder: how many scores differ from those recorded."""

    def text(self) -> str:
        """One score a line."""
        lines = []
        for name, value in self.values.items():
            parts = value.items() if isinstance(value, Mapping) else [("", value)]
            for part, number in parts:
                label = f"{name}  {part}".rstrip()
                shown = "-" if number is None else f"{number:.2f}"
                lines.append(f"{shown:>7}  {label}")
        if self.changes is not None:
            lines.append(self.changes)
        return "\n".join(lines) + "\n"


def scores_of(path: Path, code_similarity: str | None = None, by_length: bool = False) -> Scores:
    """Score what a path holds.

    Args:
        path: run folder, or file or folder of LongBench predictions.
        code_similarity: `difflib` or `levenshtein`; None: as recorded, or difflib.
        by_length: prediction files in LongBench-E's buckets of length.

    Raises:
        UserError: there is nothing to score, or a file is bad.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a run folder or LongBench predictions")
    backend = code_similarity or "difflib"
    if path.is_file():
        score_file = score_predictions_file_by_length if by_length else score_predictions_file
        return Scores({path.stem: score_file(path, backend)})
    shards = read_shards(path)
    if any(shard.header.suite == LM_EVAL for shard in shards):
        raise UserError(f"{path} was scored by lm-eval, which alone can score it again")
    if shards:
        return _run_scores(path, shards, code_similarity)
    return Scores(score_predictions_folder(path, backend, by_length))


def _run_scores(path: Path, shards: list[Shard], code_similarity: str | None) -> Scores:
    values: dict[str, dict[str, list[float]]] = {}
    tasks: dict[Path, dict[str, Task]] = {}
    changed = total = 0
    for shard, record in distinct(shards):
        if record.error is not None or record.prediction is None:
            continue
        if shard.path not in tasks:
            tasks[shard.path] = _tasks(shard.header, code_similarity)
        value = _score(tasks[shard.path], record, path)
        values.setdefault(record.variant, {}).setdefault(record.task, []).append(value)
        total += 1
        changed += record.score is None or abs(value - record.score) > 1e-12
    means = {
        variant: {task: round(100 * fmean(scores), 2) for task, scores in by_task.items()}
        for variant, by_task in values.items()
    }
    return Scores(means, f"{changed} of {total} scores differ from those recorded")


def _tasks(header: RunHeader, code_similarity: str | None) -> dict[str, Task]:
    suite = instantiated(header.task_settings, "task", targets_allowed=False)
    backend = code_similarity or header.protocol.code_similarity
    return {task.name: task for task in suite.tasks(backend)}


def _score(tasks: Mapping[str, Task], record: Record, path: Path) -> float:
    task = tasks.get(record.task)
    if task is None:
        raise UserError(f"{path} holds records of {record.task}, which its header does not name")
    fields = {**record.scored_fields, "answers": record.answers}
    sample = Sample(task, record.sample, "", "", tuple(record.answers), fields)
    assert record.prediction is not None
    return next(iter(task.score(record.prediction, sample).values()))
