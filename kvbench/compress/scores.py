"""Scores and selections that methods share: window attention, pooling, top rows.

All arithmetic is float32 whatever the model's dtype. Ties go to the lower position.
Letters: Q query heads, G KV heads, T tokens, W window, D head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.model.attention import attention_weights, hidden_at
from kvbench.prefill.state import LayerState


def window_attention(layer: LayerState, window: int) -> Tensor:
    """Post-softmax attention of the last `window` queries over all keys: [Q, W, T] float32.

    Causal inside the window, with the layer's own scaling, sliding window and softcap.

    Args:
        layer: the state of one layer.
        window: queries wanted; at most those captured.
    """
    queries = layer.q_win[None, :, -window:]  # [1, Q, W, D]
    tokens, width = layer.tokens, queries.shape[2]
    at = torch.arange(tokens, device=queries.device)
    hidden = hidden_at(at[tokens - width :], at, layer.rule.sliding_window)
    weights = attention_weights(queries, layer.k[None], layer.rule, hidden)
    return weights.view(layer.query_heads, width, tokens)


def window_scores(layer: LayerState, window: int) -> Tensor:
    """Mean attention each context key receives from the window: [Q, T - W] float32.

    The window's own keys are left out: they are always kept.
    """
    return window_attention(layer, window)[:, :, : layer.tokens - window].mean(1)


def scores_by_layout(scores: Tensor, kv_heads: int, heads: str) -> Tensor:
    """Reduce the query heads' scores to the heads that select rows (methods.md A4).

    Args:
        scores: [Q, n].
        kv_heads: G.
        heads: `query`: each query head selects, [Q, n]; `kv`: mean over each KV head's group,
            [G, n]; `all`: mean over all heads, the same row for each KV head, [G, n].
    """
    if heads == "query":
        return scores
    if heads == "kv":
        query_heads, rows = scores.shape
        return scores.reshape(kv_heads, query_heads // kv_heads, rows).mean(1)
    return scores.mean(0, keepdim=True).expand(kv_heads, -1)


def pool(scores: Tensor, kind: str, kernel: int) -> Tensor:
    """Spread each score over its neighbors along the last dimension, length unchanged.

    Args:
        scores: [H, n].
        kind: `none`, `max` (padding counts as -inf) or `average` (the zero padding is counted,
            which lowers both ends, as SnapKV's released code does).
        kernel: odd width, stride 1.
    """
    if kind == "none" or scores.shape[-1] == 0:
        return scores
    if kind == "max":
        return F.max_pool1d(scores[None], kernel, stride=1, padding=kernel // 2)[0]
    return F.avg_pool1d(scores[None], kernel, stride=1, padding=kernel // 2)[0]


