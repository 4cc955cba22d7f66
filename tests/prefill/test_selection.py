"""Selections of rows against slow twins at odd sizes."""

from __future__ import annotations

import pytest
import torch

from kvbench.prefill.selection import top_rows, union_of_rows, with_window
from support import naive


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
def test_top_rows_breaks_ties_by_position_as_sorting_does(tokens):
    scores = torch.randint(0, 5, (4, tokens), generator=torch.Generator().manual_seed(1)).float()
    for count in {0, 1, tokens // 2, tokens}:
        expected = [naive.top_positions(row, count) for row in scores.tolist()]
        assert top_rows(scores, count).tolist() == expected


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
def test_union_lists_each_position_once_and_finds_every_heads_rows(tokens):
    rng = torch.Generator().manual_seed(tokens)
    count = (tokens + 1) // 2
    rows = top_rows(torch.rand(3, tokens, generator=rng), count)
    positions, places, copies = union_of_rows(rows)
    assert positions.tolist() == sorted(set(rows.flatten().tolist()))
    assert torch.equal(positions[places], rows)
    flat = rows.flatten().tolist()
    assert copies.tolist() == [flat.count(p) for p in positions.tolist()]


def test_the_window_follows_the_context_rows():
    assert with_window(torch.tensor([[0, 2]]), 6, 2).tolist() == [[0, 2, 4, 5]]
