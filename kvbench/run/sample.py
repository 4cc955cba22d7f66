"""One sample under all its variants: prefill once, compress for each, decode together.

A failure costs the variants it meets and no other. Knows nothing of scores or records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from kvbench.cache.ledger import Ledger, ledger
from kvbench.cache.spans import span_kept
from kvbench.cache.store import Compressed
from kvbench.decode.greedy import Generation, Stop, decode
from kvbench.model.loading import LoadedModel
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.state import Prefill
from kvbench.run.caches import TakePrefill, fitted_cache, shared_prefill, variants_by_schedule
from kvbench.run.memory import decode_bytes, is_out_of_memory
from kvbench.tasks.task import Sample


class Watcher(Protocol):
    """Whoever is told what is being computed."""

    def phase(self, name: str) -> None:
        """Something else begins: `prefill`, `compress snapkv@0.2`, `decode`."""

    def generated(self, tokens: int) -> None:
        """So many more tokens are generated."""


@dataclass(frozen=True)
class Work:
    """One sample as the model is to compute it."""

    sample: Sample
    head: tuple[int, ...]
    """Token ids prefilled and compressed; at least one."""
    feed: tuple[int, ...]
    """Token ids fed after compression."""
    stop: Stop
    width: int
    """V, rows of every decode batch."""
    memory_bytes: int
    """What prefill and decode batches may take beside the model."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> tokens [start, end) whose share that is kept is to be found."""

    @property
    def later_tokens(self) -> int:
        """Tokens that follow compression at most."""
        return len(self.feed) + self.stop.max_new_tokens


@dataclass(frozen=True)
class Outcome:
    """What one variant came to."""

    variant: Variant
    error: str | None = None
    """What went wrong, in one line; the fields below are then None as far as it did not get."""
    generation: Generation | None = None
    ledger: Ledger | None = None
    facts: Mapping[str, Any] | None = None
    span_kept: Mapping[str, list[float]] = field(default_factory=dict)
    """Span -> share of its tokens kept, by layer."""
    capture_s: float | None = None
    compress_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True)
class Ready:
    """A variant that waits to be decoded."""

    outcome: Outcome
    cache: Compressed
    logits: Tensor
    nbytes: int
    """Of the rows it will be decoded from."""


def evaluate(
    model: LoadedModel,
    work: Work,
    variants: Sequence[Variant],
    watch: Watcher,
    take: TakePrefill = capture,
) -> Iterator[Outcome]:
    """Yield what each variant came to, once each, from one prefill.

    Variants that prune during the prefill have one of their own; all decode together, as far as
    the width and the memory allow.
    """
    for found in compressed_batches(model, work, variants, watch, take):
        if isinstance(found, Outcome):
            yield found
        else:
            yield from _decoded(model, work, found, watch)


def compressed_batches(
    model: LoadedModel,
    work: Work,
    variants: Sequence[Variant],
    watch: Watcher,
    take: TakePrefill = capture,
) -> Iterator[list[Ready] | Outcome]:
    """Yield the variants compressed, in batches to be computed together, and those that failed.

    Whoever takes a batch empties it, so that its caches are freed before the next one is made.
    """
    waiting: list[Ready] = []
    ids = torch.tensor(work.head)
    for schedule, sharing in variants_by_schedule(model, len(work.head), variants).items():
        watch.phase("prefill")
        started = time.perf_counter()
        try:
            prefill = shared_prefill(
                model,
                ids,
                sharing,
                schedule,
                memory_bytes=work.memory_bytes,
                sample=work.sample,
                take=take,
            )
        except Exception as error:
            told = _told(error, "prefill", work)
            yield from (Outcome(variant, error=told) for variant in sharing)
            continue
        capture_s = time.perf_counter() - started
        for variant in sharing:
            watch.phase(f"compress {variant.label}")
            try:
                ready = _compressed(model, work, variant, prefill, capture_s)
            except Exception as error:
                yield Outcome(variant, error=_told(error, "compress", work))
                continue
            taken = prefill.nbytes + ready.nbytes + sum(r.nbytes for r in waiting)
            if waiting and (taken > work.memory_bytes or len(waiting) == work.width):
                yield waiting
            waiting.append(ready)
            del ready
        # Freed before decoding: the rows kept are in the caches, and `decode` empties those.
        del prefill
    if waiting:
        yield waiting


def _compressed(
    model: LoadedModel, work: Work, variant: Variant, prefill: Prefill, capture_s: float
) -> Ready:
    """Compress for one variant and weigh what it holds."""
    started = time.perf_counter()
    cache = fitted_cache(variant, prefill)
    outcome = Outcome(
        variant,
        ledger=ledger(prefill, cache),
        facts=cache.facts,
        capture_s=capture_s,
        compress_s=time.perf_counter() - started,
    )
    with torch.inference_mode():
        outcome = replace(outcome, span_kept=span_kept(cache, work.spans))
    nbytes = decode_bytes(cache, work.later_tokens, model)
    return Ready(outcome, cache, prefill.last_logits, nbytes)


def _decoded(
    model: LoadedModel, work: Work, waiting: list[Ready], watch: Watcher
) -> Iterator[Outcome]:
    """Decode those that wait as one batch; `waiting` is emptied."""
    outcomes = [ready.outcome for ready in waiting]
    caches = [ready.cache for ready in waiting]
    logits = torch.stack([ready.logits for ready in waiting])
    waiting.clear()  # nobody else holds the caches then, and `decode` frees them one by one
    watch.phase("decode")
    started = time.perf_counter()
    try:
        written = decode(
            model,
            caches,
            len(work.head),
            work.stop,
            first_logits=logits,
            feed=work.feed,
            width=work.width,
            on_token=watch.generated,
        )
    except Exception as error:
        told = _told(error, "decode", work)
        yield from (replace(outcome, error=told) for outcome in outcomes)
        return
    decode_s = time.perf_counter() - started
    for outcome, generation in zip(outcomes, written, strict=True):
        yield replace(outcome, generation=generation, decode_s=decode_s)


def _told(error: Exception, phase: str, work: Work) -> str:
    """One line of what went wrong where, for the record; memory that ran out is freed."""
    reason = " ".join(str(error).split())[:400] or "no message"
    name = type(error).__name__
    if is_out_of_memory(error):
        name = "out of memory"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return f"{phase} of {len(work.head)} tokens: {name}: {reason}"
