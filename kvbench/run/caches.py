"""From token ids to compressed caches: one prefill for all that can share it, a fit for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from kvbench.cache.store import Compressed
from kvbench.classifier.trained import task_types
from kvbench.compress.fit import fit_budget
from kvbench.model.loading import LoadedModel
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import Prefill
from kvbench.run.memory import Bytes, prefill_bytes, shortage
from kvbench.tasks.task import Sample

TakePrefill = Callable[[LoadedModel, Tensor, Needs, "PruningSchedule | None"], Prefill]
"""What makes a prefill: `kvbench.prefill.capture.capture`, or something that remembers its
results."""


def schedule_of(model: LoadedModel, tokens: int, variant: Variant) -> PruningSchedule | None:
    """Return how the prefill of a prompt prunes for a variant; None: the ordinary one."""
    return variant.method.pruning_schedule(tokens, model.geometry.layers, variant.budget)


def variants_by_schedule(
    model: LoadedModel, tokens: int, variants: Sequence[Variant]
) -> dict[PruningSchedule | None, list[Variant]]:
    """Return the variants that share each prefill of a prompt; None is the ordinary one."""
    sharing: dict[PruningSchedule | None, list[Variant]] = {}
    for variant in variants:
        sharing.setdefault(schedule_of(model, tokens, variant), []).append(variant)
    return sharing


def needs_of(variants: Sequence[Variant], tokens: int) -> Needs:
    """What the variants read of a prefill; nothing is read by those that keep it whole."""
    compressing = (v for v in variants if not v.budget.keeps_whole(tokens))
    return reduce(or_, (v.method.needs for v in compressing), Needs())


def shared_prefill(
    model: LoadedModel,
    ids: Tensor,
    variants: Sequence[Variant],
    schedule: PruningSchedule | None,
    *,
    room: Bytes | None = None,
    sample: Sample | None = None,
    further: Needs | None = None,
    take: TakePrefill = capture,
) -> Prefill:
    """Return the prefill that variants share; nothing is captured for those that keep it whole.

    Args:
        model: the model.
        ids: [T] the prompt's tokens.
        variants: whose needs are captured.
        schedule: theirs, as `variants_by_schedule` says.
        room: what an ordinary prefill may take beside the model; None: anything.
        sample: whose prompt it is, for methods that read a task classifier.
        further: what else is captured.
        take: what makes the prefill.

    Raises:
        MemoryError: it would need more than it may take.
    """
    tokens = int(ids.shape[0])
    needs = needs_of(variants, tokens) | (further or Needs())
    needed = prefill_bytes(model, tokens, needs)
    if schedule is None and room is not None and not needed <= room:
        raise MemoryError(shortage(needed, room))
    types = {} if sample is None else task_types(needs.classifiers, sample)
    return replace(take(model, ids, needs, schedule), task_types=types)


def fitted_cache(variant: Variant, prefill: Prefill) -> Compressed:
    """Return what a variant keeps of a prefill, at its budget."""
    with torch.inference_mode():
        return fit_budget(variant.method, prefill, variant.budget)
