"""Random: keep rows drawn uniformly at random; what any method must beat.

Code read: kvpress 0.5.5 (RandomPress).

Differs from the paper:
- There is none. kvpress draws the same numbers in every layer and other ones on another device;
  here each layer draws its own, on the CPU, so that a seed means the same rows everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.compress.method import check_range
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class Random(ScoringMethod):
    """Keep random rows, each head of each layer its own."""

    seed: int = 0  # kvbench: of the draw, together with the layer's index
    window: int = 0  # newest tokens kept beside the random ones; kvpress: none

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("seed", self.seed, 0, 2**31 - 1)
        check_range("window", self.window, 0)

    def newest_rows(self, mean_tokens: float) -> int:
        """The window."""
        return self.window

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Uniform numbers, the same for a token whatever the budget."""
        draw = torch.Generator().manual_seed(self.seed * 65536 + layer.index)
        scores = torch.rand(layer.query_heads, layer.tokens, generator=draw).to(layer.k.device)
        if self.heads == "query":
            return scores[:, : layer.tokens - window]
        # One head's numbers are drawn, not a mean: means of many would lie close together.
        heads = scores[: layer.kv_heads] if self.heads == "kv" else scores[:1]
        return heads.expand(layer.kv_heads, -1)[:, : layer.tokens - window]
