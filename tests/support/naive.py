"""Slow, obvious twins of the fast paths, and random prefills to compare them on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch
from torch import Tensor

from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary, RotaryTable
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import LayerState, Prefill, QueryStatistics

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Largest difference accepted between a fast path and its twin."""


def rotate_half(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotation of [B, H, n, D] keys."""
    half = keys.shape[-1] // 2
    turned = torch.cat([-keys[..., half:], keys[..., :half]], -1)
    return keys * cos[:, None] + turned * sin[:, None]


def random_prefill(
    tokens: int,
    *,
    layers: int = 3,
    query_heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    window: int = 64,
    seed: int = 0,
    sliding_window: int | None = None,
    distinct: int | None = None,
) -> Prefill:
    """A prefill of random tensors; `distinct` directions repeat with other lengths if given."""
    rng, of_queries = (torch.Generator().manual_seed(s) for s in (seed, seed + 1))

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    angles = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(dim // 2) / (dim // 2))
    table = RotaryTable(torch.cos(angles).repeat(1, 2), torch.sin(angles).repeat(1, 2))
    rotary = Rotary(table, rotate_half)
    at = torch.arange(tokens).expand(kv_heads, -1)
    states = []
    for index in range(layers):
        if distinct is None:
            k_pre, v = randn(kv_heads, tokens, dim), randn(kv_heads, tokens, dim)
        else:
            which = torch.randint(distinct, (tokens,), generator=rng)
            lengths = 0.5 + torch.rand(kv_heads, tokens, 1, generator=rng)
            k_pre, v = (randn(kv_heads, distinct, dim)[:, which] * lengths for _ in range(2))
        mean = torch.randn(query_heads, dim, generator=of_queries)
        half = torch.randn(query_heads, dim, dim, generator=of_queries) * dim**-0.5
        statistics = QueryStatistics(mean, half @ half.transpose(1, 2))
        received = torch.rand(kv_heads, tokens, generator=rng)
        alone = torch.Generator().manual_seed(seed + 2 + index)
        unmasked = torch.rand(query_heads, tokens, generator=alone)
        states.append(
            LayerState(
                k=rotary.rotate(k_pre, at),
                v=v,
                q_win=randn(query_heads, min(window, tokens), dim),
                rule=AttentionRule(dim**-0.5, sliding_window),
                k_pre=k_pre,
                rotary=rotary,
                column_sums=torch.rand(query_heads, tokens, generator=rng),
                last_block_sums=defaultdict(lambda sums=unmasked: sums),
                query_statistics=defaultdict(lambda found=statistics: found),
                index=index,
                reconstructions=defaultdict(lambda received=received: received),
            )
        )
    return Prefill(tuple(states), randn(32))


def pruned(prefill: Prefill, plan: PruningSchedule | None) -> Prefill:
    """What a pruning prefill would leave, the dropped tokens chosen at random."""
    if plan is None:
        return prefill
    rng = torch.Generator().manual_seed(1)
    at = torch.arange(plan.tokens)
    layers = []
    for state, context in zip(prefill.layers, plan.context, strict=True):
        before = len(at) - plan.tail
        kept = torch.randperm(before, generator=rng)[:context].sort().values
        at = at[torch.cat([kept, torch.arange(before, len(at))])]
        k_pre = state.k_pre[:, at]
        layers.append(replace(state, k=state.k[:, at], v=state.v[:, at], k_pre=k_pre, positions=at))
    return Prefill(tuple(layers), prefill.last_logits)


def window_attention(layer: LayerState, window: int) -> Tensor:
    """Attention of the last queries, one query and head at a time: [Q, W, T]."""
    tokens, heads, window_of = layer.tokens, layer.query_heads, layer.rule.sliding_window
    group = heads // layer.kv_heads
    out = torch.zeros(heads, window, tokens)
    for head in range(heads):
        for i in range(window):
            at = tokens - window + i
            query = layer.q_win[head, layer.q_win.shape[1] - window + i].double()
            first = 0 if window_of is None else max(0, at - window_of + 1)
            keys = layer.k[head // group, first : at + 1].double()
            out[head, i, first : at + 1] = (keys @ query * layer.rule.scaling).softmax(0).float()
    return out


def pooled(scores: list[float], kind: str, kernel: int) -> list[float]:
    """Pool one row of scores, one window at a time; the average counts zero padding."""
    half = kernel // 2
    out = []
    for i in range(len(scores)):
        near = scores[max(0, i - half) : i + half + 1]
        out.append(max(near) if kind == "max" else sum(near) / kernel)
    return out


def top_positions(scores: list[float], count: int) -> list[int]:
    """The positions of the highest scores, ties to the lower position, ascending."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(order[:count])


def greedy_cover(unit: Tensor, theta: float, ranks: list[int]) -> tuple[list[int], list[int]]:
    """Algorithm 1 word for word on a float64 adjacency matrix: (picks, refs).

    Args:
        unit: [n, D] vectors, copies listed one by one.
        theta: cosine above which two are neighbors; a vector is its own neighbor.
        ranks: order in which ties are broken, lowest first.
    """
    wide = unit.double()
    graph = (wide @ wide.T > theta) | torch.eye(len(unit), dtype=torch.bool)
    picks: list[int] = []
    refs = [-1] * len(unit)
    while graph.any():
        degrees = graph.sum(1).tolist()
        pick = min(range(len(unit)), key=lambda i: (-degrees[i], ranks[i]))
        picks.append(pick)
        taken = graph[pick].clone()
        for i in torch.nonzero(taken)[:, 0].tolist():
            refs[i] = len(picks) - 1
        graph[taken] = False
        graph[:, taken] = False
    return picks, refs
