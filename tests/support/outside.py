"""A method outside kvbench, as a user's own file holds one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvbench.methods.snapkv import SnapKV
from kvbench.prefill.state import LayerState


@dataclass(frozen=True)
class LastRowsScored(SnapKV):
    """The later a row, the higher its score."""

    def head_scores(self, layer: LayerState, window: int) -> torch.Tensor:
        return torch.arange(layer.tokens - window).float().expand(layer.kv_heads, -1)
