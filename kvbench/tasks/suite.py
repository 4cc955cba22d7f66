"""What the command line calls a task: a suite of scored tasks and where their samples come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from kvbench.data.files import Source
from kvbench.tasks.task import Sample, Task

FIRST_TOKENS = ("prefill", "compressed")
"""Where the first generated token can come from: the uncompressed prefill or the kept cache."""

S = TypeVar("S", bound=Source)


@runtime_checkable
class Suite(Protocol[S]):
    """A file of `conf/task/`, instantiated: LongBench or a part of it, Needle-in-a-Haystack, ..."""

    @property
    def own_data(self) -> str | None:
        """Short name of the data that the suite brings along; None: it reads the setting `data`."""
        ...

    @property
    def first_token(self) -> str:
        """Where the first generated token comes from unless the protocol says: see `Protocol`."""
        ...

    def tasks(self, code_similarity: str = "difflib") -> tuple[Task, ...]:
        """Return the scored tasks in table order; `code_similarity` is the protocol's backend."""
        ...

    def source(self, data: str, *, hub_repo: str, revision: str | None) -> S:
        """Open what the samples are made of; the arguments are the settings of those names.

        Raises:
            UserError: there is no such place.
        """
        ...

    def samples(
        self,
        task: Task,
        source: S,
        limit: int | None = None,
        tokenizer: Callable[[], Any] | None = None,
    ) -> Iterator[Sample]:
        """Yield the first `limit` samples of one of `tasks()`, all of them for None.

        Everything read is checked before the first sample is yielded.

        Args:
            task: one of `tasks()`.
            source: as `source()` opened it.
            limit: whole number >= 1.
            tokenizer: loads the model's fast tokenizer; called by suites that measure in tokens.

        Raises:
            UserError: the source lacks the task or holds a bad record (file, line and field).
        """
        ...
