"""The greedy cover against Algorithm 1 word for word, by hand and on random vectors."""

from __future__ import annotations

import math
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache import cover
from kvbench.cache.cover import (
    SimilarPairs,
    cover_in_rounds,
    greedy_cover,
    remembered_pairs,
    unit_and_norm,
)
from support import naive
from support.vectors import clustered


def _at(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], 1).float()


def cover_of_bits(*asked: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The form for pairs too many to be listed, whatever their number."""
    with mock.patch.object(SimilarPairs, "grown", return_value=None):
        return greedy_cover(*asked)


FORMS = (greedy_cover, cover_of_bits, cover_in_rounds)

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


def test_every_form_gets_the_book_of_algorithm_1():
    """A thousand small graphs, in which query heads keep different rows of up to 40 tokens."""
    for seed in range(1000):
        rng = torch.Generator().manual_seed(seed)
        tokens, group = int(torch.randint(1, 41, (), generator=rng)), seed % 4 + 1
        theta = (0.3, 0.8, 0.9, 0.95)[seed // 4 % 4]
        unit = clustered(tokens, 4, seed)
        keeps = torch.rand(group, tokens, generator=rng) < 0.7
        held = torch.nonzero(keeps.any(0))[:, 0]
        asked = (unit[held], theta, keeps.sum(0)[held], keeps.int().argmax(0)[held])

        listed = torch.nonzero(keeps)  # (head, position), ascending
        slow_picks, slow_refs = naive.greedy_cover(
            unit[listed[:, 1]], theta, list(range(len(listed)))
        )
        refs_of = dict(zip(listed[:, 1].tolist(), slow_refs, strict=True))
        expected = listed[slow_picks, 1].tolist(), [refs_of[t] for t in held.tolist()]
        for form in FORMS:
            picks, refs = form(*asked)
            assert (held[picks].tolist(), refs.tolist()) == expected, (seed, form)


@pytest.mark.parametrize("n", [0, 1, 7, 63, 257, 1031])
@pytest.mark.parametrize("theta", [0.1, 0.7, 0.95])
def test_every_form_gets_the_same_book_at_odd_sizes(n, theta):
    unit = clustered(n, 6, seed=n)
    heads = torch.arange(n) * 7 % 3
    books = [form(unit, theta, heads % 2 + 1, heads) for form in FORMS]
    for picks, refs in books[1:]:
        assert torch.equal(picks, books[0][0])
        assert torch.equal(refs, books[0][1])


def test_remembered_pairs_are_those_of_rows_compared_alone():
    """Whatever was asked before; each theta is some pair's own cosine, so every bit tells."""
    vectors = clustered(1100, 64, seed=0) * 3
    unit, _ = unit_and_norm(vectors)
    cosines = (unit @ unit.T).triu(1).flatten()
    rng = torch.Generator().manual_seed(0)
    close = cosines[(cosines > 0.2) & (cosines < 0.99)]
    for theta in close[torch.randperm(len(close), generator=rng)[:8]].tolist():
        memo: dict[Hashable, Any] = {}
        for share in torch.rand(6, generator=rng).tolist():
            kept = torch.nonzero(torch.rand(len(vectors), generator=rng) < share)[:, 0]
            known = remembered_pairs(memo, "keys", vectors, kept, theta)
            alone = remembered_pairs({}, "keys", vectors, kept, theta)
            similar = unit[kept] @ unit[kept].T > theta
            assert listed(known) == listed(alone)
            if len(kept) > 64:  # one block of its own is thick enough to add up alike
                assert listed(known) == torch.nonzero(similar.triu(1)).tolist()


def listed(pairs: tuple[Any, Any] | None) -> list[list[int]]:
    """Pairs, ascending."""
    assert pairs is not None
    return sorted(map(list, zip(*(x.tolist() for x in pairs), strict=True)))


def test_pairs_are_remembered_only_while_they_take_less_than_the_vectors():
    alike = torch.ones(300, 4) + 0.01 * clustered(300, 4, seed=0)
    memo: dict[Hashable, Any] = {}
    assert remembered_pairs(memo, "keys", alike, torch.arange(300), 0.9) is None
    assert not memo
    few = torch.arange(0, 300, 25)
    assert len(listed(remembered_pairs(memo, "keys", alike, few, 0.9))) == 12 * 11 // 2
    assert remembered_pairs(memo, "keys", alike, torch.arange(300), 0.9) is None
    assert memo["keys"].later.nbytes <= 12 * 4 * 4
    remembered_pairs(memo, "keys", alike, few[:3], 0.99999999)
    assert memo["keys"].held.sum() == 3, "another theta replaces the list"


def test_pairs_hold_while_another_thread_asks_for_more():
    vectors = clustered(500, 16, seed=1)
    memo: dict[Hashable, Any] = {}
    asked = [torch.arange(start, 500, 3 + start % 5) for start in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda kept: remembered_pairs(memo, 0, vectors, kept, 0.9), asked)
    for kept, pairs in zip(asked, found, strict=True):
        assert listed(pairs) == listed(remembered_pairs({}, 0, vectors, kept, 0.9))
