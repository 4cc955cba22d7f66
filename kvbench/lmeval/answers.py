"""What every variant answers to one request: generated text, or the likelihood of continuations.

One prefill of the context serves all variants; those whose budget holds the whole context share
one uncompressed cache, so a prompt shorter than the budget costs one variant's work. Knows nothing
of lm-eval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from kvbench.cache.store import Compressed
from kvbench.capture import capture
from kvbench.classifier import task_types
from kvbench.decode import Stop, continuation_logits, decode
from kvbench.fit import fit
from kvbench.ledger import Ledger, ledger
from kvbench.method import Needs
from kvbench.model import LoadedModel
from kvbench.plan import Variant
from kvbench.pruning import PruningPlan
from kvbench.tasks.task import Sample

_MOST_LOGITS = 2**27
"""Logits computed at once when continuations are scored: half a GiB in float32."""

_MOST_BYTES = 2**32
"""Bytes of the rows that continuations are scored over at once, at least one continuation's."""


@dataclass(frozen=True)
class Answer:
    """One variant's answer to one request, and what its context weighed."""

    prompt_tokens: int
    """Tokens of the context."""
    prefill_tokens: int
    """Of these, the tokens that the method compressed; the rest was fed afterwards."""
    tokens_cut: int
    """Tokens left out at the context's beginning, where the model's context is too short."""
    ledger: Ledger
    facts: Mapping[str, Any]
    """What the method says of itself."""
    width: int
    """Rows decoded or scored together."""
    capture_s: float
    compress_s: float
    answer_s: float
    """Seconds of decoding or scoring, all variants together."""
    text: str | None = None
    """Generated text, cut at the first stop text."""
    generated_tokens: int | None = None
    """Tokens generated, the stop token left out."""
    tail_bytes: int | None = None
    """Bytes of the tokens fed and generated, as held at the end."""
    log_likelihood: float | None = None
    """Sum of the log-probabilities (natural) of the continuation's tokens."""
    is_greedy: bool | None = None
    """Whether each of them was the most likely token."""


@dataclass(frozen=True)
class _Held:
    """A compressed context and the variants that hold it."""

    variants: tuple[Variant, ...]
    cache: Compressed
    logits: Tensor
    """[vocabulary] after the last prefilled token."""
    ledger: Ledger
    capture_s: float
    compress_s: float


def generated(
    model: LoadedModel,
    variants: Sequence[Variant],
    sample: Sample,
    ids: Sequence[int],
    stop: Stop,
    text_of: Callable[[Sequence[int]], str],
    *,
    first_token: str,
    tokens_cut: int = 0,
) -> dict[str, Answer]:
    """Continue one prompt greedily under every variant.

    Args:
        model: the model.
        variants: who answers.
        sample: the prompt's text and task, for the classifiers that methods read.
        ids: the prompt.
        stop: when to end.
        text_of: the answer's text, of generated ids.
        first_token: as in the protocol: `prefill` or `compressed`.
        tokens_cut: tokens that the prompt lacks at its beginning.

    Returns:
        Variant label -> answer.
    """
    border = max(1, len(ids) - (first_token == "compressed"))
    held = _compressed_contexts(model, variants, sample, ids[:border])
    started = time.perf_counter()
    written = decode(
        model,
        [h.cache for h in held],
        border,
        stop,
        first_logits=torch.stack([h.logits for h in held]),
        feed=ids[border:],
    )
    seconds = time.perf_counter() - started
    answers: dict[str, Answer] = {}
    for h, generation in zip(held, written, strict=True):
        answer = _answer(h, len(ids), border, tokens_cut, len(held), seconds)
        answer = replace(
            answer,
            text=text_of(generation.ids),
            generated_tokens=len(generation.ids),
            tail_bytes=generation.tail_bytes,
        )
        answers |= {v.label: answer for v in h.variants}
    return answers


def scored(
    model: LoadedModel,
    variants: Sequence[Variant],
    sample: Sample,
    context: Sequence[int],
    continuations: Sequence[Sequence[int]],
    tokens_cut: int = 0,
) -> list[dict[str, Answer]]:
    """Log-likelihood of each continuation of one context under every variant.

    The last token of the context is fed after compression, so that every token of a continuation
    is predicted from the compressed cache, its first one too.

    Args:
        model: the model.
        variants: who answers.
        sample: the context's text and task, for the classifiers that methods read.
        context: token ids, one or more; compressed once for all continuations.
        continuations: token ids, one or more each.
        tokens_cut: tokens that the context lacks at its beginning.

    Returns:
        Per continuation: variant label -> answer.
    """
    border = max(1, len(context) - 1)
    held = _compressed_contexts(model, variants, sample, context[:border])
    last = context[border:]
    rows = [(h, i) for h in held for i in range(len(continuations))]
    longest = len(last) + max(map(len, continuations))
    row_bytes = max(max(h.ledger.native_bytes, h.ledger.cache_bytes) for h in held)
    width = min(_MOST_LOGITS // (longest * held[0].logits.numel()), _MOST_BYTES // row_bytes)
    answers: list[dict[str, Answer]] = [{} for _ in continuations]
    for batch in _batches(rows, max(1, width)):
        feeds = [[*last, *continuations[i][:-1]] for _, i in batch]
        started = time.perf_counter()
        fed = _logits(model, batch, border, feeds)
        seconds = time.perf_counter() - started
        for (h, i), logits in zip(batch, fed, strict=True):
            if not last:  # a context of one token is prefilled whole
                logits = torch.cat([h.logits[None], logits])
            likelihood, is_greedy = _likelihood(logits, continuations[i])
            answer = _answer(h, len(context), border, tokens_cut, len(batch), seconds)
            answer = replace(answer, log_likelihood=likelihood, is_greedy=is_greedy)
            answers[i] |= {v.label: answer for v in h.variants}
    return answers


def _compressed_contexts(
    model: LoadedModel, variants: Sequence[Variant], sample: Sample, ids: Sequence[int]
) -> list[_Held]:
    """Prefill once, or once for each way of pruning, and compress for every variant."""
    prefills: dict[PruningPlan | None, list[Variant]] = {}
    for variant in variants:
        plan = variant.method.prefill_plan(len(ids), model.geometry.layers, variant.budget)
        prefills.setdefault(plan, []).append(variant)
    return [
        held
        for plan, sharing in prefills.items()
        for held in _of_one_prefill(model, sharing, sample, ids, plan)
    ]


def _of_one_prefill(
    model: LoadedModel,
    variants: Sequence[Variant],
    sample: Sample,
    ids: Sequence[int],
    plan: PruningPlan | None,
) -> Iterator[_Held]:
    whole = tuple(v for v in variants if v.budget.keeps_whole(len(ids)))
    compressing = [v for v in variants if v not in whole]
    started = time.perf_counter()
    needs = reduce(or_, (v.method.needs for v in compressing), Needs())
    types = task_types(needs.classifiers, sample)
    prefill = replace(capture(model, torch.tensor(ids), needs, plan), task_types=types)
    capture_s = time.perf_counter() - started
    for alike in [whole] * bool(whole) + [(v,) for v in compressing]:
        started = time.perf_counter()
        with torch.inference_mode():
            cache = fit(alike[0].method, prefill, alike[0].budget)
        compress_s = time.perf_counter() - started
        weights = ledger(prefill, cache)
        yield _Held(alike, cache, prefill.last_logits, weights, capture_s, compress_s)


def _batches(
    rows: Sequence[tuple[_Held, int]], width: int
) -> Iterator[Sequence[tuple[_Held, int]]]:
    for first in range(0, len(rows), width):
        yield rows[first : first + width]


def _logits(
    model: LoadedModel,
    rows: Sequence[tuple[_Held, int]],
    start: int,
    feeds: Sequence[Sequence[int]],
) -> list[Tensor]:
    if not any(feeds):
        return [h.logits.new_empty(0, h.logits.numel()) for h, _ in rows]
    return continuation_logits(model, [h.cache for h, _ in rows], start, feeds)


def _likelihood(logits: Tensor, ids: Sequence[int]) -> tuple[float, bool]:
    """Log-probability of ids under logits [len(ids), vocabulary]; whether all are the best."""
    wanted = torch.tensor(ids, device=logits.device)
    chosen = logits.log_softmax(-1).gather(1, wanted[:, None])
    return float(chosen.sum()), bool((logits.argmax(-1) == wanted).all())


def _answer(
    held: _Held, prompt_tokens: int, border: int, tokens_cut: int, width: int, seconds: float
) -> Answer:
    """What is known of an answer before its content."""
    return Answer(
        prompt_tokens=prompt_tokens,
        prefill_tokens=border,
        tokens_cut=tokens_cut,
        ledger=held.ledger,
        facts=held.cache.facts,
        width=width,
        capture_s=held.capture_s,
        compress_s=held.compress_s,
        answer_s=seconds,
    )
