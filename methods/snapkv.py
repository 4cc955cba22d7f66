"""SnapKV: keep what the last queries of the prompt attend to, neighbors included.

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

from kvbench.compress.method import check_choice, check_odd, check_range
from kvbench.compress.scores import pool, scores_by_layout, window_scores
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class SnapKV(ScoringMethod):
    """Keep the window and the context rows with the highest pooled window attention."""

    window: int = 32  # released LongBench configurations: window_size 32
    pool: str = "max"  # released configurations: maxpool
    kernel: int = 7  # released configurations: kernel_size 7
    heads: str = "kv"  # kvbench: the deployable layout; `query` is the paper's
    store: str = "union"  # with heads=query; `repeat`: a copy per query head, as released

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("window", self.window, 1)
        check_choice("pool", self.pool, "none", "max", "average")
        check_odd("kernel", self.kernel)

    @property
    def needs(self) -> Needs:
        """The window's queries."""
        return Needs(window=self.window)

    def newest_rows(self, mean_tokens: float) -> int:
        """The window."""
        return self.window

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Mean attention from the window, reduced to the layout's heads, then pooled."""
        scores = scores_by_layout(window_scores(layer, window), layer.kv_heads, self.heads)
        return pool(scores, self.pool, self.kernel)
