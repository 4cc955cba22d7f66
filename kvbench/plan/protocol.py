"""How prompts are made, generation ends and code is scored."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.tasks.suite import FIRST_TOKENS
from kvbench.tasks.task import Task

_LEGAL: dict[str, tuple[object, ...]] = {
    "truncation": ("middle", "none"),
    "chat_template": ("official", "none", "llama2", "paper"),
    "stop": ("eos_or_newline", "tokenizer_eos"),
    "min_new_tokens": ("newline_tasks", "all", "none"),
    "code_similarity": ("difflib", "levenshtein"),
    "query_aware": (True, False),
    "first_token": FIRST_TOKENS,
}


@dataclass(frozen=True)
class Protocol:
    """How prompts are made, generation ends and code is scored; stamped on every record."""

    name: str
    """Profile, `official` or `paper`; also picks the model's published input limit."""
    truncation: str
    """`middle`: first half + last half of the tokens of a prompt that is too long; or `none`."""
    chat_template: str
    """`official`: the tokenizer's own where the task takes one; `none`; `llama2`."""
    stop: str
    """`eos_or_newline`: every EOS id, and a newline where the task says so; `tokenizer_eos`."""
    min_new_tokens: str
    """Who must generate at least one token: `newline_tasks`, `all` or `none`."""
    code_similarity: str
    """`difflib` or `levenshtein`."""
    query_aware: bool
    """False: only the context is compressed and the question is fed afterwards."""
    first_token: str
    """`prefill`: from the uncompressed prefill's logits; `compressed`: after compression."""
    max_input_tokens: int | None
    """Prompt tokens before truncation; None: the model's context less what is generated."""
    max_new_tokens: int | None
    """Generated tokens at most, on tasks that allow more; None: as each task says."""

    def __post_init__(self) -> None:
        """Refuse values that no profile has."""
        for name, legal in _LEGAL.items():
            value = getattr(self, name)
            if value not in legal:
                known = ", ".join(str(x).lower() if isinstance(x, bool) else str(x) for x in legal)
                raise UserError(f"protocol.{name}={value!r} is unknown: give one of {known}")
        for name in ("max_input_tokens", "max_new_tokens"):
            check_whole_number(f"protocol.{name}", getattr(self, name), optional=True)

    def min_tokens(self, task: Task) -> int:
        """Tokens that must be generated on a task before a stop counts."""
        if self.min_new_tokens == "all":
            return 1
        return int(self.min_new_tokens == "newline_tasks" and task.stop_at_newline)

    def stops_at_newline(self, task: Task) -> bool:
        """Whether a newline ends a task's answer."""
        return self.stop == "eos_or_newline" and task.stop_at_newline
