"""H2O: keep the tokens that all queries so far attended to most (heavy hitters), and the newest.

Paper: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models
(Zhang et al., 2023), section 4.2, Algorithm 1. Official code: FMInference/H2O, utils_hh and
utils_real_drop, read; KVCache-Factory c97f9d7, read.

Differs from the paper:
- Acts once, after the prefill, as KVCache-Factory does; with `during_decode` after each forward,
  as the paper does.
- One set of rows per KV head by default (`heads=kv`: mean of the group's sums).
- The official code fixes heavy and recent as shares of the prompt (0.1 and 0.1 in its demo);
  here they are shares of the budget, half and half as there.
- With `during_decode` the token about to be generated counts as a recent one, as in the official
  mask simulation (utils_hh), so one row less is held between two steps. There, the row that just
  left the recent ones is hidden for one step and may come back; here it competes at once.
- Layers with a sliding window sum the queries that see a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.budget import whole
from kvbench.method import Needs, check_choice, check_range
from kvbench.ops import scores_by_layout
from kvbench.prefill import LayerState
from kvbench.scoring import ScoringMethod


@dataclass(frozen=True)
class H2O(ScoringMethod):
    """Keep the newest tokens and the context rows with the largest attention sums."""

    recent_ratio: float = 0.5  # official demo: as many recent tokens as heavy hitters
    recent: int | None = None  # newest tokens as a count instead; KVCache-Factory: 8
    normalise: str = "none"  # raw sums; `visible`: by the number of queries that see the key

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("recent_ratio", self.recent_ratio, 0, 1)
        if self.recent is not None:
            check_range("recent", self.recent, 0)
        check_choice("normalise", self.normalise, "none", "visible")

    @property
    def needs(self) -> Needs:
        """Attention summed over all queries."""
        return Needs(column_sums=True)

    def newest_rows(self, mean_tokens: float) -> int:
        """The count, or the share of the budget; no share is none at all."""
        if self.recent is not None:
            return self.recent
        return max(1, whole(self.recent_ratio * mean_tokens)) if self.recent_ratio else 0

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Attention each context key received, reduced to the layout's heads."""
        scores = accumulated(layer, self.normalise)[:, : layer.tokens - window]
        return scores_by_layout(scores, layer.kv_heads, self.heads)


def accumulated(layer: LayerState, normalise: str) -> Tensor:
    """Attention each key received from all queries: [Q, T] float32.

    Args:
        layer: the state, with `column_sums`.
        normalise: `none`, or `visible`: divided by the number of queries that see the key.
    """
    assert layer.column_sums is not None
    if normalise == "none":
        return layer.column_sums
    seen_by = layer.tokens - torch.arange(layer.tokens, device=layer.column_sums.device)
    if layer.sliding_window is not None:
        seen_by = seen_by.clamp_max(layer.sliding_window)
    return layer.column_sums / seen_by
