"""Plain rows: what eviction methods store.

Positions are provenance of the selection. They take memory in a real deployment only where
decoding reads them, and are counted then: in layers with a sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.segments import PlainRows, member_bits
from kvbench.cache.store import Band, Lane, Store
from kvbench.prefill.selection import union_of_rows
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class RowStore(Store):
    """Kept rows, dense per band of heads; evicted rows are gone from memory."""

    bands: tuple[Band, ...]
    """Rows of all heads, in head order; one band where all heads keep equally many."""
    reads_positions: bool = False
    """Whether decoding reads the positions, which are counted then."""

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """The rows, and their positions where decoding reads them."""
        parts = {"rows": tuple(t for b in self.bands for t in (b.k, b.v))}
        if self.reads_positions:
            parts["positions"] = tuple(b.positions for b in self.bands)
        return parts

    def materialize(self) -> tuple[Band, ...]:
        """The bands as they are."""
        return self.bands

    @property
    def heads(self) -> int:
        """Heads of all bands."""
        return sum(b.k.shape[0] for b in self.bands)

    @property
    def kept_vectors(self) -> int:
        """K and V rows over all stored heads."""
        return sum(2 * b.k.shape[0] * b.k.shape[1] for b in self.bands)

    @property
    def stored_vectors(self) -> int:
        """All of them are stored."""
        return self.kept_vectors


@dataclass(frozen=True)
class UnionStore(Store):
    """Rows per query head, stored once per KV head with an index list for each query head."""

    groups: tuple[Band, ...]
    """Per KV head: k and v [1, u, D], the union of its query heads' rows."""
    places: tuple[Tensor, ...]
    """Per KV head: [g, n] uint16 or int32, each query head's rows among the union."""
    reads_positions: bool = False

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Rows, index lists, and positions where decoding reads them."""
        parts = {
            "rows": tuple(t for b in self.groups for t in (b.k, b.v)),
            "indices": self.places,
        }
        if self.reads_positions:
            parts["positions"] = tuple(b.positions for b in self.groups)
        return parts

    def materialize(self) -> tuple[Band, ...]:
        """One band of Q heads: each query head's own rows."""
        picked = [(b, p.long()) for b, p in zip(self.groups, self.places, strict=True)]
        return (
            Band(
                torch.cat([b.k[0][p] for b, p in picked]),
                torch.cat([b.v[0][p] for b, p in picked]),
                torch.cat([b.positions[0][p] for b, p in picked]),
            ),
        )

    def segments(self) -> tuple[Lane, ...]:
        """Each KV head's union, and which of its query heads read each row."""
        return tuple(
            (PlainRows(b.k, b.v, b.positions, member_bits(p, b.k.shape[1])[None]),)
            for b, p in zip(self.groups, self.places, strict=True)
        )

    def by_band(self, attention: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What each query head's own rows received, and the tail's: [Q, 1, n + t]."""
        received = [
            torch.cat([weights[p.long()], weights[band.k.shape[1] :]])
            for band, places, of_lane in zip(self.groups, self.places, attention, strict=True)
            for p, weights in zip(places, of_lane[0], strict=True)
        ]
        return (torch.stack(received)[:, None],)

    @property
    def heads(self) -> int:
        """Q."""
        return sum(p.shape[0] for p in self.places)

    @property
    def kept_vectors(self) -> int:
        """K and V rows over all query heads, copies counted."""
        return sum(2 * p.numel() for p in self.places)

    @property
    def stored_vectors(self) -> int:
        """Rows of the unions."""
        return sum(2 * b.k.shape[1] for b in self.groups)


def index_dtype(count: int) -> torch.dtype:
    """Smallest unsigned type kvbench stores indices below `count` in: uint16, else int32."""
    return torch.uint16 if count <= 65536 else torch.int32


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of each head, copied: x [G, T, D], rows [H, n] with H a multiple of G -> [H, n, D]."""
    heads = torch.arange(rows.shape[0], device=x.device) // (rows.shape[0] // x.shape[0])
    return x[heads[:, None], rows]


def store_rows(layer: LayerState, rows: Tensor, *, union: bool = False) -> Store:
    """Store the kept rows of one layer.

    Args:
        layer: the state the rows are taken from.
        rows: [H, n] int64 positions, ascending within a head; H = G: one set per KV head, H = Q:
            one per query head.
        union: with H = Q, store the distinct rows of each KV head once, with index lists, rather
            than one copy per query head.
    """
    windowed = layer.rule.sliding_window is not None
    if union and rows.shape[0] != layer.kv_heads:
        groups, places = [], []
        per_kv_head = rows.reshape(layer.kv_heads, rows.shape[0] // layer.kv_heads, rows.shape[1])
        for head, kept in enumerate(per_kv_head):
            positions, where, _ = union_of_rows(kept)
            at = positions[None]
            groups.append(Band(layer.k[head, at], layer.v[head, at], at.to(torch.int32)))
            places.append(where.to(index_dtype(len(positions))))
        return UnionStore(tuple(groups), tuple(places), windowed)
    band = Band(gather_rows(layer.k, rows), gather_rows(layer.v, rows), rows.to(torch.int32))
    return RowStore((band,), windowed)


def store_band(band: Band, kv_heads: int, *, union: bool, reads_positions: bool) -> Store:
    """Store rows that are already gathered, one band of all heads.

    Args:
        band: [H, n, D], H = G or Q; heads that share a KV head hold equal rows at equal positions.
        kv_heads: G.
        union: with H = Q, store each row once per KV head, with index lists.
        reads_positions: whether decoding reads the positions.
    """
    heads, _, dim = band.k.shape
    if not union or heads == kv_heads:
        return RowStore((band,), reads_positions)
    groups, places = [], []
    readers = heads // kv_heads
    for first in range(0, heads, readers):
        of_head = slice(first, first + readers)
        positions, where, _ = union_of_rows(band.positions[of_head])
        k, v = (x.new_empty(len(positions), dim) for x in (band.k, band.v))
        k[where], v[where] = band.k[of_head], band.v[of_head]
        groups.append(Band(k[None], v[None], positions[None]))
        places.append(where.to(index_dtype(len(positions))))
    return UnionStore(tuple(groups), tuple(places), reads_positions)


def store_ragged_rows(layer: LayerState, rows: list[Tensor]) -> RowStore:
    """Store each head's own number of rows: `rows` holds G or Q tensors of ascending positions."""
    copies = len(rows) // layer.kv_heads
    bands = [
        Band(layer.k[h // copies, r][None], layer.v[h // copies, r][None], r.to(torch.int32)[None])
        for h, r in enumerate(rows)
    ]
    return RowStore(tuple(bands), layer.rule.sliding_window is not None)


def store_whole(layer: LayerState) -> RowStore:
    """Store every row the layer was fed in the native layout, sharing the capture's memory."""
    if layer.positions is None:
        positions = torch.arange(layer.tokens, dtype=torch.int32, device=layer.k.device)
    else:
        positions = layer.positions.to(torch.int32)
    band = Band(layer.k, layer.v, positions.expand(layer.kv_heads, -1))
    # Without gaps a row's place is its position, and none need be kept.
    return RowStore((band,), layer.positions is not None and layer.rule.sliding_window is not None)
