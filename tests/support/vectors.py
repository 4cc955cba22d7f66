"""Vectors that a codebook can share entries among."""

from __future__ import annotations

import torch
from torch import Tensor

from kvbench.cache.cover import unit_and_norm


def clustered(n: int, dim: int, seed: int) -> Tensor:
    """Unit vectors [n, dim] around n / 5 centers."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.randn(max(1, n // 5), dim, generator=rng)
    which = torch.randint(len(centers), (n,), generator=rng)
    return unit_and_norm(centers[which] + 0.15 * torch.randn(n, dim, generator=rng))[0]
