"""SnapKV: keep what the last queries of the prompt attend to, neighbours included.

Paper: SnapKV: LLM Knows What You are Looking for Before Generation (Li et al., 2024), section 4.
Official code: FasterDecoding/SnapKV.

Differs from the paper:
- One set of rows per KV head by default (`heads=kv`: group mean before pooling); `heads=query`
  selects per query head as the paper does, and the ledger then counts what is stored.
- A budget smaller than the window keeps the newest tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvbench.budget import Budget, whole, window_and_context
from kvbench.cache.rows import store_rows
from kvbench.cache.store import Compressed
from kvbench.method import Method, Needs, check_choice, check_odd, check_range
from kvbench.ops import pool, scores_by_layout, top_rows, window_scores, with_window
from kvbench.prefill import LayerState, Prefill


@dataclass(frozen=True)
class SnapKV(Method):
    """Keep the window and the context rows with the highest pooled window attention."""

    window: int = 32  # released LongBench configurations: window_size 32
    pool: str = "max"  # released configurations: maxpool
    kernel: int = 7  # released configurations: kernel_size 7
    heads: str = "kv"  # kvbench: the deployable layout; `query` is the paper's
    store: str = "union"  # with heads=query; `repeat`: a copy per query head, as released

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_range("window", self.window, 1)
        check_choice("pool", self.pool, "none", "max", "average")
        check_odd("kernel", self.kernel)
        check_choice("heads", self.heads, "query", "kv", "all")
        check_choice("store", self.store, "union", "repeat")

    @property
    def needs(self) -> Needs:
        """The window's queries."""
        return Needs(window=self.window)

    @property
    def bytes_follow_data(self) -> bool:
        """A union's size depends on how much the query heads agree."""
        return self.heads == "query" and self.store == "union"

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the same number of rows in every layer."""
        counts = self.context_rows(prefill, budget)
        layers = []
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            rows = with_window(self.rows_to_keep(layer, window, context), layer.tokens, window)
            layers.append(store_rows(layer, rows, union=self.store == "union"))
        return Compressed(tuple(layers))

    def context_rows(self, prefill: Prefill, budget: Budget) -> list[tuple[int, int]]:
        """Window and context rows of each layer's heads."""
        mean = budget.tokens_per_head(prefill.tokens, self.copies(prefill))
        window, context = window_and_context(mean, self.window, prefill.tokens)
        return [(window, whole(context))] * len(prefill.layers)

    def copies(self, prefill: Prefill) -> int:
        """Copies of a row that the layout stores: g where each query head has its own."""
        layer = prefill.layers[0]
        repeated = self.heads == "query" and self.store == "repeat"
        return layer.query_heads // layer.kv_heads if repeated else 1

    def rows_to_keep(self, layer: LayerState, window: int, context: int) -> Tensor:
        """Context rows with the highest pooled scores: [H, context], ascending."""
        scores = scores_by_layout(window_scores(layer, window), layer.kv_heads, self.heads)
        return top_rows(pool(scores, self.pool, self.kernel), context)
