"""Selections of rows. Ties go to the lower position.

Letters: H heads of a layout, g query heads of a KV head, n rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def top_rows(scores: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores per head, ascending: [H, n] -> [H, count] int64.

    Equal scores go to the lower position, on every device.
    """
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    return order[:, :count].sort(-1).values


def with_window(context_rows: Tensor, tokens: int, window: int) -> Tensor:
    """Append the last `window` positions to each head's rows: [H, n] -> [H, n + window]."""
    recent = torch.arange(tokens - window, tokens, device=context_rows.device)
    return torch.cat([context_rows, recent.expand(context_rows.shape[0], -1)], dim=1)


def union_of_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the kept rows of the query heads that share one KV head.

    Args:
        rows: [g, n] int64 positions, ascending and unique within a head.

    Returns:
        positions: [u] int64, the distinct positions, ascending.
        places: [g, n] int64, where each head's rows lie in `positions`.
        copies: [u] int64, how many heads keep each position.
    """
    positions, places, copies = torch.unique(
        rows, sorted=True, return_inverse=True, return_counts=True
    )
    return positions, places, copies
