"""The loop: sample, prompt, prefill, compress, decode, score, record.

One prefill serves all variants of a sample, and those of several samples decode as one batch. A
failure costs one sample, or one variant of it. Knows nothing of Hydra, tables or single methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from kvbench.base.progress import Progress
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.disk import PrefillCache
from kvbench.records.header import DataFacts
from kvbench.records.reader import done_keys, failed_keys
from kvbench.records.record import Record
from kvbench.records.summary import Summary, reason_of
from kvbench.records.writer import Writer
from kvbench.run.interruption import Interruption
from kvbench.run.memory import bytes_to_take
from kvbench.run.prepare import prompt_of, read_samples, split_prompt, stop_rule
from kvbench.run.result import result_record, run_header
from kvbench.run.sample import Limits, Outcome, Work, evaluate
from kvbench.tasks.prompt import Prompt
from kvbench.tasks.task import Sample, Task

_LONG_ANSWER = 256  # tokens

MOST_ROWS = 16
"""Rows of a decode batch, unless the configuration says: in a wider one more rows are idle, and
computed all the same, while the last answers of a run are written."""


def execute(plan: Plan, progress: bool = True) -> Summary:
    """Compute and record every result of the plan that its run folder does not hold yet.

    Results that failed before are computed again only where the plan says so.

    Args:
        plan: what is run.
        progress: whether a display on stderr shows how far it is.

    Raises:
        UserError: data, model or run folder cannot be used; nothing was recorded then.
        KeyboardInterrupt: Ctrl-C, once the samples at hand are recorded.
    """
    source, samples = read_samples(plan)
    data = DataFacts(
        setting=plan.data,
        description=source.description,
        revision=source.revision,
        hashes={task.name: source.content_hash([task.name]) for task in samples},
    )
    pending = pending_results(plan, samples)
    todo, total, known = pending.todo, pending.count, pending.known
    if not todo:
        return Summary(0, 0, known, pending.failed)

    model = load(plan.model)
    for sample, _ in todo:
        # Without truncation any prompt may be too long: found before anything is recorded.
        if plan.protocol.truncation == "none" or sample.task.length_setting:
            prompt_of(plan, model, sample)
    expected = {task.name: len(found) for task, found in samples.items()}
    header = run_header(plan, expected, data, model.devices)
    kept = None if plan.prefill_cache is None else PrefillCache(plan.prefill_cache)
    limits = limits_of(plan, model, pending.samples)
    reasons: Counter[str] = Counter()
    with (
        Progress(plan.model.name, total, shown=progress) as display,
        Interruption(display.note) as interruption,
        Writer(plan.out, header) as writer,
    ):

        told: set[int] = set()

        def tell_of_others() -> None:
            """Say who else writes here, once each; the jobs of one sweep do so on purpose."""
            new = set(writer.others()) - told if plan.shards == 1 else set()
            told.update(new)
            for process in sorted(new):
                display.note(
                    f"kvbench: process {process} is writing to {plan.out} too: what both are asked"
                    " for is computed twice; stop one, and the same command goes on"
                )

        def works() -> Iterator[_Work]:
            for sample, missing in todo:
                if interruption.asked:
                    return
                tell_of_others()
                display.sample(f"{sample.task.name} {sample.id[:12]}")
                yield work_of(plan, model, sample, missing)

        take = capture if kept is None else kept.capture
        for work, outcome in evaluate(model, works(), limits, display, take):
            record = _record(plan, model, work, outcome, limits.width)
            writer.append(record)
            reasons.update([reason_of(record.error)] if record.error is not None else [])
            display.advance(1, int(record.error is not None))
        interruption.stop_if_asked()
    prefills = None if kept is None else (kept.found, kept.made)
    return Summary(total, reasons.total(), known, pending.failed, dict(reasons), prefills)


@dataclass(frozen=True)
class Pending:
    """What a run folder lacks of a plan."""

    samples: int
    """Of this job, whatever is known of them."""
    todo: list[tuple[Sample, list[Variant]]]
    """Each sample that lacks something, with the variants it lacks."""
    known: int
    """Results that are there, failures included."""
    failed: int
    """Of these, the failures that are not tried again."""

    @property
    def count(self) -> int:
        """Results to be computed."""
        return sum(len(missing) for _, missing in self.todo)


def pending_results(plan: Plan, samples: Mapping[Task, Sequence[Sample]]) -> Pending:
    """What the plan's folder lacks, in the order in which it is computed."""
    mine = interleaved(list(samples.values()))[plan.shard :: plan.shards]
    failures = frozenset() if plan.retry_failed else failed_keys(plan.out)
    todo, failed = missing_results(plan, mine, done_keys(plan.out), failures)
    total = sum(len(missing) for _, missing in todo)
    return Pending(len(mine), todo, len(mine) * len(plan.variants) - total, failed)


def limits_of(plan: Plan, model: LoadedModel, samples: int) -> Limits:
    """How much a plan computes at once."""
    return Limits(
        width=plan.decode.width or min(MOST_ROWS, samples * len(plan.variants)),
        room=bytes_to_take(model, plan.memory_bytes),
        as_stored=plan.decode.cache == "stored",
        graph=plan.decode.graph,
    )


def missing_results(
    plan: Plan, samples: Sequence[Sample], done: Set[str], failed: Set[str]
) -> tuple[list[tuple[Sample, list[Variant]]], int]:
    """What is to be computed of a plan's samples.

    Args:
        plan: names the variants.
        samples: in the order they will run.
        done: keys of results that are there.
        failed: keys of failures that are not to be tried again.

    Returns:
        Each sample that lacks something with the variants it lacks, and how many results are left
        out because they failed.
    """
    todo, left_out = [], 0
    for sample in samples:
        keys = {plan.record_key(variant, sample): variant for variant in plan.variants}
        left_out += len(keys.keys() & failed)
        if missing := [v for key, v in keys.items() if key not in done and key not in failed]:
            todo.append((sample, missing))
    return todo, left_out


def interleaved(tasks: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Order samples so that every stretch holds each task in proportion to its size.

    The time left then settles early, a run cut short has something of every task, and shards cost
    alike. Tasks with long answers run a little ahead, so that the batch is full while the last of
    them are written.
    """
    placed = [
        ((i + 0.5) / len(samples) * _ahead(samples[i].task), samples[i])
        for samples in tasks
        for i in range(len(samples))
    ]
    return [sample for _, sample in sorted(placed, key=lambda pair: pair[0])]


def _ahead(task: Task) -> float:
    return 0.75 if task.max_new_tokens >= _LONG_ANSWER else 1.0


@dataclass(frozen=True, kw_only=True)
class _Work(Work):
    """One sample with its prompt."""

    prompt: Prompt


def work_of(plan: Plan, model: LoadedModel, sample: Sample, variants: Sequence[Variant]) -> _Work:
    """What is to be computed of one sample."""
    prompt = prompt_of(plan, model, sample)
    head, feed = split_prompt(prompt, plan.protocol)
    return _Work(
        sample=sample,
        head=head,
        feed=feed,
        stop=stop_rule(plan.protocol, sample.task, model),
        variants=tuple(variants),
        spans=prompt.spans,
        prompt=prompt,
    )


def _record(
    plan: Plan, model: LoadedModel, work: _Work, outcome: Outcome, width: int
) -> Record:
    """Score one outcome and put everything known about it into a record."""
    sample, prompt, generation = work.sample, work.prompt, outcome.generation
    task = sample.task
    prediction, scores = None, {}
    if generation is not None:
        prediction = model.tokenizer.decode(generation.ids, skip_special_tokens=True)
        scores = dict(task.score(prediction, sample))
    return result_record(
        outcome.variant,
        outcome.ledger,
        scores,
        tail_bytes=None if generation is None else generation.tail_bytes,
        key=plan.record_key(outcome.variant, sample),
        model=plan.model.name,
        suite=plan.suite_choice,
        task=task.name,
        group=task.group,
        sample=sample.id,
        query_aware=plan.protocol.query_aware,
        prompt_tokens=len(prompt),
        prefill_tokens=len(work.head),
        tokens_cut=prompt.tokens_cut,
        spans={name: list(span) for name, span in prompt.spans.items()},
        span_kept=dict(outcome.span_kept),
        prediction=prediction,
        generated_tokens=None if generation is None else len(generation.ids),
        answers=list(sample.answers),
        scored_fields=sample.scored_fields,
        facts=dict(outcome.facts or {}),
        decode_width=width if generation is not None else None,
        capture_s=outcome.capture_s,
        compress_s=outcome.compress_s,
        decode_s=None if generation is None else generation.seconds,
        decode_bytes=None if generation is None else generation.decode_bytes,
        reader=None if generation is None else generation.reader,
        error=outcome.error,
        prompt_tail=_tail(model, prompt),
    )


def _tail(model: LoadedModel, prompt: Prompt) -> str:
    """The end of the prompt, where the question is, for readers of the record."""
    characters = 400
    # No token is shorter than a byte, so these are enough.
    text: str = model.tokenizer.decode(prompt.ids[-4 * characters :])
    return text[-characters:]
