"""What methods that score rows share: the window, the rows beside it, the copies they pay for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvbench.compress.budget import Budget
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.state import LayerState
from support import naive


@dataclass(frozen=True)
class ByPlace(ScoringMethod):
    """Scores fall along the prompt, so that its first rows are kept."""

    newest: int = 0

    def newest_rows(self, mean_tokens: float) -> int:
        return self.newest

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        heads = layer.query_heads if self.heads == "query" else layer.kv_heads
        return -torch.arange(layer.tokens - window).float().expand(heads, -1)


def positions(method: ScoringMethod, budget: Budget, tokens: int = 40) -> list[list[int]]:
    """Kept positions of the first layer, by head."""
    prefill = naive.random_prefill(tokens, layers=2)
    bands = method.compress(prefill, budget).layers[0].materialize()
    return [head for band in bands for head in band.positions.tolist()]


def test_the_newest_rows_and_the_best_before_them_are_kept() -> None:
    kept = [0, 1, 2, 3, 4, 5, 38, 39]
    assert positions(ByPlace(newest=2), Budget(tokens=8)) == [kept, kept]


def test_a_budget_below_one_token_keeps_one() -> None:
    assert positions(ByPlace(), Budget(fraction=0.01)) == [[0], [0]]
    assert positions(ByPlace(newest=5), Budget(fraction=0.01)) == [[39], [39]]


@pytest.mark.parametrize(("store", "rows"), [("repeat", 10), ("union", 20)])
def test_each_query_heads_copy_is_paid_for_and_a_union_is_not(store: str, rows: int) -> None:
    method = ByPlace(heads="query", store=store)
    assert positions(method, Budget(fraction=0.5)) == [list(range(rows))] * 4
    assert positions(method, Budget(tokens=12)) == [list(range(12))] * 4
