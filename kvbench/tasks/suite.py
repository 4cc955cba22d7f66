"""What the command line calls a task: a suite of scored tasks and where their samples come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kvbench.data import DataSource
from kvbench.tasks.task import Sample, Task


class Suite(Protocol):
    """A file of `conf/task/`, instantiated: LongBench or a part of it, Needle-in-a-Haystack, ..."""

    def tasks(self, code_similarity: str = "difflib") -> tuple[Task, ...]:
        """Return the scored tasks in table order; `code_similarity` is the protocol's backend."""
        ...

    def samples(self, task: Task, source: DataSource, limit: int | None = None) -> Iterator[Sample]:
        """Yield the first `limit` samples of one of `tasks()`, all of them for None.

        Everything read is checked before the first sample is yielded.

        Raises:
            UserError: the source lacks the task or holds a bad record (file, line and field).
        """
        ...
