"""Whether a prompt asks to localise information or to aggregate it (WindowKV, section 2.2.1).

The oracle reads it off the task; trained classifiers read the prompt's text. Training them is
`kvbench.train_classifier`. Imports neither torch nor transformers until an encoder is used.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvbench.tasks.task import Sample, Task

LOCALISATION = "localisation"
"""The answer lies in some passage: question answering."""

AGGREGATION = "aggregation"
"""The answer draws on the whole text: everything else."""

TASK_TYPES = (LOCALISATION, AGGREGATION)

ORACLE = "oracle"
"""The classifier that knows the task."""

_LOCALISATION_GROUPS = ("Single-Document QA", "Multi-Document QA")


def oracle(task: Task) -> str:
    """Task type by the paper's Table 1: question answering over documents localises."""
    return LOCALISATION if task.group in _LOCALISATION_GROUPS else AGGREGATION


def task_types(classifiers: Iterable[str], sample: Sample) -> dict[str, str]:
    """What each classifier says of a sample's prompt."""
    return {name: oracle(sample.task) for name in classifiers}
