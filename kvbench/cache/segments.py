"""What decoding reads of a store, where it lies: segments of rows that give products and sums.

Each segment has a plain torch form here; the kernels of `kvbench.decode` read the same fields and
are compared with it.

Letters: h adjacent heads, c query heads that read each of them, m = c * t queries of a head,
n rows, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvbench.model.rotary import Rotary


class Segment(ABC):
    """Rows of h adjacent heads that hold equally many."""

    rotary: Rotary | None = None
    """Rotates each key to its position as it is read; None: keys are rotated already."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """H."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """N."""

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """[h, n] position that each row stands at."""

    @property
    def members(self) -> Tensor | None:
        """[h, n] whole numbers, whose bit i says that the head's i-th query head reads the row.

        None: all do.
        """
        return None

    @abstractmethod
    def products(self, q: Tensor) -> Tensor:
        """Product of queries [h, m, D] with each key: [h, m, n] in q's dtype."""

    @abstractmethod
    def mix(self, weights: Tensor) -> Tensor:
        """Sum of the values by weights [h, m, n], in the cache's dtype: [h, m, D]."""

    @property
    @abstractmethod
    def reader(self) -> str:
        """What is read: rows, union, codebook or quantized."""


@dataclass(frozen=True)
class PlainRows(Segment):
    """Rows as they are; keys before RoPE where `rotary` is given."""

    k: Tensor
    """[h, n, D]."""
    v: Tensor
    """[h, n, D]."""
    at: Tensor
    """[h, n] int32."""
    readers: Tensor | None = None
    """What `members` says."""
    rotary: Rotary | None = None
    """Rotates each key to its position as it is read."""

    @property
    def heads(self) -> int:
        """As many as keys are given for."""
        return self.k.shape[0]

    @property
    def rows(self) -> int:
        """As many as keys are given for."""
        return self.k.shape[1]

    @property
    def positions(self) -> Tensor:
        """As given."""
        return self.at

    @property
    def members(self) -> Tensor | None:
        """As given."""
        return self.readers

    @property
    def reader(self) -> str:
        """A union has members."""
        return "rows" if self.readers is None else "union"

    def products(self, q: Tensor) -> Tensor:
        """Rotate the keys if they must be, and multiply."""
        k = self.k if self.rotary is None else self.rotary.rotate(self.k, self.at)
        return q @ k.transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Multiply."""
        return weights @ self.v


def member_bits(places: Tensor, rows: int) -> Tensor:
    """Which query heads read each row, as bits: places [c, n] -> [rows] uint8, int32 or int64.

    Args:
        places: rows that each of a head's query heads reads.
        rows: rows that the head holds.
    """
    readers = len(places)
    dtype = torch.uint8 if readers <= 8 else torch.int32 if readers < 32 else torch.int64
    bits = torch.zeros(rows, dtype=dtype, device=places.device)
    for head, read in enumerate(places):
        bits[read.long()] += 1 << head
    return bits


def member_mask(members: Tensor, readers: int) -> Tensor:
    """The bits as truth values: members [h, n] -> [h, c, n] bool, c = `readers`."""
    heads = torch.arange(readers, dtype=members.dtype, device=members.device)
    return ((members[:, None] >> heads[:, None]) & 1).bool()


@dataclass(frozen=True)
class Written:
    """Vectors as entries of a codebook, of which each keeps its own length."""

    entries: Tensor
    """[M, D] unit vectors (as they are where magnitudes are off), in the cache's dtype."""
    refs: Tensor
    """[N] uint16 or int32 entry of each vector."""
    norms: Tensor | None
    """[N] length of each vector, in the cache's dtype; None where magnitudes are off."""

    def read(self) -> Tensor:
        """Rebuild the vectors (Eq. 14): [N, D]."""
        rebuilt = self.entries[self.refs.long()]
        return rebuilt if self.norms is None else rebuilt * self.norms[:, None]

    def part(self, first: int, count: int) -> Written:
        """The book as it writes some neighboring vectors; all entries are shared."""
        some = slice(first, first + count)
        norms = None if self.norms is None else self.norms[some]
        return replace(self, refs=self.refs[some], norms=norms)


@dataclass(frozen=True)
class CodebookRows(Segment):
    """Rows of one head that are read through codebooks; keys are rotated as they are read."""

    keys: Written
    """Written with entries before RoPE."""
    values: Written
    at: Tensor
    """[n] uint16 or int32 position of each row."""
    rotary: Rotary
    readers: Tensor | None = None
    """[1, n] what `members` says."""

    @property
    def heads(self) -> int:
        """One."""
        return 1

    @property
    def rows(self) -> int:
        """One for each position."""
        return len(self.at)

    @property
    def positions(self) -> Tensor:
        """Those of the one head."""
        return self.at.to(torch.int32)[None]

    @property
    def members(self) -> Tensor | None:
        """As given."""
        return self.readers

    @property
    def reader(self) -> str:
        """Entries."""
        return "codebook"

    def products(self, q: Tensor) -> Tensor:
        """Rebuild the keys, rotate and multiply."""
        return q @ self.rotary.rotate(self.keys.read()[None], self.positions).transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Sum the weights of each entry's rows first: values have no rotation."""
        book = self.values
        if book.norms is not None:
            weights = weights * book.norms
        by_entry = weights.new_zeros((*weights.shape[:2], len(book.entries)))
        by_entry.index_add_(2, book.refs.to(torch.int32), weights)
        return by_entry @ book.entries


@dataclass(frozen=True)
class Packed:
    """Groups of values as integers of 2, 4 or 8 bits (asymmetric, rounded to nearest)."""

    codes: Tensor
    """[ceil(M * s * bits / 8)] uint8."""
    steps: Tensor
    """[M] distance of neighboring codes, in the cache's dtype."""
    least: Tensor
    """[M] value of code 0, in the cache's dtype."""
    size: int
    """s, values of a group."""
    bits: int

    def read(self) -> Tensor:
        """Return the values as the codes say: [M, s] in the cache's dtype."""
        places = [
            (self.codes >> (self.bits * place)) & (2**self.bits - 1)
            for place in range(8 // self.bits)
        ]
        codes = torch.stack(places, 1).flatten()[: len(self.steps) * self.size]
        wide = codes.view(-1, self.size).float() * self.steps.float()[:, None]
        return (wide + self.least.float()[:, None]).to(self.steps.dtype)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Steps and least values."""
        return (self.steps, self.least)


@dataclass(frozen=True)
class QuantizedRows(Segment):
    """Rows that are dequantized as they are read."""

    keys: Packed
    """Groups of neighboring tokens of one channel, in the order [h, n / group, D]."""
    values: Packed
    """Groups of neighboring channels of one token, in the order [h, n]."""
    shape: tuple[int, int, int]
    """h, n, D."""
    group: int
    """Tokens of a group of keys."""

    @property
    def heads(self) -> int:
        """As the shape says."""
        return self.shape[0]

    @property
    def rows(self) -> int:
        """As the shape says."""
        return self.shape[1]

    @property
    def positions(self) -> Tensor:
        """The first n, without gaps."""
        heads, rows, _ = self.shape
        at = torch.arange(rows, dtype=torch.int32, device=self.keys.codes.device)
        return at.expand(heads, -1)

    @property
    def reader(self) -> str:
        """Codes."""
        return "quantized"

    @property
    def k(self) -> Tensor:
        """[h, n, D] keys as the codes say."""
        return _grouped_along_tokens(self.keys, self.shape, self.group)

    @property
    def v(self) -> Tensor:
        """[h, n, D] values as the codes say."""
        return self.values.read().view(self.shape)

    def products(self, q: Tensor) -> Tensor:
        """Dequantize and multiply."""
        return q @ self.k.transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Dequantize and multiply."""
        return weights @ self.v


def _grouped_along_tokens(keys: Packed, shape: tuple[int, int, int], group: int) -> Tensor:
    """Keys that share steps along tokens, in the order [h, n / group, D]: [h, n, D]."""
    heads, rows, dim = shape
    groups = keys.read().view(heads, rows // group, dim, group)
    return groups.transpose(2, 3).reshape(shape)


@dataclass(frozen=True)
class QuantizedKeys(Segment):
    """Rows whose keys are dequantized as they are read, and the values of the first of them."""

    keys: Packed
    """As those of `QuantizedRows`."""
    older_values: Packed
    """Likewise, of the first rows."""
    newer_values: Tensor
    """[h, n', D] of the others, as they are."""
    shape: tuple[int, int, int]
    """h, n, D."""
    group: int
    """Tokens of a group of keys."""
    first: int
    """Position of the first row."""

    @property
    def heads(self) -> int:
        """As the shape says."""
        return self.shape[0]

    @property
    def rows(self) -> int:
        """As the shape says."""
        return self.shape[1]

    @property
    def positions(self) -> Tensor:
        """N from the first on, without gaps."""
        heads, rows, _ = self.shape
        device = self.newer_values.device
        at = torch.arange(self.first, self.first + rows, dtype=torch.int32, device=device)
        return at.expand(heads, -1)

    @property
    def reader(self) -> str:
        """Codes."""
        return "quantized"

    @property
    def k(self) -> Tensor:
        """[h, n, D] keys as the codes say."""
        return _grouped_along_tokens(self.keys, self.shape, self.group)

    @property
    def v(self) -> Tensor:
        """[h, n, D] values, the first as the codes say."""
        heads, rows, dim = self.shape
        older = self.older_values.read().view(heads, rows - self.newer_values.shape[1], dim)
        return torch.cat([older, self.newer_values], 1)

    def products(self, q: Tensor) -> Tensor:
        """Dequantize and multiply."""
        return q @ self.k.transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Dequantize and multiply."""
        return weights @ self.v
