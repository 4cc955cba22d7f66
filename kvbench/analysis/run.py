"""Runs an analysis: over a plan's samples prompt, prefill, compress, measure, draw.

The road of a run up to the caches; instead of answers there are figures and their numbers. Speed
and the task classifier, which need no samples' caches, are measured where they are at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path

import torch

from kvbench.analysis import CLASSIFIER, SPEED
from kvbench.analysis.draw import write_figure, write_numbers
from kvbench.analysis.measures import mean_of
from kvbench.analysis.panels import BY_NAME, Analysis, Panel
from kvbench.bench import record_speed
from kvbench.capture import capture
from kvbench.classifier import task_types
from kvbench.fit import fit
from kvbench.method import Needs
from kvbench.model import LoadedModel, load
from kvbench.plan import Plan, Variant
from kvbench.progress import Progress
from kvbench.record import BASELINE
from kvbench.run import prompt_of, read_samples, split_prompt
from kvbench.tasks.task import Sample
from kvbench.train_classifier import train_planned


def analyse(plan: Plan) -> list[Path]:
    """Measure what a plan's analysis names, and leave it in the plan's folder.

    Returns:
        The files written.

    Raises:
        UserError: data, model or folder cannot be used.
    """
    if plan.analysis == SPEED:
        return [record_speed(plan)]
    if plan.analysis == CLASSIFIER:
        return [train_planned(plan)]
    return _figures(plan)


def _figures(plan: Plan) -> list[Path]:
    """Measure every sample and write the means, as figures and numbers named after the analysis."""
    assert plan.analysis is not None
    analysis = BY_NAME[plan.analysis]
    # FullKV keeps everything everywhere.
    variants = [v for v in plan.variants if analysis.of_methods and v.choice != BASELINE]
    _, of_tasks = read_samples(plan)
    samples = [sample for of_task in of_tasks.values() for sample in of_task]
    model = load(plan.model)
    measured = []
    with Progress(plan.model.name, len(samples)) as progress:
        for sample in samples:
            progress.sample(f"{sample.task.name} {sample.id[:12]}")
            measured.append(_panels(plan, analysis, variants, model, sample, progress))
            progress.advance(1, 0)
    panels = _mean(measured)
    files = write_figure(panels, plan.out, plan.analysis)
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
) -> list[Panel]:
    head, _ = split_prompt(prompt_of(plan, model, sample), plan.protocol)
    ids = torch.tensor(head)
    needs = reduce(or_, (variant.method.needs for variant in variants), analysis.needs)
    progress.phase("prefill")
    prefill = capture(model, ids, needs)
    prefill = replace(prefill, task_types=task_types(needs.classifiers, sample))
    caches = {}
    for variant in variants:
        progress.phase(f"compress {variant.label}")
        pruning = variant.method.prefill_plan(len(head), model.geometry.layers, variant.budget)
        own = prefill if pruning is None else capture(model, ids, Needs(), pruning)
        with torch.inference_mode():
            caches[variant.label] = fit(variant.method, own, variant.budget)
    with torch.inference_mode():
        return list(analysis.panels(prefill, caches))


def _mean(measured: Sequence[Sequence[Panel]]) -> list[Panel]:
    """Average the samples' panels one by one."""
    return [
        replace(panels[0], values=mean_of([panel.values.cpu() for panel in panels]))
        for panels in zip(*measured, strict=True)
    ]
