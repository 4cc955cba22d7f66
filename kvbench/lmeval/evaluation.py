"""One evaluation of lm-eval's for each variant, and what it leaves: records and printed tables.

lm-eval builds prompts and computes metrics; `kvbench.lmeval.model` answers. An answer is on disk
as soon as it is computed, so a run that was stopped computes what is missing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.errors import UserError
from kvbench.lmeval.model import ROLLING_REFUSED, KVBench, greedy_settings
from kvbench.lmeval.results import LOCAL_DATA, Answers, asked_settings, lm_eval_header, records
from kvbench.model import load
from kvbench.plan import Plan
from kvbench.record import Writer, done_keys
from kvbench.run import Summary
from kvbench.suggest import did_you_mean

_SPLITS = ("train", "validation", "test")


def evaluate(plan: Plan, settings: Any) -> Summary:
    """Evaluate every variant of a plan, record the results and print lm-eval's tables.

    Args:
        plan: with `lm_eval.tasks` and `lm_eval.data` in its configuration.
        settings: lm-eval's EvaluatorConfig.

    Raises:
        UserError: a task cannot be loaded, or asks for what cannot be answered; nothing was
            recorded then.
    """
    manager, loaded = _loaded_tasks(plan, settings)
    for name, task in loaded["tasks"].items():
        _check_task(name, task, settings)
    device = str(load(plan.model).device)
    limit = settings.limit if settings.limit is not None else plan.limit
    done = done_keys(plan.out)
    computed = known = 0
    lines: list[_Line] = []
    header = lm_eval_header(plan, loaded, settings, limit, device)
    with Writer(plan.out, header) as writer:
        answers = Answers(plan.out, writer)
        model = KVBench(plan, answers.known, answers.keep)
        for variant in plan.variants:
            model.variant = variant
            results = _evaluated(model, manager, loaded, settings, limit)
            lines += _lines(variant.label, results)
            for record in records(model, variant, results["samples"], header):
                if record.key in done:
                    known += 1
                else:
                    writer.append(record)
                    computed += 1
    _print(lines)
    return Summary(computed, 0, known)


def _evaluated(
    model: KVBench, manager: TaskManager, loaded: Mapping[str, Any], settings: Any, limit: Any
) -> Any:
    """lm-eval's results for the model's current variant, its samples included."""
    tracker = None
    if settings.output_path:
        tracker = EvaluationTracker(output_path=str(_output_path(settings, model.variant.label)))
    seeds = settings.seed or [None] * 4
    with nullcontext() if tracker else _facts_left_out():
        results = simple_evaluate(
            model=model,
            model_args={"model": model.plan.model.name, "variant": model.variant.label},
            tasks=_roots(loaded),
            num_fewshot=settings.num_fewshot,
            batch_size=settings.batch_size,
            limit=limit,
            samples=settings.samples,
            cache_requests=settings.cache_requests.get("cache_requests", False),
            rewrite_requests_cache=settings.cache_requests.get("rewrite_requests_cache", False),
            delete_requests_cache=settings.cache_requests.get("delete_requests_cache", False),
            check_integrity=settings.check_integrity,
            write_out=settings.write_out,
            log_samples=True,
            evaluation_tracker=tracker,
            system_instruction=settings.system_instruction,
            apply_chat_template=settings.apply_chat_template,
            fewshot_as_multiturn=bool(settings.fewshot_as_multiturn),
            gen_kwargs=settings.gen_kwargs,
            task_manager=manager,
            predict_only=settings.predict_only,
            random_seed=seeds[0],
            numpy_random_seed=seeds[1],
            torch_random_seed=seeds[2],
            fewshot_random_seed=seeds[3],
            confirm_run_unsafe_code=settings.confirm_run_unsafe_code,
            metadata=settings.metadata,
        )
    assert results is not None
    if tracker is not None:
        _save(tracker, results, with_samples=settings.log_samples)
    return results


def _save(tracker: EvaluationTracker, results: Any, *, with_samples: bool) -> None:
    """Write lm-eval's own result files."""
    numbers = {key: value for key, value in results.items() if key != "samples"}
    samples = copy.deepcopy(results["samples"]) if with_samples else {}  # saving changes them
    tracker.save_results_aggregated(results=numbers, samples=samples)
    for name, rows in samples.items():
        tracker.save_results_samples(task_name=name, samples=rows)


@contextmanager
def _facts_left_out() -> Iterator[None]:
    """Keep lm-eval from running pip and git for facts that only a tracker writes."""
    with patch("lm_eval.evaluator.add_env_info"), patch("lm_eval.evaluator.get_git_commit_hash"):
        yield


def _output_path(settings: Any, label: str) -> Path:
    """A folder of the variant's own inside --output_path."""
    return Path(settings.output_path) / label.replace("/", "_")


@dataclass(frozen=True)
class _Line:
    """One number of lm-eval's results."""

    metric: str
    """Task, metric and, if there is one, filter."""
    variant: str
    value: object
    error: object
    """Standard error; None: lm-eval gives none."""


def _lines(label: str, results: Any) -> list[_Line]:
    """What lm-eval found for one variant."""
    lines = []
    for task, found in results["results"].items():
        for name, value in found.items():
            metric, comma, filtered = name.partition(",")
            if comma and not metric.endswith("_stderr"):
                error = found.get(f"{metric}_stderr,{filtered}")
                named = f"{task} {metric}" + (f", {filtered}" if filtered != "none" else "")
                lines.append(_Line(named, label, value, error))
    return lines


def _print(lines: Sequence[_Line]) -> None:
    """Print lm-eval's numbers, the variants of each metric one below the other."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("lm-eval's results", overflow="fold", min_width=30)
    table.add_column("value", justify="right")
    table.add_column("stderr", justify="right")
    for metric in dict.fromkeys(line.metric for line in lines):
        table.add_row(Text(metric, style="bold"))
        found = [line for line in lines if line.metric == metric]
        for line in found:
            cells = (f"  {line.variant}", _shown(line.value), _shown(line.error))
            table.add_row(*map(Text, cells), end_section=line is found[-1])
    Console(highlight=False).print(table)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value in (None, "N/A") else str(value)


def _loaded_tasks(plan: Plan, settings: Any) -> tuple[TaskManager, Mapping[str, Any]]:
    """The tasks that the plan names, their data read: lm-eval's `tasks`, `groups`, `group_map`."""
    datasets.disable_progress_bars()
    wanted = [name for name in str(plan.config["lm_eval"]["tasks"]).split(",") if name]
    metadata = json.dumps(settings.metadata or {}, sort_keys=True)
    include = settings.include_path
    # Reading all of lm-eval's own task files takes seconds; kvbench's and the user's may do.
    manager = _manager(include, metadata, lm_evals_own=False)
    if not all(_matches(manager, name) or _is_file_name(name) for name in wanted):
        manager = _manager(include, metadata, lm_evals_own=True)
    names: list[str] = []
    for name in wanted:
        matches = _matches(manager, name)
        if not matches:
            raise UserError(f"lm-eval has no task {name}: {did_you_mean(name, manager.all_tasks)}")
        names += [match for match in matches if match not in names]
    try:
        loaded: Mapping[str, Any] = manager.load(
            _with_data(names, str(plan.config["lm_eval"]["data"]))
        )
    except UserError:
        raise
    except Exception as error:  # tasks are files and code of others
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, KeyError):
            reason = f"the data has no split or field {reason}"
        raise UserError(f"tasks {', '.join(names)} cannot be loaded: {reason}") from error
    return manager, loaded


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
    if _is_file_name(name):
        return [name] if Path(name).is_file() else []
    return list(manager.match_tasks([name]))


def _is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


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


def _roots(loaded: Mapping[str, Any]) -> list[Any]:
    """Groups inside no other group, and tasks inside none."""
    groups = {n: g for n, g in loaded["groups"].items() if n != LOCAL_DATA}
    inside = {t.task_name for g in groups.values() for t in g.get_all_tasks()}
    nested = {g.name for group in groups.values() for g in group.get_all_groups()}
    return [g for n, g in groups.items() if n not in nested] + [
        t for n, t in loaded["tasks"].items() if n not in inside
    ]
