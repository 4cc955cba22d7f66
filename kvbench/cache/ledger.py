"""What a compressed cache weighs, in four readings that are never mixed (methods.md A1.3).

Pure functions of stores and the prefill they came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from kvbench.cache.store import Compressed, Store
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class Ledger:
    """Memory of one compressed prompt at the end of compression, generated tokens excluded."""

    kept_ratio: float
    """Tokens kept / prompt tokens, mean over the layout's heads and over layers."""
    ratio_bytes: float
    """Bytes of every tensor held / bytes of the native full cache of the same tokens."""
    ratio_formula15: float
    """SpindleKV's Formula 15, native denominators, additive r3: r1 (r2 + (int/key + 1) / d)."""
    ratio_formula15_printed: float
    """Formula 15 as typeset: r1 r2 (d + int / (key + 1)) / d."""
    r1: tuple[float, ...]
    """Per layer: K and V vectors kept, copies counted / native K and V vectors."""
    r2: tuple[float, ...]
    """Per layer: distinct vectors stored / vectors kept."""
    cache_bytes: int
    native_bytes: int
    bytes_by_part: dict[str, int]
    """Bytes of rows, entries, indices, norms, positions."""
    kept_tokens: tuple[float, ...]
    """Per layer: tokens kept, mean over the layout's heads."""


@dataclass(frozen=True)
class Formula15:
    """One layer's factors of SpindleKV's Formula 15."""

    r1: float
    r2: float
    additive: float
    printed: float


def formula15(
    *,
    kept: int,
    native: int,
    stored: int,
    references: int,
    head_dim: int,
    index_bits: int,
    key_bits: int,
    norms: int = 1,
) -> Formula15:
    """Formula 15 of one layer in both readings.

    Args:
        kept: K and V vectors kept, copies per query head counted.
        native: K and V vectors of the native cache.
        stored: distinct vectors stored.
        references: of the kept ones, those read through an index; 0 for plain rows.
        head_dim: d.
        index_bits: int_bit.
        key_bits: key_bit, bits of one cached number.
        norms: norms stored per reference.
    """
    r1 = kept / native
    r2 = stored / kept if kept else 0.0
    referenced = references / kept if kept else 0.0
    additive = r1 * (r2 + referenced * (index_bits / key_bits + norms) / head_dim)
    r3 = (head_dim + index_bits / (key_bits + 1)) / head_dim if references else 1.0
    return Formula15(r1, r2, additive, r1 * r2 * r3)


def _layer_formula15(layer: LayerState, store: Store, tokens: int) -> Formula15:
    return formula15(
        kept=store.kept_vectors,
        native=2 * layer.kv_heads * tokens,
        stored=store.stored_vectors,
        references=store.references,
        head_dim=layer.k.shape[-1],
        index_bits=store.index_bits,
        key_bits=8 * layer.k.element_size(),
        norms=store.norms_per_reference,
    )


def ledger(prefill: Prefill, compressed: Compressed) -> Ledger:
    """Weigh a compressed cache against the native cache of its prompt."""
    pairs = list(zip(prefill.layers, compressed.layers, strict=True))
    factors = [_layer_formula15(layer, store, prefill.tokens) for layer, store in pairs]
    kept = tuple(s.kept_vectors / 2 / s.heads for s in compressed.layers)
    parts: dict[str, int] = {}
    for store in compressed.layers:
        for part, size in store.bytes_by_part.items():
            parts[part] = parts.get(part, 0) + size
    return Ledger(
        kept_ratio=fmean(kept) / prefill.tokens,
        ratio_bytes=compressed.nbytes / prefill.nbytes,
        ratio_formula15=fmean(f.additive for f in factors),
        ratio_formula15_printed=fmean(f.printed for f in factors),
        r1=tuple(f.r1 for f in factors),
        r2=tuple(f.r2 for f in factors),
        cache_bytes=compressed.nbytes,
        native_bytes=prefill.nbytes,
        bytes_by_part=parts,
        kept_tokens=kept,
    )
