"""The search for the nominal budget, on methods whose bytes follow a curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kvbench.cache.ledger import ledger
from kvbench.cache.rows import store_rows
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, whole
from kvbench.compress.fit import TOLERANCE, fit_budget
from kvbench.compress.method import Method
from kvbench.methods.spindlekv import SpindleKV
from kvbench.prefill.state import Prefill
from support import naive

PREFILL = naive.random_prefill(1000, layers=1, window=1)


@dataclass(frozen=True)
class Curve(Method):
    """Holds the first rows, so many as a curve says of the nominal budget."""

    share: Callable[[float], float]

    @property
    def bytes_follow_data(self) -> bool:
        return True

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        assert budget.fraction is not None
        rows = torch.arange(whole(self.share(budget.fraction) * prefill.tokens)).expand(2, -1)
        return Compressed(tuple(store_rows(layer, rows) for layer in prefill.layers))


def fitted(share: Callable[[float], float], budget: float) -> tuple[float, Compressed]:
    """Share of the native bytes held, and the cache."""
    cache = fit_budget(Curve(share), PREFILL, Budget(fraction=budget))
    return cache.nbytes / PREFILL.nbytes, cache


@pytest.mark.parametrize("budget", [0.11, 0.3, 0.47, 0.9])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_smooth_curve_is_met_within_four_thousandths(power: float, budget: float) -> None:
    held, cache = fitted(lambda nominal: nominal**power, budget)
    assert abs(held - budget) <= TOLERANCE <= 0.004
    assert cache.facts["nominal"] == pytest.approx(budget ** (1 / power), abs=0.01)
    assert not cache.facts["saturated"]


def test_a_method_that_cannot_reach_the_budget_says_so() -> None:
    held, cache = fitted(lambda nominal: 0.4 * nominal, 0.5)
    assert (held, cache.facts["nominal"], cache.facts["saturated"]) == (0.4, 1.0, True)
    assert cache.facts["evaluations"] == 2


def test_one_that_reaches_it_with_all_it_may_have_is_not_saturated() -> None:
    held, cache = fitted(lambda nominal: 0.5 * nominal, 0.5)
    assert (held, cache.facts["nominal"], cache.facts["saturated"]) == (0.5, 1.0, False)


@pytest.mark.parametrize("jump", [0.305, 0.35, 0.45, 0.6])
def test_of_budgets_that_all_miss_the_nearest_is_taken(jump: float) -> None:
    held, _ = fitted(lambda nominal: 0.1 if nominal < jump else 0.9, 0.3)
    assert held == 0.1


def test_formula_15_is_met_as_printed() -> None:
    prefill = naive.random_prefill(200, distinct=60)
    method = SpindleKV(window=8, match="formula15")
    found = ledger(prefill, fit_budget(method, prefill, Budget(fraction=0.3)))
    assert abs(found.ratio_formula15_printed - 0.3) <= TOLERANCE
    assert abs(found.ratio_formula15 - 0.3) > TOLERANCE


def test_as_many_tokens_as_the_prompt_has_keep_it_whole() -> None:
    curve = Curve(lambda nominal: 0.0)
    assert fit_budget(curve, PREFILL, Budget(tokens=1000)).nbytes == PREFILL.nbytes
    assert fit_budget(curve, PREFILL, Budget(fraction=1.0)).nbytes == PREFILL.nbytes
