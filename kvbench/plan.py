"""What a run does, frozen: model, tasks, protocol and variants; and the name of each result.

A plan says everything a run needs and nothing of how it goes. Knows nothing of Hydra: plans are
made in `kvbench.planning`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from kvbench.budget import Budget
from kvbench.capture_cache import CacheFolder
from kvbench.classifier import ORACLE, classifier_digest
from kvbench.configured import check_whole_number
from kvbench.errors import UserError
from kvbench.method import Method
from kvbench.modelspec import ModelSpec, model_identity
from kvbench.tasks.suite import FIRST_TOKENS, Suite
from kvbench.tasks.task import Sample, Task

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


@dataclass(frozen=True)
class Variant:
    """One method at one budget, a row of the table."""

    label: str
    """Unique in the run: `spindlekv@0.2`, with changed fields: `spindlekv@0.2[beta=0.1]`."""
    choice: str
    """File stem in conf/method."""
    method: Method
    config: Mapping[str, Any]
    """The method's fields as configured, JSON-able."""
    budget: Budget

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the class, its fields, source code and classifiers, and the budget."""
        budget = self.budget.fraction if self.budget.tokens is None else self.budget.tokens
        parts = [_method_parts(self.method), self.budget.tokens is None, budget]
        trained = sorted(self.method.needs.classifiers - {ORACLE})
        return fingerprint(parts + [classifier_digest(folder) for folder in trained])


@dataclass(frozen=True)
class Plan:
    """What one job runs."""

    model: ModelSpec
    suite: Suite[Any]
    """Names the tasks and reads their samples."""
    suite_choice: str
    """File stem in conf/task."""
    data: str
    """`sample`, `hub`, or a path; the suite's own data by its short name."""
    hub_repo: str
    """Dataset repository that `hub` reads."""
    data_revision: str | None
    """Its branch, tag or commit; None: the pinned one."""
    protocol: Protocol
    variants: tuple[Variant, ...]
    """The baseline first, if there is one."""
    limit: int | None
    """First records of each task; None: all."""
    out: Path
    """Folder of the records."""
    decode_width: int | None
    """Rows decoded together; None: one per variant."""
    analysis: str | None
    """What is measured instead of answers, one of `ANALYSES`; None: answers."""
    memory_bytes: int | None
    """What prefill and decode batches may take beside the model; None: most of what is free."""
    shard: int
    """Which part of the samples is this job's, from 0."""
    shards: int
    """Parts that the samples are dealt into."""
    retry_failed: bool
    """Whether results that failed before are computed again."""
    prefill_cache: CacheFolder | None
    """Where prefills are kept for later runs; None: nowhere."""
    config: Mapping[str, Any]
    """The resolved configuration, JSON-able, for the run header."""

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The scored tasks in table order, their generation capped as the protocol says."""
        tasks = self.suite.tasks(self.protocol.code_similarity)
        most = self.protocol.max_new_tokens
        if most is None:
            return tasks
        return tuple(replace(t, max_new_tokens=min(most, t.max_new_tokens)) for t in tasks)

    @cached_property
    def model_identity(self) -> Mapping[str, Any]:
        """What identifies the weights and their dtype."""
        return model_identity(self.model)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the model and the protocol: what every record of the run shares."""
        return fingerprint([self.model_identity, self.model.context, asdict(self.protocol)])


def record_key(plan: Plan, variant: Variant, sample: Sample) -> str:
    """Name the one result that these three have, whichever run makes it.

    The key covers what can change a result: weights and dtype, protocol, the task's prompt and
    limits, the sample's content, the method with its fields, code and budget. It does not cover
    where records go, what else is run, or the scoring code (records can be scored again).
    """
    parts = plan.digest + variant.digest + _task_digest(sample.task) + sample.digest
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def fingerprint(parts: object) -> str:
    """Hash JSON-able parts: blake2b of sorted-key JSON, 32 hex digits; 1 and 1.0 are the same.

    Raises:
        TypeError: a part has no unique JSON form (NaN, a set, an object).
    """
    text = json.dumps(_plain(parts), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@lru_cache
def _task_digest(task: Task) -> str:
    names = ("name", "template", "max_new_tokens", "chat_template", "stop_at_newline")
    return fingerprint([getattr(task, name) for name in names])


def _method_parts(method: Method) -> list[object]:
    cls = type(method)
    assert is_dataclass(method)
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    nested = {k: _method_parts(v) if isinstance(v, Method) else v for k, v in values.items()}
    return [f"{cls.__module__}.{cls.__qualname__}", _code_version(cls), nested]


@lru_cache
def _code_version(cls: type[Method]) -> str:
    """Hash of the files that define the class and the methods it inherits from."""
    lineage = [c for c in cls.__mro__ if issubclass(c, Method) and c is not Method]
    files = dict.fromkeys(inspect.getsourcefile(c) for c in lineage)
    sources = b"".join(Path(f).read_bytes() for f in files if f)
    return hashlib.blake2b(sources, digest_size=8).hexdigest()


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} has no JSON form")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise TypeError(f"keys of {value!r} are not all text")
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    raise TypeError(f"{value!r} has no unique JSON form")
