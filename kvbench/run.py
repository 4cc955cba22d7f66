"""The loop: sample, prompt, prefill, compress, decode, score, record.

One prefill serves all variants of a sample, and they decode as one batch. A failure costs one
sample, or one variant of it. Knows nothing of Hydra, tables or single methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial

from kvbench.capture import capture
from kvbench.capture_cache import CaptureCache
from kvbench.data import Source
from kvbench.decode import Stop
from kvbench.evaluate import Capture, Outcome, Work, evaluate
from kvbench.interruption import Interruption
from kvbench.ledger import Ledger
from kvbench.memory import SHARE_OF_FREE, free_bytes
from kvbench.model import LoadedModel, load, load_tokenizer
from kvbench.plan import Plan, Protocol, Variant, record_key
from kvbench.progress import Progress
from kvbench.prompt import Prompt, PromptRules, render
from kvbench.record import Record, Writer, done_keys, failed_keys, now, run_header
from kvbench.tasks.task import Sample, Task


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    computed: int
    """Results recorded now, failures included."""
    failed: int
    """Of these, the failures."""
    known: int
    """Results that were recorded before, failures included."""
    failed_before: int = 0
    """Of these, the failures, which are computed again only if asked for."""


def read_samples(plan: Plan) -> tuple[Source, dict[Task, tuple[Sample, ...]]]:
    """Open a plan's data and read the samples of its tasks.

    Raises:
        UserError: the data cannot be used.
    """
    source = plan.suite.source(plan.data, hub_repo=plan.hub_repo, revision=plan.data_revision)
    tokenizer = partial(load_tokenizer, plan.model)
    found = {t: tuple(plan.suite.samples(t, source, plan.limit, tokenizer)) for t in plan.tasks}
    return source, found


def execute(plan: Plan) -> Summary:
    """Compute and record every result of the plan that its run folder does not hold yet.

    Results that failed before are computed again only where the plan says so.

    Raises:
        UserError: data, model or run folder cannot be used; nothing was recorded then.
        KeyboardInterrupt: Ctrl-C, once the sample at hand is recorded.
    """
    source, samples = read_samples(plan)
    data = {
        "description": source.description,
        "revision": source.revision,
        "hashes": {task.name: source.content_hash([task.name]) for task in samples},
    }
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
    take = capture if plan.prefill_cache is None else CaptureCache(plan.prefill_cache).capture
    failed = 0
    with (
        Interruption() as interruption,
        Writer(plan.out, header) as writer,
        Progress(plan.model.name, total) as progress,
    ):
        for sample, missing in todo:
            progress.sample(f"{sample.task.name} {sample.id[:12]}")
            for record in _results(plan, model, sample, missing, progress, take):
                writer.append(record)
                failed += record.error is not None
                progress.advance(1, int(record.error is not None))
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
        keys = {record_key(plan, variant, sample): variant for variant in plan.variants}
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
    take: Capture,
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
        stop=_stop(plan.protocol, sample.task, model),
        width=plan.decode_width or len(plan.variants),
        memory_bytes=plan.memory_bytes or int(free_bytes(model.device) * SHARE_OF_FREE),
    )
    for outcome in evaluate(model, work, variants, progress, take):
        yield _record(plan, model, prompt, work, outcome)


def prompt_of(plan: Plan, model: LoadedModel, sample: Sample) -> Prompt:
    """The sample's prompt under the plan's protocol, known to fit with what is generated."""
    protocol = plan.protocol
    prompt = render(
        sample,
        model.tokenizer,
        PromptRules(protocol.truncation, protocol.chat_template),
        max_input_tokens=protocol.max_input_tokens,
        context_limit=model.geometry.context,
    )
    model.check_length(len(prompt), sample.task.max_new_tokens)
    return prompt


def split_prompt(prompt: Prompt, protocol: Protocol) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the ids into what is prefilled and compressed, and what is fed after compression.

    With `query_aware=false` the question is fed afterwards; with `first_token=compressed` at
    least the last token is, so that nothing generated has seen an evicted row. At least one token
    is prefilled.
    """
    border = len(prompt.ids) if protocol.query_aware else prompt.context_end
    if protocol.first_token == "compressed":
        border = min(border, len(prompt.ids) - 1)
    border = max(1, border)
    return prompt.ids[:border], prompt.ids[border:]


def _stop(protocol: Protocol, task: Task, model: LoadedModel) -> Stop:
    """When a generation of this task ends under this protocol."""
    ids = set(model.eos_ids)
    if protocol.stop == "tokenizer_eos":
        ids = {model.tokenizer.eos_token_id}
    newline = frozenset(model.tokenizer.encode("\n", add_special_tokens=False)[-1:])
    if protocol.stops_at_newline(task) or task.one_line_answers:
        ids |= newline
    skipped = newline if task.one_line_answers else frozenset[int]()
    return Stop(frozenset(ids), task.max_new_tokens, protocol.min_tokens(task), leading_ids=skipped)


def _record(
    plan: Plan,
    model: LoadedModel,
    prompt: Prompt,
    work: Work,
    outcome: Outcome,
) -> Record:
    """Score one outcome and put everything known about it into a record."""
    sample, variant = work.sample, outcome.variant
    task = sample.task
    prediction, scores, parts = None, {}, {}
    weights, generation = outcome.ledger, outcome.generation
    if generation is not None and weights is not None:
        prediction = model.tokenizer.decode(generation.ids, skip_special_tokens=True)
        scores = dict(task.score(prediction, sample))
        parts = {**weights.bytes_by_part, "tail": generation.tail_bytes}
    measured = asdict(weights) if weights is not None else dict.fromkeys(_LEDGER_FIELDS)
    lists = {name: list(measured[name] or ()) for name in ("r1", "r2", "kept_tokens")}
    budget = variant.budget
    return Record(
        **{
            **measured,
            **lists,
            "bytes_by_part": parts,
        },
        key=record_key(plan, variant, sample),
        model=plan.model.name,
        suite=plan.suite_choice,
        task=task.name,
        group=task.group,
        sample=sample.id,
        variant=variant.label,
        method=variant.choice,
        method_config=dict(variant.config),
        budget=budget.tokens if budget.fraction is None else budget.fraction,  # type: ignore[arg-type]
        budget_unit="tokens" if budget.fraction is None else "fraction",
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
        metric=next(iter(scores), None),
        score=next(iter(scores.values()), None),
        scores=scores,
        facts=dict(outcome.facts or {}),
        decode_width=work.width if generation is not None else None,
        capture_s=outcome.capture_s,
        compress_s=outcome.compress_s,
        decode_s=outcome.decode_s,
        error=outcome.error,
        finished=now(),
        prompt_tail=_tail(model, prompt),
    )


def _tail(model: LoadedModel, prompt: Prompt) -> str:
    """The end of the prompt, where the question is, for readers of the record."""
    characters = 400
    # No token is shorter than a byte, so these are enough.
    text: str = model.tokenizer.decode(prompt.ids[-4 * characters :])
    return text[-characters:]


_LEDGER_FIELDS = tuple(Ledger.__dataclass_fields__)
