"""Runs an analysis: over a plan's samples prompt, prefill, compress, measure, draw.

The road of a run up to the caches; instead of answers there are figures and their numbers. Speed
and the task classifier, which need no samples' caches, are measured where they are at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kvbench.analysis.drawing import write_figure, write_numbers
from kvbench.analysis.measures import mean_of
from kvbench.analysis.panels import BY_NAME, Analysis, PrefillPanel
from kvbench.analysis.speed import record_speed
from kvbench.base.errors import UserError
from kvbench.base.progress import Progress
from kvbench.classifier.trained import MANIFEST
from kvbench.classifier.training import labeled_prompts, train
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.names import CLASSIFIER, SPEED
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.report.figures.style import FOLDER
from kvbench.run.caches import fitted_cache, schedule_of, shared_prefill
from kvbench.run.memory import bytes_to_take
from kvbench.run.prepare import prompt_of, read_samples, split_prompt
from kvbench.tasks.task import Sample


def analyze(plan: Plan, progress: bool = True) -> list[Path]:
    """Measure what a plan's analysis names, and leave it in the plan's folder.

    Args:
        plan: names it.
        progress: whether a display on stderr shows how far it is.

    Returns:
        The files written.

    Raises:
        UserError: data, model or folder cannot be used.
    """
    if plan.analysis == SPEED:
        return [record_speed(plan, progress)]
    if plan.analysis == CLASSIFIER:
        return [_trained_classifier(plan)]
    return _figures(plan, progress)


def _trained_classifier(plan: Plan) -> Path:
    """Train and test the classifier that a plan describes, into its run folder."""
    tasks = [task.name for task in plan.tasks]
    train(plan.out, labeled_prompts(plan.data, tasks, plan.limit), plan.training)
    return plan.out / MANIFEST


def _figures(plan: Plan, progress: bool) -> list[Path]:
    """Measure every sample and write the means, as figures and numbers named after the analysis."""
    assert plan.analysis is not None
    analysis = BY_NAME[plan.analysis]
    # FullKV keeps everything everywhere.
    variants = [v for v in plan.variants if analysis.of_methods and not v.is_baseline]
    _, of_tasks = read_samples(plan)
    samples = [sample for of_task in of_tasks.values() for sample in of_task]
    model = load(plan.model)
    measured = []
    with Progress(plan.model.name, len(samples), shown=progress) as display:
        for sample in samples:
            display.sample(f"{sample.task.name} {sample.id[:12]}")
            measured.append(_panels(plan, analysis, variants, model, sample, display))
            display.advance(1, 0)
    panels = _mean(measured)
    tasks = f"{len(of_tasks)} tasks" if len(of_tasks) > 1 else next(iter(of_tasks)).name
    counted = f"{len(samples)} samples" if len(samples) > 1 else "1 sample"
    title = f"{plan.model.name}, {tasks} ({counted}): {analysis.title}"
    files = write_figure(panels, plan.out / FOLDER, plan.analysis, title)
    numbers = plan.out / f"{plan.analysis}.csv"
    write_numbers(panels, numbers)
    return [*files, numbers]


def _panels(
    plan: Plan,
    analysis: Analysis,
    variants: Sequence[Variant],
    model: LoadedModel,
    sample: Sample,
    progress: Progress,
) -> list[PrefillPanel]:
    head, _ = split_prompt(prompt_of(plan, model, sample), plan.protocol)
    ids = torch.tensor(head)
    room = bytes_to_take(model, plan.memory_bytes)
    progress.phase("prefill")
    ordinary = [v for v in variants if schedule_of(model, len(head), v) is None]
    try:
        prefill = shared_prefill(
            model,
            ids,
            ordinary,
            None,
            room=room,
            sample=sample,
            further=analysis.needs,
        )
    except MemoryError as error:
        raise UserError(
            f"the prefill of {len(head)} tokens {error}: give shorter prompts with"
            " protocol.max_input_tokens=N, or more memory"
        ) from error
    caches = {}
    for variant in variants:
        progress.phase(f"compress {variant.label}")
        schedule = schedule_of(model, len(head), variant)
        own = prefill if schedule is None else shared_prefill(model, ids, [variant], schedule)
        caches[variant.label] = fitted_cache(variant, own)
    with torch.inference_mode():
        return list(analysis.panels(prefill, caches))


def _mean(measured: Sequence[Sequence[PrefillPanel]]) -> list[PrefillPanel]:
    """Average the samples' panels one by one."""
    return [
        replace(panels[0], values=mean_of([panel.values.cpu() for panel in panels]))
        for panels in zip(*measured, strict=True)
    ]
