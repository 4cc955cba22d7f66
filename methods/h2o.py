"""H2O: keep the tokens that all queries so far attended to most (heavy hitters), and the newest.

Paper: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models
(Zhang et al., 2023), section 4.2, Algorithm 1. Official code: FMInference/H2O ac75c2a,
h2o_hf/utils_hh, read; KVCache-Factory c97f9d7 for its setting.

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
- `causal=last_block` is no part of the paper: until 2026-06-22 (9f9aa2e) KVCache-Factory masked
  only the last `recent` queries, so that all others saw the future. Every published row of H2O that
  was made with it is of that form (`h2o_kvf_published`); half of its context rows are others.
- `h2o_official` keeps a union of its query heads' rows once per KV head, and a budget is one of
  bytes: at 0.2 a query head of SmolLM2-135M keeps 0.127 of 1024 tokens, not 0.2 as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_band, store_rows
from kvbench.cache.store import Band, Compressed, Lane, Store, Tail
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import check_choice, check_range
from kvbench.compress.scores import scores_by_layout
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.needs import Needs
from kvbench.prefill.selection import top_rows, with_window
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class H2O(ScoringMethod):
    """Keep the newest tokens and the context rows with the largest attention sums."""

    recent_ratio: float = 0.5  # official demo: as many recent tokens as heavy hitters
    recent: int | None = None  # newest tokens as a count instead; KVCache-Factory: 8
    normalize: str = "none"  # raw sums; `visible`: by the number of queries that see the key
    during_decode: bool = False  # Algorithm 1 evicts after each forward; KVCache-Factory does not
    causal: bool | str = True  # `last_block`: KVCache-Factory to 2026-06-22

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("recent_ratio", self.recent_ratio, 0, 1)
        if self.recent is not None:
            check_range("recent", self.recent, 0)
        check_choice("normalize", self.normalize, "none", "visible")
        if self.causal not in (True, "last_block"):
            raise UserError(f"method.causal={self.causal!r} is unknown: give true or last_block")
        if self.causal is not True and (
            self.recent is None or self.normalize != "none" or self.during_decode
        ):
            raise UserError(
                "method.causal='last_block' sums a prefill's raw attention under a mask of the last"
                " `recent` tokens: give method.recent=8, method.normalize=none and"
                " method.during_decode=false"
            )

    @property
    def needs(self) -> Needs:
        """Attention summed over all queries."""
        if self.causal is True:
            return Needs(column_sums=True)
        assert self.recent is not None
        return Needs(last_block_sums=frozenset({self.recent}))

    @property
    def bytes_follow_data(self) -> bool:
        """Scores that are kept for decoding take memory beside the rows."""
        return super().bytes_follow_data or self.during_decode

    @property
    def evicts_in_decode(self) -> bool:
        """As the field says."""
        return self.during_decode

    def newest_rows(self, mean_tokens: float) -> int:
        """The count, or the share of the budget; no share is none at all."""
        if self.recent is not None:
            return self.recent
        return max(1, whole(self.recent_ratio * mean_tokens)) if self.recent_ratio else 0

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Attention each context key received, reduced to the layout's heads."""
        if self.causal is True:
            assert layer.column_sums is not None
            received = layer.column_sums
        else:
            assert self.recent is not None
            received = layer.last_block_sums[self.recent]
        sums = received[:, : layer.tokens - window]
        if self.normalize == "visible":
            at = torch.arange(sums.shape[1], device=sums.device)
            sums = sums / seen_by(at, layer.tokens, layer.rule.sliding_window)
        return scores_by_layout(sums, layer.kv_heads, self.heads)

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the rows; with `during_decode`, in stores that go on evicting."""
        if not self.during_decode:
            return super().compress(prefill, budget)
        layers = []
        counts = self.context_rows(prefill, budget)
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            # One row less: the next token takes its place, among the newest if there are any.
            rows = max(1, window + context - 1)
            newest = max(0, rows - context)
            best = self.rows_to_keep(layer, newest, rows - newest)
            kept = with_window(best, layer.tokens, newest)
            assert layer.column_sums is not None
            sums = scores_by_layout(layer.column_sums, layer.kv_heads, self.heads)
            layers.append(
                HeavyHitters(
                    store_rows(layer, kept, union=self.store == "union"),
                    sums.gather(1, kept),
                    self,
                    newest,
                    rows,
                    layer.rule.sliding_window,
                )
            )
        return Compressed(tuple(layers))


def seen_by(positions: Tensor, tokens: int, sliding_window: int | None) -> Tensor:
    """Number of the first `tokens` queries that see the keys at these positions."""
    later = tokens - positions
    return later if sliding_window is None else later.clamp_max(sliding_window)


@dataclass(frozen=True)
class HeavyHitters(Store):
    """Rows that are evicted while decoding, and the attention each has received so far."""

    kept: Store
    sums: Tensor
    """[H, n] float32, raw."""
    method: H2O
    newest: int
    """Rows kept for being the newest, the token about to come not counted."""
    rows: int
    """Rows kept per head, that token not counted."""
    sliding_window: int | None
    absorb_every: int = 1
    tail_needs_attention: bool = True

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """The rows and their scores."""
        return {**self.kept.tensors(), "scores": (self.sums,)}

    def materialize(self) -> tuple[Band, ...]:
        """The rows of all heads in one band."""
        return self.kept.materialize()

    def segments(self) -> tuple[Lane, ...]:
        """As the rows' own store."""
        return self.kept.segments()

    def by_band(self, attention: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As the rows' own store."""
        return self.kept.by_band(attention)

    @property
    def heads(self) -> int:
        """H."""
        return self.kept.heads

    @property
    def kept_vectors(self) -> int:
        """As the rows' own store."""
        return self.kept.kept_vectors

    @property
    def stored_vectors(self) -> int:
        """As the rows' own store."""
        return self.kept.stored_vectors

    def absorb(self, tail: Tail) -> HeavyHitters:
        """Add the tail's rows and its queries' attention, then evict what is too much."""
        assert tail.attention is not None
        (band,) = self.materialize()
        (received,) = tail.attention
        heads, new = len(band.k), len(tail.positions)
        copies = heads // len(tail.k)
        band = Band(
            torch.cat([band.k, tail.k.repeat_interleave(copies, 0)], 1),
            torch.cat([band.v, tail.v.repeat_interleave(copies, 0)], 1),
            torch.cat([band.positions, tail.positions.int().expand(heads, -1)], 1),
        )
        if self.method.heads == "all":
            received = received.mean((0, 1), keepdim=True).expand(heads, 1, -1)
        sums = F.pad(self.sums, (0, new)) + received.mean(1)
        if sums.shape[1] > self.rows:
            scores = sums
            if self.method.normalize == "visible":
                tokens = int(tail.positions[-1]) + 1
                scores = sums / seen_by(band.positions, tokens, self.sliding_window)
            context = scores[:, : scores.shape[1] - self.newest]
            best = top_rows(context, self.rows - self.newest)
            at = with_window(best, scores.shape[1], self.newest)
            sums = sums.gather(1, at)
            head = torch.arange(heads, device=at.device)[:, None]
            band = Band(band.k[head, at], band.v[head, at], band.positions[head, at])
        kept = store_band(
            band,
            len(tail.k),
            union=self.method.store == "union",
            reads_positions=self.sliding_window is not None,
        )
        return replace(self, kept=kept, sums=sums)
