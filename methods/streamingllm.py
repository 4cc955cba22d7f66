"""StreamingLLM: keep the first tokens (attention sinks) and the most recent ones.

Paper: Efficient Streaming Language Models with Attention Sinks (Xiao et al., 2024), section 3.2.
Official code: mit-han-lab/streaming-llm.

Differs from the paper:
- Acts once, after the prefill; generated tokens are added and nothing more is evicted.
- Keys keep their original positions; `positions=cache` re-rotates them to their index in the
  cache, as the official code does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.budget import Budget, whole
from kvbench.cache.rows import RowStore, gather_rows, store_rows
from kvbench.cache.store import Band, Compressed, Store
from kvbench.method import Method, Needs, check_choice, check_range
from kvbench.prefill import LayerState, Prefill


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Keep `sinks` initial tokens and the newest ones up to the budget."""

    sinks: int = 4  # section 3.2: four initial tokens suffice
    recent: int | None = None  # newest tokens; set: the rest of the budget are initial tokens
    positions: str = "original"  # `cache`: official code, rotate by index in the cache

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_range("sinks", self.sinks, 0)
        if self.recent is not None:
            check_range("recent", self.recent, 1)
        check_choice("positions", self.positions, "original", "cache")

    @property
    def needs(self) -> Needs:
        """Pre-RoPE keys where they are rotated again."""
        return Needs(pre_rope_keys=self.positions == "cache")

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the same rows for every layer and head; no score is computed."""
        tokens = prefill.tokens
        kept = max(1, whole(budget.tokens_per_head(tokens)))
        newest = kept - min(self.sinks, kept - 1) if self.recent is None else self.recent
        newest = min(newest, kept)
        rows = torch.cat([torch.arange(kept - newest), torch.arange(tokens - newest, tokens)])
        layers = tuple(self._store(s, rows.to(s.k.device)) for s in prefill.layers)
        return Compressed(layers, next_position=kept if self.positions == "cache" else None)

    def _store(self, layer: LayerState, kept: Tensor) -> Store:
        rows = kept.expand(layer.kv_heads, -1)
        if self.positions == "original":
            return store_rows(layer, rows)
        assert layer.k_pre is not None
        assert layer.rotary is not None
        index = torch.arange(len(kept), device=kept.device).expand(layer.kv_heads, -1)
        keys = layer.rotary.rotate(gather_rows(layer.k_pre, rows), index)
        band = Band(keys, gather_rows(layer.v, rows), index.to(torch.int32))
        return RowStore((band,), layer.sliding_window is not None)
