"""A prefill that drops tokens between layers: what PyramidInfer runs instead of the ordinary one.

After a layer has attended, the context tokens its newest queries attend to least are dropped, and
the next layer is fed the hidden states of the rest at their original positions. A layer keeps the
keys and values of every token it was fed. Knows nothing of budgets.

Letters: L layers, Q query heads, T prompt tokens, n tokens fed to a layer, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.model.attention import (
    AttentionRule,
    attention_at,
    attention_weights,
    causal_attention,
    hidden_at,
)
from kvbench.prefill.selection import top_rows
from kvbench.prefill.state import LayerState

_QUERY_BLOCK = 128  # queries scored at once: Q * 128 * n floats


@dataclass(frozen=True)
class PruningSchedule:
    """How many tokens each layer is fed; two variants with equal plans share one prefill."""

    context: tuple[int, ...]
    """Per layer: context tokens it is fed, never more than the layer before; [0] is all of it."""
    tail: int
    """Newest tokens, fed to every layer; their queries score the context. 1 or more."""
    sinks: int = 0
    """First tokens of the prompt, which no layer loses while it is fed as many context tokens."""
    distance_weight: float = 1.0
    """Weight of the newest query's attention; the oldest of the tail has 1, others on a line."""

    def __post_init__(self) -> None:
        """Refuse a schedule that no prefill can follow."""
        assert self.tail >= 1, "the newest token is always fed"
        assert all(n >= 0 for n in self.context), "a layer cannot be fed fewer than no tokens"
        falling = zip(self.context, self.context[1:], strict=False)
        assert all(a >= b for a, b in falling), "a dropped token cannot come back"

    @property
    def tokens(self) -> int:
        """T."""
        return self.context[0] + self.tail

    @property
    def kept_ratio(self) -> float:
        """Mean over layers of tokens fed / prompt tokens."""
        return (sum(self.context) / len(self.context) + self.tail) / self.tokens


class PruningCapture:
    """Serves the attention of a pruning prefill, over the tokens still there, and chooses on."""

    def __init__(self, schedule: PruningSchedule, device: torch.device) -> None:
        """Start with the whole prompt."""
        self.layers: list[LayerState] = []
        self._schedule = schedule
        self._at = torch.arange(schedule.tokens, device=device)
        self._kept: Tensor | None = None

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """Keep the layer's state, choose what the next layer is fed, return the attention."""
        assert q.shape[0] == 1, "a prefill is captured one prompt at a time"
        assert layer == len(self.layers), "attention layers ran out of order"
        assert q.shape[2] == self._schedule.context[layer] + self._schedule.tail
        k, v = k.contiguous(), v.contiguous()
        at = self._at = self._at.to(q.device)
        state = LayerState(
            k=k[0],
            v=v[0],
            q_win=q[0, :, :0].clone(),
            rule=rule,
            positions=at,
        )
        self.layers.append(state)
        if layer + 1 < len(self._schedule.context):
            self._choose(state, q[0], self._schedule.context[layer + 1])
        if rule.sliding_window is None:
            # Order is all that causality needs; gaps between positions change nothing.
            return causal_attention(q, k, v, rule)
        return attention_at(q, k, v, at, at, rule)

    def _choose(self, layer: LayerState, q: Tensor, context: int) -> None:
        """Decide which of the n tokens the next layer is fed."""
        tail = self._schedule.tail
        before = layer.tokens - tail
        self._kept = None
        if context < before:
            scores = context_scores(layer, q[:, before:], self._schedule.distance_weight)
            assert layer.positions is not None
            scores[layer.positions[:before] < self._schedule.sinks] = torch.inf
            rows = top_rows(scores[None], context)[0]
            recent = torch.arange(before, layer.tokens, device=rows.device)
            self._kept = torch.cat([rows, recent])

    def feed(self, hidden_states: Tensor) -> Tensor:
        """The hidden states [1, n, .] of the tokens that the next layer is fed, in order."""
        if self._kept is None:
            return hidden_states
        kept, self._kept = self._kept.to(hidden_states.device), None
        self._at = self._at.to(hidden_states.device)[kept]
        return hidden_states[:, kept]

    @property
    def positions(self) -> Tensor:
        """[n] original positions of the tokens that the next layer is fed."""
        return self._at


def context_scores(layer: LayerState, q: Tensor, distance_weight: float) -> Tensor:
    """Attention each context token receives from the tail's queries: [n - tail] float32.

    Mean over query heads and queries; a query's weight grows on a line from 1 for the oldest to
    `distance_weight` for the newest. Only the order of the scores matters.

    Args:
        layer: the layer, whose last tokens are the tail.
        q: [Q, tail, D] the tail's queries.
        distance_weight: weight of the newest query.
    """
    heads, tail, _ = q.shape
    before = layer.tokens - tail
    at = layer.positions
    assert at is not None
    weights = torch.linspace(1.0, distance_weight, tail, device=q.device)
    scores = torch.zeros(before, dtype=torch.float32, device=q.device)
    for start in range(0, tail, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, tail)
        hidden = hidden_at(at[before + start : before + end], at, layer.rule.sliding_window)
        attention = attention_weights(q[None, :, start:end], layer.k[None], layer.rule, hidden)
        received = attention[..., :before].sum(dim=(0, 1, 2))  # [t, n - tail]
        scores += weights[start:end] @ received
    return scores / (heads * tail)


