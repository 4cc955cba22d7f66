"""Rows as packed integers: groups of values, each with a step and a least value of its own.

Arithmetic is float32; what is stored is what a device would hold: codes packed into bytes, steps
and least values in the cache's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.store import Band, Store
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class Packed:
    """Groups of values as integers of 2, 4 or 8 bits (asymmetric, rounded to nearest)."""

    codes: Tensor
    """[ceil(M * s * bits / 8)] uint8."""
    steps: Tensor
    """[M] distance of neighboring codes, in the cache's dtype."""
    least: Tensor
    """[M] value of code 0, in the cache's dtype."""
    size: int
    """s, values of a group."""
    bits: int

    @classmethod
    def of(cls, groups: Tensor, bits: int) -> Packed:
        """Pack groups [M, s] of values."""
        wide = groups.float()
        top = 2**bits - 1
        least = wide.amin(1).to(groups.dtype)
        # From the stored least value, so that rounding it cannot push the largest past the top.
        steps = ((wide.amax(1) - least.float()) / top).to(groups.dtype)
        away = wide - least.float()[:, None]
        # A group of equal values has no steps: all its codes are 0.
        codes = torch.where(steps[:, None] > 0, away / steps.float()[:, None], torch.zeros(()))
        flat = codes.round().clamp(0, top).to(torch.uint8).flatten()
        per_byte = 8 // bits
        flat = torch.cat([flat, flat.new_zeros(-len(flat) % per_byte)]).view(-1, per_byte)
        packed = torch.zeros_like(flat[:, 0])
        for place in range(per_byte):
            packed |= flat[:, place] << (bits * place)
        return cls(packed, steps, least, groups.shape[1], bits)

    def read(self) -> Tensor:
        """Return the values as the codes say: [M, s] in the cache's dtype."""
        places = [
            (self.codes >> (self.bits * place)) & (2**self.bits - 1)
            for place in range(8 // self.bits)
        ]
        codes = torch.stack(places, 1).flatten()[: len(self.steps) * self.size]
        wide = codes.view(-1, self.size).float() * self.steps.float()[:, None]
        return (wide + self.least.float()[:, None]).to(self.steps.dtype)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Steps and least values."""
        return (self.steps, self.least)


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
        heads, newest, dim = self.newest.k.shape
        older = self.tokens - newest
        keys = self.keys.read().view(heads, older // self.group, dim, self.group)
        keys = keys.transpose(2, 3).reshape(heads, older, dim)
        values = self.values.read().view(heads, older, dim)
        at = torch.arange(self.tokens, dtype=torch.int32, device=keys.device)
        return (
            Band(
                torch.cat([keys, self.newest.k], 1),
                torch.cat([values, self.newest.v], 1),
                at.expand(heads, -1),
            ),
        )

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
        keys=Packed.of(keys.reshape(-1, group), bits),
        values=Packed.of(layer.v[:, :older].reshape(-1, channel_group(dim, group)), bits),
        newest=Band(layer.k[:, older:].clone(), layer.v[:, older:].clone(), at.expand(heads, -1)),
        tokens=tokens,
        group=group,
    )
