"""What a run does, frozen: model, tasks, protocol and variants; and the name of each result.

A plan says everything a run needs and nothing of how it goes. Knows nothing of Hydra: plans are
made in `kvbench.config.planning`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbench.base.hashing import fingerprint
from kvbench.classifier.training import Training
from kvbench.model.spec import ModelSpec, model_identity
from kvbench.plan.keys import road_code, task_digest
from kvbench.plan.protocol import Protocol
from kvbench.plan.settings import Decoding, Lengths, LmEvalTasks
from kvbench.plan.variant import Variant
from kvbench.prefill.disk import PrefillFolder
from kvbench.tasks.suite import Suite
from kvbench.tasks.task import Sample, Task


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
    decode: Decoding
    """How answers are decoded."""
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
    prefill_cache: PrefillFolder | None
    """Where prefills are kept for later runs; None: nowhere."""
    speed: Lengths
    """What is timed where speed is measured."""
    training: Training
    """How a task classifier is trained."""
    lm_eval: LmEvalTasks
    """What lm-eval evaluates."""
    paper: Mapping[str, Any] | None
    """What the experiment says of the paper's table that its results stand beside."""
    stated: Mapping[str, Any]
    """The resolved configuration, JSON-able: written into the run header and read by nothing."""

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
        """Fingerprint of model, protocol and code: what all records of the run share."""
        model = [self.model_identity, self.model.context, self.model.chat_template_kwargs]
        return fingerprint([*model, asdict(self.protocol), road_code()])

    def record_key(self, variant: Variant, sample: Sample) -> str:
        """Name the one result that a variant has on a sample, whichever run makes it.

        The key covers what can change a result: weights and dtype, protocol, the task's prompt and
        limits, the sample's content, the method with its fields and budget, the code on the road
        and the releases of torch and transformers. It does not cover where records go, what else
        is run, or the scoring code (records can be scored again).
        """
        parts = self.digest + variant.digest + task_digest(sample.task) + sample.digest
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


