"""Budgets in tokens: what is accepted, how layers share, what is rounded where."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.compress.budget import (
    Budget,
    capped_line,
    linear_budgets,
    rounded_to_sum,
    whole,
    window_and_context,
)
from kvbench.methods.pyramidkv import released_schedule
from kvbench.methods.spindlekv import layer_shares


@pytest.mark.parametrize(
    ("value", "fraction", "tokens"),
    [(0.2, 0.2, None), (1.0, 1.0, None), (1, None, 1), (512, None, 512), (512.0, None, 512)],
)
def test_fractions_and_token_counts_are_told_apart(value, fraction, tokens):
    assert Budget.parse(value) == Budget(fraction, tokens)


@pytest.mark.parametrize(
    "value", [0, -1, 1.5, math.nan, math.inf, -0.2, "a lot", "0.2", None, True, [0.2]]
)
def test_any_other_budget_is_refused_with_the_value_and_both_forms(value):
    with pytest.raises(UserError) as caught:
        Budget.parse(value)
    message = str(caught.value)
    assert str(value) in message
    assert "fraction in (0, 1]" in message
    assert "whole number of tokens" in message
    assert "\n" not in message


def test_a_fraction_pays_for_every_copy_and_tokens_are_per_stored_head():
    assert Budget(fraction=0.4).tokens_per_head(1000, copies=4) == pytest.approx(100)
    assert Budget(tokens=300).tokens_per_head(1000, copies=4) == 300
    assert Budget(tokens=3000).tokens_per_head(1000) == 1000


def test_six_tenths_of_a_thousand_are_six_hundred():
    assert whole(0.6 * 1000) == 600
    assert [whole(x * 1000) for x in (0.1, 0.2, 0.29, 0.7)] == [100, 200, 290, 700]


# T1 of the methods' test vectors: SpindleKV's schedule, beta = 0.05.
def _kept(r: float, length: int, window: int, layers: int) -> list[int]:
    fits, context = window_and_context(r * length, window, length)
    assert fits == max(1, window)
    rest = length - window
    return [whole(s * rest) for s in layer_shares(context / rest, layers, 0.05)]


def test_spindlekv_schedule_at_040_of_1032_tokens():
    kept = _kept(0.4, 1032, 32, 32)
    assert (kept[0], kept[1], kept[31]) == (711, 690, 50)
    achieved = (sum(kept) / 32 + 32) / 1032
    assert achieved == pytest.approx(0.399558, abs=1e-6)


def test_spindlekv_schedule_at_060_keeps_the_first_layer_whole():
    kept = _kept(0.6, 1032, 32, 32)
    assert (kept[0], kept[1], kept[31]) == (1000, 973, 174)


def test_spindlekv_schedule_at_015_of_8000_tokens():
    kept = _kept(0.15, 8000, 32, 32)
    assert (kept[0], kept[31]) == (1937, 398)
    shares = layer_shares(0.1465863453815261, 32, 0.05)
    assert shares[0] == pytest.approx(0.243173, abs=1e-6)


@pytest.mark.parametrize(
    ("context_share", "rows"),
    [
        (0.6, [1000, 800, 600, 400, 200]),
        (0.3, [550, 425, 300, 175, 50]),
        (0.525, [1000, 762, 525, 287, 50]),
        (1.0, [1000] * 5),
        (0.0186, [18] * 5),
        (0.0, [0] * 5),
    ],
)
def test_spindlekv_schedule_is_exact_where_doubles_would_lose_one(context_share, rows):
    assert [whole(s * 1000) for s in layer_shares(context_share, 5, 0.05)] == rows


# T5: PyramidKV's released integers, m = 32, W = 8, beta = 20.
@pytest.mark.parametrize(
    ("capacity", "first", "second", "last", "total"),
    [
        (2048, 3986, 3861, 111, 65552),
        (512, 991, 961, 61, None),
        (128, 242, 235, 25, None),
        (96, 180, 175, 25, None),
        (64, 118, 115, 25, None),
    ],
)
def test_released_pyramid_integers(capacity, first, second, last, total):
    rows = [n + 8 for n in released_schedule(capacity - 8, 8000, 8, 32, 20)]
    assert (rows[0], rows[1], rows[31]) == (first, second, last)
    if total is not None:
        assert sum(rows) == total


@pytest.mark.parametrize(("tokens", "flat"), [(3000, True), (4079, True), (4080, False)])
def test_released_pyramid_is_flat_below_twice_the_context_budget(tokens, flat):
    rows = [n + 8 for n in released_schedule(2040, tokens, 8, 32, 20)]
    assert (rows == [2048] * 32) is flat


def test_released_pyramid_caps_the_first_layer_at_the_context():
    rows = released_schedule(56, 115, 8, 32, 20)
    assert rows[0] + 8 == 115
    assert rows[31] + 8 == 22


def test_the_papers_pyramid_has_exactly_the_mean_asked_for():
    rows = rounded_to_sum(capped_line(2040, 2040 / 20, 32, 7992), 7992)
    assert sum(rows) == 2040 * 32
    assert (rows[0], rows[31]) == (3978, 102)


def test_beta_one_makes_the_pyramid_flat():
    assert capped_line(504, 504 / 1, 32, 7992) == [504] * 32


@given(st.floats(0, 500), st.floats(1, 30), st.integers(1, 40), st.integers(0, 600))
def test_rounding_keeps_the_sum_and_the_bounds(mean, beta, layers, most):
    mean = min(mean, most)
    line = capped_line(mean, mean / beta, layers, most)
    rows = rounded_to_sum(line, most)
    assert sum(rows) == whole(sum(line))
    assert all(0 <= n <= most for n in rows)


def test_one_layer_gets_the_mean():
    assert linear_budgets(10, 4, 1) == [7]


@given(st.floats(0.01, 400), st.integers(1, 64), st.integers(1, 300))
def test_window_and_context_never_exceed_the_budget_by_more_than_the_one_token_kept(
    mean, window, tokens
):
    fits, context = window_and_context(mean, window, tokens)
    assert 1 <= fits <= tokens
    assert fits + context <= max(1, min(mean, tokens) + 1e-6)


def test_ties_in_the_rounding_of_layers_go_to_the_earlier_layer():
    assert rounded_to_sum([1.5, 1.5, 1.5, 1.5], 9) == [2, 2, 1, 1]
    assert rounded_to_sum([1.25, 2.75, 0.75, 1.25], 9) == [1, 3, 1, 1]


def test_a_share_of_a_budget_is_of_either_kind():
    assert Budget(fraction=0.5).times(0.5) == Budget(fraction=0.25)
    assert Budget(tokens=101).times(0.5) == Budget(tokens=50)


def test_a_prompt_of_exactly_the_budget_is_kept_whole():
    assert Budget(tokens=100).keeps_whole(100) and not Budget(tokens=100).keeps_whole(101)
    assert Budget(fraction=1.0).keeps_whole(5) and not Budget(fraction=0.99).keeps_whole(5)


def test_shares_stand_before_tokens_and_small_before_large():
    budgets = [Budget(tokens=512), Budget(fraction=0.9), Budget(tokens=1), Budget(fraction=0.2)]
    ordered = sorted(budgets, key=lambda budget: budget.place)
    assert [str(budget) for budget in ordered] == ["0.2", "0.9", "1", "512"]
