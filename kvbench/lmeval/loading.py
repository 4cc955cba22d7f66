"""lm-eval's tasks: found by name, pattern or file, with the hub's data or local files.

Everything that cannot be answered is refused here, before a model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import datasets
from lm_eval.tasks import TaskManager

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean
from kvbench.lmeval.requests import ROLLING_REFUSED, greedy_settings, is_task_file
from kvbench.plan.plan import Plan

LOCAL_DATA = "local data"
"""The group that tasks with local data are loaded in; no group of lm-eval's."""

_SPLITS = ("train", "validation", "test")


def loaded_tasks(plan: Plan, settings: Any) -> tuple[TaskManager, Mapping[str, Any]]:
    """Return the tasks that a plan names, with their data.

    Args:
        plan: with `lm_eval`.
        settings: lm-eval's EvaluatorConfig.

    Returns:
        lm-eval's manager, and its `tasks`, `groups` and `group_map`.

    Raises:
        UserError: a task is unknown, cannot be loaded, or asks for what cannot be answered.
    """
    datasets.disable_progress_bars()
    wanted = plan.lm_eval.names
    metadata = json.dumps(settings.metadata or {}, sort_keys=True)
    include = settings.include_path
    # Reading all of lm-eval's own task files takes seconds; kvbench's and the user's may do.
    manager = _manager(include, metadata, lm_evals_own=False)
    if not all(_matches(manager, name) or is_task_file(name) for name in wanted):
        manager = _manager(include, metadata, lm_evals_own=True)
    names: list[str] = []
    for name in wanted:
        matches = _matches(manager, name)
        if not matches:
            raise UserError(f"lm-eval has no task {name}: {did_you_mean(name, manager.all_tasks)}")
        names += [match for match in matches if match not in names]
    try:
        loaded: Mapping[str, Any] = manager.load(
            _with_data(names, plan.lm_eval.data)
        )
    except UserError:
        raise
    except Exception as error:  # tasks are files and code of others
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, KeyError):
            reason = f"the data has no split or field {reason}"
        raise UserError(f"tasks {', '.join(names)} cannot be loaded: {reason}") from error
    for name, task in loaded["tasks"].items():
        _check_task(name, task, settings)
    return manager, loaded


def roots(loaded: Mapping[str, Any]) -> list[Any]:
    """Return the groups inside no other group, and the tasks inside none."""
    groups = {n: g for n, g in loaded["groups"].items() if n != LOCAL_DATA}
    inside = {t.task_name for g in groups.values() for t in g.get_all_tasks()}
    nested = {g.name for group in groups.values() for g in group.get_all_groups()}
    return [g for n, g in groups.items() if n not in nested] + [
        t for n, t in loaded["tasks"].items() if n not in inside
    ]


def asked_settings(task: Any, settings: Any) -> dict[str, Any]:
    """Return the generation settings of a task, with what --gen_kwargs changes."""
    return {**(task.config.generation_kwargs or {}), **(settings.gen_kwargs or {})}


@lru_cache
def _manager(include_path: str | None, metadata: str, lm_evals_own: bool) -> TaskManager:
    paths = [str(resources.files("kvbench.lmeval").joinpath("tasks"))]
    return TaskManager(
        include_path=paths + ([include_path] if include_path else []),
        include_defaults=lm_evals_own,
        metadata=json.loads(metadata),
    )


def _matches(manager: TaskManager, name: str) -> list[str]:
    """The tasks that a name, a pattern or a file stands for."""
    if is_task_file(name):
        return [name] if Path(name).is_file() else []
    return list(manager.match_tasks([name]))


def _with_data(names: Sequence[str], data: str) -> list[Any]:
    """What to load: tasks with their own data, or with local files instead."""
    if data == "hub":
        return list(names)
    folder = Path(data).expanduser()
    if data == "sample":
        folder = Path(str(resources.files("kvbench.lmeval").joinpath("samples")))
    members = [{"task": name, **_local_data(folder, name)} for name in names]
    return [{"group": LOCAL_DATA, "task": members}]


def _local_data(folder: Path, name: str) -> dict[str, Any]:
    """The settings of a task that reads `<folder>/<task>/<split>.jsonl`."""
    files = {
        split: str((folder / name / f"{split}.jsonl").resolve())
        for split in _SPLITS
        if (folder / name / f"{split}.jsonl").is_file()
    }
    if not files:
        raise UserError(
            f"{folder / name} holds none of {', '.join(f'{s}.jsonl' for s in _SPLITS)}: give"
            " data=FOLDER with a folder for each task, or data=hub"
        )
    return {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }


def _check_task(name: str, task: Any, settings: Any) -> None:
    """Refuse a task that cannot be answered, before the model is loaded."""
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise UserError(f"{name} cannot run under a compressed cache: {ROLLING_REFUSED}")
    if getattr(task, "MULTIMODAL", False):
        raise UserError(f"{name} asks about images or sound: kvbench runs language models")
    if getattr(task, "UNSAFE_CODE", False) and not settings.confirm_run_unsafe_code:
        raise UserError(f"{name} runs generated code: add --confirm_run_unsafe_code after --")
    if task.OUTPUT_TYPE == "generate_until":
        greedy_settings(asked_settings(task, settings), name)
