"""Knorm: keep the keys of lowest L2 norm.

Paper: A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (Devoto et al.,
2024), section 4. Code read: kvpress 0.5.5.

Differs from the paper:
- Every layer is compressed; the paper leaves the first two whole in language modeling.
- Acts once, after the prefill.
- No token is kept for being recent (`window=0`), as in kvpress.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvbench.compress.method import check_range
from kvbench.compress.scores import scores_by_layout
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class Knorm(ScoringMethod):
    """Keep the rows whose keys are shortest."""

    window: int = 0  # newest tokens kept whatever their norm; the paper: none

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("window", self.window, 0)

    def newest_rows(self, mean_tokens: float) -> int:
        """The window."""
        return self.window

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Negative norms; query heads of one KV head share its keys."""
        scores = -layer.k[:, : layer.tokens - window].float().norm(dim=-1)
        per_query_head = scores.repeat_interleave(layer.query_heads // layer.kv_heads, 0)
        return scores_by_layout(per_query_head, layer.kv_heads, self.heads)
