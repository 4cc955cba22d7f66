"""How sure a mean is: bootstrap intervals, paired differences, many comparisons at once.

Numbers come in strata, the samples of one task each. The quantity is the mean over strata of each
stratum's mean, as AVG is over tasks; samples are drawn again inside their stratum, never across.
A stratum of one sample says nothing of its spread, so such a mean has no interval. Pure functions
of numbers; the same numbers give the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
CONFIDENCE = 0.95
SIGN_PATTERNS = 10_000
EXACT_SIGNS = 12
"""Up to so many differences that are not zero, all their sign patterns are tried."""

Strata = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Interval:
    """Percentile bootstrap interval of a mean, at 95%."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A paired comparison."""

    mean: float
    interval: Interval | None
    """None where a stratum has one pair."""
    p: float
    """Two-sided, of the sign-flip test: how often chance alone differs as much, in (0, 1]."""


def mean_of_means(strata: Strata) -> float:
    """Return the mean over strata of each one's mean."""
    return float(np.mean([np.mean(values) for values in strata]))


def mean_interval(strata: Strata) -> Interval | None:
    """Return the bootstrap interval of the mean of the strata's means.

    Args:
        strata: the samples of each stratum.

    Returns:
        None where there is no stratum, or one has fewer than two samples.

    Source: Efron, Bootstrap Methods: Another Look at the Jackknife, 1979; percentile interval.
    """
    if not strata or min(map(len, strata)) < 2:
        return None
    drawn = np.zeros(RESAMPLES)
    for i, values in enumerate(strata):
        drawn += draws(len(values), i) @ np.asarray(values, dtype=np.float64)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn / len(strata), [tail, 1 - tail])
    # Summation noise must not push an end that is zero off zero.
    return Interval(round(float(low), 12), round(float(high), 12))


def paired_difference(ours: Strata, theirs: Strata) -> Difference:
    """Compare two rows that scored the same samples, in the same order.

    Args:
        ours: samples by stratum.
        theirs: the reference's, of the same shape.

    Returns:
        The mean of ours - theirs; an interval that draws pairs; the p of the sign-flip test, which
        holds each difference to be as likely the other way round.

    Raises:
        ValueError: the shapes differ, or there is no stratum.
    """
    pairs = [
        [a - b for a, b in zip(mine, other, strict=True)]
        for mine, other in zip(ours, theirs, strict=True)
    ]
    if not pairs:
        raise ValueError("no stratum to compare")
    return Difference(mean_of_means(pairs), mean_interval(pairs), _sign_flip_p(pairs))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number; the chance of any false alarm stays below the level.

    Returns:
        Corrected values in the order given, each in [0, 1].

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


@lru_cache(maxsize=64)
def draws(samples: int, stratum: int) -> NDArray[np.float64]:
    """Return [RESAMPLES, samples]: each draw's share of each sample; rows sum to 1.

    A stratum's draws depend on its place alone, so that rows of a table are drawn alike.
    """
    generator = np.random.default_rng([stratum, samples])
    drawn = generator.integers(samples, size=(RESAMPLES, samples))
    cells = drawn + samples * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(cells.ravel(), minlength=RESAMPLES * samples)
    return counts.reshape(RESAMPLES, samples) / samples


def _sign_flip_p(pairs: Strata) -> float:
    """Share of all sign patterns whose mean is at least as far from zero as the one observed."""
    # One number a pair: its weight in the mean of the strata's means. Zeros have no sign.
    weighted = np.concatenate([np.asarray(values) / len(values) for values in pairs])
    weighted = weighted[weighted != 0]
    if not len(weighted):
        return 1.0
    # Patterns that tie exactly must count, whatever order they were summed in.
    observed = abs(weighted.sum()) * (1 - 1e-9)
    if len(weighted) <= EXACT_SIGNS:
        signs = np.array(list(itertools.product((-1, 1), repeat=len(weighted))))
        return float(np.mean(abs(signs @ weighted) >= observed))
    generator = np.random.default_rng(len(weighted))
    extreme = 0
    for _ in range(10):  # in parts, so that the patterns of thousands of pairs fit in memory
        signs = generator.integers(2, size=(SIGN_PATTERNS // 10, len(weighted)), dtype=np.int8)
        extreme += int(np.sum(abs((2 * signs - 1) @ weighted) >= observed))
    return (extreme + 1) / (SIGN_PATTERNS + 1)
