"""The rows that a batch of variants decodes from: buffers with head-room, and attention over them.

Variants whose rows of a layer have the same shape are stacked and share one attention call; nothing
is padded. Knows nothing of models or tokens.

Letters: V variants, Q query heads, G KV heads, H in {G, Q} heads of a layout, n rows,
t tokens fed at once, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.cache.store import Band, Compressed, Store, Tail
from kvbench.model.attention import AttentionRule, masked_softmax
from kvbench.model.hooks import RotaryRecorder


class Rows:
    """Every layer's rows of every variant while they decode, and the attention over them."""

    def __init__(self, caches: list[Compressed], kv_heads: int, room: int) -> None:
        """Copy the rows of every cache into buffers, layer by layer, emptying `caches`.

        Args:
            caches: one per variant.
            kv_heads: G.
            room: tokens that will be fed at most.
        """
        self.recorder: RotaryRecorder | None = None
        self._at = torch.empty(0)
        self._layers: list[list[_Group]] = []
        layers = [list(cache.layers) for cache in caches]
        caches[:] = [Compressed((), {}, cache.next_position) for cache in caches]
        for layer in range(len(layers[0])):
            stores = {row: of_row[layer] for row, of_row in enumerate(layers)}
            for of_row in layers:
                of_row[layer] = None  # type: ignore[call-overload]
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
        rule: AttentionRule,
    ) -> Tensor:
        """Append the new rows of one layer and attend over all its rows: [V, Q, t, D]."""
        taken = self.recorder.take() if self.recorder is not None else None
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        at = self._at.to(q.device)
        for group in self._layers[layer]:
            rows = group.rows
            group.append(k[rows], v[rows], at[rows], taken)
            out[rows] = group.attend(q[rows], at[rows], rule)
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

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, head-room included."""
        return sum(group.nbytes for groups in self._layers for group in groups)

    def held_positions(self) -> list[list[Tensor]]:
        """Positions of the rows attended to: by layer, [V', h, n] for each band of each group."""
        return [[at for g in groups for at in g.positions] for groups in self._layers]

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
    def nbytes(self) -> int:
        """Bytes of the buffers, head-room included."""
        return sum(k.nbytes + v.nbytes + at.nbytes for k, v, at, _ in self._buffers)

    @property
    def positions(self) -> list[Tensor]:
        """[Vg, h, n] of each band: positions of the rows held."""
        return [at[:, :, : n + self.waiting] for _, _, at, n in self._buffers]

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
        rule: AttentionRule,
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
            if t > 1 or rule.sliding_window is not None:
                rows_at = positions[:, :, None, :used]
                query_at = at.repeat(1, share)[:, None, :, None]
                mask = rows_at <= query_at
                if rule.sliding_window is not None:
                    mask = mask & (rows_at > query_at - rule.sliding_window)
            held = (keys[:, :, :used], values[:, :, :used])
            if not self._sums:
                rows = _attention(some, *held, rule, mask)
            else:
                weights = _weights(some, held[0], rule, mask)
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
    """_Group the variants of one layer by the shape of their rows."""
    grown = grown or {}
    bands = {row: store.materialize() for row, store in stores.items()}
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


def _attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule, mask: Tensor | None) -> Tensor:
    """Attention of q [B, H, m, D] over k, v [B, H, n, D]; mask [B, H or 1, m, n], true: visible.

    On a CPU, scaled_dot_product_attention with few queries is about 14 times slower in bfloat16
    than the two products written out; with a softcap there is no kernel at all.
    """
    if rule.softcap is None and (q.dtype == torch.float32 or q.device.type != "cpu"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rule.scaling)
    return _weights(q, k, rule, mask).to(v.dtype) @ v


def _weights(q: Tensor, k: Tensor, rule: AttentionRule, mask: Tensor | None) -> Tensor:
    """Softmax weights [B, H, m, n] float32 of what `_attention` takes."""
    products = (q @ k.transpose(-1, -2)).float()
    return masked_softmax(products, rule, None if mask is None else ~mask)
