"""Attention over what stores hold, in plain torch: the slow, obvious form.

What decoding falls back to wherever no kernel serves, and what the kernels are compared with.

Letters: Q query heads, G KV heads, h adjacent heads of a lane, c query heads that read each of
them, n rows held, t tokens fed at once, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.segments import PlainRows, Segment, member_mask
from kvbench.cache.store import Lane
from kvbench.model.attention import AttentionRule, masked_softmax


@dataclass
class TailRows:
    """Rows of the tokens fed and generated since a store was made, one copy per KV head."""

    buffer: Tensor
    """[2, G, most, D] keys and values; what lies behind `count` is head-room."""
    count: int = 0
    """Tokens held."""
    most: int = 0
    """Tokens it may come to hold, in a larger buffer by then; 0: as many as this one takes."""

    @property
    def k(self) -> Tensor:
        """[G, count, D]."""
        return self.buffer[0, :, : self.count]

    @property
    def v(self) -> Tensor:
        """[G, count, D]."""
        return self.buffer[1, :, : self.count]


@dataclass(frozen=True, eq=False)
class Reading:
    """One lane of one row of a batch: who reads it, and the tail behind it.

    Query heads `first_query`, ... read the lane's heads in order, `readers` each; of KV head G,
    query heads G * Q / G, ... are the group, so a lane's head belongs to one KV head.
    """

    row: int
    """Row of the batch."""
    lane: Lane
    first_query: int
    readers: int
    """c."""
    tail: TailRows
    group: int
    """Q / G."""

    @property
    def heads(self) -> int:
        """H."""
        return self.lane[0].heads

    @property
    def queries(self) -> slice:
        """The query heads that read it."""
        return slice(self.first_query, self.first_query + self.heads * self.readers)

    @property
    def kv_heads(self) -> Tensor:
        """[h] the KV head that each of its heads belongs to."""
        heads = torch.arange(self.heads, device=self.tail.buffer.device)
        return (self.first_query + heads * self.readers) // self.group


def attend(reading: Reading, q: Tensor, at: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Attention over a lane and its tail, which already holds the rows of these tokens.

    Args:
        reading: what is read.
        q: [h * c, t, D] queries of its heads.
        at: [t] positions of the tokens, one after the other.
        rule: of the layer.

    Returns:
        [h * c, t, D] in q's dtype, and the weights [h, c, t, n + tail] float32.
    """
    _, t, dim = q.shape
    of_head = q.reshape(reading.heads, -1, dim)
    kv_heads, tail = reading.kv_heads, reading.tail
    # The tail's tokens came one after the other, the last of them just now.
    behind = torch.arange(1 - tail.count, 1, device=at.device) + at[-1]
    rows = PlainRows(tail.k[kv_heads], tail.v[kv_heads], behind.expand(reading.heads, -1))
    segments = (*reading.lane, rows)
    products = torch.cat([segment.products(of_head) for segment in segments], 2).float()
    hidden = torch.cat(
        [_hidden(s, reading.readers, at, rule.sliding_window, s is rows) for s in segments], 3
    )
    shape = (reading.heads, reading.readers, t, -1)
    weights = masked_softmax(products.view(shape), rule, hidden)
    start = 0
    out = torch.zeros_like(of_head)
    flat = weights.view(reading.heads, reading.readers * t, -1).to(q.dtype)
    for segment in segments:
        end = start + segment.rows
        out += segment.mix(flat[:, :, start:end])
        start = end
    return out.view(-1, t, dim), weights


def _hidden(
    segment: Segment, readers: int, at: Tensor, sliding_window: int | None, is_tail: bool
) -> Tensor:
    """[h, c, t, n] bool: true where a query must not see a row."""
    positions = segment.positions.long()[:, None, None]
    query_at = at[:, None]
    # All tokens of a store came before; its positions may be older numbers than the queries'.
    hidden = positions > query_at if is_tail else torch.zeros_like(positions, dtype=torch.bool)
    if sliding_window is not None:
        hidden = hidden | (positions <= query_at - sliding_window)
    if segment.members is not None:
        hidden = hidden | ~member_mask(segment.members, readers)[:, :, None]
    return hidden.expand(len(positions), readers, len(at), -1)
