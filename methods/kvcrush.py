"""KVCrush: spend part of a method's budget on representatives of the tokens that it evicts.

Paper: KVCrush: Key Value Cache size-reduction using similarity in head-behavior (Jha et al.,
2025), section III. Code by the authors: OpenVINO GenAI, not followed; it works on blocks and has
no head dimension.

Differs from the paper:
- One anchor gives a token one number, its distance, so "the bucket with the lowest distance" is
  read as: evicted tokens in order of (distance, position), cut into as many near-equal groups as
  there are representatives, one random member of each (OpenVINO: every n-th, far tail left out).
- The base keeps what it keeps at its part of the budget, its newest tokens included; each layer
  holds as many representatives beside, whatever the base gives it. What a layer has no tokens for
  goes to the next one (PyramidKV's first layers, where prompts are short).
- A bit says whether the token is among the rows that the query head would keep by itself, context
  rows only. Where the base's heads keep different rows, each has its own evicted tokens.
- The random anchor is drawn per layer. An anchor bit of `mean` is set above one half, as OpenVINO.
  Evicted tokens are those that few heads would keep. On SmolLM2-135M the mean anchor was zero in
  every layer and head measured (SnapKV and H2O, 0.2 to 0.5), and of the evicted tokens 73 to 82% at
  0.2 and 46 to 58% at 0.4 have no bit set: they are all alike to it, and grouping is by position.
  The facts `anchor_bits_set` and `evicted_without_bits`, both shares, say so of each prompt. Any
  gain must beat `grouping=random`: representatives drawn from all that is evicted
  (results/methods.md).
- Chunks and pages are whole: the newest ones, begun but not full, stay with the window, and what
  is left of a layer's budget goes to the next layer. Their importance is the sum of the base's
  scores.
- The k-means comparator has no printed settings: scikit-learn's MiniBatchKMeans on the evicted
  rows' keys, a random member of each cluster, empty clusters made up by random other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_rows
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.compress.scoring import ScoringMethod, check_base
from kvbench.prefill.needs import Needs
from kvbench.prefill.selection import top_rows, with_window
from kvbench.prefill.state import LayerState, Prefill

from .snapkv import SnapKV


@dataclass(frozen=True)
class KVCrush(Method):
    """Keep what the base keeps at most of the budget, and representatives of the rest."""

    base: ScoringMethod = field(default_factory=SnapKV)  # Table III: the best base on average
    share: float = 0.25  # section IV-F: a fixed 25% of the budget goes to representatives
    anchor: str = "mean"  # section III-B: ideally central; `random`, `alternate`: 0, 1, 0, 1 ...
    granularity: str = "token"  # Table I; `chunk` or `page`: evict and represent these
    chunk: int = 8  # Fig. 7b, tokens
    page: int = 32  # Table I, tokens
    grouping: str = "hamming"  # `kmeans`: the comparator of section IV-C; `random`: the control
    seed: int = 0  # kvbench: of anchors and representatives

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_base("base", self.base)
        check_range("share", self.share, 0, 1)
        check_choice("anchor", self.anchor, "random", "mean", "alternate")
        check_choice("granularity", self.granularity, "token", "chunk", "page")
        check_range("chunk", self.chunk, 1)
        check_range("page", self.page, 1)
        check_choice("grouping", self.grouping, "hamming", "kmeans", "random")
        check_range("seed", self.seed, 0)
        if self.grouping == "kmeans" and find_spec("sklearn") is None:
            raise UserError(
                "method.grouping='kmeans' needs scikit-learn: pip install 'kvbench[classifier]'"
            )

    @property
    def needs(self) -> Needs:
        """What the base reads."""
        return self.base.needs

    @property
    def bytes_follow_data(self) -> bool:
        """As the base."""
        return self.base.bytes_follow_data

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return as many rows as the base, part of them representatives."""
        rng = torch.Generator().manual_seed(self.seed)  # on the CPU: the same on every device
        size = {"token": 1, "chunk": self.chunk, "page": self.page}[self.granularity]
        important = budget.times(1 - self.share)
        tokens, copies = prefill.tokens, self.base.copies(prefill)
        # Of each layer: the paper's 25% of 2048 are 512 of every layer's.
        mean = whole(budget.tokens_per_head(tokens, copies))
        beside = max(0, mean - max(1, whole(important.tokens_per_head(tokens, copies))))
        counts = self.base.context_rows(prefill, important)
        layers, spare, found = [], 0, Degeneracy()
        for layer, (window, context) in zip(prefill.layers, counts, strict=True):
            begun = min((layer.tokens - window) % size, context + beside)
            spare += context + beside - begun
            pages = min(spare // size, (layer.tokens - window) // size)
            spare -= pages * size
            represented = min(pages, beside // size)
            kept = self._kept_pages(layer, window, size, pages - represented)
            if represented:
                if self.base.heads == "all":
                    kept = kept[:1]
                chosen = self._representatives(layer, window, size, kept, represented, rng, found)
                kept = torch.cat([kept, chosen], 1).sort(-1).values
                if self.base.heads == "all":
                    kept = kept.expand(layer.kv_heads, -1)
            rows = rows_of_pages(kept, size)
            rows = with_window(rows, layer.tokens, window + begun)
            layers.append(store_rows(layer, rows, union=self.base.store == "union"))
        return Compressed(tuple(layers), found.facts)

    def _kept_pages(self, layer: LayerState, window: int, size: int, count: int) -> Tensor:
        """Pages that the base finds most important: [H, count], ascending."""
        if size == 1:
            return self.base.rows_to_keep(layer, window, count)
        scores = self.base.head_scores(layer, window)
        full = scores.shape[1] // size
        pages = scores[:, : full * size].reshape(len(scores), full, size).sum(-1)
        return top_rows(pages, count)

    def _representatives(
        self,
        layer: LayerState,
        window: int,
        size: int,
        kept: Tensor,
        count: int,
        rng: torch.Generator,
        found: Degeneracy,
    ) -> Tensor:
        """Pages that stand for those not kept: [H, <= count] of H heads, in no order."""
        full = (layer.tokens - window) // size
        evicted = pages_not_in(kept, full)
        if evicted.shape[1] <= count:
            return evicted
        if self.grouping == "random":
            drawn = torch.rand(evicted.shape, generator=rng, dtype=torch.float64).argsort(-1)
            return evicted.gather(1, drawn[:, :count].to(evicted.device))
        if self.grouping == "kmeans":
            return self._cluster_members(layer, size, evicted, count, rng)
        by_head = replace(self.base, heads="query").head_scores(layer, window)
        bits = page_bits(top_rows(by_head, kept.shape[1] * size), full, size)[evicted]
        anchor = anchor_bits(self.anchor, bits, rng)
        found.add(anchor, bits)
        distances = hamming_distances(bits, anchor)
        order = distances.sort(dim=-1, stable=True).indices
        return evicted.gather(1, members_of_groups(order, count, rng))

    def _cluster_members(
        self, layer: LayerState, size: int, evicted: Tensor, count: int, rng: torch.Generator
    ) -> Tensor:
        """A random page of each k-means cluster of the evicted pages' keys: [H, count]."""
        from sklearn.cluster import MiniBatchKMeans

        chosen = []
        for head, pages in enumerate(evicted):
            rows = rows_of_pages(pages[None], size)[0]
            heads = len(evicted)
            keys = (
                layer.k[:, rows].transpose(0, 1)
                if self.base.heads == "all"
                else layer.k[head * layer.kv_heads // heads, rows]
            )
            points = keys.float().reshape(len(pages), -1).cpu().numpy()
            clusters = MiniBatchKMeans(count, random_state=self.seed, n_init=1).fit_predict(points)
            # Pages in random order: the first of each cluster, then whichever come first.
            order = torch.randperm(len(pages), generator=rng)
            firsts: dict[int, int] = {}
            for at in order.tolist():
                firsts.setdefault(int(clusters[at]), at)
            # Without repeats: those of the order that are no cluster's first come last.
            picked = list(dict.fromkeys([*firsts.values(), *order.tolist()]))[:count]
            chosen.append(pages[torch.tensor(picked, device=pages.device)])
        return torch.stack(chosen)


@dataclass
class Degeneracy:
    """How much the distances can tell apart, over the layers and heads of a prompt."""

    anchors: list[float] = field(default_factory=list)
    """Share of each layer's anchor bits that are set."""
    empty: list[float] = field(default_factory=list)
    """Share of each layer's evicted pages without a bit set."""

    def add(self, anchor: Tensor, bits: Tensor) -> None:
        """Count a layer: anchor [H, B], bits [H, n, B]."""
        self.anchors.append(float(anchor.float().mean()))
        self.empty.append(float((~bits.any(-1)).float().mean()))

    @property
    def facts(self) -> dict[str, float]:
        """The means, where there was a layer to group."""
        if not self.anchors:
            return {}
        return {
            "anchor_bits_set": fmean(self.anchors),
            "evicted_without_bits": fmean(self.empty),
        }


def rows_of_pages(pages: Tensor, size: int) -> Tensor:
    """Rows of pages of `size` tokens: [H, n] -> [H, n * size], in the same order."""
    inside = torch.arange(size, device=pages.device)
    return (pages[:, :, None] * size + inside).flatten(1)


def pages_not_in(kept: Tensor, count: int) -> Tensor:
    """Of 0 .. count - 1, those not in each row of `kept` [H, n]: [H, count - n], ascending."""
    evicted = torch.ones(len(kept), count, dtype=torch.bool, device=kept.device)
    evicted.scatter_(1, kept, False)
    return evicted.nonzero()[:, 1].reshape(len(kept), -1)


def page_bits(retained: Tensor, pages: int, size: int) -> Tensor:
    """Which query heads would keep each token of each page: [pages, size * Q] bool.

    Args:
        retained: [Q, n] rows that each query head would keep.
        pages: full pages; tokens behind them are left out.
        size: tokens of a page.
    """
    bits = torch.zeros(len(retained), pages * size + size, dtype=torch.bool, device=retained.device)
    bits.scatter_(1, retained, True)
    return bits[:, : pages * size].T.reshape(pages, -1)


def anchor_bits(kind: str, bits: Tensor, rng: torch.Generator) -> Tensor:
    """The point that distances are taken from: bits [H, n, B] -> [H, B] bool."""
    heads, _, width = bits.shape
    if kind == "mean":
        return bits.float().mean(1) > 0.5
    if kind == "alternate":
        anchor = torch.arange(width) % 2 == 1
    else:
        anchor = torch.randint(2, (width,), generator=rng).bool()
    return anchor.to(bits.device).expand(heads, -1)


def hamming_distances(bits: Tensor, anchor: Tensor) -> Tensor:
    """Bits that differ from the anchor: [H, n, B] and [H, B] -> [H, n] int64."""
    return (bits ^ anchor[:, None]).sum(-1)


def members_of_groups(order: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Cut each row of `order` [H, n] into near-equal groups, one random member of each: [H, count].

    Args:
        order: what is grouped, neighbors together.
        count: groups, at most n.
        rng: draws the members.
    """
    heads, n = order.shape
    edges = torch.arange(count + 1) * n // count
    sizes = edges[1:] - edges[:-1]
    drawn = torch.rand(heads, count, generator=rng, dtype=torch.float64)
    at = edges[:-1] + (drawn * sizes).long()
    return order.gather(1, at.to(order.device))
