"""KVCrush: its pieces against the authors' oracle cases, the whole against a slow twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.methods.h2o import H2O
from kvbench.methods.kvcrush import (
    KVCrush,
    anchor_bits,
    hamming_distances,
    members_of_groups,
    page_bits,
    pages_not_in,
    rows_of_pages,
)
from kvbench.methods.pyramidkv import PyramidKV
from kvbench.methods.snapkv import SnapKV
from support import naive

BASES = [
    SnapKV(window=8),
    SnapKV(window=8, heads="all"),
    SnapKV(window=8, heads="query", store="repeat"),
    SnapKV(window=8, heads="query", store="union"),
    PyramidKV(window=8),
    H2O(recent=8),
]


def _rows(cache):
    return [[p for b in s.materialize() for p in b.positions.tolist()] for s in cache.layers]


def _bits(*words):
    return torch.tensor([[[c == "1" for c in word] for word in words]])


def _rng():
    return torch.Generator().manual_seed(0)


# T12
def test_distances_to_the_anchor_by_hand():
    anchor = torch.tensor([[True, False, True, False]])
    found = hamming_distances(_bits("1010", "0101", "1100"), anchor)
    assert found.tolist() == [[0, 4, 2]]


# T12
def test_the_mean_anchor_is_the_majority_by_hand():
    found = anchor_bits("mean", _bits("1010", "1100", "1110", "0010", "0000"), _rng())
    assert found.tolist() == [[True, False, True, False]]
    assert not anchor_bits("mean", _bits("10", "00"), _rng()).any()  # a half is no majority


# T12
def test_the_alternate_anchor_starts_with_zero():
    found = anchor_bits("alternate", torch.zeros(2, 3, 4, dtype=torch.bool), _rng())
    assert found.tolist() == [[False, True, False, True]] * 2


# T12
def test_a_budget_of_2048_is_512_representatives_and_1536_of_the_base():
    prefill = naive.random_prefill(2600, layers=1)
    base = SnapKV(window=8)
    crushed = _rows(KVCrush(base=base).compress(prefill, Budget(tokens=2048)))
    important = _rows(base.compress(prefill, Budget(tokens=1536)))
    for rows, kept in zip(crushed[0], important[0], strict=True):
        assert len(rows) == 2048
        assert set(kept) <= set(rows)
        assert len(set(rows) - set(kept)) == 512


@pytest.mark.parametrize("schedule", ["paper", "released"])
def test_every_layer_of_a_pyramid_holds_512_representatives_of_2048(schedule):
    base = PyramidKV(window=8, schedule=schedule)
    prefill = naive.random_prefill(4200, layers=6, kv_heads=1, query_heads=2, dim=4, window=8)
    crushed = _rows(KVCrush(base=base).compress(prefill, Budget(tokens=2048)))
    important = _rows(base.compress(prefill, Budget(tokens=1536)))
    for (rows,), (kept,) in zip(crushed, important, strict=True):
        assert set(kept) <= set(rows)
        assert len(set(rows)) - len(kept) == 512
    assert len(important[0][0]) > 4 * len(important[-1][0])


def test_where_a_pyramids_first_layers_are_full_the_next_ones_take_what_is_left():
    base = PyramidKV(window=8, schedule="released")
    prefill = naive.random_prefill(3200, layers=8, kv_heads=1, query_heads=2, dim=4, window=8)
    crushed = _rows(KVCrush(base=base).compress(prefill, Budget(tokens=2048)))
    important = _rows(base.compress(prefill, Budget(tokens=1536)))
    lengths = [len(set(rows)) for (rows,) in crushed]
    assert lengths[0] == 3200
    assert lengths[-1] == len(important[-1][0]) + 512
    assert sum(lengths) == sum(len(kept) + 512 for (kept,) in important)


@pytest.mark.parametrize("base", BASES)
def test_random_grouping_draws_from_all_that_is_evicted(base):
    prefill = naive.random_prefill(200, layers=1)
    important = _rows(base.compress(prefill, Budget(tokens=45)))[0]
    seen = [set() for _ in important]
    for seed in range(12):
        method = KVCrush(base=base, grouping="random", seed=seed)
        cache = method.compress(prefill, Budget(tokens=60))
        assert cache.facts == {}
        for head, (rows, kept) in enumerate(zip(_rows(cache)[0], important, strict=True)):
            assert set(kept) <= set(rows)
            assert len(set(rows)) == 60
            seen[head] |= set(rows) - set(kept)
    for drawn, kept in zip(seen, important, strict=True):
        spread = sorted(drawn)
        assert spread[0] < 20 and spread[-1] > 170 and len(drawn) > 80
        assert not drawn & set(kept)


def test_the_facts_say_how_little_the_distances_tell_apart():
    prefill = naive.random_prefill(300, query_heads=8, kv_heads=2)
    method = KVCrush(base=SnapKV(window=8))
    facts = fit_budget(method, prefill, Budget(fraction=0.2)).facts
    # 44 of 292 context rows by each head: that all eight leave a row out is chance, about 0.3.
    assert facts["anchor_bits_set"] == 0.0
    assert 0.2 < facts["evicted_without_bits"] < 0.5
    alternate = replace(method, anchor="alternate").compress(prefill, Budget(fraction=0.2))
    assert alternate.facts["anchor_bits_set"] == 0.5


def test_a_zero_anchor_and_no_bits_group_by_position():
    prefill = naive.random_prefill(200, layers=1)
    still = replace(prefill.layers[0], q_win=torch.zeros_like(prefill.layers[0].q_win))
    prefill = replace(prefill, layers=(still,))  # the heads agree on the first tokens
    method = KVCrush(base=SnapKV(window=8))
    cache = method.compress(prefill, Budget(tokens=60))
    assert cache.facts == {"anchor_bits_set": 0.0, "evicted_without_bits": 1.0}
    for rows in _rows(cache)[0]:
        chosen = [p for p in rows if 37 <= p < 192]
        edges = [37 + i * 155 // 15 for i in range(16)]
        assert len(chosen) == 15
        assert all(a <= p < b for p, a, b in zip(chosen, edges, edges[1:], strict=False))


def test_table_2_splits_672_tokens_as_printed():
    with initialize_config_module("kvbench.conf", version_base="1.3"):
        node = compose("config", ["method=kvcrush_table2"]).method
        method = instantiate(node, _convert_="all")
    prefill = naive.random_prefill(1000, layers=1)
    base = method.base.compress(prefill, Budget(tokens=288))
    crushed = _rows(method.compress(prefill, Budget(tokens=672)))[0]
    for rows, kept in zip(crushed, _rows(base)[0], strict=True):
        assert set(range(872, 1000)) <= set(kept) <= set(rows)
        assert len(rows) == 672


# T14
@pytest.mark.parametrize("base", BASES)
def test_share_zero_is_the_base(base):
    prefill = naive.random_prefill(200)
    for budget in (Budget(fraction=0.3), Budget(tokens=5), Budget(tokens=60)):
        crushed = KVCrush(base=base, share=0.0)
        assert _rows(crushed.compress(prefill, budget)) == _rows(base.compress(prefill, budget))
        assert _rows(fit_budget(crushed, prefill, budget)) == _rows(
            fit_budget(base, prefill, budget)
        )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("share", [0.25, 0.75, 0.95])
@pytest.mark.parametrize("granularity", ["token", "chunk", "page"])
def test_the_budget_stays_the_bases_whatever_the_share(base, share, granularity):
    prefill = naive.random_prefill(1203, layers=4)
    method = KVCrush(base=base, share=share, granularity=granularity)
    found = ledger(prefill, fit_budget(method, prefill, Budget(fraction=0.3)))
    assert found.ratio_bytes == pytest.approx(0.3, abs=0.01)
    for layer in _rows(method.compress(prefill, Budget(fraction=0.3))):
        for head in layer:
            assert set(range(1195, 1203)) <= set(head)


def test_representatives_may_take_the_whole_budget():
    prefill = naive.random_prefill(300)
    for layer in _rows(KVCrush(share=1.0).compress(prefill, Budget(tokens=100))):
        for head in layer:
            assert len(set(head)) == 100
            assert head[-1] == 299


@pytest.mark.parametrize("base", BASES[:3])
@pytest.mark.parametrize("anchor", ["mean", "alternate"])
def test_representatives_equal_a_slow_twin(base, anchor):
    prefill = naive.random_prefill(150, layers=1)
    layer = prefill.layers[0]
    method = KVCrush(base=base, anchor=anchor, share=0.5, seed=3)
    found = _rows(method.compress(prefill, Budget(tokens=60)))[0]

    important = _rows(base.compress(prefill, Budget(tokens=30)))[0]
    by_head = replace(base, heads="query").head_scores(layer, 8).tolist()
    retained = [set(naive.top_positions(scores, 22)) for scores in by_head]
    rng = torch.Generator().manual_seed(3)
    selecting = 1 if base.heads == "all" else len(important)
    drawn = torch.rand(selecting, 30, generator=rng, dtype=torch.float64).tolist()
    for head, rows in enumerate(found):
        kept = important[head]
        evicted = [p for p in range(142) if p not in kept]
        words = {p: [p in tokens for tokens in retained] for p in evicted}
        if anchor == "mean":
            point = [2 * sum(w[i] for w in words.values()) > len(words) for i in range(4)]
        else:
            point = [False, True, False, True]
        distance = {p: sum(a != b for a, b in zip(words[p], point, strict=True)) for p in evicted}
        order = sorted(evicted, key=lambda p: (distance[p], p))
        chosen = []
        for i in range(30):
            group = order[i * len(order) // 30 : (i + 1) * len(order) // 30]
            chosen.append(group[int(drawn[head % selecting][i] * len(group))])
        assert rows == sorted(kept + chosen)


def test_groups_are_near_equal_contiguous_and_cover_the_far_tail():
    order = torch.arange(100)[None].expand(5, -1)
    seen = set()
    for seed in range(200):
        picked = members_of_groups(order, 7, torch.Generator().manual_seed(seed))
        edges = [i * 100 // 7 for i in range(8)]
        for row in picked.tolist():
            assert all(a <= p < b for p, a, b in zip(row, edges, edges[1:], strict=False))
            seen |= set(row)
    assert seen == set(range(100))


def test_fewer_evicted_than_representatives_keeps_them_all():
    prefill = naive.random_prefill(60)
    rows = _rows(KVCrush(base=SnapKV(window=8), share=0.9).compress(prefill, Budget(tokens=59)))
    assert all(len(set(head)) == 59 for layer in rows for head in layer)


def test_the_seed_changes_the_representatives_and_repeats_them():
    prefill = naive.random_prefill(200)
    first, again, other = (
        _rows(KVCrush(seed=seed, anchor="random").compress(prefill, Budget(tokens=90)))
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_pages_are_kept_whole_and_the_one_begun_stays():
    prefill = naive.random_prefill(32 * 9 + 20 + 8)
    method = KVCrush(base=SnapKV(window=8), granularity="page")
    for layer in _rows(method.compress(prefill, Budget(tokens=150))):
        for head in layer:
            assert set(range(288, 316)) <= set(head)
            pages = {p // 32 for p in head if p < 288}
            assert len(head) == 28 + 32 * len(pages)


def test_what_whole_pages_leave_of_a_layers_budget_goes_to_the_next():
    prefill = naive.random_prefill(32 * 20 + 8, layers=8)
    method = KVCrush(base=SnapKV(window=8), granularity="page")
    found = ledger(prefill, method.compress(prefill, Budget(tokens=8 + 80)))
    # 80 rows are 2.5 pages: two and three in turn.
    assert found.kept_tokens == (72.0, 104.0) * 4


def test_bits_of_a_page_are_its_tokens_bits_side_by_side():
    retained = torch.tensor([[0, 3, 6], [1, 2, 3]])
    expected = [[1, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert page_bits(retained, 3, 2).int().tolist() == expected
    assert rows_of_pages(torch.tensor([[0, 2]]), 3).tolist() == [[0, 1, 2, 6, 7, 8]]
    assert pages_not_in(torch.tensor([[0, 2], [1, 2]]), 4).tolist() == [[1, 3], [0, 3]]


@pytest.mark.parametrize("base", BASES[:3])
@pytest.mark.parametrize("granularity", ["token", "chunk"])
def test_kmeans_takes_one_row_of_each_cluster_of_keys(base, granularity):
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    prefill = naive.random_prefill(300)
    method = KVCrush(base=base, grouping="kmeans", granularity=granularity)
    kept = _rows(method.compress(prefill, Budget(tokens=100)))
    assert kept == _rows(method.compress(prefill, Budget(tokens=100)))
    lengths = {len(head) for layer in kept for head in layer}
    assert lengths == {100} if granularity == "token" else max(lengths) <= 108


def test_kmeans_represents_every_well_separated_cluster():
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    prefill = naive.random_prefill(208, layers=1, kv_heads=1, query_heads=2)
    layer = prefill.layers[0]
    corners = 100 * torch.eye(8)[torch.arange(208) % 8]
    layer = replace(layer, k=corners[None] + 0.01 * layer.k)
    method = KVCrush(base=SnapKV(window=8), grouping="kmeans", share=0.5)
    prefill = replace(prefill, layers=(layer,))
    ((rows,),) = _rows(method.compress(prefill, Budget(tokens=16)))
    ((kept,),) = _rows(SnapKV(window=8).compress(prefill, Budget(tokens=8)))
    assert {p % 8 for p in set(rows) - set(kept)} == set(range(8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 1.5),
        ("share", -0.1),
        ("anchor", "zero"),
        ("granularity", "block"),
        ("chunk", 0),
        ("page", 0),
        ("grouping", "ward"),
        ("seed", -1),
    ],
)
def test_a_field_out_of_range_is_refused_with_value_and_remedy(field, value):
    with pytest.raises(UserError, match=rf"method\.{field}=.*{value}.*give"):
        KVCrush(**{field: value})
