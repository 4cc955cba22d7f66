"""H2O's sums and selection: hand vectors, a naive twin, its presets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.methods.h2o import H2O
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from support import naive
from support.methods import composed


def positions(cache):
    return [s.materialize()[0].positions.tolist() for s in cache.layers]


def with_sums(prefill, sums):
    layers = tuple(replace(s, column_sums=sums) for s in prefill.layers)
    return replace(prefill, layers=layers)


# T3
def test_column_sums_of_flat_attention_by_hand():
    sums = torch.tensor([25 / 12, 13 / 12, 7 / 12, 1 / 4]).expand(4, -1)
    prefill = with_sums(naive.random_prefill(4), sums)
    layer = prefill.layers[0]
    assert torch.equal(H2O(heads="query").head_scores(layer, 0), sums)
    expected = torch.tensor([0.520833, 0.361111, 0.291667, 0.25])
    level = H2O(heads="query", normalize="visible").head_scores(layer, 0)
    torch.testing.assert_close(level[0], expected, atol=1e-6, rtol=0)


def test_sums_in_a_layer_with_a_sliding_window_are_divided_by_the_queries_that_see_the_key():
    prefill = with_sums(naive.random_prefill(5, sliding_window=2), torch.ones(4, 5))
    level = H2O(normalize="visible").head_scores(prefill.layers[0], 0)[0]
    assert (1 / level).tolist() == [2, 2, 2, 2, 1]


def test_half_of_the_budget_is_recent_and_the_rest_heavy_by_hand():
    sums = torch.tensor([[1.0, 5, 2, 9, 3, 4, 8, 0, 0, 0]]).expand(4, -1)
    prefill = with_sums(naive.random_prefill(10), sums)
    assert positions(H2O().compress(prefill, Budget(tokens=6)))[0][0] == [1, 3, 6, 7, 8, 9]
    assert positions(H2O(recent=1).compress(prefill, Budget(tokens=4)))[0][0] == [1, 3, 6, 9]
    assert positions(H2O(recent=0).compress(prefill, Budget(tokens=3)))[0][0] == [1, 3, 6]
    assert positions(H2O(recent_ratio=1).compress(prefill, Budget(tokens=3)))[0][0] == [7, 8, 9]


def test_raw_sums_favor_early_tokens_and_normalized_ones_do_not(tiny):
    ids = torch.randint(0, 200, (120,), generator=torch.Generator().manual_seed(7))
    prefill = capture(tiny, ids, H2O().needs)
    budget = Budget(fraction=0.2)
    raw = H2O(recent=0).compress(prefill, budget)
    level = H2O(recent=0, normalize="visible").compress(prefill, budget)
    mean = [torch.tensor(positions(c)).float().mean() for c in (raw, level)]
    assert mean[0] < mean[1]


def test_the_published_form_chooses_what_the_code_before_its_mask_was_mended_chose(tiny):
    """Scores from whole T x T logits, of which the last 8 x 8 block alone is masked."""
    ids = torch.randint(0, 200, (150,), generator=torch.Generator().manual_seed(7))
    published = composed("method=h2o_kvf_published")
    prefill = capture(tiny, ids, published.needs | Needs(window=150, column_sums=True))
    cache = published.compress(prefill, Budget(tokens=40))
    mended = composed("method=h2o_kvf").compress(prefill, Budget(tokens=40))
    same = []
    for layer, kept, other in zip(
        prefill.layers, positions(cache), positions(mended), strict=True
    ):
        k = layer.k.repeat_interleave(2, 0)
        logits = layer.q_win @ k.transpose(1, 2) * layer.rule.scaling
        logits[:, -8:, -8:] += torch.full((8, 8), float("-inf")).triu(1)
        sums = logits.softmax(-1).sum(1)[:, :-8]
        for head, rows in enumerate(kept):
            assert rows == [*naive.top_positions(sums[head].tolist(), 32), *range(142, 150)]
            same.append(len(set(rows[:-8]) & set(other[head][:-8])) / 32)
    assert sum(same) / len(same) < 0.8


@pytest.mark.parametrize(
    "fields", [{}, {"recent": 8, "normalize": "visible"}, {"recent": 8, "during_decode": True}]
)
def test_the_mask_of_the_last_block_needs_its_size_and_a_plain_prefill(fields):
    with pytest.raises(UserError, match=r"method.causal='last_block'.*give method.recent=8"):
        H2O(causal="last_block", **fields)


@pytest.mark.parametrize("heads", ["query", "kv", "all"])
def test_selection_equals_a_naive_loop_over_heads(heads):
    prefill = naive.random_prefill(63)
    cache = H2O(heads=heads, store="repeat", recent=5).compress(prefill, Budget(tokens=20))
    for layer, kept in zip(prefill.layers, positions(cache), strict=True):
        sums = layer.column_sums[:, :-5]
        for head, rows in enumerate(kept):
            group = {"query": [head], "kv": [2 * head, 2 * head + 1], "all": range(4)}[heads]
            scores = torch.stack([sums[q] for q in group]).mean(0).tolist()
            assert rows == [*naive.top_positions(scores, 15), *range(58, 63)]


def test_the_kvf_layout_pays_for_a_copy_per_query_head():
    prefill = naive.random_prefill(200)
    cache = H2O(heads="query", store="repeat", recent=8).compress(prefill, Budget(fraction=0.4))
    found = ledger(prefill, cache)
    assert found.kept_ratio == pytest.approx(0.2)
    assert found.ratio_bytes == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("recent_ratio", 1.5), ("recent", -1), ("normalize", "mean"), ("causal", False)],
)
def test_fields_out_of_range_are_refused(field, value):
    with pytest.raises(UserError, match=f"method.{field}=.*give"):
        H2O(**{field: value})
