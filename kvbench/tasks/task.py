"""What a benchmark is to the rest of kvbench: tasks, samples and a pure scoring function.

Knows nothing of models, tokenizers or caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Task:
    """One scored task, such as narrativeqa: its prompt format, limits and metric."""

    name: str
    """Identifier on the command line and in records, e.g. `narrativeqa`."""
    group: str
    """Column group of the papers' tables, e.g. `Single-Document QA`."""
    template: str
    """Prompt with the placeholders `{context}` and `{input}`."""
    max_new_tokens: int
    """Generated tokens at most."""
    score: Callable[[str, Sample], Mapping[str, float]]
    """(prediction, sample) -> metric name -> value in [0, 1]; the first entry is the main one."""
    language: str = "en"
    """`en` or `zh`."""
    chat_template: bool = True
    """Whether profiles that use chat templates apply one to this task."""
    stop_at_newline: bool = False
    """Whether profiles that stop at newlines do so for this task (samsum)."""
    one_token_answers: bool = False
    """Whether the typical answer is a single token (see `first_token` in the protocol)."""
    one_line_answers: bool = False
    """Whether an answer is its first line under every profile: a newline ends it, but newlines
    before any other token do not (Needle-in-a-Haystack)."""
    length_setting: str = ""
    """The setting that sizes the prompts, such as `needle.lengths`; such prompts are never
    truncated: one that is too long is refused. Empty: truncated as the profile says."""


@dataclass(frozen=True)
class Sample:
    """One record of a task.

    `fields` holds the record as read (LongBench: input, context, answers, length, all_classes,
    ...), which is what the scorer sees.
    """

    task: Task
    id: str
    """Stable identifier, unique inside the task."""
    context: str
    """Fills `{context}`; the part that `query_aware=false` compresses ends with it."""
    input: str
    """Fills `{input}`."""
    answers: tuple[str, ...]
    """References; a prediction is worth its best score over them."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further record fields, e.g. `all_classes`, `length`, `language`."""
    answer_prefix: str = ""
    """Begins the model's answer: the prompt's last characters, after the chat template's cue."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> characters [start, end) of the context to find again, such as the needle."""

    @property
    def scored_fields(self) -> dict[str, Any]:
        """What scoring may read beside the answers, such as all_classes."""
        return {k: v for k, v in self.fields.items() if k not in ("context", "input", "answers")}

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the content; taken once, however many variants ask for it."""
        content = [self.id, self.context, self.input, self.answers, self.scored_fields]
        content += [self.answer_prefix] * bool(self.answer_prefix)
        # A sample is JSON as read, so its text is its identity and needs no normal form.
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
