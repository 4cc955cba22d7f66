"""Rows as packed integers: groups of values, each with a step and a least value of its own.

Arithmetic is float32; what is stored is what a device would hold: codes packed into bytes, steps
and least values in the cache's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.segments import Packed, PlainRows, QuantizedKeys, QuantizedRows
from kvbench.cache.store import Band, Lane, Store
from kvbench.prefill.state import LayerState


def packed(groups: Tensor, bits: int) -> Packed:
    """Groups [M, s] of values as whole numbers of so many bits."""
    wide = groups.float()
    top = 2**bits - 1
    least = wide.amin(1).to(groups.dtype)
    # From the stored least value, so that rounding it cannot push the largest past the top.
    steps = ((wide.amax(1) - least.float()) / top).to(groups.dtype)
    away = wide - least.float()[:, None]
    # A group of equal values has no steps: all its codes are 0.
    away = torch.where(steps[:, None] > 0, away / steps.float()[:, None], torch.zeros(()))
    flat = away.round().clamp(0, top).to(torch.uint8).flatten()
    per_byte = 8 // bits
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % per_byte)]).view(-1, per_byte)
    codes = torch.zeros_like(flat[:, 0])
    for place in range(per_byte):
        codes |= flat[:, place] << (bits * place)
    return Packed(codes, steps, least, groups.shape[1], bits)


@dataclass(frozen=True)
class QuantizedStore(Store):
    """All rows of one layer: older ones quantized, the newest as they are.

    Keys share steps along tokens, one channel at a time; values along channels, one token at a
    time.
    """

    keys: Packed
    values: Packed
    newest: Band
    """[G, residual, D]."""
    tokens: int
    """Rows per head, all of them."""
    group: int
    """Tokens of a group of keys."""
    between: QuantizedKeys | None = None
    """Rows of quantized keys whose values, from some on, are as they are; None: there are none."""

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Codes, the scales of their groups, and what is as it is."""
        packs, rows = [self.keys, self.values], [self.newest.k, self.newest.v]
        if self.between is not None:
            packs += [self.between.keys, self.between.older_values]
            rows.append(self.between.newer_values)
        return {
            "codes": tuple(p.codes for p in packs),
            "scales": tuple(t for p in packs for t in p.tensors),
            "rows": tuple(rows),
        }

    def materialize(self) -> tuple[Band, ...]:
        """Rebuild the rows: one band of G heads."""
        coded = QuantizedRows | QuantizedKeys
        parts = [s for s in self.segments()[0] if isinstance(s, coded)]
        at = torch.arange(self.tokens, dtype=torch.int32, device=self.newest.k.device)
        return (
            Band(
                torch.cat([*(part.k for part in parts), self.newest.k], 1),
                torch.cat([*(part.v for part in parts), self.newest.v], 1),
                at.expand(self.heads, -1),
            ),
        )

    def segments(self) -> tuple[Lane, ...]:
        """The codes, and the newest rows."""
        heads, newest, dim = self.newest.k.shape
        between = () if self.between is None else (self.between,)
        shape = (heads, self.tokens - newest - sum(part.rows for part in between), dim)
        codes = QuantizedRows(self.keys, self.values, shape, self.group)
        rows = PlainRows(self.newest.k, self.newest.v, self.newest.positions)
        return ((codes, *between, rows),)

    @property
    def heads(self) -> int:
        """G."""
        return len(self.newest.k)

    @property
    def kept_vectors(self) -> int:
        """Every key and value of the prompt."""
        return 2 * self.heads * self.tokens

    @property
    def stored_vectors(self) -> int:
        """As many: vectors are stored in fewer bits, none is left out."""
        return self.kept_vectors


def channel_group(dim: int, most: int) -> int:
    """Channels of a group of values: the largest divisor of `dim` that is at most `most`."""
    return max(n for n in range(1, min(dim, most) + 1) if dim % n == 0)


def quantized_bytes(
    layer: LayerState, older: int, bits: int, group: int, older_values: int | None = None
) -> int:
    """Bytes of a layer whose first `older` tokens are quantized.

    Args:
        layer: the state; only its shape and dtype are read.
        older: tokens, a multiple of `group`.
        bits: 2, 4 or 8.
        group: tokens of a group of keys, most channels of a group of values.
        older_values: tokens whose values are quantized; None: as many.
    """
    values = older if older_values is None else older_values
    heads, tokens, dim = layer.k.shape
    total = 0
    for count, size in ((older, group), (values, channel_group(dim, group))):
        # Codes of neighboring segments begin with a byte each.
        whole = min(older, values) // group * group
        for part in (heads * whole * dim, heads * (count - whole) * dim):
            total += -(-part * bits // 8) + 2 * (part // size) * layer.k.element_size()
    rows = heads * (2 * tokens - older - values) * dim
    return total + rows * layer.k.element_size()


def store_quantized(
    layer: LayerState, older: int, bits: int, group: int, older_values: int | None = None
) -> QuantizedStore:
    """Quantize a layer's first tokens; keep the rest as rows.

    Args:
        layer: the state.
        older: tokens whose keys are quantized, a multiple of `group`.
        bits: 2, 4 or 8.
        group: tokens of a group of keys, most channels of a group of values.
        older_values: tokens whose values are quantized, at most `older`; None: as many.
    """
    heads, tokens, dim = layer.k.shape
    values = older if older_values is None else older_values
    both = values // group * group

    def keys(first: int, end: int) -> Packed:
        groups = layer.k[:, first:end].reshape(heads, (end - first) // group, group, dim)
        return packed(groups.transpose(2, 3).reshape(-1, group), bits)

    def along_channels(first: int, end: int) -> Packed:
        return packed(layer.v[:, first:end].reshape(-1, channel_group(dim, group)), bits)

    between = None
    if both < older:
        between = QuantizedKeys(
            keys(both, older),
            along_channels(both, values),
            layer.v[:, values:older].clone(),
            (heads, older - both, dim),
            group,
            both,
        )
    at = torch.arange(older, tokens, dtype=torch.int32, device=layer.k.device)
    return QuantizedStore(
        keys=keys(0, both),
        values=along_channels(0, both),
        newest=Band(layer.k[:, older:].clone(), layer.v[:, older:].clone(), at.expand(heads, -1)),
        tokens=tokens,
        group=group,
        between=between,
    )
