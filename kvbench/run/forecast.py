"""What a run would do and cost: counted, and timed on its first prompts; nothing is recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kvbench.base.sizes import shown_bytes
from kvbench.model.loading import load
from kvbench.plan.plan import Plan
from kvbench.run.caches import needs_of
from kvbench.run.loop import limits_of, pending_results, work_of
from kvbench.run.memory import prefill_bytes
from kvbench.run.prepare import prompt_of, read_samples
from kvbench.run.sample import evaluate

TRIED = 2
"""Prompts that are computed to tell the time by."""


@dataclass(frozen=True)
class Forecast:
    """What is to be done, and about what it takes."""

    results: int
    """To be computed."""
    known: int
    """Recorded before, failures included."""
    variants: tuple[str, ...]
    prompts: int
    prompt_tokens: int
    """Of all prompts together."""
    longest: int
    """Tokens of the longest prompt."""
    prefill_bytes: int
    """Of the prompt whose prefill takes most, on the device where that is most."""
    room_bytes: int
    """What may be taken there."""
    seconds: float
    """About how long the run takes, its model loaded."""
    tried: int
    """Prompts that the seconds were measured on."""

    def text(self, folder: Path) -> str:
        """Return it in a few lines."""
        lines = [f"{folder}: {self.results} results to compute, {self.known} known already"]
        if self.results:
            lines += [
                f"variants: {', '.join(self.variants)}",
                f"{self.prompts} prompts of {self.prompt_tokens} tokens together, the longest"
                f" {self.longest}",
                f"memory: a prefill takes up to about {shown_bytes(self.prefill_bytes)} of the"
                f" {shown_bytes(self.room_bytes)} that may be taken",
                f"time: about {_duration(self.seconds)} once the model is loaded, as the first"
                f" {self.tried} prompts took",
            ]
        return "\n".join([*lines, "nothing was recorded"]) + "\n"


class _Unwatched:
    """Nobody is told what is being computed."""

    def phase(self, name: str) -> None:
        pass

    def generated(self, tokens: int) -> None:
        pass


def forecast(plan: Plan) -> Forecast:
    """Count what a plan would compute, and time it on its first prompts.

    Raises:
        UserError: data, model or run folder cannot be used.
    """
    _, samples = read_samples(plan)
    pending = pending_results(plan, samples)
    if not pending.todo:
        return Forecast(0, pending.known, (), 0, 0, 0, 0, 0, 0.0, 0)
    model = load(plan.model)
    limits = limits_of(plan, model, pending.samples)
    lengths, peak, room = [], 0, 0
    for sample, missing in pending.todo:
        lengths.append(len(prompt_of(plan, model, sample)))
        needed = prefill_bytes(model, lengths[-1], needs_of(missing, lengths[-1]))
        device = max(needed, key=lambda d: needed[d])
        if needed[device] > peak:
            peak, room = needed[device], limits.room[device]
    first = [work_of(plan, model, *one) for one in pending.todo[:TRIED]]
    began = time.perf_counter()
    outcomes = list(evaluate(model, first, limits, _Unwatched()))
    elapsed = time.perf_counter() - began
    captures = {(work.sample.id, outcome.capture_s or 0.0) for work, outcome in outcomes}
    reading = sum(s for _, s in captures) + sum(o.compress_s or 0.0 for _, o in outcomes)
    answers = [sample.task.max_new_tokens * len(m) for sample, m in pending.todo]
    seconds = reading * sum(lengths) / sum(lengths[: len(first)])
    seconds += max(0.0, elapsed - reading) * sum(answers) / sum(answers[: len(first)])
    return Forecast(
        results=pending.count,
        known=pending.known,
        variants=tuple(dict.fromkeys(v.label for _, missing in pending.todo for v in missing)),
        prompts=len(lengths),
        prompt_tokens=sum(lengths),
        longest=max(lengths),
        prefill_bytes=peak,
        room_bytes=room,
        seconds=seconds,
        tried=len(first),
    )


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"
