"""The analyses: what each reads of a prefill and the panels it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.analysis.measures import (
    attention_map,
    attention_sparsity,
    in_bins,
    jaccard,
    kept_masks,
    similar_pairs,
)
from kvbench.cache.store import Compressed
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill

CELLS = 64
"""Cells along a side of a map over the prompt."""

KEY_THRESHOLD = 0.9  # SpindleKV, Figure 7
VALUE_THRESHOLD = 0.6  # SpindleKV, Figure 8

_ALL_QUERIES = 1 << 20


@dataclass(frozen=True)
class Axis:
    """What one dimension of a panel's values runs over."""

    name: str
    end: float | None = None
    """Where a scale of equal cells ends, which begins at 0; None: things counted from 0."""
    down: bool = False
    """Whether it runs down the page where it stands upright."""

    def place(self, index: int, size: int) -> float:
        """Return what an index stands for: a thing's number, or where a cell begins."""
        return index if self.end is None else index * self.end / size


@dataclass(frozen=True)
class PrefillPanel:
    """Numbers that are drawn together."""

    title: str
    values: Tensor
    """[lines, layers] of lines; [rows, columns] or [rows, parts of a row, columns] of a map."""
    axes: tuple[Axis, ...]
    """One for each dimension."""
    unit: str
    """What a value is."""
    lines: tuple[str, ...] = ()
    """Name of each line; empty: the panel is a map."""
    top: float | None = 1.0
    """End of the values' scale, which begins at 0; None: where nearly all values are below it."""


LAYER = Axis("layer")


Caches = Mapping[str, Compressed]


@dataclass(frozen=True)
class Analysis:
    """One kind of figure."""

    about: str
    title: str
    """What its figure shows, in a few words."""
    needs: Needs
    panels: Callable[[Prefill, Caches], Sequence[PrefillPanel]]
    """From a prefill and what each variant keeps of it, by label."""
    of_methods: bool = False
    """Whether it is about what methods keep."""


def _sparsity(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    values = torch.tensor([[attention_sparsity(layer) for layer in prefill.layers]])
    name = "tokens outside 95% of the attention"
    axes = (Axis("line"), LAYER)
    return [PrefillPanel("attention sparsity", values, axes, "share of tokens", (name,))]


def _similarity(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    keys, values = [], []
    for layer in prefill.layers:
        assert layer.k_pre is not None
        keys.append(similar_pairs(layer.k_pre, KEY_THRESHOLD))
        values.append(similar_pairs(layer.v, VALUE_THRESHOLD))
    names = (f"keys, cosine > {KEY_THRESHOLD}", f"values, cosine > {VALUE_THRESHOLD}")
    both, axes = torch.tensor([keys, values]), (Axis("line"), LAYER)
    return [PrefillPanel("similar token pairs", both, axes, "share of pairs", names, top=None)]


def _attention(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    axes = (Axis("query (%)", 100, down=True), Axis("key (%)", 100))
    unit = "share of the query's attention"
    return [
        PrefillPanel(f"layer {i}", attention_map(layer, CELLS), axes, unit, top=None)
        for i, layer in enumerate(prefill.layers)
    ]


def _overlap(prefill: Prefill, caches: Caches) -> list[PrefillPanel]:
    axes, unit = (LAYER, Axis("other layer")), "Jaccard similarity"
    return [
        PrefillPanel(label, jaccard(kept_masks(cache, prefill.tokens)), axes, unit)
        for label, cache in caches.items()
    ]


def _kept(prefill: Prefill, caches: Caches) -> list[PrefillPanel]:
    """Layers, inside each its heads; the prompt across."""
    axes = (LAYER, Axis("head"), Axis("prompt (%)", 100))
    return [
        PrefillPanel(label, in_bins(masks, CELLS), axes, "share of tokens kept")
        for label, cache in caches.items()
        for masks in [kept_masks(cache, prefill.tokens)]
    ]


BY_NAME: Mapping[str, Analysis] = {
    "sparsity": Analysis(
        "Attention sparsity per layer (SpindleKV, Figure 3a)",
        "attention sparsity",
        Needs(column_sums=True),
        _sparsity,
    ),
    "similarity": Analysis(
        "Token pairs above a cosine threshold per layer (SpindleKV, Figures 3b, 7 and 8)",
        "similar token pairs",
        Needs(pre_rope_keys=True),
        _similarity,
    ),
    "overlap": Analysis(
        "Jaccard similarity of kept rows between layers (WindowKV, Figure 2)",
        "tokens that two layers both keep",
        Needs(),
        _overlap,
        of_methods=True,
    ),
    "kept": Analysis(
        "Kept rows per layer and head",
        "tokens that each head of each layer keeps",
        Needs(),
        _kept,
        of_methods=True,
    ),
    "attention": Analysis(
        "Attention maps per layer (PyramidKV, slides)",
        "attention, mean over heads",
        Needs(window=_ALL_QUERIES),
        _attention,
    ),
}
