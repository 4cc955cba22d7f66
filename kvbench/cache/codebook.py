"""The codebook of SpindleKV (section 3.4): vectors written with few directions, and a norm each.

Vectors that point the same way (cosine above theta) share one entry; each keeps its own norm.
Keys enter before RoPE and are rotated to their original positions on read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.cover import Pairs, greedy_cover, remembered_pairs, unit_and_norm
from kvbench.cache.rows import gather_rows, index_dtype
from kvbench.cache.segments import CodebookRows, PlainRows, Written, member_bits
from kvbench.cache.store import Band, Lane, Store, Tail
from kvbench.model.rotary import Rotary
from kvbench.prefill.selection import union_of_rows
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class Book(Written):
    """One codebook and the vectors written with it, ready to be extended."""

    theta: float

    @classmethod
    def of(
        cls,
        vectors: Tensor,
        theta: float,
        magnitude: bool,
        copies: Tensor,
        heads: Tensor,
        pairs: Pairs | None = None,
    ) -> Book:
        """Build the book of vectors [N, D] by Algorithm 1; the rest is `greedy_cover`'s."""
        unit, norms = unit_and_norm(vectors)
        picks, refs = greedy_cover(unit, theta, copies, heads, pairs)
        return cls(
            (unit[picks] if magnitude else vectors[picks]).to(vectors.dtype),
            refs.to(index_dtype(len(picks))),
            norms.to(vectors.dtype) if magnitude else None,
            theta,
        )

    def extended(self, vectors: Tensor) -> Book:
        """The book that also holds new vectors [t, D].

        Each goes to the entry of the largest cosine above theta (ties to the lowest index);
        Algorithm 1 runs on those that match none, and its picks become further entries.
        """
        unit, norms = unit_and_norm(vectors)
        directions, _ = unit_and_norm(self.entries)
        best = torch.full((len(unit),), -1.0, device=unit.device)
        at = torch.zeros(len(unit), dtype=torch.int64, device=unit.device)
        if len(directions):
            best, at = (unit @ directions.T).max(dim=1)
        rest = torch.nonzero(best <= self.theta)[:, 0]
        picks, refs = greedy_cover(unit[rest], self.theta)
        at[rest] = refs + len(self.entries)
        source = unit if self.norms is not None else vectors
        entries = torch.cat([self.entries, source[rest[picks]].to(self.entries.dtype)])
        dtype = index_dtype(len(entries))
        return replace(
            self,
            entries=entries,
            refs=torch.cat([self.refs.to(dtype), at.to(dtype)]),
            norms=None
            if self.norms is None
            else torch.cat([self.norms, norms.to(self.norms.dtype)]),
        )


@dataclass(frozen=True)
class CodebookStore(Store):
    """One layer written with codebooks for keys and values, plus the window's plain rows.

    The rows written with the books are, per KV head, the distinct positions its query heads keep,
    followed by the generated tokens absorbed so far. With `scope=layer` one pair of books serves
    the rows of all KV heads, one head after the other.
    """

    key_books: tuple[Book, ...]
    """Before RoPE; one per KV head, or a single one for the layer."""
    value_books: tuple[Book, ...]
    positions: tuple[Tensor, ...]
    """Per KV head: [u] uint16 or int32 original position of each row."""
    places: tuple[Tensor, ...] | None
    """Per KV head: [g, n] the rows each query head keeps; None: every row is kept by its head."""
    window: Band
    """[G, W, D] recent rows outside the books; W may be 0."""
    rotary: Rotary
    context_rows: int
    """n, rows per head that were kept at compression, before the generated ones."""
    absorb_every: int = 0
    tail_needs_pre_rope: bool = True

    @property
    def heads(self) -> int:
        """Q where query heads select their own rows, else G."""
        if self.places is None:
            return len(self.positions)
        return sum(p.shape[0] for p in self.places)

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Entries, indices, norms, positions and the window's rows.

        The rotary tables are the model's, shared by all prompts, and are not counted.
        """
        books = self.key_books + self.value_books
        return {
            "entries": tuple(b.entries for b in books),
            "indices": tuple(b.refs for b in books) + (self.places or ()),
            "norms": tuple(b.norms for b in books if b.norms is not None),
            "positions": self.positions,
            "rows": (self.window.k, self.window.v),
        }

    def materialize(self) -> tuple[Band, ...]:
        """Rebuild the rows (Eq. 14) and rotate the keys: one band of Q or G heads."""
        sizes = [len(p) for p in self.positions]
        keys = torch.split(torch.cat([b.read() for b in self.key_books]), sizes)
        values = torch.split(torch.cat([b.read() for b in self.value_books]), sizes)
        rows_of: tuple[list[Tensor], ...] = ([], [], [])
        n = self.context_rows
        for head in range(len(self.positions)):
            at = self.positions[head].to(torch.int32)
            k = self.rotary.rotate(keys[head][None], at[None])[0]
            if self.places is None:
                kept = torch.arange(len(at), device=at.device)[None]
            else:
                kept = self.places[head].long()
            window = [self.window.k[head], self.window.v[head], self.window.positions[head]]
            for rows in kept:
                for out, x, recent in zip(rows_of, (k, values[head], at), window, strict=True):
                    out.append(torch.cat([x[rows[:n]], recent, x[rows[n:]]]))
        return (Band(*(torch.stack(x) for x in rows_of)),)

    def segments(self) -> tuple[Lane, ...]:
        """Per KV head what is written with the books, and the window."""
        sizes = [len(p) for p in self.positions]
        lanes = []
        for head, at in enumerate(self.positions):
            keys, values = (
                books[head]
                if len(books) == len(sizes)
                else books[0].part(sum(sizes[:head]), len(at))
                for books in (self.key_books, self.value_books)
            )
            readers = None
            if self.places is not None:
                readers = member_bits(self.places[head], len(at))[None]
            some = slice(head, head + 1)
            window = PlainRows(
                self.window.k[some], self.window.v[some], self.window.positions[some]
            )
            lanes.append((CodebookRows(keys, values, at, self.rotary, readers), window))
        return tuple(lanes)

    @property
    def rotates_with(self) -> Rotary:
        """The layer's."""
        return self.rotary

    @property
    def references(self) -> int:
        """K and V vectors read through the books, copies per query head counted."""
        if self.places is None:
            return 2 * sum(len(p) for p in self.positions)
        return 2 * sum(p.numel() for p in self.places)

    @property
    def kept_vectors(self) -> int:
        """Those, and the window's for every head of the layout."""
        return self.references + 2 * self.heads * self.window.k.shape[1]

    @property
    def stored_vectors(self) -> int:
        """Entries of both books, and the window's rows."""
        entries = sum(len(b.entries) for b in self.key_books + self.value_books)
        return entries + 2 * len(self.positions) * self.window.k.shape[1]

    @property
    def index_bits(self) -> int:
        """Bits of one reference to an entry."""
        return 8 * self.key_books[0].refs.element_size()

    @property
    def norms_per_reference(self) -> int:
        """0 where magnitudes are off."""
        return int(self.key_books[0].norms is not None)

    def absorb(self, tail: Tail) -> CodebookStore:
        """Write generated tokens with the books (section 3.4, last paragraph)."""
        assert tail.k_pre is not None
        new = len(tail.positions)
        if len(self.key_books) == len(self.positions):
            key_books = tuple(
                b.extended(k) for b, k in zip(self.key_books, tail.k_pre, strict=True)
            )
            value_books = tuple(
                b.extended(v) for b, v in zip(self.value_books, tail.v, strict=True)
            )
        else:
            sizes = [len(p) for p in self.positions]
            key_books = (_extended_by_head(self.key_books[0], tail.k_pre, sizes),)
            value_books = (_extended_by_head(self.value_books[0], tail.v, sizes),)
        last = int(tail.positions[-1]) + 1
        at = tail.positions.to(index_dtype(last))
        places = None
        if self.places is not None:
            extended = []
            for head, kept in enumerate(self.places):
                u = len(self.positions[head])
                fresh = torch.arange(u, u + new, device=kept.device).expand(kept.shape[0], -1)
                extended.append(torch.cat([kept.long(), fresh], 1).to(index_dtype(u + new)))
            places = tuple(extended)
        return replace(
            self,
            key_books=key_books,
            value_books=value_books,
            positions=tuple(torch.cat([p.to(at.dtype), at]) for p in self.positions),
            places=places,
        )


def _extended_by_head(book: Book, vectors: Tensor, sizes: list[int]) -> Book:
    """Extend a layer's book by [G, t, D], keeping each head's references together."""
    heads, new, _ = vectors.shape
    longer = book.extended(vectors.flatten(0, 1))
    old = sum(sizes)
    starts = np.cumsum([0, *sizes])
    order = torch.from_numpy(
        np.concatenate(
            [
                np.r_[starts[h] : starts[h + 1], old + h * new : old + (h + 1) * new]
                for h in range(heads)
            ]
        )
    ).to(vectors.device)
    refs = longer.refs.to(torch.int32)[order].to(longer.refs.dtype)
    return replace(longer, refs=refs, norms=None if longer.norms is None else longer.norms[order])


def store_codebook(
    layer: LayerState,
    rows: Tensor,
    window: int,
    *,
    theta_key: float,
    theta_value: float,
    magnitude: bool = True,
    scope: str = "head",
    merge_every: int = 0,
) -> CodebookStore:
    """Write the kept context rows of one layer with codebooks, the window as plain rows.

    Args:
        layer: the state, with `k_pre` and `rotary`.
        rows: [H, n] int64 context positions, ascending; H = G or Q.
        window: the last `window` tokens are kept outside the books.
        theta_key: cosine above which keys (before RoPE) share an entry.
        theta_value: the same for values.
        magnitude: keep each vector's own norm (False: the paper's Table 6 ablation, a vector
            takes the norm of its entry too).
        scope: `head`: a pair of books per KV head; `layer`: one pair for all heads.
        merge_every: generated tokens between two merges into the books; 0: never.
    """
    assert layer.k_pre is not None
    assert layer.rotary is not None
    tokens = layer.tokens
    unions = []
    for kept in rows.reshape(layer.kv_heads, rows.shape[0] // layer.kv_heads, rows.shape[1]):
        positions, places, copies = union_of_rows(kept)
        first = torch.full_like(positions, kept.shape[0])
        for head in reversed(range(kept.shape[0])):
            first[places[head]] = head
        unions.append((positions, places, copies, first))

    written = [(positions, copies, first) for positions, _, copies, first in unions]
    if scope == "layer":
        group = rows.shape[0] // layer.kv_heads
        at = torch.cat([u[0] + h * tokens for h, u in enumerate(unions)])
        heads = torch.cat([u[3] + h * group for h, u in enumerate(unions)])
        written = [(at, torch.cat([u[2] for u in unions]), heads)]

    def books(kind: str, source: Tensor, theta: float) -> tuple[Book, ...]:
        vectors = source if scope == "head" else source.flatten(0, 1)[None]
        found = []
        for h, (x, (at, copies, heads)) in enumerate(zip(vectors, written, strict=True)):
            pairs = remembered_pairs(layer.memo, (kind, scope, h), x, at, theta)
            found.append(Book.of(x[at], theta, magnitude, copies, heads, pairs))
        return tuple(found)

    recent = torch.arange(tokens - window, tokens, device=rows.device)
    recent = recent.expand(layer.kv_heads, -1)
    return CodebookStore(
        key_books=books("key", layer.k_pre, theta_key),
        value_books=books("value", layer.v, theta_value),
        positions=tuple(u[0].to(index_dtype(tokens)) for u in unions),
        places=None
        if rows.shape[0] == layer.kv_heads
        else tuple(u[1].to(index_dtype(len(u[0]))) for u in unions),
        window=Band(
            gather_rows(layer.k, recent), gather_rows(layer.v, recent), recent.to(torch.int32)
        ),
        rotary=layer.rotary,
        context_rows=rows.shape[1],
        absorb_every=merge_every,
    )
