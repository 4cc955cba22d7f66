from __future__ import annotations

import math

import numpy as np
import pytest

from kvbench.report.table import stats
from kvbench.report.table.stats import (
    Interval,
    holm,
    mean_interval,
    mean_of_means,
    paired_difference,
)


def slow_interval(strata: list[list[float]]) -> tuple[float, float]:
    """Resample within strata, one draw at a time, from another generator."""
    generator = np.random.default_rng(2026)
    means = []
    for _ in range(2000):
        drawn = [generator.choice(values, size=len(values)) for values in strata]
        means.append(sum(sum(d) / len(d) for d in drawn) / len(drawn))
    return tuple(np.percentile(means, [2.5, 97.5]))


def slow_p(pairs: list[list[float]]) -> float:
    """Walk over every sign pattern."""
    flat = [d / len(values) for values in pairs for d in values]
    observed = abs(sum(flat))
    extreme = 0
    for pattern in range(2 ** len(flat)):
        total = sum(-d if pattern >> i & 1 else d for i, d in enumerate(flat))
        extreme += abs(total) >= observed - 1e-12
    return extreme / 2 ** len(flat)


def random_strata(*sizes: int) -> list[list[float]]:
    generator = np.random.default_rng(7)
    return [list(generator.random(size)) for size in sizes]


@pytest.mark.parametrize("sizes", [(2,), (7,), (257,), (2, 7, 63)])
def test_the_interval_agrees_with_a_slow_bootstrap(sizes: tuple[int, ...]) -> None:
    strata = random_strata(*sizes)
    found = mean_interval(strata)
    assert found is not None
    low, high = slow_interval(strata)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.08 * width)
    assert found.high == pytest.approx(high, abs=0.08 * width)


def test_the_interval_of_many_samples_is_the_normal_one() -> None:
    values = random_strata(2000)[0]
    found = mean_interval([values])
    assert found is not None
    half = 1.96 * np.std(values) / math.sqrt(len(values))
    assert found.low == pytest.approx(np.mean(values) - half, abs=0.05 * half)
    assert found.high == pytest.approx(np.mean(values) + half, abs=0.05 * half)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    trials = 200
    inside = 0
    for _ in range(trials):
        found = mean_interval([list(generator.normal(0.3, 1.0, size=40))])
        assert found is not None
        inside += found.low <= 0.3 <= found.high
    # A percentile interval of 40 samples covers a little less than 95%.
    assert 0.88 <= inside / trials <= 0.99


def test_equal_samples_have_an_interval_of_no_width() -> None:
    found = mean_interval([[0.4] * 5, [0.2] * 3])
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.3), pytest.approx(0.3))


@pytest.mark.parametrize("strata", [[], [[0.5]], [[0.1, 0.2], [0.5]], [[0.1, 0.2], []]])
def test_a_stratum_of_one_sample_gives_no_interval(strata: list[list[float]]) -> None:
    assert mean_interval(strata) is None


def test_two_samples_give_their_own_range() -> None:
    # A quarter of the draws takes the smaller one twice, and a quarter the larger one.
    assert mean_interval([[0.2, 0.8]]) == Interval(pytest.approx(0.2), pytest.approx(0.8))


def test_strata_are_drawn_within_not_across() -> None:
    # Across strata the draws would mix 0 and 1; within, nothing can vary.
    found = mean_interval([[0.0] * 10, [1.0] * 10])
    assert found == Interval(0.5, 0.5)


def test_a_stratum_weighs_the_same_whatever_its_size() -> None:
    assert mean_of_means([[1.0], [0.0] * 9]) == 0.5


def test_the_same_numbers_give_the_same_interval() -> None:
    strata = random_strata(5, 9)
    first = mean_interval(strata)
    stats.draws.cache_clear()
    assert mean_interval(strata) == first


@pytest.mark.parametrize("sizes", [(1,), (2,), (6,), (11,), (2, 3), (1, 4, 6)])
def test_p_is_that_of_every_sign_pattern(sizes: tuple[int, ...]) -> None:
    ours = random_strata(*sizes)
    theirs = [[0.4] * size for size in sizes]
    pairs = [[a - 0.4 for a in values] for values in ours]
    assert paired_difference(ours, theirs).p == pytest.approx(slow_p(pairs))


def test_p_of_many_pairs_is_near_that_of_every_sign_pattern() -> None:
    ours = random_strata(6, 8)
    theirs = [[0.45] * 6, [0.45] * 8]
    pairs = [[a - 0.45 for a in values] for values in ours]
    assert paired_difference(ours, theirs).p == pytest.approx(slow_p(pairs), abs=0.02)


def test_n_pairs_that_all_differ_alike_have_p_of_two_patterns() -> None:
    assert paired_difference([[1.0] * 6], [[0.0] * 6]).p == pytest.approx(2 / 2**6)


def test_equal_rows_do_not_differ() -> None:
    rows = random_strata(4, 5)
    found = paired_difference(rows, rows)
    assert (found.mean, found.interval, found.p) == (0.0, Interval(0.0, 0.0), 1.0)


def test_pairing_sees_what_two_intervals_hide() -> None:
    generator = np.random.default_rng(1)
    hard = generator.random(50)
    ours, theirs = [list(hard + 0.02 + 0.01 * generator.random(50))], [list(hard)]
    apart = [mean_interval(row) for row in (ours, theirs)]
    assert apart[0] is not None and apart[1] is not None
    assert apart[0].low < apart[1].high
    found = paired_difference(ours, theirs)
    assert found.interval is not None and found.interval.low > 0.019
    assert found.p < 0.001


def test_rows_of_other_samples_cannot_be_paired() -> None:
    with pytest.raises(ValueError):
        paired_difference([[0.1, 0.2]], [[0.1]])
    with pytest.raises(ValueError):
        paired_difference([], [])


def test_holm_corrects_as_in_the_textbook() -> None:
    # 0.01*4, 0.02*3, max(that, 0.03*2), 0.5*1
    assert holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])


def test_holm_stays_in_bounds_and_in_order() -> None:
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    p_values = sorted(random_strata(20)[0])
    corrected = holm(p_values)
    assert corrected == sorted(corrected)
    assert all(c >= p for c, p in zip(corrected, p_values, strict=True))


def test_tasks_of_one_size_are_drawn_apart() -> None:
    (values,) = random_strata(50)
    one, two = mean_interval([values]), mean_interval([values, values])
    assert one is not None and two is not None
    narrower = (two.high - two.low) / (one.high - one.low)
    assert narrower == pytest.approx(1 / math.sqrt(2), abs=0.03)


def test_p_is_never_zero() -> None:
    found = paired_difference([[1.0] * 40], [[0.0] * 40])
    assert found.p == pytest.approx(1 / 10_001)
