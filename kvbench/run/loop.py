"""The loop: sample, prompt, prefill, compress, decode, score, record.

One prefill serves all variants of a sample, and they decode as one batch. A failure costs one
sample, or one variant of it. Knows nothing of Hydra, tables or single methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from kvbench.base.progress import Progress
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.disk import PrefillCache
from kvbench.records.header import DataFacts
from kvbench.records.reader import done_keys, failed_keys
from kvbench.records.record import Record
from kvbench.records.summary import Summary
from kvbench.records.writer import Writer
from kvbench.run.caches import TakePrefill
from kvbench.run.interruption import Interruption
from kvbench.run.memory import bytes_to_take
from kvbench.run.prepare import prompt_of, read_samples, split_prompt, stop_rule
from kvbench.run.result import result_record, run_header
from kvbench.run.sample import Outcome, Work, evaluate
from kvbench.tasks.prompt import Prompt
from kvbench.tasks.task import Sample


def execute(plan: Plan, progress: bool = True) -> Summary:
    """Compute and record every result of the plan that its run folder does not hold yet.

    Results that failed before are computed again only where the plan says so.

    Args:
        plan: what is run.
        progress: whether a display on stderr shows how far it is.

    Raises:
        UserError: data, model or run folder cannot be used; nothing was recorded then.
        KeyboardInterrupt: Ctrl-C, once the sample at hand is recorded.
    """
    source, samples = read_samples(plan)
    data = DataFacts(
        setting=plan.data,
        description=source.description,
        revision=source.revision,
        hashes={task.name: source.content_hash([task.name]) for task in samples},
    )
    mine = interleaved(list(samples.values()))[plan.shard :: plan.shards]
    failures = frozenset() if plan.retry_failed else failed_keys(plan.out)
    todo, failed_before = missing_results(plan, mine, done_keys(plan.out), failures)
    total = sum(len(missing) for _, missing in todo)
    known = len(mine) * len(plan.variants) - total
    if not todo:
        return Summary(0, 0, known, failed_before)

    model = load(plan.model)
    for sample, _ in todo:
        # Without truncation any prompt may be too long: found before anything is recorded.
        if plan.protocol.truncation == "none" or sample.task.length_setting:
            prompt_of(plan, model, sample)
    expected = {task.name: len(found) for task, found in samples.items()}
    header = run_header(plan, expected, data, str(model.device))
    take = capture if plan.prefill_cache is None else PrefillCache(plan.prefill_cache).capture
    failed = 0
    with (
        Progress(plan.model.name, total, shown=progress) as display,
        Interruption(display.note) as interruption,
        Writer(plan.out, header) as writer,
    ):
        for sample, missing in todo:
            display.sample(f"{sample.task.name} {sample.id[:12]}")
            for record in _results(plan, model, sample, missing, display, take):
                writer.append(record)
                failed += record.error is not None
                display.advance(1, int(record.error is not None))
            interruption.stop_if_asked()
    return Summary(total, failed, known, failed_before)


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
    alike.
    """
    placed = [
        ((i + 0.5) / len(samples), samples[i]) for samples in tasks for i in range(len(samples))
    ]
    return [sample for _, sample in sorted(placed, key=lambda pair: pair[0])]


def _results(
    plan: Plan,
    model: LoadedModel,
    sample: Sample,
    variants: Sequence[Variant],
    progress: Progress,
    take: TakePrefill,
) -> Iterator[Record]:
    """Yield the record of each variant of one sample, from one prefill."""
    progress.phase("prompt")
    prompt = prompt_of(plan, model, sample)
    head, feed = split_prompt(prompt, plan.protocol)
    work = Work(
        sample=sample,
        head=head,
        feed=feed,
        spans=prompt.spans,
        stop=stop_rule(plan.protocol, sample.task, model),
        width=plan.decode_width or len(plan.variants),
        memory_bytes=plan.memory_bytes or bytes_to_take(model),
    )
    for outcome in evaluate(model, work, variants, progress, take):
        yield _record(plan, model, prompt, work, outcome)


def _record(
    plan: Plan,
    model: LoadedModel,
    prompt: Prompt,
    work: Work,
    outcome: Outcome,
) -> Record:
    """Score one outcome and put everything known about it into a record."""
    sample, generation = work.sample, outcome.generation
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
        decode_width=work.width if generation is not None else None,
        capture_s=outcome.capture_s,
        compress_s=outcome.compress_s,
        decode_s=outcome.decode_s,
        error=outcome.error,
        prompt_tail=_tail(model, prompt),
    )


def _tail(model: LoadedModel, prompt: Prompt) -> str:
    """The end of the prompt, where the question is, for readers of the record."""
    characters = 400
    # No token is shorter than a byte, so these are enough.
    text: str = model.tokenizer.decode(prompt.ids[-4 * characters :])
    return text[-characters:]
