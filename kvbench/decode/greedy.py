"""Greedy decoding of all variants of a prompt as one batch over their own, ragged rows.

No transformers cache: the rows live in buffers of their own (`kvbench.decode.rows`) and positions
are the true ones. At a fixed batch width a variant's numbers do not depend on its neighbors, so
callers keep the width constant.

Letters: V variants, t tokens fed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.rows import RowStore
from kvbench.cache.store import Band, Compressed
from kvbench.decode.rows import Rows
from kvbench.model.hooks import recording_pre_rope
from kvbench.model.loading import LoadedModel


@dataclass(frozen=True)
class Generation:
    """What one variant generated."""

    ids: tuple[int, ...]
    """Generated token ids, the stop token left out."""
    stopped: bool
    """Whether a stop token ended it (else the limit did)."""
    tail_bytes: int
    """Bytes of the tokens fed and generated after compression, as held at the end."""


@dataclass(frozen=True)
class Stop:
    """When a generation ends."""

    ids: frozenset[int]
    """Token ids that end it."""
    max_new_tokens: int
    min_new_tokens: int = 0
    """Tokens before which no stop id may be chosen."""
    ends: Callable[[Sequence[int]], bool] | None = None
    """Whether the ids generated so far end it, the last one kept: stop texts of several tokens."""
    leading_ids: frozenset[int] = frozenset()
    """Of `ids`: those that go on instead of ending it while nothing else has been written."""

    def stops_at(self, token: int, written: Sequence[int]) -> bool:
        """Whether a token ends the generation after those written."""
        leading = token in self.leading_ids and self.leading_ids.issuperset(written)
        return token in self.ids and not leading


def decode(
    model: LoadedModel,
    caches: list[Compressed],
    start: int,
    stop: Stop,
    *,
    first_logits: Tensor | None = None,
    feed: Sequence[int] = (),
    width: int | None = None,
    on_token: Callable[[int], None] = lambda fed: None,
) -> list[Generation]:
    """Continue one prompt greedily from each of its compressed caches.

    Args:
        model: the model.
        caches: one per variant. Emptied, so that each store is freed once its rows are buffered.
        start: T, position of the first token fed, unless a cache says otherwise.
        stop: when to end.
        first_logits: [vocabulary] or, where the caches come from several prefills,
            [caches, vocabulary] logits after the last prefilled token; the first generated token
            is taken from them where `feed` is empty.
        feed: prompt tokens fed after compression: the question where the method must not see
            it, or the last prompt token where nothing generated may come from the prefill.
        width: V, rows of the batch; more than the caches: filled with rows of one token.
        on_token: called after each forward with the number of rows still running.

    Returns:
        One generation per cache, in order.
    """
    if not caches:
        return []
    wanted = len(caches)
    filled = [*caches, *[_filling(caches[0])] * ((width or wanted) - wanted)]
    caches.clear()
    room = len(feed) + stop.max_new_tokens
    with torch.inference_mode():
        positions = _next_positions(filled, start)
        rows = Rows(filled, model.geometry.kv_heads, room)
        filled.clear()
        return _greedy(model, rows, positions, stop, first_logits, feed, wanted, on_token)


def _filling(cache: Compressed) -> Compressed:
    """A cache of one token: what fills a batch to its width costs next to nothing."""
    layers = tuple(RowStore(tuple(map(_first_row, s.materialize()))) for s in cache.layers)
    return Compressed(layers, next_position=cache.next_position)


def _first_row(band: Band) -> Band:
    # Copied, so that the other rows can be freed.
    return Band(band.k[:, :1].clone(), band.v[:, :1].clone(), band.positions[:, :1].clone())


def continuation_logits(
    model: LoadedModel, caches: Sequence[Compressed], start: int, feeds: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Feed each cache its own tokens and return the logits after each of them.

    Rows that merge or evict while decoding are fed token by token, as in a generation; the others
    all at once. Shorter feeds are padded behind, where none of their own tokens looks.

    Args:
        model: the model.
        caches: one per feed; left as they are, and may repeat.
        start: T, position of the first token fed, unless a cache says otherwise.
        feeds: token ids, at least one of them not empty.

    Returns:
        [tokens fed, vocabulary] float32 per cache, in order.
    """
    longest = max(map(len, feeds))
    padded = torch.tensor([[*feed, *[0] * (longest - len(feed))] for feed in feeds])
    with torch.inference_mode():
        positions = _next_positions(caches, start)
        rows = Rows(list(caches), model.geometry.kv_heads, longest)
        step = 1 if rows.absorbs else longest
        with _feeding(model, rows, positions) as forward:
            fed = [forward(padded[:, i : i + step], 0) for i in range(0, longest, step)]
        logits = torch.cat(fed, 1)
    return [row[: len(feed)] for row, feed in zip(logits, feeds, strict=True)]


def _next_positions(caches: Sequence[Compressed], start: int) -> Tensor:
    """Position of the first token fed to each cache: [V, 1]."""
    return torch.tensor([[start if c.next_position is None else c.next_position] for c in caches])


@contextmanager
def _feeding(
    model: LoadedModel, rows: Rows, positions: Tensor
) -> Iterator[Callable[[Tensor, int], Tensor]]:
    """Give a forward over rows held.

    It takes ids [V, t] and how many of their logits to return, 0 for all: [V, that, vocabulary].
    """
    recording = recording_pre_rope(model.network) if rows.reads_pre_rope else nullcontext()
    with recording as recorder:
        rows.recorder = recorder

        def forward(ids: Tensor, logits_to_keep: int) -> Tensor:
            nonlocal positions
            at = positions + torch.arange(ids.shape[1])
            positions = positions + ids.shape[1]
            rows.begin(at.to(model.device))
            output = model.network(
                input_ids=ids.to(model.device),
                position_ids=at.to(model.device),
                past_key_values=None,
                use_cache=False,
                logits_to_keep=logits_to_keep,
                kvbench=rows,
            )
            rows.merge_full_tails()
            for row, position in rows.renumbered():
                positions[row] = position
            logits: Tensor = output.logits.float()
            return logits

        yield forward


def _greedy(
    model: LoadedModel,
    rows: Rows,
    positions: Tensor,
    stop: Stop,
    first_logits: Tensor | None,
    feed: Sequence[int],
    wanted: int,
    on_token: Callable[[int], None],
) -> list[Generation]:
    width = positions.shape[0]
    with _feeding(model, rows, positions) as forward:
        if feed:
            logits = forward(torch.tensor(feed).expand(width, -1), 1)[:, -1]
        elif first_logits is not None:
            if first_logits.dim() == 2:
                filling = first_logits[-1:].expand(width - wanted, -1)
                first_logits = torch.cat([first_logits, filling])
            logits = first_logits.expand(width, -1)
        else:
            raise ValueError("decoding needs the prefill's logits or tokens to feed")

        written: list[list[int]] = [[] for _ in range(width)]
        running = set(range(wanted))
        stops = list(stop.ids)
        for step in range(stop.max_new_tokens):
            if step < stop.min_new_tokens:
                logits = logits.index_fill(1, torch.tensor(stops, device=logits.device), -torch.inf)
            chosen = logits.argmax(-1).tolist()
            for row in list(running):
                if stop.stops_at(chosen[row], written[row]):
                    running.discard(row)
                    continue
                written[row].append(chosen[row])
                if stop.ends is not None and stop.ends(written[row]):
                    running.discard(row)
            on_token(len(running))
            if not running or step + 1 == stop.max_new_tokens:
                break
            logits = forward(torch.tensor(chosen)[:, None], 1)[:, -1]
    return [
        Generation(tuple(written[row]), row not in running, rows.tail_bytes(row))
        for row in range(wanted)
    ]
