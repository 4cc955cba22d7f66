"""Meeting a budget in memory: the one mechanism for every method whose bytes follow the data.

A codebook's size, a union of rows or ragged heads cannot be set by formula, so the nominal budget
is searched on the prompt at hand until the measured bytes (or, where a method says so, Formula 15
as printed) are the budget asked for. The result
depends on nothing but the prompt, the method and the budget, so a resumed run repeats it.
"""

from __future__ import annotations

from dataclasses import replace

from kvbench.cache.ledger import ledger
from kvbench.cache.rows import store_whole
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.prefill.state import Prefill

TOLERANCE = 0.004
"""Search ends when the measured share of the native cache is this close to the budget."""

_MOST_EVALUATIONS = 9


def keep_whole(prefill: Prefill) -> Compressed:
    """The uncompressed cache in the native layout, sharing the capture's memory."""
    return Compressed(tuple(store_whole(s) for s in prefill.layers))


def fit_budget(method: Method, prefill: Prefill, budget: Budget) -> Compressed:
    """Compress so that the cache really holds the budget (methods.md A1.5, A1.6).

    A prompt that fits is kept whole by every method. A fractional budget of a method whose bytes
    follow the data is met within `TOLERANCE` by searching the nominal budget, in bytes or in the
    reading that the method's `match` names, unless that is `eviction`; where even a nominal budget
    of 1 stays below it, everything is kept and the facts say `saturated`.

    Returns:
        The compressed cache; its facts gain `nominal`, `saturated` and `evaluations` where a
        search took place.
    """
    if budget.keeps_whole(prefill.tokens):
        return keep_whole(prefill)
    target = method.share_to_meet(budget, prefill.tokens)
    if target is None:
        return method.compress(prefill, budget)

    lower = low = (0.0, 0.0)
    high: tuple[float, float] | None = None
    nominal = target
    best: tuple[float, float, Compressed] | None = None
    evaluations = 0
    while evaluations < _MOST_EVALUATIONS:
        compressed = method.compress(prefill, Budget(fraction=nominal))
        evaluations += 1
        share = _measured_share(method, prefill, compressed)
        if best is None or abs(share - target) < abs(best[1] - target):
            best = (nominal, share, compressed)
        if abs(share - target) <= TOLERANCE or (nominal == 1.0 and share < target):
            break
        if share < target:
            lower, low = low, (nominal, share)
        else:
            high = (nominal, share)
        nominal = _next_nominal(lower, low, high, target)
    assert best is not None
    nominal, share, compressed = best
    return replace(
        compressed,
        facts={
            **compressed.facts,
            "nominal": nominal,
            "saturated": nominal == 1.0 and share < target - TOLERANCE,
            "evaluations": evaluations,
        },
    )


def _measured_share(method: Method, prefill: Prefill, compressed: Compressed) -> float:
    if method.match == "formula15":
        return ledger(prefill, compressed).ratio_formula15_printed
    return compressed.nbytes / prefill.nbytes


def _next_nominal(
    lower: tuple[float, float],
    low: tuple[float, float],
    high: tuple[float, float] | None,
    target: float,
) -> float:
    """Nominal budget where the line through the two nearest measurements meets the target.

    Args:
        lower: (nominal, share) measured before `low`; (0, 0) until there is one.
        low: the highest measured below the target; (0, 0) until one is.
        high: the lowest measured above it; None until one is.
        target: share of the native cache wanted.
    """
    one, other = (lower, low) if high is None else (low, high)
    rise = other[1] - one[1]
    guess = other[0] + (target - other[1]) * (other[0] - one[0]) / rise if rise > 0 else 1.0
    if high is None:
        return min(1.0, guess)
    # Rounding to tokens can flatten the line; halving always moves.
    return guess if low[0] < guess < high[0] else (low[0] + high[0]) / 2
