"""What every variant answers to one request: generated text, or the likelihood of continuations.

One prefill of the context serves all variants; those whose budget holds the whole context share
one uncompressed cache, so a prompt shorter than the budget costs one variant's work. Knows nothing
of lm-eval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.ledger import Ledger
from kvbench.decode.greedy import continuation_logits
from kvbench.model.loading import LoadedModel
from kvbench.plan.variant import Variant
from kvbench.run.caches import TakePrefill
from kvbench.run.memory import Bytes, times_in
from kvbench.run.sample import Limits, Outcome, Ready, Watcher, Work, compressed, evaluate

MOST_LOGITS = 2**27
"""Logits computed at once when continuations are scored: half a GiB in float32."""


@dataclass(frozen=True)
class Answer:
    """One variant's answer to one request, and what its context weighed."""

    prompt_tokens: int
    """Tokens of the context."""
    prefill_tokens: int
    """Of these, the tokens that the method compressed; the rest was fed afterwards."""
    ledger: Ledger
    facts: Mapping[str, Any]
    """What the method says of itself."""
    width: int
    """Rows decoded or scored together."""
    capture_s: float
    compress_s: float
    answer_s: float
    """Seconds of scoring, all rows together, or its share of those of decoding."""
    tokens_cut: int = 0
    """Tokens left out at the context's beginning, where the model's context is too short."""
    text: str | None = None
    """Generated text, cut at the first stop text."""
    generated_tokens: int | None = None
    """Tokens generated, the stop token left out."""
    tail_bytes: int | None = None
    """Bytes of the tokens fed and generated, as held at the end."""
    decode_bytes: int | None = None
    """Bytes of every tensor held for it while it was generated, at most."""
    reader: str | None = None
    """What decoding read, and by what."""
    log_likelihood: float | None = None
    """Sum of the log-probabilities (natural) of the continuation's tokens."""
    is_greedy: bool | None = None
    """Whether each of them was the most likely token."""


def generated(
    model: LoadedModel,
    work: Work,
    room: Bytes,
    text_of: Callable[[Sequence[int]], str],
    watch: Watcher,
    take: TakePrefill,
) -> Iterator[tuple[Variant, Answer]]:
    """Continue one prompt greedily and yield each variant's answer.

    Args:
        model: the model.
        work: the prompt, when to end and who answers.
        room: what may be taken beside the model.
        text_of: the answer's text, of generated ids.
        watch: told what is being computed.
        take: what makes the prefill.

    Raises:
        UserError: a variant cannot answer, for want of memory for instance.
    """
    alike = _alike(work.variants, len(work.head))
    work = replace(work, variants=tuple(same[0] for same in alike.values()))
    limits = Limits(len(alike), room)
    for _, outcome in evaluate(model, [work], limits, watch, take):
        generation = outcome.generation
        if generation is None:
            raise UserError(f"{outcome.variant.label}: {outcome.error}")
        answer = replace(
            _answer(outcome, work, limits.width, generation.seconds),
            text=text_of(generation.ids),
            generated_tokens=len(generation.ids),
            tail_bytes=generation.tail_bytes,
            decode_bytes=generation.decode_bytes,
            reader=generation.reader,
        )
        yield from ((variant, answer) for variant in alike[outcome.variant.label])


def scored(
    model: LoadedModel,
    work: Work,
    room: Bytes,
    continuations: Sequence[Sequence[int]],
    watch: Watcher,
    take: TakePrefill,
) -> Iterator[tuple[int, Variant, Answer]]:
    """Score continuations of one context and yield (index, variant, answer).

    Args:
        model: the model.
        work: the context, and who answers; where its last token is fed after compression, every
            token of a continuation is predicted from the compressed cache, the first one too.
        room: what may be taken beside the model.
        continuations: token ids, one or more each.
        watch: told what is being computed.
        take: what makes the prefill, which serves all continuations.

    Raises:
        UserError: a variant cannot answer, for want of memory for instance.
    """
    alike = _alike(work.variants, len(work.head))
    work = replace(work, variants=tuple(same[0] for same in alike.values()))
    for found in _batches(model, work, room, watch, take):
        rows = [(ready, i) for ready in found for i in range(len(continuations))]
        width = _rows_at_once(work, found, room, max(map(len, continuations)))
        found.clear()
        watch.phase("score")
        for first in range(0, len(rows), width):
            batch = rows[first : first + width]
            for ready, i, answer in _scored_together(model, work, batch, continuations):
                same = alike[ready.outcome.variant.label]
                yield from ((i, variant, answer) for variant in same)


def _batches(
    model: LoadedModel, work: Work, room: Bytes, watch: Watcher, take: TakePrefill
) -> Iterator[list[Ready]]:
    """The variants compressed, as many at a time as fit; whoever takes a batch empties it."""
    supply = compressed(model, [work], room, watch, take)
    next(supply)
    batch: list[Ready] = []
    try:
        while True:
            found = supply.send(sum((ready.nbytes for ready in batch), Bytes()))
            if found is None:
                yield batch
            elif isinstance(found[1], Outcome):
                raise UserError(f"{found[1].variant.label}: {found[1].error}")
            else:
                batch.append(found[1])
            del found
    except StopIteration:
        if batch:
            yield batch


def _alike(variants: Sequence[Variant], tokens: int) -> dict[str, tuple[Variant, ...]]:
    """The variants that hold the same cache of a context, by the first one's label."""
    whole = tuple(v for v in variants if v.budget.keeps_whole(tokens))
    groups = [whole] * bool(whole) + [(v,) for v in variants if v not in whole]
    return {same[0].label: same for same in groups}


def _rows_at_once(work: Work, found: Sequence[Ready], room: Bytes, longest: int) -> int:
    """Rows that are scored together, at least one: bounded by memory and by logits."""
    by_memory = times_in(room, (ready.nbytes for ready in found))
    by_logits = MOST_LOGITS // ((len(work.feed) + longest) * found[0].logits.numel())
    return max(1, min(by_memory, by_logits))


def _scored_together(
    model: LoadedModel,
    work: Work,
    rows: Sequence[tuple[Ready, int]],
    continuations: Sequence[Sequence[int]],
) -> Iterator[tuple[Ready, int, Answer]]:
    feeds = [[*work.feed, *continuations[i][:-1]] for _, i in rows]
    model.wait()
    started = time.perf_counter()
    if any(feeds):
        fed = continuation_logits(model, [ready.cache for ready, _ in rows], len(work.head), feeds)
    else:
        fed = [ready.logits.new_empty(0, ready.logits.numel()) for ready, _ in rows]
    model.wait()
    seconds = time.perf_counter() - started
    for (ready, i), logits in zip(rows, fed, strict=True):
        if not work.feed:  # then the prefill has predicted the first token
            logits = torch.cat([ready.logits[None], logits])
        likelihood, is_greedy = _likelihood(logits, continuations[i])
        answer = _answer(ready.outcome, work, len(rows), seconds)
        yield ready, i, replace(answer, log_likelihood=likelihood, is_greedy=is_greedy)


def _likelihood(logits: Tensor, ids: Sequence[int]) -> tuple[float, bool]:
    """Log-probability of ids under logits [len(ids), vocabulary]; whether all are the best."""
    wanted = torch.tensor(ids, device=logits.device)
    chosen = logits.log_softmax(-1).gather(1, wanted[:, None])
    return float(chosen.sum()), bool((logits.argmax(-1) == wanted).all())


def _answer(outcome: Outcome, work: Work, width: int, seconds: float) -> Answer:
    """What is known of an answer before its content."""
    assert outcome.ledger is not None and outcome.facts is not None
    assert outcome.capture_s is not None and outcome.compress_s is not None
    return Answer(
        prompt_tokens=len(work.head) + len(work.feed),
        prefill_tokens=len(work.head),
        ledger=outcome.ledger,
        facts=outcome.facts,
        width=width,
        capture_s=outcome.capture_s,
        compress_s=outcome.compress_s,
        answer_s=seconds,
    )
