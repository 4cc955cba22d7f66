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
class PrefillPanel:
    """Numbers that are drawn together."""

    title: str
    values: Tensor
    """[lines, layers] of lines; [rows, columns] of a map."""
    lines: tuple[str, ...]
    """Name of each line; empty: the panel is a map."""
    x: str
    y: str
    top: float | None = 1.0
    """End of the scale, which begins at 0; None: the largest value."""
    ends: tuple[float, float] | None = None
    """Where a map's axes end, which begin at 0; None: at its rows and columns."""


Caches = Mapping[str, Compressed]


@dataclass(frozen=True)
class Analysis:
    """One kind of figure."""

    about: str
    needs: Needs
    panels: Callable[[Prefill, Caches], Sequence[PrefillPanel]]
    """From a prefill and what each variant keeps of it, by label."""
    of_methods: bool = False
    """Whether it is about what methods keep."""


def _sparsity(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    values = torch.tensor([[attention_sparsity(layer) for layer in prefill.layers]])
    name = "tokens outside 95% of the attention"
    return [PrefillPanel("attention sparsity", values, (name,), "layer", "share of tokens")]


def _similarity(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    keys, values = [], []
    for layer in prefill.layers:
        assert layer.k_pre is not None
        keys.append(similar_pairs(layer.k_pre, KEY_THRESHOLD))
        values.append(similar_pairs(layer.v, VALUE_THRESHOLD))
    names = (f"keys, cosine > {KEY_THRESHOLD}", f"values, cosine > {VALUE_THRESHOLD}")
    both = torch.tensor([keys, values])
    return [PrefillPanel("similar token pairs", both, names, "layer", "share of pairs", top=None)]


def _attention(prefill: Prefill, _: Caches) -> list[PrefillPanel]:
    return [
        PrefillPanel(
            f"layer {i}", attention_map(layer, CELLS), (), "key, %", "query, %", None, (100, 100)
        )
        for i, layer in enumerate(prefill.layers)
    ]


def _overlap(prefill: Prefill, caches: Caches) -> list[PrefillPanel]:
    return [
        PrefillPanel(label, jaccard(kept_masks(cache, prefill.tokens)), (), "layer", "layer")
        for label, cache in caches.items()
    ]


def _kept(prefill: Prefill, caches: Caches) -> list[PrefillPanel]:
    """Layers down, inside each its heads; the prompt across."""
    ends = (100, len(prefill.layers))
    return [
        PrefillPanel(
            label, in_bins(masks.flatten(0, 1), CELLS), (), "prompt, %", "layer", ends=ends
        )
        for label, cache in caches.items()
        for masks in [kept_masks(cache, prefill.tokens)]
    ]


BY_NAME: Mapping[str, Analysis] = {
    "sparsity": Analysis(
        "Attention sparsity per layer (SpindleKV, Figure 3a)", Needs(column_sums=True), _sparsity
    ),
    "similarity": Analysis(
        "Token pairs above a cosine threshold per layer (SpindleKV, Figures 3b, 7 and 8)",
        Needs(pre_rope_keys=True),
        _similarity,
    ),
    "overlap": Analysis(
        "Jaccard similarity of kept rows between layers (WindowKV, Figure 2)",
        Needs(),
        _overlap,
        of_methods=True,
    ),
    "kept": Analysis("Kept rows per layer and head", Needs(), _kept, of_methods=True),
    "attention": Analysis(
        "Attention maps per layer (PyramidKV, slides)", Needs(window=_ALL_QUERIES), _attention
    ),
}
