"""FullKV: keep everything, in the native layout; the reference of every comparison.

Differs from the paper: nothing known.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget
from kvbench.compress.fit import keep_whole
from kvbench.compress.method import Method
from kvbench.prefill.state import Prefill


@dataclass(frozen=True)
class FullKV(Method):
    """Keep the whole prompt, whatever the budget."""

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return every row."""
        return keep_whole(prefill)
