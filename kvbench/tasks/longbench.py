"""LongBench (Bai et al. 2023, arXiv 2308.14508): 21 tasks, and the 13 of LongBench-E.

Templates, generation limits and groups are data, in `longbench.json`; the metrics are in
`kvbench.tasks.metrics`; the records come from `kvbench.data.files`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from kvbench.base import jsonl
from kvbench.base.errors import UserError
from kvbench.base.suggest import nearest
from kvbench.data.files import DataSource
from kvbench.data.source import open_source
from kvbench.tasks import metrics as score
from kvbench.tasks.task import Sample, Task

LONGBENCH_16 = (
    "narrativeqa",
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "musique",
    "gov_report",
    "qmsum",
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench-p",
)
"""The English and code tasks in the order of the papers' tables; AVG is their plain mean."""

LONGBENCH_ZH = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
"""The Chinese tasks."""

LONGBENCH_E = (
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "gov_report",
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench-p",
)
"""The tasks of LongBench-E, whose records are spread evenly over the lengths."""

_PARAGRAPH_WORD = {"retrieval": "Paragraph ", "retrieval_zh": "段落"}


class LongBench:
    """LongBench tasks by name; the suite of `conf/task/longbench*.yaml` and of each task's file."""

    def __init__(self, tasks: Sequence[str], extended: bool = False) -> None:
        """Choose the tasks.

        Args:
            tasks: names, without `_e`, in the order of the table.
            extended: read LongBench-E's files `<task>_e.jsonl`; the tasks' names get `_e`.

        Raises:
            UserError: a name is unknown, stands twice, or is not part of LongBench-E.
        """
        self.names = tuple(str(name) for name in tasks)
        self.extended = extended
        known = LONGBENCH_E if extended else LONGBENCH_16 + LONGBENCH_ZH
        where = "LongBench-E" if extended else "LongBench"
        if not self.names:
            raise UserError(f"no task is chosen: give at least one of {', '.join(known)}")
        for name in self.names:
            if name not in known:
                near = nearest(name, known)
                raise UserError(f"task {name!r} is not in {where}; the nearest is {near!r}")
            if self.names.count(name) > 1:
                raise UserError(f"task {name!r} is chosen twice: name it once")

    def __repr__(self) -> str:
        """As it is written in Python."""
        return f"LongBench({list(self.names)}, extended={self.extended})"

    def tasks(self, code_similarity: str = "difflib") -> tuple[Task, ...]:
        """Return the tasks in the order they were named.

        Args:
            code_similarity: edit similarity of lcc and repobench-p, `difflib` or `levenshtein`.
        """
        if code_similarity not in score.CODE_SIMILARITIES:
            known = " or ".join(score.CODE_SIMILARITIES)
            raise UserError(f"code_similarity {code_similarity!r} is unknown: give {known}")
        suffix = "_e" if self.extended else ""
        return tuple(
            Task(name=name + suffix, score=partial(_score, name, code_similarity), **facts)
            for name, facts in ((name, _facts()[name]) for name in self.names)
        )

    own_data: None = None
    """Read from the setting `data`."""
    first_token = "prefill"
    """As published."""

    def source(self, data: str, *, hub_repo: str, revision: str | None) -> DataSource:
        """Open the records' place."""
        return open_source(data, hub_repo=hub_repo, revision=revision)

    def samples(
        self,
        task: Task,
        source: DataSource,
        limit: int | None = None,
        tokenizer: Callable[[], Any] | None = None,
    ) -> Iterator[Sample]:
        """Yield the first `limit` records of the task as samples, in file order.

        The whole file is read and checked before the first one is yielded.
        """
        if limit is not None and limit < 1:
            raise UserError(f"limit {limit} is out of range: give a whole number >= 1 or null")
        metric = score.METRIC_OF_TASK[task.name.removesuffix("_e")]
        records = source.records(task.name, partial(_check, metric))
        for record in records[:limit]:
            yield Sample(
                task=task,
                id=record["_id"],
                context=record["context"],
                input=record["input"],
                answers=tuple(record["answers"]),
                fields=record,
            )


def _score(name: str, code_similarity: str, prediction: str, sample: Sample) -> Mapping[str, float]:
    """Score one prediction on the LongBench task `name`."""
    classes = sample.fields.get("all_classes")
    return score.score(name, prediction, sample.answers, classes, code_similarity)


def _check(metric: str, record: dict[str, Any], place: str) -> None:
    """Raise UserError where a record lacks what its task's metric reads."""
    if metric == "classification":
        jsonl.classes_field(record, place, required=True)
    if metric in _PARAGRAPH_WORD:
        for answer in record["answers"]:
            try:
                score.paragraph_number(answer, _PARAGRAPH_WORD[metric])
            except UserError as error:
                raise UserError(f"{place}: field 'answers': {error}") from error


@lru_cache(maxsize=1)
def _facts() -> dict[str, dict[str, Any]]:
    """Task name -> the fields of Task that `longbench.json` holds.

    passage_count's answers count as one token: a tokenizer of LLaMA-3's kind has every number
    below 1000 as one. trec's do not: most of its 50 class names are several words.
    """
    path = Path(__file__).with_name("longbench.json")
    tasks: dict[str, dict[str, Any]] = json.loads(path.read_bytes())["tasks"]
    return tasks
