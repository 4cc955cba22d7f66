"""Scores against slow twins at odd sizes, and the hand vector T4."""

from __future__ import annotations

import pytest
import torch

from kvbench.compress.scores import pool, scores_by_layout, window_attention, window_scores
from kvbench.prefill.selection import top_rows
from support import naive


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
@pytest.mark.parametrize("sliding_window", [None, 5])
def test_window_attention_equals_one_query_at_a_time(tokens, sliding_window):
    layer = naive.random_prefill(tokens, layers=1, sliding_window=sliding_window).layers[0]
    window = min(9, tokens)
    fast = window_attention(layer, window)
    torch.testing.assert_close(fast, naive.window_attention(layer, window), atol=1e-5, rtol=0)


def test_window_attention_reads_the_newest_of_the_captured_queries():
    layer = naive.random_prefill(40, layers=1, window=16).layers[0]
    torch.testing.assert_close(window_attention(layer, 4), window_attention(layer, 16)[:, -4:])


def test_softcap_bounds_the_logits_before_the_softmax():
    from dataclasses import replace

    layer = naive.random_prefill(20, layers=1).layers[0]
    capped = window_attention(replace(layer, rule=replace(layer.rule, softcap=0.5)), 3)
    logits = (layer.q_win[0, -1] @ layer.k[0].T) * layer.rule.scaling
    expected = (0.5 * torch.tanh(logits / 0.5)).softmax(-1)
    torch.testing.assert_close(capped[0, -1], expected, atol=1e-6, rtol=0)


# T4: s = [.1, .5, .2, .05, .3, .15], kernel 3.
S4 = [0.1, 0.5, 0.2, 0.05, 0.3, 0.15]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("max", [0.5, 0.5, 0.5, 0.3, 0.3, 0.3]),
        ("average", [0.2, 0.26667, 0.25, 0.18333, 0.16667, 0.15]),
    ],
)
def test_pooling_by_hand_and_what_it_keeps(kind, expected):
    scores = pool(torch.tensor([S4]), kind, 3)
    torch.testing.assert_close(scores, torch.tensor([expected]), atol=1e-5, rtol=0)
    assert top_rows(scores, 3).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_pooling_equals_one_window_at_a_time(tokens, kind, kernel):
    scores = torch.rand(3, tokens, generator=torch.Generator().manual_seed(tokens))
    expected = [naive.pooled(row, kind, kernel) for row in scores.tolist()]
    torch.testing.assert_close(pool(scores, kind, kernel), torch.tensor(expected))


def test_pooling_nothing_gives_nothing():
    assert pool(torch.empty(2, 0), "max", 7).shape == (2, 0)


def test_layouts_reduce_query_heads_to_the_heads_that_select():
    scores = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 7.0]])
    assert scores_by_layout(scores, 2, "query") is scores
    assert scores_by_layout(scores, 2, "kv").tolist() == [[2.0, 0.0], [0.0, 6.0]]
    assert scores_by_layout(scores, 2, "all").tolist() == [[1.0, 3.0], [1.0, 3.0]]


def test_window_scores_leave_the_window_out():
    layer = naive.random_prefill(30, layers=1).layers[0]
    expected = naive.window_attention(layer, 8)[:, :, :22].mean(1)
    torch.testing.assert_close(window_scores(layer, 8), expected, atol=1e-6, rtol=0)
