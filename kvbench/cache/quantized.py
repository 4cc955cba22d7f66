"""Rows as packed integers: groups of values, each with a step and a least value of its own.

Arithmetic is float32; what is stored is what a device would hold: codes packed into bytes, steps
and least values in the cache's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.segments import Packed, PlainRows, QuantizedRows
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

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Codes, the scales of their groups, and the newest rows."""
        return {
            "codes": (self.keys.codes, self.values.codes),
            "scales": (*self.keys.tensors, *self.values.tensors),
            "rows": (self.newest.k, self.newest.v),
        }

    def materialize(self) -> tuple[Band, ...]:
        """Rebuild the rows: one band of G heads."""
        codes, _ = self.segments()[0]
        assert isinstance(codes, QuantizedRows)
        at = torch.arange(self.tokens, dtype=torch.int32, device=self.newest.k.device)
        return (
            Band(
                torch.cat([codes.k, self.newest.k], 1),
                torch.cat([codes.v, self.newest.v], 1),
                at.expand(self.heads, -1),
            ),
        )

    def segments(self) -> tuple[Lane, ...]:
        """The codes, and the newest rows."""
        heads, newest, dim = self.newest.k.shape
        shape = (heads, self.tokens - newest, dim)
        codes = QuantizedRows(self.keys, self.values, shape, self.group)
        return ((codes, PlainRows(self.newest.k, self.newest.v, self.newest.positions)),)

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


def quantized_bytes(layer: LayerState, older: int, bits: int, group: int) -> int:
    """Bytes of a layer whose first `older` tokens are quantized.

    Args:
        layer: the state; only its shape and dtype are read.
        older: tokens, a multiple of `group`.
        bits: 2, 4 or 8.
        group: tokens of a group of keys, most channels of a group of values.
    """
    heads, tokens, dim = layer.k.shape
    numbers = heads * older * dim
    scales = 2 * (numbers // group + numbers // channel_group(dim, group))
    rows = 2 * heads * (tokens - older) * dim
    return 2 * -(-numbers * bits // 8) + (scales + rows) * layer.k.element_size()


def store_quantized(layer: LayerState, older: int, bits: int, group: int) -> QuantizedStore:
    """Quantize a layer's first `older` tokens, a multiple of `group`; keep the rest as rows."""
    heads, tokens, dim = layer.k.shape
    keys = layer.k[:, :older].reshape(heads, older // group, group, dim).transpose(2, 3)
    at = torch.arange(older, tokens, dtype=torch.int32, device=layer.k.device)
    return QuantizedStore(
        keys=packed(keys.reshape(-1, group), bits),
        values=packed(layer.v[:, :older].reshape(-1, channel_group(dim, group)), bits),
        newest=Band(layer.k[:, older:].clone(), layer.v[:, older:].clone(), at.expand(heads, -1)),
        tokens=tokens,
        group=group,
    )
