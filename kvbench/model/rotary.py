"""The rotation that a layer gives its keys, and the tables of it that all prompts share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_SPARE = 512
"""Positions that a table has room for beyond those it was grown for."""


class RotaryTable:
    """cos and sin of positions 0, 1, 2, ...: a model's own, one for all prompts.

    It grows as longer prompts are captured and tokens are generated; what it holds never changes.
    """

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        """Hold the tables [T, rd] of the first T positions, as the model computed them."""
        self._growing = threading.Lock()
        self._count = 0
        self._buffer = cos.new_empty(2, 0, cos.shape[1])
        self.cover(0, cos, sin)

    @property
    def cos(self) -> Tensor:
        """[T or more, rd]."""
        return self._buffer[0, : self._count]

    @property
    def sin(self) -> Tensor:
        """[T or more, rd]."""
        return self._buffer[1, : self._count]

    def agrees_with(self, cos: Tensor, sin: Tensor) -> bool:
        """Whether the positions that both hold are turned alike, bit for bit."""
        common = min(len(cos), self._count)
        return all(
            mine.device == other.device
            and mine.dtype == other.dtype
            and torch.equal(mine[:common], other[:common])
            for mine, other in ((self.cos, cos), (self.sin, sin))
        )

    def cover(self, first: int, cos: Tensor, sin: Tensor) -> None:
        """Hold the rows [t, rd] of positions first, first + 1, ... too, if they are new."""
        with self._growing:
            end = first + len(cos)
            new = slice(self._count, end)
            if end <= self._count:
                return
            assert first <= self._count, "positions are covered in order"
            if end > self._buffer.shape[1]:
                buffer = cos.new_empty(2, end + _SPARE, cos.shape[1])
                buffer[:, : self._count] = self._buffer[:, : self._count]
                self._buffer = buffer
            missing = self._count - first
            self._buffer[0, new], self._buffer[1, new] = cos[missing:], sin[missing:]
            self._count = end


@dataclass(frozen=True)
class Rotary:
    """The rotation that one layer gives its keys: the model's table and its own rule.

    Attributes:
        table: cos and sin of every position of the prompt, and of those generated.
        function: (keys [B, H, n, D], cos [B, n, rd], sin [B, n, rd]) -> rotated keys; the model
            family's `apply_rotary_pos_emb` reduced to one operand.
    """

    table: RotaryTable
    function: Callable[[Tensor, Tensor, Tensor], Tensor]

    def rotate(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Rotate pre-RoPE keys [H, n, D] to their positions [H, n]; returns [H, n, D]."""
        at = positions.long()
        cos, sin = self.table.cos[at], self.table.sin[at]
        return self.function(keys.unsqueeze(1), cos, sin).squeeze(1)


    def turns_halves(self, dim: int) -> bool:
        """Whether it turns the first half of its channels against the second, as Llama's does.

        Tried on numbers, once for each function.

        Args:
            dim: D; channels beyond the table's are left alone.
        """
        known = _halves.setdefault(self.function, {})
        turned = self.table.cos.shape[-1]
        if (dim, turned) not in known:
            known[dim, turned] = _turns_halves(self.function, dim, turned)
        return known[dim, turned]


_halves: WeakKeyDictionary[Callable[..., Tensor], dict[tuple[int, int], bool]] = WeakKeyDictionary()


def _turns_halves(function: Callable[..., Tensor], dim: int, turned: int) -> bool:
    if turned % 2 or turned > dim:
        return False
    rng = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 1, 3, dim, generator=rng)
    cos, sin = torch.randn(2, 1, 3, turned // 2, generator=rng).repeat(1, 1, 1, 2)
    first, second = keys[..., : turned // 2], keys[..., turned // 2 : turned]
    halves = torch.cat([-second, first], -1)
    expected = torch.cat([keys[..., :turned] * cos + halves * sin, keys[..., turned:]], -1)
    found = function(keys, cos, sin)
    return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6)


class RotaryTables:
    """The tables of a model: one for each device and kind of rotation among its layers."""

    def __init__(self) -> None:
        """Hold none yet."""
        self.tables: tuple[RotaryTable, ...] = ()
        self._adding = threading.Lock()

    def table(self, cos: Tensor, sin: Tensor) -> RotaryTable:
        """The table that says the same of positions 0, 1, ...; it covers them afterwards.

        Args:
            cos: [T, rd] as the model computed it.
            sin: [T, rd].
        """
        with self._adding:
            for table in self.tables:
                if table.agrees_with(cos, sin):
                    table.cover(0, cos, sin)
                    return table
            # A rotation that changes with the prompt's length has a table for each; of each device
            # few are kept.
            here = [table for table in self.tables if table.cos.device == cos.device]
            kept = [table for table in self.tables if table not in here[3:]]
            self.tables = (RotaryTable(cos, sin), *kept)
            return self.tables[0]
