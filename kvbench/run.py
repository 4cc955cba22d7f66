"""The loop: sample, prompt, prefill, compress, decode, score, record.

One prefill serves all variants of a sample, and they decode as one batch. A failure costs one
sample, or one variant of it. Knows nothing of Hydra, tables or single methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import torch

from kvbench.cache.store import Compressed
from kvbench.capture import capture
from kvbench.classifier import task_types
from kvbench.data import open_source
from kvbench.decode import Generation, Stop, decode
from kvbench.fit import fit
from kvbench.ledger import Ledger, ledger
from kvbench.method import Needs
from kvbench.model import LoadedModel, load
from kvbench.plan import Plan, Protocol, Variant, record_key, scored_fields
from kvbench.prefill import Prefill
from kvbench.progress import Progress
from kvbench.prompt import Prompt, PromptRules, render
from kvbench.pruning import PruningPlan
from kvbench.record import Record, Writer, done_keys, now, run_header
from kvbench.tasks.task import Sample, Task


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    computed: int
    """Results recorded now, failures included."""
    failed: int
    """Of these, the failures."""
    known: int
    """Results that were recorded before."""


@dataclass(frozen=True)
class _Outcome:
    """One variant of one sample, ready to be recorded."""

    variant: Variant
    error: str | None = None
    generation: Generation | None = None
    ledger: Ledger | None = None
    facts: Mapping[str, Any] | None = None
    capture_s: float | None = None
    compress_s: float | None = None
    decode_s: float | None = None


def execute(plan: Plan) -> Summary:
    """Compute and record every result of the plan that its run folder does not hold yet.

    Raises:
        UserError: data, model or run folder cannot be used; nothing was recorded then.
    """
    source = open_source(
        plan.data, hub_repo=plan.config["hub_repo"], revision=plan.config["data_revision"]
    )
    samples = {t: tuple(plan.suite.samples(t, source, plan.limit)) for t in plan.tasks}
    data = {
        "description": source.description,
        "revision": source.revision,
        "hashes": {task.name: source.content_hash([task.name]) for task in samples},
    }
    known = done_keys(plan.out)
    todo = [
        (sample, missing)
        for task_samples in samples.values()
        for sample in task_samples
        if (missing := [v for v in plan.variants if record_key(plan, v, sample) not in known])
    ]
    total = sum(len(missing) for _, missing in todo)
    recorded = sum(map(len, samples.values())) * len(plan.variants) - total
    if not todo:
        return Summary(0, 0, recorded)

    model = load(plan.model)
    if plan.protocol.truncation == "none":
        # Without truncation any prompt may be too long: found before anything is recorded.
        for sample, _ in todo:
            _prompt(plan, model, sample)
    expected = {task.name: len(found) for task, found in samples.items()}
    failed = 0
    header = run_header(plan, expected, data, str(model.device))
    with Writer(plan.out, header) as writer, Progress(plan.model.name, total) as progress:
        for sample, missing in todo:
            for record in _results(plan, model, sample, missing, progress):
                writer.append(record)
                failed += record.error is not None
                progress.advance(1, int(record.error is not None))
    return Summary(total, failed, recorded)


def _results(
    plan: Plan,
    model: LoadedModel,
    sample: Sample,
    variants: Sequence[Variant],
    progress: Progress,
) -> Iterator[Record]:
    """Yield the record of each variant of one sample, from one prefill."""
    progress.phase("prompt", f"{sample.task.name} {sample.id[:12]}")
    prompt = _prompt(plan, model, sample)
    head, feed = split_prompt(prompt, plan.protocol)
    stop = _stop(plan.protocol, sample.task, model)
    width = plan.decode_width or len(plan.variants)
    for first in range(0, len(variants), width):
        batch = variants[first : first + width]
        outcomes = _outcomes(model, sample, head, feed, stop, width, batch, progress.phase)
        for outcome in outcomes:
            yield _record(plan, model, sample, prompt, len(head), width, outcome)


def _prompt(plan: Plan, model: LoadedModel, sample: Sample) -> Prompt:
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
    if protocol.stops_at_newline(task):
        ids.add(model.tokenizer.encode("\n", add_special_tokens=False)[-1])
    return Stop(frozenset(ids), task.max_new_tokens, protocol.min_tokens(task))


def _outcomes(
    model: LoadedModel,
    sample: Sample,
    head: Sequence[int],
    feed: Sequence[int],
    stop: Stop,
    width: int,
    variants: Sequence[Variant],
    show: Callable[[str], None],
) -> list[_Outcome]:
    """Prefill once, compress for each variant, decode all as one batch.

    Variants that prune during the prefill have one of their own; all decode together.
    """
    prefills: dict[PruningPlan | None, list[Variant]] = {}
    for variant in variants:
        plan = variant.method.prefill_plan(len(head), model.geometry.layers, variant.budget)
        prefills.setdefault(plan, []).append(variant)
    failed: dict[str, _Outcome] = {}
    ready: list[_Outcome] = []
    caches: list[Compressed] = []
    logits: list[torch.Tensor] = []
    for plan, sharing in prefills.items():
        show("prefill")
        started = time.perf_counter()
        try:
            prefill = _prefilled(model, sample, head, plan, sharing)
        except Exception as error:
            told = _told(error, "prefill", head)
            failed |= {v.label: _Outcome(v, error=told) for v in sharing}
            continue
        capture_s = time.perf_counter() - started
        for variant in sharing:
            show(f"compress {variant.label}")
            try:
                caches.append(_compressed(variant, prefill, capture_s, ready))
            except Exception as error:
                failed[variant.label] = _Outcome(variant, error=_told(error, "compress", head))
            else:
                logits.append(prefill.last_logits)
        # Freed before decoding: the rows kept are in the caches, and `decode` empties those.
        del prefill

    show("decode")
    started = time.perf_counter()
    try:
        first = torch.stack(logits) if logits else None
        written = decode(model, caches, len(head), stop, first_logits=first, feed=feed, width=width)
    except Exception as error:
        told = _told(error, "decode", head)
        return [failed.get(v.label) or _Outcome(v, error=told) for v in variants]
    decode_s = time.perf_counter() - started
    done = {
        outcome.variant.label: replace(outcome, generation=generation, decode_s=decode_s)
        for outcome, generation in zip(ready, written, strict=True)
    }
    return [done.get(v.label) or failed[v.label] for v in variants]


def _prefilled(
    model: LoadedModel,
    sample: Sample,
    head: Sequence[int],
    plan: PruningPlan | None,
    variants: Sequence[Variant],
) -> Prefill:
    """The prefill that these variants share."""
    needs = reduce(or_, (v.method.needs for v in variants), Needs())
    types = task_types(needs.classifiers, sample)
    return replace(capture(model, torch.tensor(head), needs, plan), task_types=types)


def _compressed(
    variant: Variant, prefill: Prefill, capture_s: float, ready: list[_Outcome]
) -> Compressed:
    """Compress for one variant; what was measured joins `ready`."""
    started = time.perf_counter()
    with torch.inference_mode():
        cache = fit(variant.method, prefill, variant.budget)
    compress_s = time.perf_counter() - started
    weights = ledger(prefill, cache)
    ready.append(_Outcome(variant, None, None, weights, cache.facts, capture_s, compress_s))
    return cache


def _told(error: Exception, phase: str, head: Sequence[int]) -> str:
    """One line of what went wrong where, for the record."""
    reason = " ".join(str(error).split())[:400] or "no message"
    return f"{phase} of {len(head)} tokens: {type(error).__name__}: {reason}"


def _record(
    plan: Plan,
    model: LoadedModel,
    sample: Sample,
    prompt: Prompt,
    prefill_tokens: int,
    width: int,
    outcome: _Outcome,
) -> Record:
    """Score one outcome and put everything known about it into a record."""
    task, variant = sample.task, outcome.variant
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
        prefill_tokens=prefill_tokens,
        tokens_cut=prompt.tokens_cut,
        prediction=prediction,
        generated_tokens=None if generation is None else len(generation.ids),
        answers=list(sample.answers),
        scored_fields=scored_fields(sample),
        metric=next(iter(scores), None),
        score=next(iter(scores.values()), None),
        scores=scores,
        facts=dict(outcome.facts or {}),
        decode_width=width if generation is not None else None,
        capture_s=outcome.capture_s,
        compress_s=outcome.compress_s,
        decode_s=outcome.decode_s,
        error=outcome.error,
        finished=now(),
    )


_LEDGER_FIELDS = tuple(Ledger.__dataclass_fields__)
