"""Attention over lanes in plain torch, against one query and one row at a time."""

from __future__ import annotations

import pytest
import torch

from kvbench.cache.segments import PlainRows
from kvbench.decode.reading import Reading, TailRows, attend
from kvbench.model.attention import AttentionRule

DIM = 4


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Seen = list[tuple[int, torch.Tensor, torch.Tensor]]
"""Position, key and value of each row."""


def one_by_one(q: torch.Tensor, seen: Seen, at: int, rule: AttentionRule) -> torch.Tensor:
    """What one query at a position reads."""
    window = rule.sliding_window
    read = [row for row in seen if row[0] <= at and (window is None or at - row[0] < window)]
    products = torch.stack([q @ k * rule.scaling for _, k, _ in read])
    return products.softmax(0) @ torch.stack([v for _, _, v in read])


@pytest.mark.parametrize("sliding_window", [None, 2, 5, 6, 9])
@pytest.mark.parametrize("first_query", [0, 2])
def test_a_lane_and_the_tail_of_its_kv_head_are_read(
    first_query: int, sliding_window: int | None
) -> None:
    rule = AttentionRule(0.4, sliding_window)
    # One of two KV heads, which two query heads read; its rows stand at 0, 3 and 4 of six.
    k, v = randn(1, 3, DIM, seed=1), randn(1, 3, DIM, seed=2)
    places = torch.tensor([[0, 3, 4]], dtype=torch.int32)
    tail = TailRows(randn(2, 2, 4, DIM, seed=3), count=3)
    reading = Reading(0, (PlainRows(k, v, places),), first_query, 2, tail, 2)
    q, at = randn(2, 2, DIM, seed=4), torch.tensor([7, 8])
    out, _ = attend(reading, q, at, rule)
    kv_head = first_query // 2
    seen = [(int(p), k[0, i], v[0, i]) for i, p in enumerate(places[0])]
    seen += [(6 + i, tail.k[kv_head, i], tail.v[kv_head, i]) for i in range(3)]
    for head in range(2):
        for i, position in enumerate(at.tolist()):
            expected = one_by_one(q[head, i], seen, position, rule)
            torch.testing.assert_close(out[head, i], expected, atol=1e-6, rtol=0)
