"""The common half of eviction methods: keep the newest tokens and the highest-scored context rows.

A method of this kind says how rows are scored, how many of the newest tokens are kept whatever
their score, and, where layers differ, how many rows each keeps.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_rows
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, whole, window_and_context
from kvbench.compress.method import Method, check_choice
from kvbench.prefill.selection import top_rows, with_window
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class ScoringMethod(Method):
    """Keep the newest tokens and, per selecting head, the context rows with the highest scores.

    A budget smaller than what is always kept holds the newest tokens only.
    """

    heads: str = "kv"  # who selects: each `query` head, each `kv` head, or `all` heads as one
    store: str = "union"  # with heads=query: each row once, or `repeat`: a copy per query head

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_choice("heads", self.heads, "query", "kv", "all")
        check_choice("store", self.store, "union", "repeat")

    @property
    def bytes_follow_data(self) -> bool:
        """A union's size depends on how much the query heads agree."""
        return self.heads == "query" and self.store == "union"

    @property
    def evicts_in_decode(self) -> bool:
        """Whether the caches of `compress` evict generated tokens too; wrappers cannot follow."""
        return False

    @property
    def keeps_newest(self) -> bool:
        """Unless no token is kept for being recent."""
        return self.newest_rows(1) > 0

    @abstractmethod
    def newest_rows(self, mean_tokens: float) -> int:
        """Newest tokens always kept where heads hold `mean_tokens` on average; 0 is none."""

    @abstractmethod
    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Score the context rows, the ones before the last `window`: higher is kept.

        Returns:
            [H, T - window] float32, H = Q with `heads=query`, else G.
        """

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the window and the best context rows of each layer."""
        layers = []
        counts = self.context_rows(prefill, budget)
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            rows = with_window(self.rows_to_keep(layer, window, context), layer.tokens, window)
            layers.append(store_rows(layer, rows, union=self.store == "union"))
        return Compressed(tuple(layers))

    def rows_to_keep(self, layer: LayerState, window: int, context: int) -> Tensor:
        """Context rows with the highest scores: [H, context], ascending."""
        return top_rows(self.head_scores(layer, window), context)

    def context_rows(self, prefill: Prefill, budget: Budget) -> list[tuple[int, int]]:
        """Window and context rows of each layer's heads; here the same in every layer."""
        mean = budget.tokens_per_head(prefill.tokens, self.copies(prefill))
        window, context = window_and_context(mean, self.newest_rows(mean), prefill.tokens)
        return [(window, max(1 - window, whole(context)))] * len(prefill.layers)

    def copies(self, prefill: Prefill) -> int:
        """Copies of a row that the layout stores: g where each query head has its own."""
        layer = prefill.layers[0]
        repeated = self.heads == "query" and self.store == "repeat"
        return layer.query_heads // layer.kv_heads if repeated else 1


def check_base(name: str, base: ScoringMethod) -> None:
    """Refuse a wrapped method whose own caches go on evicting while decoding.

    Raises:
        UserError: naming the field.
    """
    if base.evicts_in_decode:
        raise UserError(f"method.{name}.during_decode=true does not reach through: give false")
