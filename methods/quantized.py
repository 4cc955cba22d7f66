"""Quantized: keep every token in fewer bits, KIVI-like.

Paper: KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache (Liu et al., 2024), section
3. Its code was not read; transformers' QuantizedCache, which users know, cannot serve ragged
decoding and was not used.

Keys are quantized per channel over groups of tokens, values per token over groups of channels;
the newest tokens stay in full precision.

No token is evicted, so the budget is one of bytes: tokens, too, stand for the bytes of as many.
Memory comes in steps of bits: the most bits that fit are taken, and what they leave of the budget
holds newest tokens in full precision, by whole groups: a cache may lie below its budget by what
one group takes (0.012 of it on prompts of 700 tokens). Below 2 bits with the scales of the groups
(0.19 of a 16-bit cache with groups of 32) no budget can be met; the record's `over_budget` says so.

Differs from the paper:
- Bits follow the budget, and the full-precision part fills it (`bits` and `residual` set both;
  the paper: 2 bits, 128 tokens).
- Generated tokens stay in full precision; the paper quantizes those that leave the residual.
- The part of the prompt that fills no group of tokens joins the full-precision part. KIVI's own
  setting (`quantized_kivi`) keeps T mod 128 keys and exactly 128 values of a prompt of T tokens in
  full precision (`split_residual`); what it reads is then in torch alone, without a kernel.
- Formula 15 counts vectors, not bits: its readings are 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.base.errors import UserError
from kvbench.cache.quantized import quantized_bytes, store_quantized
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import Method, check_range
from kvbench.prefill.state import LayerState, Prefill

_BITS = (8, 4, 2)


@dataclass(frozen=True)
class Quantized(Method):
    """Keep all rows, the older ones as small integers."""

    bits: int | None = None  # 2, 4 or 8; null: the most that fit the budget. The paper: 2
    group: int = 32  # section 4.1: group size 32
    residual: int | None = None  # newest tokens as they are; null: what the budget leaves
    split_residual: bool = False  # KIVI's code: so many values, but of T keys T mod residual

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if self.bits not in (None, *_BITS):
            raise UserError(f"method.bits={self.bits} is unknown: give 2, 4, 8 or null")
        check_range("group", self.group, 1)
        if self.residual is not None:
            check_range("residual", self.residual, 0)
        if self.split_residual and not self.residual:
            raise UserError(
                f"method.residual={self.residual} cannot be split: give method.residual=128, or"
                " method.split_residual=false"
            )

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return quantized stores, as large as the budget lets them be."""
        share = budget.tokens_per_head(prefill.tokens) / prefill.tokens
        first = prefill.layers[0]
        target = whole(share * (first.k.nbytes + first.v.nbytes))
        bits = self._bits_within(first, target)
        older = self._older(first, bits, target)
        values = self._older_values(first, older)
        layers = tuple(store_quantized(s, older, bits, self.group, values) for s in prefill.layers)
        facts = {"bits": bits, "quantized_tokens": older, "over_budget": layers[0].nbytes > target}
        if self.split_residual:
            facts["quantized_values"] = values
        return Compressed(layers, facts)

    def _most(self, layer: LayerState) -> int:
        """Tokens whose keys may be quantized: whole groups outside the residual."""
        tokens, residual = layer.tokens, self.residual or 0
        outside = tokens // residual * residual if self.split_residual else tokens - residual
        return max(0, outside) // self.group * self.group

    def _older_values(self, layer: LayerState, older: int) -> int:
        """Tokens whose values are quantized where the keys of so many are."""
        if not self.split_residual or self.residual is None:
            return older
        return min(older, max(0, layer.tokens - self.residual))

    def _bits_within(self, layer: LayerState, target: int) -> int:
        if self.bits is not None:
            return self.bits
        older = self._most(layer)
        values = self._older_values(layer, older)
        sizes = ((b, quantized_bytes(layer, older, b, self.group, values)) for b in _BITS)
        return next((b for b, size in sizes if size <= target), _BITS[-1])

    def _older(self, layer: LayerState, bits: int, target: int) -> int:
        """Tokens quantized: as few whole groups as the budget allows."""
        most = self._most(layer)
        if self.residual is not None:
            return most
        counts = range(0, most, self.group)
        fitting = (n for n in counts if quantized_bytes(layer, n, bits, self.group) <= target)
        return next(fitting, most)
