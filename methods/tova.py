"""TOVA: keep the tokens that the last query attends to, one set of rows for all heads.

Paper: Transformers are Multi-State RNNs (Oren et al., 2024), section 4.2. Code read: kvpress
0.5.5.

Differs from the paper:
- Acts once, after the prefill; the paper drops one token at each step.
- The last token is always kept, as in kvpress; the paper scores it as any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvbench.compress.scores import scores_by_layout, window_attention
from kvbench.compress.scoring import ScoringMethod
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class TOVA(ScoringMethod):
    """Keep the last token and the rows it attends to most."""

    heads: str = "all"  # section 4.2: attention is averaged over the heads of a layer

    @property
    def needs(self) -> Needs:
        """The last query."""
        return Needs(window=1)

    def newest_rows(self, mean_tokens: float) -> int:
        """The last token."""
        return 1

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Attention of the last query, reduced to the layout's heads."""
        scores = window_attention(layer, 1)[:, 0, : layer.tokens - window]
        return scores_by_layout(scores, layer.kv_heads, self.heads)
