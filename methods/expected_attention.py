"""Expected attention: keep what the queries to come are expected to attend to.

Paper: Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
Distribution (Devoto et al., 2025), section 3. Code read: kvpress 0.5.5.

Queries before RoPE are taken as Gaussian with the prompt's mean and covariance, and rotated by the
mean rotation of the positions to come; E[exp(q.k)] then has a closed form.

Differs from the paper:
- The rotation of positions past the prompt is extended from the prompt's own tables, so that no
  model is needed; exact to rounding for every rotary whose angle is linear in the position.
- The score is the softmax times the norm of the value, as in kvpress; the paper takes the norm
  after the output projection.
- A softcap is not part of the closed form, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.compress.method import check_range
from kvbench.compress.scores import scores_by_layout
from kvbench.compress.scoring import ScoringMethod
from kvbench.model.rotary import Rotary
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class ExpectedAttention(ScoringMethod):
    """Keep the first tokens and the rows with the most expected attention."""

    future_positions: int = 512  # kvpress: n_future_positions
    sinks: int = 4  # kvpress: n_sink; kept, and left out of the statistics
    covariance: bool = True  # kvpress: use_covariance
    value_norm: bool = True  # kvpress: use_vnorm
    epsilon: float = 0.0  # kvpress: added to the softmax before the norm
    window: int = 0  # newest tokens kept whatever their score; kvpress: none

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("future_positions", self.future_positions, 1)
        check_range("sinks", self.sinks, 0)
        check_range("epsilon", self.epsilon, 0)
        check_range("window", self.window, 0)

    @property
    def needs(self) -> Needs:
        """Moments of the queries before RoPE."""
        return Needs(query_statistics=frozenset({self.sinks}))

    def newest_rows(self, mean_tokens: float) -> int:
        """The window."""
        return self.window

    def head_scores(self, layer: LayerState, window: int) -> Tensor:
        """Softmax of the log of the expected weights, times the values' norms."""
        assert layer.rotary is not None
        sinks = min(self.sinks, layer.tokens)
        statistics = layer.query_statistics[self.sinks]
        rotate = mean_rotation(layer.rotary, layer.tokens, self.future_positions)
        heads, dim = statistics.mean.shape
        keys = layer.k[:, sinks:].float().unsqueeze(1)  # [G, 1, n, D]
        mean = rotate(statistics.mean).view(layer.kv_heads, -1, dim, 1)
        logits = (keys @ mean)[..., 0] * layer.rule.scaling  # [G, g, n]
        if self.covariance:
            # R C R^T, one side at a time: `rotate` turns the last dimension.
            turned = rotate(rotate(statistics.covariance).transpose(1, 2)).transpose(1, 2)
            spread = keys @ turned.view(layer.kv_heads, -1, dim, dim)
            logits = logits + (spread * keys).sum(-1) * layer.rule.scaling**2 / 2
        weights = logits.softmax(-1).reshape(heads, -1)
        scores = scores_by_layout(weights, layer.kv_heads, self.heads)
        if self.value_norm:
            norms = layer.v[:, sinks:].float().norm(dim=-1)
            norms = norms.repeat_interleave(len(scores) // layer.kv_heads, 0)
            scores = (scores + self.epsilon) * norms
        kept = scores.new_full((len(scores), sinks), torch.inf)
        return torch.cat([kept, scores], 1)[:, : layer.tokens - window]


class _MeanRotation:
    """RoPE with the mean cosine and sine of some positions; linear, so the mean of rotations."""

    def __init__(self, rotary: Rotary, cos: Tensor, sin: Tensor) -> None:
        self._function, self._cos, self._sin = rotary.function, cos, sin

    def __call__(self, vectors: Tensor) -> Tensor:
        """Rotate [..., D] along the last dimension."""
        rows = vectors.reshape(1, 1, -1, vectors.shape[-1])
        shape = (1, rows.shape[2], -1)
        cos, sin = (x.expand(shape) for x in (self._cos, self._sin))
        return self._function(rows, cos, sin).view(vectors.shape)


def mean_rotation(rotary: Rotary, first: int, count: int) -> _MeanRotation:
    """The mean rotation of the positions first .. first + count - 1, past the tables' end."""
    table = rotary.table
    angles, scale = angles_per_position(table.cos[:first], table.sin[:first])
    at = torch.arange(first, first + count, dtype=torch.float64, device=angles.device)[:, None]
    cos, sin = ((scale * f(at * angles)).mean(0).float() for f in (torch.cos, torch.sin))
    return _MeanRotation(rotary, cos, sin)


def angles_per_position(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Angle by which each column turns from one position to the next, and the tables' factor.

    The angle between neighbors gives it roughly; each doubling of the distance halves the error,
    so tables in bfloat16 do as well.

    Args:
        cos: [T, rd] table of positions 0 .. T-1.
        sin: [T, rd].

    Returns:
        [rd] float64 angles in radians, and [rd] float64 factors (1 but for YaRN and longrope).
    """
    across, up = cos.double(), sin.double()
    scale = across[0].hypot(up[0])
    angle = torch.zeros_like(scale)
    step = 1
    while step < len(across):
        seen = torch.atan2(up[step], across[step])
        off = seen - angle * step
        angle = angle + (off - 2 * torch.pi * (off / (2 * torch.pi)).round()) / step
        step *= 2
    return angle, scale
