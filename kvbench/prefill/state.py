"""What one uncompressed forward over a prompt leaves behind: the frozen input of every method.

Letters: L layers, Q query heads, G KV heads, T prefilled tokens, W window, D head dim.
Knows nothing of methods, budgets or decoding. The forward that fills these objects is
`kvbench.prefill.capture`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary
from kvbench.prefill.needs import Reconstruction


@dataclass(frozen=True)
class QueryStatistics:
    """Moments of a layer's queries before RoPE, over the prompt's tokens less the first few."""

    mean: Tensor
    """[Q, D] float32."""
    covariance: Tensor
    """[Q, D, D] float32, divided by the number of queries."""


@dataclass(frozen=True)
class LayerState:
    """One attention layer after the prefill. Tensors are contiguous and never written to."""

    k: Tensor
    """[G, T, D] keys after RoPE."""
    v: Tensor
    """[G, T, D] values."""
    q_win: Tensor
    """[Q, W, D] queries after RoPE of the last W tokens, W = min(needs.window, T)."""
    rule: AttentionRule
    k_pre: Tensor | None = None
    """[G, T, D] keys before RoPE, where asked for."""
    rotary: Rotary | None = None
    """The rotation of this layer, where `k_pre` or `query_statistics` were asked for."""
    column_sums: Tensor | None = None
    """[Q, T] float32: attention each key received, summed over all queries; where asked for."""
    last_block_sums: Mapping[int, Tensor] = field(default_factory=dict)
    """[Q, T] float32 per size of the last block asked for: as `column_sums`, where only that
    block's queries are kept from later keys."""
    reconstructions: Mapping[Reconstruction, Tensor] = field(default_factory=dict)
    """[G, T] float32 per reconstruction pass asked for: the most attention a token received from
    the repeated context, over the queries of a KV head's group; 0 in the template prefix."""
    query_statistics: Mapping[int, QueryStatistics] = field(default_factory=dict)
    """Per number of first tokens left out that was asked for."""
    index: int = 0
    """Place of the layer in the model, from 0."""
    positions: Tensor | None = None
    """[T] int64 original positions, ascending, where a pruning prefill fed the layer only some of
    the prompt's tokens; None: 0 .. T-1."""

    memo: MutableMapping[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What compressing found of this layer's tensors and may need at another budget. No result
    depends on it; whoever keeps something here bounds it by the bytes of what it is about."""

    @property
    def query_heads(self) -> int:
        """Q."""
        return self.q_win.shape[0]

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.k.shape[0]

    @property
    def tokens(self) -> int:
        """T; the tokens this layer was fed, where the prefill pruned."""
        return self.k.shape[1]


@dataclass(frozen=True)
class Repetition:
    """How the passes of a `Reconstruction` went on one prompt."""

    chunk_tokens: int
    """Context tokens repeated in one pass: fewer than asked for where more would not have fit."""
    past_context: int
    """Positions past the model's context that tokens were fed at; 0: all fit."""


@dataclass(frozen=True)
class Prefill:
    """One prefill of a sample, shared by all methods and budgets that take it as it is.

    It is the ordinary, uncompressed one unless a method prunes during the prefill.
    """

    layers: tuple[LayerState, ...]
    """In model order."""
    last_logits: Tensor
    """[vocabulary] float32 logits after the last prefilled token."""
    task_types: Mapping[str, str] = field(default_factory=dict)
    """Task classifier -> `localization` or `aggregation`, for those asked for in `needs`."""
    template_tokens: int = 0
    """Leading tokens that are chat template, beginning of sequence included; where asked for."""
    repetitions: Mapping[Reconstruction, Repetition] = field(default_factory=dict)
    """Per reconstruction pass asked for."""

    @property
    def tokens(self) -> int:
        """T, the tokens prefilled (the whole prompt, less what is fed after compression).

        The first layer is always fed all of them.
        """
        return self.layers[0].tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the native full cache of these tokens (Q queries and extras not counted)."""
        return sum((s.k.nbytes + s.v.nbytes) // s.tokens * self.tokens for s in self.layers)
