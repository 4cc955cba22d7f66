"""One evaluation of lm-eval's for each variant, and what it leaves: records and printed tables.

lm-eval builds prompts and computes metrics; `kvbench.lmeval.model` answers. An answer is on disk
as soon as it is computed, so a run that was stopped computes what is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.lmeval.loading import loaded_tasks, roots
from kvbench.lmeval.model import KVBench
from kvbench.lmeval.private import facts_left_out
from kvbench.lmeval.results import Answers, lm_eval_header, records
from kvbench.model.loading import load
from kvbench.plan.plan import Plan
from kvbench.records.reader import done_keys
from kvbench.records.summary import Summary
from kvbench.records.writer import Writer
from kvbench.report.forms.terminal import width


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation came to."""

    summary: Summary
    tables: str
    """lm-eval's numbers, the variants of each metric one below the other."""


def evaluate(plan: Plan, settings: Any) -> Evaluated:
    """Evaluate every variant of a plan and record the results.

    Args:
        plan: with `lm_eval`.
        settings: lm-eval's EvaluatorConfig.

    Raises:
        UserError: a task cannot be loaded, or asks for what cannot be answered; nothing was
            recorded then.
    """
    manager, loaded = loaded_tasks(plan, settings)
    devices = load(plan.model).devices
    limit = settings.limit if settings.limit is not None else plan.limit
    done = done_keys(plan.out)
    computed = known = 0
    lines: list[_Line] = []
    header = lm_eval_header(plan, loaded, settings, limit, devices)
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
    return Evaluated(Summary(computed, 0, known), _drawn(lines))


def _evaluated(
    model: KVBench, manager: TaskManager, loaded: Mapping[str, Any], settings: Any, limit: Any
) -> Any:
    """lm-eval's results for the model's current variant, its samples included."""
    tracker = None
    if settings.output_path:
        tracker = EvaluationTracker(output_path=str(_output_path(settings, model.variant.label)))
    seeds = settings.seed or [None] * 4
    with nullcontext() if tracker else facts_left_out():
        results = simple_evaluate(
            model=model,
            model_args={"model": model.plan.model.name, "variant": model.variant.label},
            tasks=roots(loaded),
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


def _drawn(lines: Sequence[_Line]) -> str:
    """lm-eval's numbers as text."""
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
    out = StringIO()
    Console(file=out, width=width(), highlight=False).print(table)
    return out.getvalue()


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value in (None, "N/A") else str(value)
