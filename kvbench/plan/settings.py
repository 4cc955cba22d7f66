"""What a plan says of measurements that are no answers to samples."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.base.checks import check_whole_number


@dataclass(frozen=True)
class Lengths:
    """What is timed."""

    context: int
    """Prompt tokens."""
    generate: int
    """Generated tokens, at least two: the first comes from the prefill."""
    repeats: int
    """Rounds that are counted."""

    def __post_init__(self) -> None:
        """Refuse what cannot be timed."""
        for name, least in (("context", 1), ("generate", 2), ("repeats", 1)):
            check_whole_number(f"speed.{name}", getattr(self, name), least=least)


@dataclass(frozen=True)
class LmEvalTasks:
    """What lm-evaluation-harness evaluates."""

    tasks: str | None
    """Its names, patterns or YAML files, with commas."""
    data: str
    """`hub`: as each task says; `sample`; or a folder with `<task>/<split>.jsonl`."""

    @property
    def names(self) -> list[str]:
        """The tasks, one by one."""
        return [name for name in (self.tasks or "").split(",") if name]
