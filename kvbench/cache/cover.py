"""The greedy cover of SpindleKV's codebooks (section 3.4, Algorithm 1): which vectors are entries.

Vectors that point the same way (cosine above theta) are neighbors in a graph; the one with most
neighbors left becomes an entry, again and again. Similarities are float32. The cover is exact: it
returns what the paper's one-pick-at-a-time loop returns, in one of three forms:

- few similar pairs: rounds over the list of them. Text gives few: a thousandth of all in most
  layers. The list can be kept and grows with the rows asked for, so that the budgets tried for one
  prompt compare each pair of vectors once.
- many: one pick at a time on a bit matrix, which the number of pairs cannot make larger.
- on a GPU: rounds over a bit matrix that stays there (`cover_in_rounds`).

A round picks at once every vertex that comes first within two steps of itself: no other pick can
touch its neighborhood before its turn comes, and picks are sorted by turn in the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Bits = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
Pairs = tuple[Counts, Counts]
"""[p] and [p]: places of similar vectors, the earlier of each two, ascending, and the later."""

BLOCK = 512  # rows of one similarity block; a multiple of 8, so that packed blocks align
_THICK = 64  # least side of a product: BLAS adds up in another order where one has few rows
_GONE = -(2**62)  # key of a vertex that was taken: no sum of degrees brings it back to 0


@dataclass(frozen=True)
class SimilarPairs:
    """All pairs with cosine above theta among some of N vectors. Never changed, only grown anew."""

    theta: float
    held: npt.NDArray[np.bool_]
    """[N] the vectors that were compared, each with each."""
    counts: npt.NDArray[np.int32]
    """[N] similar vectors after each one."""
    later: npt.NDArray[np.unsignedinteger[Any]]
    """[P] those, one vector's after another's; uint16 where N allows."""

    @classmethod
    def of_none(cls, count: int, theta: float) -> SimilarPairs:
        """Nothing compared yet, of `count` vectors."""
        index = np.uint16 if count <= 65536 else np.uint32
        return cls(theta, np.zeros(count, np.bool_), np.zeros(count, np.int32), np.zeros(0, index))

    def grown(self, unit: Tensor, fresh: Counts) -> SimilarPairs | None:
        """Those among `held` and `fresh` rows of unit [N, D] float32; None: too many to be listed.

        Too many are those that take more memory than the directions of the vectors themselves.
        """
        rows = np.concatenate([fresh, np.flatnonzero(self.held)])
        most = 4 * unit.shape[1] * len(rows) // self.later.itemsize
        found = len(self.later)
        ones, others = [np.repeat(np.arange(len(self.held)), self.counts)], [self.later]
        chosen = unit[torch.from_numpy(rows).to(unit.device)]
        for top, left, similar in _similarities(chosen, self.theta, len(fresh)):
            flat = similar.cpu().numpy()
            one, other = np.divmod(np.flatnonzero(flat), flat.shape[1])
            if top == left:
                one, other = one[one < other], other[one < other]
            one, other = rows[top + one], rows[left + other]
            found += len(one)
            if found > most:
                return None
            ones.append(np.minimum(one, other))
            others.append(np.maximum(one, other).astype(self.later.dtype))
        first = np.concatenate(ones).astype(self.later.dtype)
        held = self.held.copy()
        held[fresh] = True
        return SimilarPairs(
            self.theta,
            held,
            np.bincount(first, minlength=len(held)).astype(np.int32),
            np.concatenate(others)[np.argsort(first, kind="stable")],
        )

    def among(self, rows: Counts) -> Pairs:
        """The pairs of held, ascending rows [n], by their places in these."""
        place = np.full(len(self.held), -1, np.int64)
        place[rows] = np.arange(len(rows))
        one, other = np.repeat(place, self.counts), place[self.later]
        both = (one >= 0) & (other >= 0)
        return one[both], other[both]


def remembered_pairs(
    memo: MutableMapping[Hashable, Any], name: Hashable, vectors: Tensor, rows: Tensor, theta: float
) -> Pairs | None:
    """Return the similar pairs among some rows, comparing only those not compared before.

    One list is kept for each name, of the last theta asked for, and none that takes more memory
    than the vectors' directions in float32. What is returned depends on nothing that was asked
    before. Two threads may both compare the same rows; either list is right.

    Args:
        memo: where lists are kept; lives no longer than the vectors.
        name: of the vectors in the memo.
        vectors: [N, D], the same at each call.
        rows: [n] int64, ascending.
        theta: cosine above which two vectors are similar.

    Returns:
        What `SimilarPairs.among` says; None where pairs are no help to `greedy_cover`: too many of
        them, or vectors on a GPU.
    """
    if vectors.is_cuda:
        return None
    wanted = rows.cpu().numpy()
    pairs: SimilarPairs | None = memo.get(name)
    if pairs is None or pairs.theta != theta:
        pairs = SimilarPairs.of_none(len(vectors), theta)
    fresh = wanted[~pairs.held[wanted]]
    if len(fresh):
        pairs = pairs.grown(unit_and_norm(vectors)[0], fresh)
        if pairs is None:
            return None
        memo[name] = pairs
    return pairs.among(wanted)


def greedy_cover(
    unit: Tensor,
    theta: float,
    copies: Tensor | None = None,
    first_heads: Tensor | None = None,
    pairs: Pairs | None = None,
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
        pairs: the neighbors, where `remembered_pairs` knows them.

    Returns:
        picks [M] int64, the vectors chosen, in the order of choice; and refs [n] int64, the
        entry that took each vector.
    """
    if unit.is_cuda:
        return cover_in_rounds(unit, theta, copies, first_heads)
    n = unit.shape[0]
    weights = np.ones(n, np.uint8) if copies is None else copies.to(torch.uint8).cpu().numpy()
    heads = np.zeros(n, np.int64) if first_heads is None else first_heads.cpu().numpy()
    rank = np.empty(n, np.int64)
    rank[np.lexsort((np.arange(n), heads))] = np.arange(n)

    if pairs is None:
        everything = np.arange(n)
        found = SimilarPairs.of_none(n, theta).grown(unit, everything)
        pairs = None if found is None else found.among(everything)
    if pairs is None:
        taken_by, degree_at_pick = _cover_of_bits(packed_adjacency(unit, theta), weights, rank)
    else:
        taken_by, degree_at_pick = _cover_of_pairs(pairs, weights, rank)
    picks = np.flatnonzero(taken_by == np.arange(n))
    picks = picks[np.lexsort((rank[picks], -degree_at_pick[picks]))]
    entry_of = np.empty(n, np.int64)
    entry_of[picks] = np.arange(len(picks))
    return torch.from_numpy(picks).to(unit.device), torch.from_numpy(entry_of[taken_by]).to(
        unit.device
    )


def _cover_of_pairs(pairs: Pairs, weights: Bits, rank: Counts) -> tuple[Counts, Counts]:
    """Cover in rounds: pairs of n vertices -> who took each [n], degree at that [n].

    `degree` stays as it is from when a vertex goes, so the degrees that are left say what each
    pick had at its turn.
    """
    n = len(weights)
    one, other = np.concatenate(pairs), np.concatenate(pairs[::-1])
    # Sixteen bits are sorted by their digits, in linear time.
    order = np.argsort(one.astype(np.uint16) if n <= 65536 else one, kind="stable")
    one, other = one[order], other[order]
    heavy = weights.astype(np.int64)
    degree = heavy + np.bincount(one, weights=weights[other], minlength=n).astype(np.int64)
    taken_by = np.arange(n)
    while len(one):
        # (degree, lowest rank) as one integer
        key = degree * n + (n - 1 - rank)
        starts = np.flatnonzero(np.diff(one, prepend=-1))
        owners = one[starts]
        within_two = key
        for _ in range(2):
            best = within_two.copy()
            best[owners] = np.maximum(best[owners], np.maximum.reduceat(within_two[other], starts))
            within_two = best
        picked = owners[within_two[owners] == key[owners]]
        chosen = np.zeros(n, np.bool_)
        chosen[picked] = True
        takes = chosen[one]
        taken = other[takes]
        taken_by[taken] = one[takes]
        gone = chosen.copy()
        gone[taken] = True
        stays = ~gone[one]
        one, other = one[stays], other[stays]
        lost = gone[other]
        degree -= np.bincount(one[lost], weights=weights[other[lost]], minlength=n).astype(np.int64)
        one, other = one[~lost], other[~lost]
    return taken_by, degree


def _cover_of_bits(packed: Bits, weights: Bits, rank: Counts) -> tuple[Counts, Counts]:
    """Cover one pick at a time: bits [n, ceil(n/8)] -> who took each [n], degree at that [n]."""
    n = len(packed)
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
    return taken_by, degree_at_pick


def packed_adjacency(unit: Tensor, theta: float) -> Bits:
    """Bit matrix of cosines above theta, self always set: unit [n, D] float32 -> [n, ceil(n/8)].

    Symmetric by construction: each block below the diagonal is the transpose of the one above.
    Zero vectors are adjacent to themselves only.
    """
    n = unit.shape[0]
    packed = np.zeros((n, (n + 7) // 8), np.uint8)
    for top, left, similar in _similarities(unit, theta, n):
        above = similar.cpu().numpy()
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


def _similarities(unit: Tensor, theta: float, rows: int) -> Iterator[tuple[int, int, Tensor]]:
    """Whether cosines are above theta, of the first `rows` vectors with themselves and later ones.

    A pair's cosine is the same whichever block it falls into, as the sides of none are thin.

    Args:
        unit: [n, D] float32.
        theta: the cosine.
        rows: of n.

    Yields:
        First row, first column and block of booleans, from the diagonal to the right.
    """
    n = unit.shape[0]
    padded = torch.cat([unit, unit.new_zeros(-n % _THICK, unit.shape[1])])
    for top in range(0, rows, BLOCK):
        count = min(BLOCK, rows - top)
        block = padded[top : top + count + -count % _THICK]
        for left in range(top, n, BLOCK):
            cosines = block @ padded[left : left + BLOCK].T
            yield top, left, cosines[:count, : n - left] > theta


def _degrees(weights: Bits, packed: Bits) -> Counts:
    """Weighted degree of every vertex of a bit matrix: [n] and [n, ceil(n/8)] -> [n].

    A weight of w counts once at each level from 1 to w, and bits are counted packed.
    """
    total = np.zeros(len(packed), np.int64)
    for level in range(1, int(weights.max(initial=0)) + 1):
        total += np.bitwise_count(packed & np.packbits(weights >= level)).sum(1, dtype=np.int64)
    return total


def _weighted(weights: Bits, rows: Bits, count: int) -> Counts:
    """Weighted sum of bit rows: [m] and [m, ceil(count/8)] -> [count].

    In whole numbers, without BLAS: numpy's threads would wait busily beside torch's.
    """
    bits = np.unpackbits(rows, axis=1, count=count)
    bits *= weights[:, None]
    total: Counts = bits.sum(0, dtype=np.int64)
    return total


def _submatrix(packed: Bits, among: Counts, count: int) -> Bits:
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


def cover_in_rounds(
    unit: Tensor, theta: float, copies: Tensor | None = None, first_heads: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose the entries of `greedy_cover` on the vectors' device, many in each of a few rounds.

    Holds a bit matrix, n^2 / 8 bytes, and `BLOCK` rows of whole numbers of it at a time.

    Args:
        unit: [n, D] float32.
        theta: as in `greedy_cover`, like the next two.
        copies: [n].
        first_heads: [n].

    Returns:
        picks [M] int64 and refs [n] int64, on the same device.
    """
    n, device = unit.shape[0], unit.device
    at = torch.arange(n, device=device)
    weights = torch.ones_like(at) if copies is None else copies.long()
    heads = torch.zeros_like(at) if first_heads is None else first_heads.long()
    rank = torch.empty_like(at)
    rank[torch.argsort(heads, stable=True)] = at
    shifts = torch.arange(8, dtype=torch.uint8, device=device)

    bits = torch.zeros(n, (n + 7) // 8, dtype=torch.uint8, device=device)
    for top, left, above in _similarities(unit, theta, n):
        if left == top:
            above = above.triu(1)
            above = (above | above.T).fill_diagonal_(True)
        for row, column, block in ((top, left, above), (left, top, above.T)):
            whole = F.pad(block.to(torch.uint8), (0, -block.shape[1] % 8))
            words = (whole.view(len(whole), -1, 8) << shifts).sum(-1, dtype=torch.uint8)
            bits[row : row + len(words), column // 8 : column // 8 + words.shape[1]] = words

    def over_neighbors(rows: Tensor, values: Tensor, total: bool) -> Tensor:
        """Sum, or else maximum, of values [n] of neighbors; those that count are above 0."""
        found = []
        for some in torch.split(rows, BLOCK):
            neighbor = ((bits[some][:, :, None] >> shifts) & 1).flatten(1)[:, :n]
            of_each = neighbor * values
            found.append(of_each.sum(1) if total else of_each.amax(1))
        return torch.cat(found)

    alive = torch.ones_like(at, dtype=torch.bool)
    degree, taken_by = torch.zeros_like(at), torch.full_like(at, -1)
    while len(rows := torch.nonzero(alive)[:, 0]):
        degree[rows] = over_neighbors(rows, weights * alive, total=True)
        key = (degree * n + (n - 1 - rank)) * alive
        within_two = key.clone()
        for _ in range(2):
            within_two[rows] = over_neighbors(rows, within_two, total=False)
        chosen = alive & (within_two == key)
        taken_by[rows] = over_neighbors(rows, (at + 1) * chosen, total=False) - 1
        alive &= taken_by < 0
    picks = torch.nonzero(taken_by == at)[:, 0]
    order = torch.argsort(degree[picks] * n + (n - 1 - rank[picks]), descending=True)
    picks = picks[order]
    entry_of = torch.empty_like(at)
    entry_of[picks] = torch.arange(len(picks), device=device)
    return picks, entry_of[taken_by]


def unit_and_norm(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Direction and length in float32: [n, D] -> [n, D], [n]; zero vectors stay zero."""
    wide = vectors.float()
    norms = wide.norm(dim=-1)
    return wide / norms.clamp_min(torch.finfo(torch.float32).tiny)[:, None], norms
