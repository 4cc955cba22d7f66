"""The contract of a stored layer, and the compressed cache made of such layers.

Letters: Q query heads, G KV heads, H in {G, Q} heads of a layout, n rows, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kvbench.cache.segments import PlainRows, Segment
from kvbench.model.rotary import Rotary

Lane = tuple[Segment, ...]
"""The segments that the same adjacent heads read, in order."""


@dataclass(frozen=True)
class Band:
    """Adjacent heads of one layer that hold the same number of rows, ready to attend.

    Attributes:
        k: [h, n, D] keys after RoPE at their original positions.
        v: [h, n, D] values.
        positions: [h, n] int32 original positions, ascending within a head.
    """

    k: Tensor
    v: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Tail:
    """Generated tokens of one layer that are not yet part of its store.

    Attributes:
        k: [G, t, D] keys after RoPE.
        v: [G, t, D] values.
        positions: [t] int64, ascending.
        k_pre: [G, t, D] keys before RoPE; None unless the store's `tail_needs_pre_rope`.
        attention: per band of the store [h, share, n + t] float32, where `share` query heads read
            each of its h heads: attention that the band's rows and the tail's received from the
            tail's queries, summed over these; None unless the store's `tail_needs_attention`.
    """

    k: Tensor
    v: Tensor
    positions: Tensor
    k_pre: Tensor | None = None
    attention: tuple[Tensor, ...] | None = None


class Store(ABC):
    """What one layer of a compressed cache holds. Immutable: `absorb` returns another store."""

    absorb_every: int = 0
    """Generated tokens that may wait in the tail before `absorb` is called; 0: never called."""

    tail_needs_pre_rope: bool = False
    """Whether `absorb` reads `k_pre`."""

    tail_needs_attention: bool = False
    """Whether `absorb` reads `attention`."""

    @property
    def next_position(self) -> int | None:
        """Position of the next token fed, where rows are numbered anew; None: its true one.

        The stores of all layers agree.
        """
        return None

    @abstractmethod
    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Every tensor held, by part: rows, entries, indices, norms, positions, tail, ..."""

    @abstractmethod
    def materialize(self) -> tuple[Band, ...]:
        """The rows to attend to, in head order; the heads of all bands together are G or Q."""

    def segments(self) -> tuple[Lane, ...]:
        """What decoding reads, in head order, without a copy where the store can be read as it is.

        The heads of all lanes together are G or Q. Unless a store says better: its rows.
        """
        return tuple((PlainRows(b.k, b.v, b.positions),) for b in self.materialize())

    def by_band(self, attention: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Attention by lane [h, c, n + t], laid out as `materialize` lays out the rows."""
        return attention

    @property
    def rotates_with(self) -> Rotary | None:
        """The rotation of a store that turns absorbed keys to their positions when they are read.

        Decoding makes its table cover the tokens that `absorb` is given. None: no such rotation.
        """
        return None

    @property
    @abstractmethod
    def heads(self) -> int:
        """H, heads of the layout rows are selected in: G or Q."""

    @property
    @abstractmethod
    def kept_vectors(self) -> int:
        """K and V vectors readable through this store, copies per query head counted (for r1)."""

    @property
    @abstractmethod
    def stored_vectors(self) -> int:
        """Distinct K and V vectors that take memory: rows and codebook entries (for r2)."""

    @property
    def references(self) -> int:
        """K and V vectors read through an index (and a norm), copies counted; 0 for rows."""
        return 0

    @property
    def index_bits(self) -> int:
        """Bits of one such index, Formula 15's int_bit; 0 for rows."""
        return 0

    @property
    def norms_per_reference(self) -> int:
        """1 where each reference has its own norm, else 0."""
        return 0

    def absorb(self, tail: Tail) -> Store:
        """Return the store that also holds `tail`, compressed by the method's own rule."""
        raise TypeError(f"{type(self).__name__} does not compress while decoding")

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of every tensor held, by part."""
        return {p: sum(t.nbytes for t in ts) for p, ts in self.tensors().items()}

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        return sum(self.bytes_by_part.values())


@dataclass(frozen=True)
class Compressed:
    """The compressed cache of one prompt under one method and budget."""

    layers: tuple[Store, ...]
    """One store per layer, in model order."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able facts for the record: `nominal`, `saturated`, the schedule used, ..."""
    next_position: int | None = None
    """Position of the next token fed; None: its true position, T."""

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of every layer."""
        return sum(s.nbytes for s in self.layers)
