"""What a plan says of decoding, and of measurements that are no answers to samples."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded."""

    width: int | None
    """Rows decoded together; None: as many as there are results, 16 at most."""
    cache: str
    """What is read: `stored`, or plain `rows` rebuilt of what is stored."""
    graph: bool = False
    """Whether steps are recorded as CUDA graphs."""

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        check_whole_number("decode.width", self.width, optional=True)
        if self.cache not in ("stored", "rows"):
            raise UserError(f"decode.cache={self.cache}: it is stored or rows")
        if not isinstance(self.graph, bool):
            raise UserError(f"decode.graph={self.graph}: it is true or false")


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
