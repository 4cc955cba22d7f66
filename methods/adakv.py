"""AdaKV: share a layer's budget among its heads by score, over any method that scores rows.

Paper: Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
Inference (Feng et al., 2024), section 3.3, Algorithm 1. Code: kvpress 0.5.5, read;
KVCache-Factory c97f9d7.

Differs from the paper:
- Heads are those of the base's layout, KV heads by default; the paper selects per query head
  (`base.heads=query base.store=repeat`).
- The budget is met to the row: the heads' shares are rounded by largest remainder.
- Every head keeps a row at least, as in kvpress, where the base keeps no window (`alpha=0`: none).
- Rows of equal score go to the lower position, then to the lower head.
- KVCache-Factory weights each head's scores by the share of the mass in its best rows; the paper
  does not, nor does kvbench.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_ragged_rows
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, rounded_to_sum, whole
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.compress.scoring import ScoringMethod, check_base
from kvbench.prefill.needs import Needs
from kvbench.prefill.selection import top_rows, with_window
from kvbench.prefill.state import Prefill

from .snapkv import SnapKV


@dataclass(frozen=True)
class AdaKV(Method):
    """Keep the base's window and, over all heads of a layer together, the best context rows."""

    base: ScoringMethod = field(default_factory=SnapKV)  # Ada-SnapKV, the paper's main variant
    alpha: float = 0.2  # section 4.1, safeguard: share of the budget that is not shared out
    safeguard: str = "blend"  # Algorithm 1; `minimum`: kvpress, each head's own best alpha share

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_base("base", self.base)
        check_range("alpha", self.alpha, 0, 1)
        check_choice("safeguard", self.safeguard, "blend", "minimum")
        if self.base.heads == "query" and self.base.store == "union":
            raise UserError(
                "method.base.store='union' needs heads of equal length: give repeat, or"
                " method.base.heads=kv"
            )

    @property
    def needs(self) -> Needs:
        """What the base reads."""
        return self.base.needs

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return ragged rows, as many per layer as the base would keep."""
        layers = []
        counts = self.base.context_rows(prefill, budget)
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            scores = self.base.head_scores(layer, window)
            one = min(1, context) if self.alpha and not window else 0
            if self.safeguard == "blend":
                shares = blended_shares(scores, context, self.alpha, one)
            else:
                least = max(one, whole(self.alpha * (window + context)) - window)
                shares = free_shares(scores, context, least)
            rows = [
                with_window(top_rows(head[None], share), layer.tokens, window)[0]
                for head, share in zip(scores, shares, strict=True)
            ]
            layers.append(store_ragged_rows(layer, rows))
        return Compressed(tuple(layers))


def free_shares(scores: Tensor, mean: int, least: int = 0) -> list[int]:
    """Rows of each head among the best of all heads together.

    Args:
        scores: [H, n].
        mean: rows per head; H * mean are shared out.
        least: of each head, its best rows that are kept whatever their score; at most `mean`.
    """
    safe = top_rows(scores, least)
    ranked = scores.scatter(1, safe, torch.inf)
    # Position by position, so that equal scores go to the lower position of any head.
    best = top_rows(ranked.T.reshape(1, -1), len(scores) * mean)[0]
    shares: list[int] = torch.bincount(best % len(scores), minlength=len(scores)).tolist()
    return shares


def blended_shares(scores: Tensor, mean: int, alpha: float, least: int = 0) -> list[int]:
    """Rows of each head: (1 - alpha) of its free share and alpha of the even one.

    Args:
        scores: [H, n].
        mean: rows per head; H * mean are shared out.
        alpha: share that is not shared out by score.
        least: of each head, its best rows that are kept whatever their score; at most `mean`.
    """
    free = free_shares(scores, mean, least)
    blended = [(1 - alpha) * share + alpha * mean for share in free]
    return rounded_to_sum(blended, scores.shape[1])
