"""Greedy decoding of compressed caches, as one batch of constant width that rows join and leave.

No transformers cache: a row reads what its cache stores (`kvbench.decode.batch`) and positions are
the true ones. At a fixed width a row's numbers depend neither on its neighbors nor on its place.

Letters: V rows, t tokens fed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.store import Compressed
from kvbench.decode.batch import Batch, RowError
from kvbench.decode.cuda_kernels import sent
from kvbench.decode.graph import RecordedStep, refuse_graphs
from kvbench.model.hooks import recording_pre_rope
from kvbench.model.loading import LoadedModel


@dataclass(frozen=True)
class Generation:
    """What one row generated."""

    ids: tuple[int, ...]
    """Generated token ids, the stop token left out."""
    stopped: bool
    """Whether a stop token ended it (else the limit did)."""
    tail_bytes: int
    """Bytes of the tokens fed and generated after compression, as held at the end."""
    decode_bytes: int
    """Bytes of every tensor held for it while it decoded, at most, beside the model."""
    reader: str
    """What was read, and by what: `codebook (numba)`."""
    seconds: float
    """Its share of the time of the steps it was part of, which the rows of a step divide."""


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


@dataclass
class _Row:
    """A generation that goes on."""

    ticket: int
    stop: Stop
    of: Hashable
    position: int
    """Of the next token fed."""
    written: list[int] = field(default_factory=list)
    next_token: int = 0
    most_bytes: int = 0
    seconds: float = 0.0

    @property
    def may_not_stop(self) -> bool:
        """Whether too little is written yet to end it."""
        return len(self.written) < self.stop.min_new_tokens


@dataclass(frozen=True)
class _Next:
    """What the next forward is fed, on the model's device: ids and positions [V, 1] of rows."""

    rows: tuple[int, ...]
    ids: Tensor
    at: Tensor


@dataclass(frozen=True)
class Ended:
    """A row that left."""

    ticket: int
    """What `Decoder.add` returned."""
    generation: Generation | None
    error: Exception | None = None
    """Why there is no generation."""


class Decoder:
    """A batch of V rows that decode together; whoever ends makes room for the next."""

    def __init__(
        self, model: LoadedModel, width: int, *, as_stored: bool = True, graph: bool = False
    ) -> None:
        """Begin without rows.

        Args:
            model: the model.
            width: V, constant: idle rows are computed too.
            as_stored: read stores as they are; else rebuild plain rows of them.
            graph: record a step as a CUDA graph while the same rows go on.

        Raises:
            UserError: the model's device records no graphs.
        """
        if graph:
            refuse_graphs(model)
        self._model = model
        self._batch = Batch(width, model.geometry.layers, as_stored=as_stored, stays=graph)
        self._graph = graph
        self._recorded: RecordedStep | None = None
        self._rows: list[_Row | None] = [None] * width
        self._ended: list[Ended] = []
        self._added = 0
        self._next: _Next | None = None
        self._forbidden: tuple[tuple[int, ...], Tensor, Tensor] = ((), *torch.empty(2, 0).long())

    @property
    def free(self) -> int:
        """Rows that wait for a cache."""
        return self._rows.count(None)

    @property
    def running(self) -> int:
        """Rows that decode."""
        return len(self._rows) - self.free

    @property
    def nbytes(self) -> int:
        """Bytes of what all rows hold."""
        return sum(self._batch.nbytes(row) for row, mine in enumerate(self._rows) if mine)

    def add(
        self,
        cache: Compressed,
        start: int,
        stop: Stop,
        *,
        first_logits: Tensor | None = None,
        feed: Sequence[int] = (),
        of: Hashable = None,
    ) -> int:
        """Let a free row continue from a cache; returns its ticket, one more than the last.

        Args:
            cache: what it reads.
            start: T, position of the first token fed, unless the cache says otherwise.
            stop: when to end.
            first_logits: [vocabulary] logits after the last prefilled token; the first generated
                token is taken from them where `feed` is empty.
            feed: prompt tokens fed after compression: the question where the method must not see
                it, or the last prompt token where nothing generated may come from the prefill.
                More than one are fed in a forward of their own.
            of: whose row it is; rows of the same fail together where no row is to blame.
        """
        if not feed and first_logits is None:
            raise ValueError("decoding needs the prefill's logits or tokens to feed")
        row = self._rows.index(None)
        position = start if cache.next_position is None else cache.next_position
        self._added += 1
        mine = self._rows[row] = _Row(self._added, stop, of, position)
        try:
            with torch.inference_mode():
                self._batch.join(row, cache, len(feed) + stop.max_new_tokens)
                if self._graph and self._batch.absorbs(row):
                    raise self._moves(row, "it takes tokens in while decoding")
                mine.most_bytes = self._batch.nbytes(row)
                if len(feed) == 1:
                    mine.next_token = feed[0]
                elif feed:
                    self._feed_alone(row, feed)
                else:
                    assert first_logits is not None
                    self._take(row, int(self._chosen([row], first_logits[None].float())[0]))
        except Exception as error:
            self._fail(row, error)
        return self._added

    def step(self) -> list[Ended]:
        """Feed one token to every row, and return the rows that ended or failed since last asked.

        A failure costs the row that is to blame; if none is, those that share `of` with the row
        that joined last, and so on until the rest can go on.
        """
        with torch.inference_mode():
            while self.running and not self._ended:
                rows = [row for row, mine in enumerate(self._rows) if mine is not None]
                try:
                    self._step(rows)
                    break
                except RowError as error:
                    self._fail(error.row, error)
                except Exception as error:
                    newest = max((self._mine(row) for row in rows), key=lambda r: r.ticket).of
                    for row in [r for r in rows if self._mine(r).of == newest]:
                        self._fail(row, error)
        ended, self._ended = self._ended, []
        return ended

    def _step(self, rows: Sequence[int]) -> None:
        """One forward of all V rows, of which some are fed."""
        started = time.perf_counter()
        fed = self._next
        if fed is None or fed.rows != tuple(rows):
            ids, at = (torch.zeros(len(self._rows), 1, dtype=torch.long) for _ in range(2))
            for row in rows:
                ids[row, 0], at[row, 0] = self._mine(row).next_token, self._mine(row).position
            device = self._model.device
            fed = _Next(tuple(rows), sent(ids, device), sent(at, device))
        goes_on, self._next = fed is self._next, None
        if self._graph and goes_on:
            logits, failed = self._replayed(rows, fed), self._batch.finish()
        else:
            self._recorded = None
            logits, failed = self._forward(rows, fed.ids, fed.at)
        chosen = self._chosen(rows, logits[:, -1])
        tokens = chosen.tolist()
        seconds = (time.perf_counter() - started) / len(rows)
        for row in rows:
            self._mine(row).seconds += seconds
        for row, error in failed.items():
            self._fail(row, error)
        going_on = [row for row in rows if row not in failed]
        for row in going_on:
            self._take(row, tokens[row])
        if all(self._rows[row] and self._batch.next_position(row) is None for row in rows):
            # Idle rows stay at token 0 of position 0.
            is_fed = self._batch.is_fed(fed.ids.device)[:, None]
            ids = chosen.to(fed.ids.device)[:, None] * is_fed
            self._next = _Next(fed.rows, ids, fed.at + is_fed)

    def _replayed(self, rows: Sequence[int], fed: _Next) -> Tensor:
        """Logits of a step of the same rows as before, launched as one graph."""
        if self._recorded is None:
            for row in rows:
                if not self._batch.is_served(row):
                    raise RowError(row) from self._moves(row, "no kernel reads it")
            model, batch = self._model, self._batch

            def run(ids: Tensor, at: Tensor) -> Tensor:
                return forward(model, batch, rows, ids, at, (), logits_to_keep=1)

            self._recorded = RecordedStep(run, fed.ids, fed.at)
        logits = self._recorded(fed.ids, fed.at)
        for row in rows:
            self._mine(row).position += 1
        return logits

    def _moves(self, row: int, reason: str) -> UserError:
        """What is said of a row that a graph cannot serve."""
        reader = self._batch.reader(row)
        return UserError(f"decode.graph=true serves what stays in place, not {reader}: {reason}")

    def _feed_alone(self, row: int, feed: Sequence[int]) -> None:
        """Feed a row several tokens, so that they cost what their number says at any width."""
        started = time.perf_counter()
        device = self._model.device
        ids = sent(torch.tensor([list(feed)]), device)
        at = torch.arange(len(feed), device=device)[None] + self._mine(row).position
        logits, failed = self._forward([row], ids, at)
        self._mine(row).seconds += time.perf_counter() - started
        for error in failed.values():
            raise error
        self._take(row, int(self._chosen([row], logits[:, -1])[0]))

    def _forward(
        self, rows: Sequence[int], ids: Tensor, at: Tensor
    ) -> tuple[Tensor, dict[int, Exception]]:
        """Logits [B, 1, vocabulary] of the last of ids [B, t] at positions; rows that failed."""
        starts = [self._mine(row).position for row in rows]
        logits = forward(self._model, self._batch, rows, ids, at, starts, logits_to_keep=1)
        failed = self._batch.finish()
        for row in rows:
            anew = self._batch.next_position(row)
            mine = self._mine(row)
            mine.position = mine.position + ids.shape[1] if anew is None else anew
        return logits, failed

    def _chosen(self, rows: Sequence[int], logits: Tensor) -> Tensor:
        """[B] the most likely token of logits [B, vocabulary], of one row or of all V."""
        alone = len(logits) < len(self._rows)
        early = [row for row in rows if self._mine(row).may_not_stop]
        if early:
            key = tuple(self._mine(row).ticket for row in early)
            if self._forbidden[0] != key:
                pairs = [
                    (0 if alone else row, stop)
                    for row in early
                    for stop in self._mine(row).stop.ids
                ]
                where = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T.contiguous()
                self._forbidden = key, *sent(where, logits.device)
            logits = logits.clone()  # others may hold them, such as a prefill its last ones
            logits[self._forbidden[1], self._forbidden[2]] = -torch.inf
        return logits.argmax(-1)

    def _take(self, row: int, token: int) -> None:
        """Write the token that a row generated; a row that stops leaves."""
        mine = self._mine(row)
        if mine.stop.stops_at(token, mine.written):
            self._end(row, stopped=True)
            return
        mine.written.append(token)
        mine.next_token = token
        if mine.stop.ends is not None and mine.stop.ends(mine.written):
            self._end(row, stopped=True)
        elif len(mine.written) >= mine.stop.max_new_tokens:
            self._end(row, stopped=False)

    def _end(self, row: int, *, stopped: bool) -> None:
        mine = self._mine(row)
        generation = Generation(
            tuple(mine.written),
            stopped,
            self._batch.tail_bytes(row),
            max(mine.most_bytes, self._batch.nbytes(row)),
            self._batch.reader(row),
            mine.seconds,
        )
        self._leave(row, Ended(mine.ticket, generation))

    def _fail(self, row: int, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, RowError) else error
        assert isinstance(cause, Exception)
        # Without its frames, which hold the tensors of the step.
        self._leave(row, Ended(self._mine(row).ticket, None, cause.with_traceback(None)))

    def _leave(self, row: int, ended: Ended) -> None:
        self._batch.leave(row)
        self._rows[row] = None
        self._ended.append(ended)

    def _mine(self, row: int) -> _Row:
        mine = self._rows[row]
        assert mine is not None, "the row is free"
        return mine


def forward(
    model: LoadedModel,
    batch: Batch,
    rows: Sequence[int],
    ids: Tensor,
    at: Tensor,
    starts: Sequence[int],
    *,
    logits_to_keep: int,
) -> Tensor:
    """One forward of ids [B, t] at positions [B, t] over what rows hold: float32 logits.

    Args:
        model: the model.
        batch: holds the rows.
        rows: one, with B = 1, or any of B = V.
        ids: int64.
        at: int64.
        starts: the first position of each of the rows.
        logits_to_keep: of the last so many tokens; 0: of all.
    """
    recording = recording_pre_rope(model.network) if batch.reads_pre_rope else nullcontext()
    with recording as recorder:
        batch.recorder = recorder
        batch.begin(rows, at, starts)
        output = model.network(
            input_ids=ids,
            position_ids=at,
            past_key_values=None,
            use_cache=False,
            logits_to_keep=logits_to_keep,
            kvbench=batch,
        )
    logits: Tensor = output.logits.float()
    return logits


def decode(
    model: LoadedModel,
    caches: list[Compressed],
    start: int,
    stop: Stop,
    *,
    first_logits: Tensor | None = None,
    feed: Sequence[int] = (),
    width: int | None = None,
    as_stored: bool = True,
    on_token: Callable[[int], None] = lambda fed: None,
) -> list[Generation]:
    """Continue one prompt greedily from each of its compressed caches.

    Args:
        model: the model.
        caches: one per row. Emptied, so that what reading does not take is freed.
        start: T, position of the first token fed, unless a cache says otherwise.
        stop: when to end.
        first_logits: [vocabulary] or, where the caches come from several prefills,
            [caches, vocabulary]; as `Decoder.add` says.
        feed: as `Decoder.add` says.
        width: V, rows of the batch; None: one per cache.
        as_stored: read stores as they are; else rebuild plain rows of them.
        on_token: called after each forward with the number of rows that were fed.

    Returns:
        One generation per cache, in order.
    """
    wanted = len(caches)
    decoder = Decoder(model, max(1, width or wanted), as_stored=as_stored)
    found: dict[int, Generation] = {}
    waiting = list(reversed(caches))
    caches.clear()
    while len(found) < wanted:
        while waiting and decoder.free:
            logits = first_logits
            if first_logits is not None and first_logits.dim() == 2:
                logits = first_logits[wanted - len(waiting)]
            decoder.add(waiting.pop(), start, stop, first_logits=logits, feed=feed)
        running = decoder.running
        for ended in decoder.step():
            if ended.error is not None:
                raise ended.error
            assert ended.generation is not None
            found[ended.ticket] = ended.generation
        on_token(running)
    return [found[ticket] for ticket in sorted(found)]


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
    rows = range(len(caches))
    batch = Batch(len(caches), model.geometry.layers)
    at = torch.tensor([[start if c.next_position is None else c.next_position] for c in caches])
    with torch.inference_mode():
        for row, cache in enumerate(caches):
            batch.join(row, cache, longest)
        absorbs = any(s.absorb_every for cache in caches for s in cache.layers)
        parts = list(torch.tensor_split(padded, longest, 1)) if absorbs else [padded]
        found = []
        for part in parts:
            positions = at + torch.arange(part.shape[1])
            starts = at[:, 0].tolist()
            ids, positions = (sent(x.contiguous(), model.device) for x in (part, positions))
            logits = forward(model, batch, rows, ids, positions, starts, logits_to_keep=0)
            found.append(logits)
            for error in batch.finish().values():
                raise error
            at = at + part.shape[1]
            for row in rows:
                anew = batch.next_position(row)
                if anew is not None:
                    at[row] = anew
    logits = torch.cat(found, 1)
    return [logits[i, : len(feed)] for i, feed in enumerate(feeds)]
