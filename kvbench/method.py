"""The contract between kvbench and a method.

A method is a frozen dataclass of hyper-parameters with a pure `compress`. It sees one frozen
`Prefill` and a `Budget`, and returns what it keeps. It sees no config, no model, no tokenizer.

Letters used throughout: L layers, Q query heads, G KV heads, T prefilled tokens, W window,
K kept tokens, D head dim, V variants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvbench.budget import Budget
from kvbench.cache.store import Compressed
from kvbench.prefill import Prefill


@dataclass(frozen=True)
class Needs:
    """What a method reads from the prefill beyond k and v; a run captures the union."""

    window: int = 0
    """Queries captured: the last `window` ones."""
    pre_rope_keys: bool = False
    """Whether `k_pre` and `rotary` are read."""
    column_sums: bool = False
    """Whether `column_sums` is read."""

    def __or__(self, other: Needs) -> Needs:
        """The needs of both."""
        return Needs(
            max(self.window, other.window),
            self.pre_rope_keys or other.pre_rope_keys,
            self.column_sums or other.column_sums,
        )


class Method(ABC):
    """A KV cache compression method. Subclasses are frozen dataclasses in `methods/`."""

    needs: Needs = Needs()
    """A class attribute or property."""

    bytes_follow_data: bool = False
    """True where the bytes held at a nominal budget depend on the prompt's data; `fit` then
    searches the nominal budget whose measured bytes are the budget asked for."""

    match: str = "bytes"
    """`bytes`: a fractional budget is met in bytes. `eviction`: it is used as the nominal one."""

    @abstractmethod
    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return what is kept of `prefill` at `budget`, leaving `prefill` unchanged.

        Same inputs, same rows, on every device. Called many times on one prefill.
        """
