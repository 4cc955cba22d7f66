"""Measures of one layer, or of what a method keeps of all layers. Pure functions, float32.

Letters: L layers, Q query heads, G KV heads, H heads of a layout, T tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.cache.store import Compressed, Store
from kvbench.compress.scores import window_attention
from kvbench.prefill.state import LayerState

ATTENTION_SHARE = 0.95
"""Tokens that hold this share of all attention count as attended to."""

BLOCK = 1024
"""Rows compared at a time."""


def attention_sparsity(layer: LayerState) -> float:
    """Share of tokens that are not needed to hold 95% of the attention, mean over query heads.

    Args:
        layer: with `column_sums`.

    Returns:
        In [0, 1): 0.05 where attention is even, near 1 where few tokens take it all.

    Source: SpindleKV, section 3.2 and Figure 3a, whose measure is drawn and not defined; this one
    says the same in one number a layer.
    """
    assert layer.column_sums is not None
    received = layer.column_sums / layer.column_sums.sum(-1, keepdim=True)
    held = received.sort(-1, descending=True).values.cumsum(-1)
    # The tokens before the share is reached, and the one that reaches it.
    needed = (held < ATTENTION_SHARE).sum(-1) + 1
    return float((1 - needed / received.shape[-1]).clamp(min=0).mean())


def similar_pairs(vectors: Tensor, threshold: float) -> float:
    """Share of token pairs whose cosine similarity exceeds a threshold, mean over heads.

    Args:
        vectors: [G, T, D] keys before RoPE, or values; T >= 2.
        threshold: theta, in (-1, 1).

    Source: SpindleKV, Figures 3b, 7 and 8, which count the pairs.
    """
    unit = F.normalize(vectors.float(), dim=-1)
    heads, tokens, _ = unit.shape
    above = 0
    for first in range(0, tokens, BLOCK):
        rows = unit[:, first : first + BLOCK]
        cosines = rows @ unit.transpose(1, 2)
        # Each pair once, no vector with itself.
        above += int((cosines.triu(first + 1) > threshold).sum())
    return above / (heads * tokens * (tokens - 1) / 2)


def attention_map(layer: LayerState, cells: int) -> Tensor:
    """Attention of all queries over all keys, mean over heads, in square cells.

    Args:
        layer: with the queries of all T tokens in `q_win`.
        cells: cells along each side; beyond T some are empty.

    Returns:
        [cells, cells] float32: queries down, keys across. A cell is the mean over its queries of
        what they give its keys together, so that a row sums to 1.

    Source: the attention heatmaps of PyramidKV (Figure 2 there).
    """
    tokens = layer.tokens
    assert layer.q_win.shape[1] == tokens
    edges = (torch.arange(tokens) * cells // tokens).to(layer.k.device)
    belongs = F.one_hot(edges, cells).float()  # [T, cells]
    attention = window_attention(layer, tokens).mean(0)
    summed = belongs.T @ attention @ belongs
    return summed / belongs.sum(0).clamp(min=1)[:, None]


def kept_mask(store: Store, tokens: int) -> Tensor:
    """Which tokens each head of a layer keeps: [H, T] bool."""
    rows = []
    for band in store.materialize():
        mask = torch.zeros(band.positions.shape[0], tokens, dtype=torch.bool)
        rows.append(mask.scatter_(1, band.positions.long().cpu(), True))
    return torch.cat(rows)


def kept_masks(cache: Compressed, tokens: int) -> Tensor:
    """Which tokens each head of each layer keeps: [L, H, T] bool."""
    return torch.stack([kept_mask(store, tokens) for store in cache.layers])


def jaccard(kept: Tensor) -> Tensor:
    """Similarity of the tokens that two layers keep: intersection over union, mean over heads.

    Args:
        kept: [L, H, T] bool.

    Returns:
        [L, L] float32 in [0, 1], 1 on the diagonal; two empty sets are alike.

    Source: WindowKV, section 3.2 and Figure 2.
    """
    by_head = kept.float().transpose(0, 1)  # [H, L, T]
    both = by_head @ by_head.transpose(1, 2)
    sizes = by_head.sum(-1)
    either = sizes[:, :, None] + sizes[:, None, :] - both
    return torch.where(either > 0, both / either.clamp(min=1), torch.ones_like(both)).mean(0)


def in_bins(kept: Tensor, bins: int) -> Tensor:
    """Share of the tokens kept in each stretch of the prompt.

    Args:
        kept: [..., T] bool.
        bins: stretches of near-equal length; beyond T some are empty.

    Returns:
        [..., bins] float32 in [0, 1].
    """
    tokens = kept.shape[-1]
    edges = torch.arange(tokens) * bins // tokens
    belongs = F.one_hot(edges, bins).float()
    return (kept.float() @ belongs) / belongs.sum(0).clamp(min=1)


def mean_of(values: Sequence[Tensor]) -> Tensor:
    """Mean of equal-shaped tensors."""
    return torch.stack(list(values)).mean(0)
