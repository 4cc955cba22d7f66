"""The greedy cover of SpindleKV's codebooks (section 3.4, Algorithm 1): which vectors are entries.

Vectors that point the same way (cosine above theta) are neighbors in a graph; the one with most
neighbors left becomes an entry, again and again. Similarities are float32. The cover is exact: it
returns what the paper's one-pick-at-a-time loop returns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 512  # rows of one similarity block; a multiple of 8, so that packed blocks align
_GONE = -(2**62)  # key of a vertex that was taken: no sum of degrees brings it back to 0


def packed_adjacency(unit: Tensor, theta: float) -> npt.NDArray[np.uint8]:
    """Bit matrix of cosines above theta, self always set: unit [n, D] float32 -> [n, ceil(n/8)].

    Symmetric by construction: each block below the diagonal is the transpose of the one above.
    Zero vectors are adjacent to themselves only.
    """
    n = unit.shape[0]
    packed = np.zeros((n, (n + 7) // 8), np.uint8)
    for top in range(0, n, BLOCK):
        rows = unit[top : top + BLOCK]
        for left in range(top, n, BLOCK):
            above = (rows @ unit[left : left + BLOCK].T > theta).cpu().numpy()
            if left == top:
                above = np.triu(above, 1)
                above |= above.T
                np.fill_diagonal(above, True)
            else:
                below = np.packbits(np.ascontiguousarray(above.T), axis=1)  # thrice as fast so
                packed[left : left + above.shape[1], top // 8 : top // 8 + below.shape[1]] = below
            bits = np.packbits(above, axis=1)
            packed[top : top + above.shape[0], left // 8 : left // 8 + bits.shape[1]] = bits
    return packed


def greedy_cover(
    unit: Tensor, theta: float, copies: Tensor | None = None, first_heads: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose entries as Algorithm 1 does: the vertex with most neighbors left, again and again.

    Each pick becomes an entry and takes its whole remaining neighborhood with it.

    Args:
        unit: [n, D] float32 unit (or zero) vectors, in order of position.
        theta: cosine above which two vectors are neighbors, strictly.
        copies: [n] how often each vector occurs (query heads that keep it); its weight in every
            degree. Identical copies are neighbors, so this equals listing them n times.
        first_heads: [n] first query head that keeps each vector; ties go to the lowest
            (head, position).

    Returns:
        picks [M] int64, the vectors chosen, in the order of choice; and refs [n] int64, the
        entry that took each vector.
    """
    n = unit.shape[0]
    weights = np.ones(n, np.uint8) if copies is None else copies.to(torch.uint8).cpu().numpy()
    heads = np.zeros(n, np.int64) if first_heads is None else first_heads.cpu().numpy()
    rank = np.empty(n, np.int64)
    rank[np.lexsort((np.arange(n), heads))] = np.arange(n)

    packed = packed_adjacency(unit, theta)
    degree = _degrees(weights, packed)
    # A vertex without neighbors is an entry whenever its turn comes; only its place in the
    # order depends on the rest, and the final sort gives it that place.
    taken_by = np.arange(n)
    degree_at_pick = degree.copy()
    among = np.flatnonzero(degree > weights)
    m = len(among)
    packed = _submatrix(packed, among, n)
    weights = weights[among]
    # (degree, lowest rank) as one integer: argmax finds the next pick.
    key = degree[among] * n + (n - 1 - rank[among])
    left = m
    while left:
        pick = int(key.argmax())
        neighbors = np.unpackbits(packed[pick], count=m).astype(bool) & (key >= 0)
        gone = np.flatnonzero(neighbors)
        taken_by[among[gone]] = among[pick]
        degree_at_pick[among[pick]] = key[pick] // n
        key -= _weighted(weights[gone], packed[gone], m) * n
        key[gone] = _GONE
        left -= len(gone)

    picks = np.flatnonzero(taken_by == np.arange(n))
    picks = picks[np.lexsort((rank[picks], -degree_at_pick[picks]))]
    entry_of = np.empty(n, np.int64)
    entry_of[picks] = np.arange(len(picks))
    return torch.from_numpy(picks).to(unit.device), torch.from_numpy(entry_of[taken_by]).to(
        unit.device
    )


def _degrees(
    weights: npt.NDArray[np.uint8], packed: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Weighted degree of every vertex of a bit matrix: [n] and [n, ceil(n/8)] -> [n].

    A weight of w counts once at each level from 1 to w, and bits are counted packed.
    """
    total = np.zeros(len(packed), np.int64)
    for level in range(1, int(weights.max(initial=0)) + 1):
        total += np.bitwise_count(packed & np.packbits(weights >= level)).sum(1, dtype=np.int64)
    return total


def _weighted(
    weights: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8], count: int
) -> npt.NDArray[np.int64]:
    """Weighted sum of bit rows: [m] and [m, ceil(count/8)] -> [count].

    In whole numbers, without BLAS: numpy's threads would wait busily beside torch's.
    """
    bits = np.unpackbits(rows, axis=1, count=count)
    bits *= weights[:, None]
    total: npt.NDArray[np.int64] = bits.sum(0, dtype=np.int64)
    return total


def _submatrix(
    packed: npt.NDArray[np.uint8], among: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.uint8]:
    """The bit matrix of some of its `count` vertices: [len(among), ceil(len(among) / 8)]."""
    blocks = [
        np.packbits(
            # `take` is four times as fast as indexing with `[:, among]`.
            np.unpackbits(packed[among[top : top + BLOCK]], axis=1, count=count).take(among, 1),
            axis=1,
        )
        for top in range(0, len(among), BLOCK)
    ]
    return np.concatenate(blocks) if blocks else packed[:0]


def unit_and_norm(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Direction and length in float32: [n, D] -> [n, D], [n]; zero vectors stay zero."""
    wide = vectors.float()
    norms = wide.norm(dim=-1)
    return wide / norms.clamp_min(torch.finfo(torch.float32).tiny)[:, None], norms
