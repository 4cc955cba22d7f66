"""The rows of a decode batch: what each holds of its compressed cache, and attention over it.

A row's stores are read where they lie; only its tail, the tokens fed and generated since, is added.
One launch serves a layer of all rows that a kernel can read; plain torch serves the others. Knows
nothing of tokens.

Letters: V rows, L layers, Q query heads, G KV heads, c query heads that read a head, n rows held,
B rows fed at once (one or all), t tokens fed to each, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.segments import member_mask
from kvbench.cache.store import Compressed, Lane, Store, Tail
from kvbench.decode import cpu_kernels, cuda_kernels
from kvbench.decode.cuda_kernels import sent
from kvbench.decode.reading import Reading, TailRows, attend
from kvbench.model.attention import AttentionRule
from kvbench.model.hooks import RotaryRecorder
from kvbench.model.rotary import Rotary

_GROWS_BY = 16
"""Tokens by which a tail's buffer grows at least; a longer one grows by a quarter."""


class RowError(Exception):
    """One row of a batch cannot go on; the others can. Its cause says why."""

    def __init__(self, row: int) -> None:
        """Name the row."""
        super().__init__(f"row {row}")
        self.row = row


@dataclass
class _Fed:
    """What absorbing reads of tokens beside their tail rows."""

    positions: Tensor
    """[t] int64."""
    k_pre: Tensor | None
    """[G, t, D]; None unless the store asks for it."""


@dataclass
class _Together:
    """Layers of a row that lie on one device and are as long: their tails grow at once."""

    most: int
    """Tokens that a tail comes to hold, those fed at once aside."""
    whole: bool
    """Whether room is made once, for all tokens."""
    tails: list[TailRows] = field(default_factory=list)
    buffers: Tensor = field(default_factory=lambda: torch.empty(0, 2, 0, 0, 0))
    """[layers, 2, G, room, D]: a tail each."""

    def reserve(self, tail: TailRows, like: Tensor, tokens: int) -> bool:
        """Make room for more tokens of one of them, with rows `like` [.., G, t, D].

        Returns:
            Whether the tails moved.
        """
        room = self.buffers.shape[3]
        if tail.count + tokens <= room:
            return False
        count = max(tail.count for tail in self.tails)
        grown = self.most if self.whole else min(self.most, room + max(_GROWS_BY, room // 4))
        grown = max(count + tokens, grown)
        buffers = like.new_empty(len(self.tails), 2, like.shape[-3], grown, like.shape[-1])
        if count:
            buffers[..., :count, :] = self.buffers[..., :count, :]
        self.buffers = buffers
        for tail, buffer in zip(self.tails, buffers, strict=True):
            tail.buffer = buffer
        return True


@dataclass
class _Layer:
    """What one row holds of one layer."""

    lanes: tuple[Lane, ...]
    absorbing: Store | None
    """The store, where it absorbs its tail; reading the others takes their lanes alone."""
    together: _Together
    """The layers whose tails lie with this one's."""
    tail: TailRows
    fed: list[_Fed] = field(default_factory=list)
    """The tail's tokens, where they will be absorbed."""
    received: list[Tensor] | None = None
    """Per lane [h, c, n + tail] float32 attention received since the store last absorbed."""
    absorbed_bytes: int = 0
    known: list[Reading] = field(default_factory=list)
    """Who reads each lane, once asked for."""
    served: bool | None = None
    """Whether a kernel reads all of it, once asked for."""
    by: str = "torch"
    """What reads it, token by token."""

    def readings(self, row: int, query_heads: int, group: int) -> list[Reading]:
        """Who reads each lane, the same objects until a store absorbs; heads share evenly.

        Args:
            row: of the batch.
            query_heads: Q.
            group: Q / G.
        """
        if not self.known:
            readers = query_heads // sum(lane[0].heads for lane in self.lanes)
            first = 0
            for lane in self.lanes:
                self.known.append(Reading(row, lane, first, readers, self.tail, group))
                first += readers * lane[0].heads
        return self.known

    @property
    def is_full(self) -> bool:
        """Whether the tail has reached the size at which the store absorbs it."""
        return self.absorbing is not None and self.tail.count >= self.absorbing.absorb_every

    @property
    def parts(self) -> tuple[object, ...]:
        """Everything held."""
        return self.lanes, self.absorbing, self.together.buffers, self.fed, self.received


@dataclass
class _Flat:
    """How one layer of all rows is read: by one launch of a kernel, or plainly."""

    launch: Any
    """A FlatLaunch; None where the kernel reads none of the rows."""
    plain: tuple[int, ...]
    """Rows that the kernel cannot read."""
    moved: bool = False
    """Whether tails lie elsewhere than the launch knows."""


class Batch:
    """What the V rows of a batch hold while they decode; serves their attention."""

    def __init__(
        self, width: int, layers: int, *, as_stored: bool = True, stays: bool = False
    ) -> None:
        """Begin without rows.

        Args:
            width: V.
            layers: L.
            as_stored: read stores as they are; else rebuild plain rows of them.
            stays: hold every row where it lies from its first token on, for `RecordedStep`.
        """
        self.recorder: RotaryRecorder | None = None
        self._as_stored = as_stored
        self._stays = stays
        self._rows: list[list[_Layer] | None] = [None] * width
        self._pre_rope = [False] * width
        self._flat: list[_Flat | None] = [None] * layers
        self._counts: dict[torch.device, Tensor] = {}
        self._steps: dict[torch.device, tuple[tuple[int, ...], Tensor]] = {}
        self._fed: Sequence[int] = ()
        self._starts: Sequence[int] | None = None
        self._at: dict[torch.device, Tensor] = {}
        self._tokens = 0
        self._pending: list[tuple[_Layer, _Fed]] = []
        self._attention: list[tuple[_Layer, list[Tensor]]] = []

    def join(self, row: int, cache: Compressed, tokens: int) -> None:
        """Let a free row hold a cache, of which only what reading takes is kept.

        Args:
            row: which.
            cache: what it reads.
            tokens: fed and generated at most.
        """
        together: dict[tuple[torch.device, int], _Together] = {}
        held = []
        for store in cache.layers:
            lanes = self._lanes(store)
            most = store.absorb_every or tokens
            key = lanes[0][0].positions.device, most
            mine = together.setdefault(key, _Together(most, self._stays))
            mine.tails.append(TailRows(torch.empty(2, 0, 0, 0, device=key[0]), most=most))
            absorbing = store if store.absorb_every else None
            held.append(_Layer(lanes, absorbing, mine, mine.tails[-1]))
        self._rows[row] = held
        self._pre_rope[row] = any(s.tail_needs_pre_rope for s in cache.layers if s.absorb_every)
        self._forget(range(len(self._flat)))

    def leave(self, row: int) -> None:
        """Free a row."""
        self._rows[row], self._pre_rope[row] = None, False
        self._forget(range(len(self._flat)))

    def begin(self, rows: Sequence[int], at: Tensor, starts: Sequence[int] | None = None) -> None:
        """Take which rows are about to be fed, and the positions [B, t] of their tokens.

        Args:
            rows: one row, whose forward has one sequence; or any rows of a forward of all V.
            at: int64; of rows that are not fed anything will do.
            starts: the first position of each row, where the host knows it without asking.
        """
        self._fed, self._starts, self._at = rows, starts, {at.device: at}
        self._tokens = at.shape[1]
        self._pending, self._attention = [], []

    @property
    def reads_pre_rope(self) -> bool:
        """Whether any store absorbs keys before RoPE."""
        return any(self._pre_rope)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """Add the new rows of one layer behind the others and attend: [B, Q, t, D].

        Nothing counts as held before `finish`, so a forward that failed can be repeated.
        """
        taken = self.recorder.take() if self.recorder is not None else None
        at = self._at_on(q.device)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        whole = q.shape[0] == len(self._rows)
        held = {row: self._held(row)[layer] for row in self._fed}
        if any([m.together.reserve(m.tail, k, q.shape[2]) for m in held.values()]):
            for known in self._flat:
                if known is not None:
                    known.moved = True
        plain: Sequence[int] = self._fed
        if whole and q.shape[2] == 1:
            flat = self._flat_of(layer, q, k)
            plain = flat.plain
            if flat.launch is None:
                out.zero_()
            else:
                counts = self._counts_on(q.device)[layer]
                flat.launch.attend(q, k, v, at[:, 0], counts, rule, out)
        else:
            out.zero_()
        for row in plain:
            index = row if whole else 0
            try:
                out[index] = self._attend_plainly(row, held[row], q[index], k, v, at, index, rule)
            except Exception as error:
                raise RowError(row) from error
        for i, (row, mine) in enumerate(held.items()):
            if mine.absorbing is not None:
                index = row if whole else 0
                start = None if self._starts is None else self._starts[i]
                self._pending.append((mine, _fed(mine.absorbing, at[index], start, taken, index)))
        return out

    def finish(self) -> dict[int, Exception]:
        """Count what was fed as held and let full tails be absorbed; rows that failed, and why."""
        tokens = self._tokens
        for mine, fed in self._pending:
            mine.fed.append(fed)
        for mine, weights in self._attention:
            mine.received = _added(mine.received, weights)
        self._pending, self._attention = [], []
        for device, counts in self._counts.items():
            counts += self.is_fed(device) * tokens
        failed: dict[int, Exception] = {}
        for row in self._fed:
            for layer, mine in enumerate(self._held(row)):
                mine.tail.count += tokens
                if mine.is_full and row not in failed:
                    try:
                        self._absorb(mine)
                    except Exception as error:
                        failed[row] = error
                    self._forget([layer])
        return failed

    def next_position(self, row: int) -> int | None:
        """Position of a row's next token where its store numbers rows anew; None: one further."""
        first = self._held(row)[0]
        if first.absorbing is None or first.absorbing.next_position is None:
            return None
        return first.absorbing.next_position + first.tail.count

    def absorbs(self, row: int) -> bool:
        """Whether a row's store takes tokens in while decoding."""
        return any(mine.absorbing is not None for mine in self._held(row))

    def is_served(self, row: int) -> bool:
        """Whether a kernel reads all of a row, once it has been read."""
        return all(mine.by != "torch" for mine in self._held(row))

    def nbytes(self, row: int) -> int:
        """Bytes of every tensor that a row keeps alive, tails with their head-room."""
        return held_bytes([mine.parts for mine in self._held(row)])

    def tail_bytes(self, row: int) -> int:
        """Bytes of the tokens that a row was fed, in its tail or absorbed, head-room left out."""
        total = 0
        for mine in self._held(row):
            total += mine.tail.k.nbytes + mine.tail.v.nbytes + mine.absorbed_bytes
            total += sum(fed.k_pre.nbytes for fed in mine.fed if fed.k_pre is not None)
        return total

    def reader(self, row: int) -> str:
        """How a row is read: `codebook (numba)`; plain rows beside what is compressed go unsaid."""
        held = self._held(row)
        kinds = {segment.reader for mine in held for lane in mine.lanes for segment in lane}
        if len(kinds) > 1:
            kinds.discard("rows")
        by = {mine.by for mine in held}
        rebuilt = "" if self._as_stored else "rebuilt "
        return f"{rebuilt}{', '.join(sorted(kinds))} ({', '.join(sorted(by))})"

    def positions(self, row: int, query_heads: int) -> list[list[Tensor]]:
        """Positions of the rows a store holds, by layer and head [n], and of what it will absorb.

        Where the query heads of a head read different rows, each query head has its own.
        """
        return [_positions(mine, query_heads) for mine in self._held(row)]

    def _held(self, row: int) -> list[_Layer]:
        held = self._rows[row]
        assert held is not None, "the row is free"
        return held

    def _lanes(self, store: Store) -> tuple[Lane, ...]:
        """What is read of a store; plain rows where it is not read as stored."""
        return store.segments() if self._as_stored else Store.segments(store)

    def _forget(self, layers: Sequence[int]) -> None:
        """What these layers hold has changed."""
        self._counts.clear()
        for layer in layers:
            self._flat[layer] = None

    def _flat_of(self, layer: int, q: Tensor, k: Tensor) -> _Flat:
        """How a layer is read, found anew where what is held has changed."""
        found = self._flat[layer]
        if found is not None:
            if found.moved and found.launch is not None:
                found.launch.follow_tails()
            found.moved = False
            return found
        group = q.shape[1] // k.shape[1]
        kernels = _kernels(q.device)
        readings, plain = [], []
        for row, held in enumerate(self._rows):
            if held is None:
                continue
            mine = held[layer]
            lanes = mine.readings(row, q.shape[1], group)
            if mine.served is None:
                weighs = mine.absorbing is not None and mine.absorbing.tail_needs_attention
                mine.served = (
                    kernels is not None
                    and not weighs
                    and all(kernels.reads(lane, group) for lane in mine.lanes)
                )
                mine.by = kernels.NAME if mine.served and kernels is not None else "torch"
            if mine.served:
                readings += lanes
            else:
                plain.append(row)
        launch = None
        if readings:
            assert kernels is not None
            launch = kernels.FlatLaunch(readings)
        found = self._flat[layer] = _Flat(launch, tuple(plain))
        return found

    def is_fed(self, device: torch.device) -> Tensor:
        """[V] 1 for each row that was fed last, kept on the device until other rows are fed."""
        fed = tuple(self._fed)
        if device not in self._steps or self._steps[device][0] != fed:
            ones = [int(row in fed) for row in range(len(self._rows))]
            self._steps[device] = fed, sent(torch.tensor(ones), device)
        return self._steps[device][1]

    def _at_on(self, device: torch.device) -> Tensor:
        """The positions [B, t] on a layer's device."""
        if device not in self._at:
            (at, *_) = self._at.values()
            self._at[device] = at.to(device)
        return self._at[device]

    def _counts_on(self, device: torch.device) -> Tensor:
        """[L, V] tokens that each tail holds, counted on the device while the same rows go on."""
        if device not in self._counts:
            layers = range(len(self._flat))
            counts = [
                [0] * len(layers) if held is None else [mine.tail.count for mine in held]
                for held in self._rows
            ]
            self._counts[device] = sent(torch.tensor(counts).T.contiguous(), device)
        return self._counts[device]

    def _attend_plainly(
        self,
        row: int,
        mine: _Layer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        index: int,
        rule: AttentionRule,
    ) -> Tensor:
        """Attention of one row [Q, t, D]."""
        t = q.shape[1]
        count = mine.tail.count
        tail = TailRows(mine.tail.buffer, count + t)
        new = slice(count, count + t)
        tail.buffer[0, :, new], tail.buffer[1, :, new] = k[index], v[index]
        parts, weights = [], []
        for reading in mine.readings(row, q.shape[0], q.shape[0] // k.shape[1]):
            out, found = attend(replace(reading, tail=tail), q[reading.queries], at[index], rule)
            parts.append(out)
            weights.append(found.sum(2))
        if mine.absorbing is not None and mine.absorbing.tail_needs_attention:
            self._attention.append((mine, weights))
        return torch.cat(parts)

    def _absorb(self, mine: _Layer) -> None:
        """Let the store of one row and layer absorb its tail."""
        before = mine.absorbing
        assert before is not None
        at = torch.cat([fed.positions for fed in mine.fed])
        k_pre = None
        if before.tail_needs_pre_rope:
            k_pre = torch.cat([fed.k_pre for fed in mine.fed if fed.k_pre is not None], 1)
        received = None
        if mine.received is not None:
            received = tuple(mine.received)
            received = before.by_band(received) if self._as_stored else received
        after = before.absorb(Tail(mine.tail.k, mine.tail.v, at, k_pre, received))
        mine.absorbing = after
        mine.lanes = self._lanes(after)
        mine.known, mine.served = [], None
        mine.absorbed_bytes += after.nbytes - before.nbytes
        mine.tail.count = 0
        mine.tail.most = mine.together.most = max(mine.together.most, after.absorb_every)
        mine.fed, mine.received = [], None


def held_bytes(held: object) -> int:
    """Bytes of every tensor and array inside an object, memory that several share counted once."""
    return sum(dict(_memory_in(held)).values())


def _memory_in(held: object) -> Iterator[tuple[int, int]]:
    """Address and bytes of what is inside dataclasses, sequences and mappings.

    The model's own tables are left out.
    """
    if isinstance(held, Tensor):
        storage = held.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(held, np.ndarray):
        yield held.ctypes.data, held.nbytes
    elif isinstance(held, Rotary):
        return
    elif is_dataclass(held):
        for part in fields(held):
            yield from _memory_in(getattr(held, part.name))
    elif isinstance(held, (list, tuple)):
        for part in held:
            yield from _memory_in(part)
    elif isinstance(held, Mapping):
        yield from _memory_in(list(held.values()))


def _kernels(device: torch.device) -> ModuleType | None:
    """What reads stores on a device; None: plain torch."""
    kernels = {"cpu": cpu_kernels, "cuda": cuda_kernels}.get(device.type)
    return kernels if kernels is not None and kernels.available() else None


def _fed(
    store: Store,
    at: Tensor,
    start: int | None,
    taken: tuple[Tensor, Tensor, Tensor] | None,
    index: int,
) -> _Fed:
    """What a store will absorb of the tokens just fed, copied out of the batch's tensors.

    Args:
        store: absorbs.
        at: [t] positions.
        start: the first of them, where it is known.
        taken: keys before RoPE and their tables.
        index: of the row in these.
    """
    if taken is None or not store.tail_needs_pre_rope:
        return _Fed(at, None)
    k_pre, cos, sin = taken
    if store.rotates_with is not None:
        angles = index if cos.shape[0] > 1 else 0
        first = int(at[0]) if start is None else start
        store.rotates_with.table.cover(first, cos[angles], sin[angles])
    return _Fed(at, k_pre[index].clone())


def _added(received: list[Tensor] | None, weights: list[Tensor]) -> list[Tensor]:
    """Attention received so far, and more of it by the rows of a longer tail."""
    if received is None:
        return weights
    for mine, more in zip(received, weights, strict=True):
        more[..., : mine.shape[-1]] += mine
    return weights


def _positions(mine: _Layer, query_heads: int) -> list[Tensor]:
    """As `Batch.positions` says of one layer."""
    readers = query_heads // sum(lane[0].heads for lane in mine.lanes)
    waiting = [fed.positions.int() for fed in mine.fed]
    found = []
    for lane in mine.lanes:
        distinct = any(segment.members is not None for segment in lane)
        for head in range(lane[0].heads):
            for reader in range(readers if distinct else 1):
                parts = []
                for segment in lane:
                    at = segment.positions[head]
                    if segment.members is not None:
                        at = at[member_mask(segment.members, readers)[head, reader]]
                    parts.append(at)
                found.append(torch.cat([*parts, *waiting]))
    return found
