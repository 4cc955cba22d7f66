"""SpindleKV: evict by attention in deep layers, share similar vectors through codebooks in shallow.

Paper: SpindleKV: A Novel KV Cache Reduction Method Balancing Both Shallow and Deep Layers
(Tang et al., 2025), sections 3.3 and 3.4. The code named there was not read.

Differs from the paper:
- Scores are the mean over the window; Eq. 2 as printed divides by l - a (`score=literal`).
- Eq. 5's upper branch ends at 2 r_c - 1; the printed 1 - 2 r_c is negative. For r_c <= beta,
  which Eq. 5 leaves open, every layer keeps r_c of the context.
- l_w has no printed value: 32, SnapKV's. The window stays out of eviction and codebook.
- The budget is met in bytes by solving for the eviction ratio (`match=formula15`: in Formula 15
  as printed, which leaves out norms, positions and most of the indices; `match=eviction`: r is the
  eviction ratio, as in the paper). A budget smaller than the window keeps the newest tokens only.
- Codebooks are built per KV head (`scope=head`); Formula 15 reads as one per layer.
- With `evict=false` the whole context is kept and the thresholds must meet the budget: both
  angles are scaled by one factor until the cache does; C tokens are then their share C / T of it.
  With `match=eviction` the thresholds are used as given, whatever the budget.
- Another method's eviction can take the place of Eq. 2 to 7 (`method/evict=snapkv`): its rows are
  written with codebooks, and `window`, `heads`, `beta`, `score` and `pool` are its own.
- Misprints of Algorithm 1 mended: the degree is the row sum of G, the mask is a logical NOT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.codebook import store_codebook
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, capped_line, whole, window_and_context
from kvbench.compress.method import Method, check_choice, check_odd, check_range
from kvbench.compress.scores import pool, scores_by_layout, window_attention
from kvbench.compress.scoring import ScoringMethod, check_base
from kvbench.prefill.needs import Needs
from kvbench.prefill.selection import top_rows
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class SpindleKV(Method):
    """Keep a share of the context that falls with depth, written with codebooks, and the window."""

    theta_key: float = 0.98  # Table 3
    theta_value: float = 0.95  # Table 3
    beta: float = 0.05  # Table 3, smallest share of the context any layer keeps
    window: int = 32  # l_w, not printed; SnapKV's
    heads: str = "query"  # section 3.3, "repeat"; `kv`: Eq. 3, Table 2 without repeat
    evict: bool | ScoringMethod = True  # False: Table 5, codebooks alone; a method: its rows
    magnitude: bool = True  # False: Table 6, no norm per vector
    scope: str = "head"  # `layer`: one pair of codebooks for all heads of a layer (Formula 15)
    score: str = "window"  # `literal`: Eq. 2 as printed
    pool: str = "none"  # the paper names no pooling
    kernel: int = 7  # with pool; SnapKV's
    window_in_codebook: bool = False  # Eq. 7: Gamma_r holds selected context only
    merge_every: int = 64  # generated tokens per merge into the codebooks; 0: never
    match: str = "bytes"  # `formula15`: as printed; `eviction`: the budget is the eviction ratio

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_range("theta_key", self.theta_key, 0, 1, open_ends=True)
        check_range("theta_value", self.theta_value, 0, 1, open_ends=True)
        check_range("beta", self.beta, 0, 1)
        check_range("window", self.window, 1)
        check_choice("heads", self.heads, "query", "kv")
        check_choice("scope", self.scope, "head", "layer")
        check_choice("score", self.score, "window", "literal")
        check_choice("pool", self.pool, "none", "max", "average")
        check_odd("kernel", self.kernel)
        check_range("merge_every", self.merge_every, 0)
        check_choice("match", self.match, "bytes", "formula15", "eviction")
        if isinstance(self.evict, ScoringMethod):
            check_base("evict", self.evict)

    @property
    def needs(self) -> Needs:
        """What eviction reads, and keys before RoPE."""
        if isinstance(self.evict, ScoringMethod):
            return self.evict.needs | Needs(pre_rope_keys=True)
        return Needs(window=self.window, pre_rope_keys=True)

    @property
    def bytes_follow_data(self) -> bool:
        """Codebook sizes depend on how similar the vectors are."""
        return True

    def share_to_meet(self, budget: Budget, tokens: int) -> float | None:
        """Without eviction tokens, too, are a share that the thresholds must meet."""
        if not self.evict and self.match != "eviction":
            return budget.tokens_per_head(tokens) / tokens
        return super().share_to_meet(budget, tokens)

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return codebook stores at the eviction ratio `budget` (without eviction: at angles)."""
        theta_key, theta_value = self.theta_key, self.theta_value
        if not self.evict and self.match != "eviction":
            widening = prefill.tokens / budget.tokens_per_head(prefill.tokens)
            theta_key, theta_value = (
                math.cos(min(math.acos(theta) * widening, math.pi / 2))
                for theta in (theta_key, theta_value)
            )
        stores = []
        counts = self.context_rows(prefill, budget)
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            rows = self.rows_to_keep(layer, window, context)
            outside = window
            if self.window_in_codebook:
                recent = torch.arange(layer.tokens - window, layer.tokens, device=rows.device)
                rows = torch.cat([rows, recent.expand(len(rows), -1)], 1)
                outside = 0
            stores.append(
                store_codebook(
                    layer,
                    rows,
                    outside,
                    theta_key=theta_key,
                    theta_value=theta_value,
                    magnitude=self.magnitude,
                    scope=self.scope,
                    merge_every=self.merge_every,
                )
            )
        return Compressed(tuple(stores), {"theta_key": theta_key, "theta_value": theta_value})

    def context_rows(self, prefill: Prefill, budget: Budget) -> list[tuple[int, int]]:
        """Window and context rows of each layer's heads (Eq. 5 to 7)."""
        tokens = prefill.tokens
        if isinstance(self.evict, ScoringMethod):
            return self.evict.context_rows(prefill, budget)
        if not self.evict:
            window = min(self.window, tokens)
            return [(window, tokens - window)] * len(prefill.layers)
        mean = budget.tokens_per_head(tokens)
        window, context = window_and_context(mean, self.window, tokens)
        rest = tokens - window
        shares = layer_shares(context / rest if rest else 0.0, len(prefill.layers), self.beta)
        return [(window, whole(share * rest)) for share in shares]

    def rows_to_keep(self, layer: LayerState, window: int, context: int) -> Tensor:
        """Context rows with the highest scores (Eq. 7): [Q or G, context], ascending."""
        if isinstance(self.evict, ScoringMethod):
            return self.evict.rows_to_keep(layer, window, context)
        attention = window_attention(layer, window)[:, :, : layer.tokens - window]
        if self.score == "window":
            scores = attention.mean(1)
        else:
            seen_by = layer.tokens - torch.arange(layer.tokens - window, device=attention.device)
            scores = attention.sum(1) / seen_by
        # Without eviction all heads keep the same rows, so one set per KV head says it all.
        layout = self.heads if self.evict else "kv"
        scores = scores_by_layout(scores, layer.kv_heads, layout)
        return top_rows(pool(scores, self.pool, self.kernel), context)


def layer_shares(context_share: float, layers: int, beta: float) -> list[float]:
    """Share of the context each layer keeps (Eq. 5 and 6): a line of mean `context_share`.

    Args:
        context_share: r_c, in [0, 1].
        layers: m.
        beta: the last layer's share while the first layer's is below 1.
    """
    if context_share <= beta:
        return [context_share] * layers
    return capped_line(context_share, beta, layers, 1.0)
