"""Samples under their variants: one prefill for each sample, and one batch that all decode in.

Prefills go ahead as far as memory allows, and a row of the batch that ends takes the next variant
that waits, whichever sample it is of. A failure costs the variants it meets and no other. Knows
nothing of scores or records.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from kvbench.cache.ledger import Ledger, ledger
from kvbench.cache.spans import span_kept
from kvbench.cache.store import Compressed
from kvbench.decode.greedy import Decoder, Ended, Generation, Stop
from kvbench.model.loading import LoadedModel
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.state import Prefill
from kvbench.run.caches import (
    TakePrefill,
    fitted_cache,
    needs_of,
    shared_prefill,
    variants_by_schedule,
)
from kvbench.run.memory import (
    Bytes,
    bytes_held,
    decode_bytes,
    is_out_of_memory,
    prefill_bytes,
)
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
    variants: tuple[Variant, ...]
    """Whose results are wanted."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> tokens [start, end) whose share that is kept is to be found."""

    @property
    def later_tokens(self) -> int:
        """Tokens that follow compression at most."""
        return len(self.feed) + self.stop.max_new_tokens


AnyWork = TypeVar("AnyWork", bound=Work)


@dataclass(frozen=True)
class Limits:
    """How much is computed at once."""

    width: int
    """V, rows of the decode batch."""
    room: Bytes
    """What prefills, compressed caches and decoding may take beside the model."""
    as_stored: bool = True
    """Whether decoding reads stores as they are, or plain rows rebuilt of them."""
    graph: bool = False
    """Whether steps are recorded as CUDA graphs."""


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


@dataclass(frozen=True)
class Ready:
    """A variant that waits to be decoded."""

    outcome: Outcome
    cache: Compressed
    logits: Tensor
    nbytes: Bytes
    """What it will hold while it decodes, at most."""


def evaluate(
    model: LoadedModel,
    works: Iterable[AnyWork],
    limits: Limits,
    watch: Watcher,
    take: TakePrefill = capture,
) -> Iterator[tuple[AnyWork, Outcome]]:
    """Yield what each variant of each sample came to, once each, in the order they end.

    Args:
        model: the model.
        works: the samples, taken one by one as the batch has room for them.
        limits: width and memory of all together.
        watch: told what is being computed.
        take: what makes the prefills.
    """
    decoder = Decoder(model, limits.width, as_stored=limits.as_stored, graph=limits.graph)
    decoding: dict[int, tuple[AnyWork, Outcome, Bytes]] = {}
    supply = compressed(model, works, limits.room, watch, take)
    next(supply)
    more = True
    while decoding or more:
        while more and decoder.free:
            try:
                found = supply.send(sum((nbytes for _, _, nbytes in decoding.values()), Bytes()))
            except StopIteration:
                more = False
                break
            if found is None:
                break
            work, made = found
            if isinstance(made, Outcome):
                yield work, made
                continue
            feed, logits = work.feed, made.logits
            ticket = decoder.add(
                made.cache,
                len(work.head),
                work.stop,
                first_logits=logits,
                feed=feed,
                of=work.sample.digest,
            )
            decoding[ticket] = (work, made.outcome, made.nbytes)
            # Nobody else holds the cache then: what reading does not take is freed.
            del found, made
        if decoding:
            watch.phase("decode")
            running = decoder.running
            for ended in decoder.step():
                work, outcome, _ = decoding.pop(ended.ticket)
                yield work, _outcome(work, outcome, ended)
            watch.generated(running)


def compressed(
    model: LoadedModel,
    works: Iterable[AnyWork],
    room: Bytes,
    watch: Watcher,
    take: TakePrefill = capture,
) -> Generator[tuple[AnyWork, Ready | Outcome] | None, Bytes, None]:
    """Prefill and compress, and yield each variant that is ready, or the outcome that it failed.

    Begin with `next`, then `send` the bytes that those handed out hold by now. None says that the
    next one does not fit beside them; with nothing in use anything is tried.

    Args:
        model: the model.
        works: the samples.
        room: what all together may take beside the model.
        watch: told what is being computed.
        take: what makes the prefills.
    """
    in_use = yield None
    for work in works:
        tokens = len(work.head)
        ids = torch.tensor(work.head)
        for schedule, sharing in variants_by_schedule(model, tokens, work.variants).items():
            needed = prefill_bytes(model, tokens, needs_of(sharing, tokens))
            while in_use and not in_use + needed <= room:
                in_use = yield None
            watch.phase("prefill")
            model.wait()
            started = time.perf_counter()
            try:
                prefill = shared_prefill(
                    model,
                    ids,
                    sharing,
                    schedule,
                    room=room,
                    sample=work.sample,
                    take=take,
                )
            except Exception as error:
                told = _told(error, "prefill", work)
                for variant in sharing:
                    in_use = yield work, Outcome(variant, error=told)
                continue
            model.wait()
            capture_s = time.perf_counter() - started
            for variant in sharing:
                watch.phase(f"compress {variant.label}")
                handed: list[Ready | Outcome] = []
                try:
                    handed.append(_compressed(model, work, variant, prefill, capture_s))
                except Exception as error:
                    handed.append(Outcome(variant, error=_told(error, "compress", work)))
                beside = bytes_held(prefill, model)
                if variant is sharing[-1]:
                    beside = Bytes()
                    del prefill
                if isinstance(handed[0], Ready):
                    while in_use and not in_use + beside + handed[0].nbytes <= room:
                        in_use = yield None
                # Popped, so that the cache is not held here while it decodes.
                in_use = yield work, handed.pop()


def _compressed(
    model: LoadedModel, work: Work, variant: Variant, prefill: Prefill, capture_s: float
) -> Ready:
    """Compress for one variant and weigh what it holds."""
    model.wait()
    started = time.perf_counter()
    cache = fitted_cache(variant, prefill)
    model.wait()
    compress_s = time.perf_counter() - started
    outcome = Outcome(
        variant,
        ledger=ledger(prefill, cache),
        facts=cache.facts,
        capture_s=capture_s,
        compress_s=compress_s,
    )
    with torch.inference_mode():
        outcome = replace(outcome, span_kept=span_kept(cache, work.spans))
    nbytes = decode_bytes(cache, work.later_tokens, model)
    return Ready(outcome, cache, prefill.last_logits, nbytes)


def _outcome(work: Work, outcome: Outcome, ended: Ended) -> Outcome:
    """What a variant came to that was compressed and then decoded."""
    if ended.error is not None:
        return replace(outcome, error=_told(ended.error, "decode", work))
    return replace(outcome, generation=ended.generation)


def _told(error: Exception, phase: str, work: Work) -> str:
    """One line of what went wrong where, for the record; memory that ran out is freed."""
    reason = " ".join(str(error).split())[:400] or "no message"
    name = type(error).__name__
    if is_out_of_memory(error):
        name = "out of memory"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    place = _place_outside(error, work)
    return f"{phase} of {len(work.head)} tokens: {name}: {reason}{place}"


def _place_outside(error: Exception, work: Work) -> str:
    """File and line of the fault, where it lies in a method that is not kvbench's."""
    packages = {type(variant.method).__module__.partition(".")[0] for variant in work.variants}
    places = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] in packages - {"kvbench"}
    ]
    return places[-1] if places else ""
