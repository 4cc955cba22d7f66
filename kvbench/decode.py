"""Greedy decoding of all variants of a prompt as one batch over their own, ragged rows.

No transformers cache: rows live in buffers with head-room that are written in place, positions
are the true ones, and rows of equal shape share one attention call. At a fixed batch width a
variant's numbers do not depend on its neighbours, so callers keep the width constant.

Letters: V variants, Q query heads, G KV heads, H in {G, Q} heads of a layout, n rows,
t tokens fed at once, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.attention import RotaryRecorder, recording_pre_rope
from kvbench.cache.rows import RowStore
from kvbench.cache.store import Band, Compressed, Store, Tail

if TYPE_CHECKING:
    from kvbench.model import LoadedModel


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
    batch = [*caches, *[_filling(caches[0])] * ((width or wanted) - wanted)]
    caches.clear()
    room = len(feed) + stop.max_new_tokens
    with torch.inference_mode():
        positions = _next_positions(batch, start)
        run = _Rows(batch, model.geometry.kv_heads, room)
        batch.clear()
        return _greedy(model, run, positions, stop, first_logits, feed, wanted, on_token)


def _filling(cache: Compressed) -> Compressed:
    """A cache of one token: what fills a batch to its width costs next to nothing."""
    layers = tuple(RowStore(tuple(map(_first_row, s.materialise()))) for s in cache.layers)
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
        run = _Rows(list(caches), model.geometry.kv_heads, longest)
        step = 1 if run.absorbs else longest
        with _feeding(model, run, positions) as forward:
            fed = [forward(padded[:, i : i + step], 0) for i in range(0, longest, step)]
        logits = torch.cat(fed, 1)
    return [row[: len(feed)] for row, feed in zip(logits, feeds, strict=True)]


def _next_positions(caches: Sequence[Compressed], start: int) -> Tensor:
    """Position of the first token fed to each cache: [V, 1]."""
    return torch.tensor([[start if c.next_position is None else c.next_position] for c in caches])


@contextmanager
def _feeding(
    model: LoadedModel, run: _Rows, positions: Tensor
) -> Iterator[Callable[[Tensor, int], Tensor]]:
    """Give a forward over the rows of a run.

    It takes ids [V, t] and how many of their logits to return, 0 for all: [V, that, vocabulary].
    """
    recording = recording_pre_rope(model.network) if run.reads_pre_rope else nullcontext()
    with recording as recorder:
        run.recorder = recorder

        def forward(ids: Tensor, logits_to_keep: int) -> Tensor:
            nonlocal positions
            at = positions + torch.arange(ids.shape[1])
            positions = positions + ids.shape[1]
            run.begin(at.to(model.device))
            output = model.network(
                input_ids=ids.to(model.device),
                position_ids=at.to(model.device),
                past_key_values=None,
                use_cache=False,
                logits_to_keep=logits_to_keep,
                kvbench=run,
            )
            run.merge_full_tails()
            for row, position in run.renumbered():
                positions[row] = position
            logits: Tensor = output.logits.float()
            return logits

        yield forward


def _greedy(
    model: LoadedModel,
    run: _Rows,
    positions: Tensor,
    stop: Stop,
    first_logits: Tensor | None,
    feed: Sequence[int],
    wanted: int,
    on_token: Callable[[int], None],
) -> list[Generation]:
    width = positions.shape[0]
    with _feeding(model, run, positions) as forward:
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
        Generation(tuple(written[row]), row not in running, run.tail_bytes(row))
        for row in range(wanted)
    ]


class _Rows:
    """The run of a decode: every layer's rows of every variant, and the attention over them."""

    def __init__(self, batch: list[Compressed], kv_heads: int, room: int) -> None:
        self.recorder: RotaryRecorder | None = None
        self._width = len(batch)
        self._at = torch.empty(0)
        self._layers: list[list[_Group]] = []
        self._base_bytes = [c.nbytes for c in batch]
        layers = [list(c.layers) for c in batch]
        batch_size = len(batch)
        batch[:] = [Compressed((), {}, c.next_position) for c in batch]
        for layer in range(len(layers[0])):
            stores = {row: layers[row][layer] for row in range(batch_size)}
            for row in range(batch_size):
                layers[row][layer] = None  # type: ignore[call-overload]
            self._layers.append(_grouped(stores, kv_heads, room))
        self.reads_pre_rope = any(
            s.tail_needs_pre_rope
            for groups in self._layers
            for g in groups
            for s in g.stores.values()
        )

    @property
    def absorbs(self) -> bool:
        """Whether any store merges or evicts while decoding."""
        return any(group.absorbs for groups in self._layers for group in groups)

    def begin(self, at: Tensor) -> None:
        """Take the positions [V, t] of the tokens about to be fed."""
        self._at = at

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Append the new rows of one layer and attend over all its rows: [V, Q, t, D]."""
        taken = self.recorder.take() if self.recorder is not None else None
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        at = self._at.to(q.device)
        for group in self._layers[layer]:
            rows = group.rows
            group.append(k[rows], v[rows], at[rows], taken)
            out[rows] = group.attend(q[rows], at[rows], scaling, sliding_window, softcap)
        return out

    def merge_full_tails(self) -> None:
        """Let every store whose tail is full absorb it."""
        for layer, groups in enumerate(self._layers):
            if any(g.is_full for g in groups):
                self._layers[layer] = [
                    after for g in groups for after in (g.absorbed() if g.is_full else [g])
                ]

    def renumbered(self) -> Iterator[tuple[int, int]]:
        """Rows whose next token takes another position than the one after the last, and which."""
        for group in self._layers[0]:
            for row, store in group.stores.items():
                if store.next_position is not None:
                    yield row, store.next_position + group.waiting

    def tail_bytes(self, row: int) -> int:
        """Bytes one variant holds beyond its compressed prompt."""
        total = 0
        absorbed = 0
        for groups in self._layers:
            for group in groups:
                if row in group.members:
                    total += group.waiting_bytes
                    absorbed += group.absorbed_bytes.get(row, 0)
        return total + absorbed


class _Group:
    """Variants whose rows of one layer have the same shape: stacked buffers, one call each band."""

    def __init__(
        self,
        stores: dict[int, Store],
        bands: dict[int, tuple[Band, ...]],
        kv_heads: int,
        room: int,
        absorbed_bytes: dict[int, int],
    ) -> None:
        self.members = list(stores)
        self.rows = torch.tensor(self.members)
        first = bands[self.members[0]]
        self._every = stores[self.members[0]].absorb_every
        # Only stores that merge while decoding are read again; the rest are freed here.
        self.stores = stores if self._every else {}
        self.absorbed_bytes = absorbed_bytes
        self._kv_heads = kv_heads
        self._room = room
        self._heads = sum(b.k.shape[0] for b in first)
        self.waiting = 0
        self._reads_attention = stores[self.members[0]].tail_needs_attention
        self._sums: list[Tensor] = []  # per band [Vg, h, share, n + room], once attended
        self._buffers: list[tuple[Tensor, Tensor, Tensor, int]] = []
        for i, like in enumerate(first):
            h, n, dim = like.k.shape
            shape = (len(stores), h, n + room, dim)
            k, v = like.k.new_empty(shape), like.v.new_empty(shape)
            at = like.positions.new_empty(shape[:3])
            for slot, row in enumerate(self.members):
                band = bands[row][i]
                k[slot, :, :n], v[slot, :, :n], at[slot, :, :n] = band.k, band.v, band.positions
            self._buffers.append((k, v, at, n))
        self._tail: list[Tail] = []

    @property
    def absorbs(self) -> bool:
        """Whether its stores absorb tails at all."""
        return self._every > 0

    @property
    def is_full(self) -> bool:
        """Whether the tail has reached the size at which the stores absorb it."""
        return 0 < self._every <= self.waiting

    @property
    def waiting_bytes(self) -> int:
        """Bytes of one member's appended rows, one copy per KV head as a store would keep them."""
        k, v, _, _ = self._buffers[0]
        return self.waiting * self._kv_heads * k.shape[-1] * (k.element_size() + v.element_size())

    def append(
        self,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        pre_rope: tuple[Tensor, Tensor, Tensor] | None,
    ) -> None:
        """Write new rows k, v [Vg, G, t, D] at positions [Vg, t] behind the others."""
        t = k.shape[2]
        if self._every:
            for slot, row in enumerate(self.members):
                added = Tail(k[slot], v[slot], at[slot])
                if pre_rope is not None:
                    k_pre, cos, sin = pre_rope
                    angles = row if cos.shape[0] > 1 else 0
                    added = replace(added, k_pre=k_pre[row], cos=cos[angles], sin=sin[angles])
                self._tail.append(added)
        copies = self._heads // self._kv_heads
        if copies > 1:
            k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        head = 0
        for keys, values, positions, n in self._buffers:
            new = slice(n + self.waiting, n + self.waiting + t)
            some = slice(head, head + keys.shape[1])
            keys[:, :, new], values[:, :, new] = k[:, some], v[:, some]
            positions[:, :, new] = at[:, None].to(positions.dtype)
            head += keys.shape[1]
        self.waiting += t

    def attend(
        self,
        q: Tensor,
        at: Tensor,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attention of q [Vg, Q, t, D] at positions [Vg, t] over all rows held."""
        batch, heads, t, dim = q.shape
        share = heads // self._heads
        if self._reads_attention and not self._sums:
            self._sums = [
                k.new_zeros((*k.shape[:2], share, k.shape[2]), dtype=torch.float32)
                for k, _, _, _ in self._buffers
            ]
        parts = []
        head = 0
        for i, (keys, values, positions, n) in enumerate(self._buffers):
            h, used = keys.shape[1], n + self.waiting
            some = q[:, head * share : (head + h) * share].reshape(batch, h, share * t, dim)
            mask = None
            if t > 1 or sliding_window is not None:
                rows_at = positions[:, :, None, :used]
                query_at = at.repeat(1, share)[:, None, :, None]
                mask = rows_at <= query_at
                if sliding_window is not None:
                    mask = mask & (rows_at > query_at - sliding_window)
            held = (keys[:, :, :used], values[:, :, :used])
            if not self._sums:
                rows = _attention(some, *held, scaling, softcap, mask)
            else:
                weights = _weights(some, held[0], scaling, softcap, mask)
                self._sums[i][..., :used] += weights.view(batch, h, share, t, used).sum(3)
                rows = weights.to(values.dtype) @ held[1]
            parts.append(rows.reshape(batch, h * share, t, dim))
            head += h
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def absorbed(self) -> list[_Group]:
        """The groups after every member's store has absorbed its tail."""
        stores = {}
        grown = {}
        for slot, row in enumerate(self.members):
            mine = self._tail[slot :: len(self.members)]
            before = self.stores[row]
            stores[row] = before.absorb(replace(_joined(mine), attention=self._attention_of(slot)))
            grown[row] = self.absorbed_bytes.get(row, 0) + stores[row].nbytes - before.nbytes
        return _grouped(stores, self._kv_heads, self._room - self.waiting, grown)

    def _attention_of(self, slot: int) -> tuple[Tensor, ...] | None:
        """What one member's rows received since its store last absorbed, per band."""
        if not self._sums:
            return None
        return tuple(
            sums[slot, :, :, : n + self.waiting]
            for sums, (_, _, _, n) in zip(self._sums, self._buffers, strict=True)
        )


def _joined(tails: Iterable[Tail]) -> Tail:
    """Tails of consecutive steps as one."""
    parts = list(tails)

    def along(name: str, dim: int) -> Tensor | None:
        tensors = [getattr(p, name) for p in parts]
        return None if tensors[0] is None else torch.cat(tensors, dim)

    dims = {"k": 1, "v": 1, "positions": 0, "k_pre": 1, "cos": 0, "sin": 0}
    return Tail(**{name: along(name, dim) for name, dim in dims.items()})  # type: ignore[arg-type]


def _grouped(
    stores: dict[int, Store], kv_heads: int, room: int, grown: dict[int, int] | None = None
) -> list[_Group]:
    """Group the variants of one layer by the shape of their rows."""
    grown = grown or {}
    bands = {row: store.materialise() for row, store in stores.items()}
    shapes: dict[tuple[object, ...], list[int]] = {}
    for row, store in stores.items():
        kind = (store.absorb_every, store.tail_needs_attention)
        shape = (*kind, *(tuple(b.k.shape[:2]) for b in bands[row]))
        shapes.setdefault(shape, []).append(row)
    return [
        _Group(
            {r: stores[r] for r in rows},
            {r: bands[r] for r in rows},
            kv_heads,
            room,
            {r: grown[r] for r in rows if r in grown},
        )
        for rows in shapes.values()
    ]


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, softcap: float | None, mask: Tensor | None
) -> Tensor:
    """Attention of q [B, H, m, D] over k, v [B, H, n, D]; mask [B, H or 1, m, n], true: visible.

    On a CPU, scaled_dot_product_attention with few queries is about 14 times slower in bfloat16
    than the two products written out; with a softcap there is no kernel at all.
    """
    if softcap is None and (q.dtype == torch.float32 or q.device.type != "cpu"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return _weights(q, k, scaling, softcap, mask).to(v.dtype) @ v


def _weights(
    q: Tensor, k: Tensor, scaling: float, softcap: float | None, mask: Tensor | None
) -> Tensor:
    """Softmax weights [B, H, m, n] float32 of what `_attention` takes."""
    logits = (q @ k.transpose(-1, -2)).float() * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return logits.softmax(-1)
