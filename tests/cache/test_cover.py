"""The greedy cover against Algorithm 1 word for word, by hand and on random vectors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache import cover
from kvbench.cache.cover import greedy_cover, unit_and_norm
from support import naive
from support.vectors import clustered


def _at(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], 1).float()


# T6: unit vectors at these angles.
T6 = (0, 5, 10, 15, 20, 60, 64, 180)


@pytest.mark.parametrize(("theta", "centers"), [(0.98, [2, 5, 7]), (0.95, [1, 5, 7])])
def test_eight_vectors_by_hand(theta, centers):
    picks, refs = greedy_cover(_at(*T6), theta)
    assert picks.tolist() == centers
    assert refs.tolist() == [0, 0, 0, 0, 0, 1, 1, 2]


def test_copies_of_orthogonal_vectors_need_one_entry_each():
    n, g = 6, 3
    vectors = torch.eye(n).repeat(g, 1)
    picks, refs = greedy_cover(vectors, 0.95)
    assert picks.tolist() == list(range(n))
    assert refs.tolist() == list(range(n)) * g
    picks, refs = greedy_cover(torch.eye(n), 0.95, torch.full((n,), g))
    assert picks.tolist() == list(range(n))


@pytest.mark.parametrize("n", [0, 1, 7, 63, 257])
@pytest.mark.parametrize("theta", [0.8, 0.95, 0.98])
def test_random_vectors_get_the_naive_book(n, theta):
    unit = clustered(n, 6, seed=n)
    picks, refs = greedy_cover(unit, theta)
    expected = naive.greedy_cover(unit, theta, list(range(n)))
    assert (picks.tolist(), refs.tolist()) == expected


def test_blocks_of_similarities_change_nothing(monkeypatch):
    unit = clustered(257, 6, seed=3)
    whole = greedy_cover(unit, 0.95)
    monkeypatch.setattr(cover, "BLOCK", 64)
    blocked = greedy_cover(unit, 0.95)
    assert torch.equal(whole[0], blocked[0])
    assert torch.equal(whole[1], blocked[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_multiplicity_equals_listing_the_copies(tokens, group, seed):
    """Query heads keep different rows; the book must be that of all (head, position) vectors."""
    rng = torch.Generator().manual_seed(seed)
    unit = clustered(tokens, 4, seed)
    keeps = torch.rand(group, tokens, generator=rng) < 0.6
    held = torch.nonzero(keeps.any(0))[:, 0]
    copies = keeps.sum(0)[held]
    first = torch.tensor([int(torch.nonzero(keeps[:, t])[0]) for t in held.tolist()])
    picks, refs = greedy_cover(unit[held], 0.9, copies, first)

    listed = [(h, t) for h in range(group) for t in range(tokens) if keeps[h, t]]
    vectors = unit[[t for _, t in listed]]
    # Copies of one vector are neighbors whatever their rounded cosine says.
    slow_picks, slow_refs = naive.greedy_cover(vectors, 0.9, list(range(len(listed))))
    assert [int(held[p]) for p in picks] == [listed[p][1] for p in slow_picks]
    by_token = {int(t): int(r) for t, r in zip(held, refs, strict=True)}
    assert [by_token[t] for _, t in listed] == slow_refs


def test_zero_vectors_are_their_own_neighbors_only():
    unit, norms = unit_and_norm(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]))
    picks, refs = greedy_cover(unit, 0.95)
    assert norms.tolist() == [0, 1, 0, 2]
    assert not unit.isnan().any()
    assert sorted(picks.tolist()) == [0, 1, 2]
    assert refs[1] == refs[3]
