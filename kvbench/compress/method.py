"""The contract between kvbench and a method.

A method is a frozen dataclass of hyper-parameters with a pure `compress`. It sees one frozen
`Prefill` and a `Budget`, and returns what it keeps. It sees no config, no model, no tokenizer.

Letters used throughout: L layers, Q query heads, G KV heads, T prefilled tokens, W window,
K kept tokens, D head dim, V variants.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from kvbench.base.errors import UserError
from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import Prefill


class Method(ABC):
    """A KV cache compression method. Subclasses are frozen dataclasses in `methods/`."""

    @property
    def needs(self) -> Needs:
        """What `compress` reads beyond k and v."""
        return Needs()

    @property
    def bytes_follow_data(self) -> bool:
        """Whether the bytes held at a nominal budget depend on the prompt's data.

        `fit` then searches the nominal budget whose measured bytes are the budget asked for.
        """
        return False

    @property
    def acts_after_prefill(self) -> bool:
        """Whether all it does follows the ordinary prefill, whose logits it shares with FullKV."""
        return True

    @property
    def keeps_newest(self) -> bool:
        """Whether every head holds the last token whatever the budget."""
        return True

    def pruning_schedule(self, tokens: int, layers: int, budget: Budget) -> PruningSchedule | None:
        """How the prefill of a prompt prunes for this method; None: the ordinary prefill.

        Methods with equal schedules share one prefill, and `compress` is given it.

        Args:
            tokens: T.
            layers: L.
            budget: what may be held.
        """
        return None

    match: str = "bytes"
    """What a fractional budget is met in: `bytes`; or `formula15`, SpindleKV's as printed.
    `eviction`: it is used as the nominal one."""

    def share_to_meet(self, budget: Budget, tokens: int) -> float | None:
        """Share of the native cache that the nominal budget is searched for; None: no search.

        Args:
            budget: what may be held.
            tokens: T.
        """
        searched = self.bytes_follow_data and self.match != "eviction"
        return budget.fraction if searched else None

    @abstractmethod
    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return what is kept of `prefill` at `budget`, leaving `prefill` unchanged.

        Same inputs, same rows, on every device. Called many times on one prefill.
        """


def check_choice(name: str, value: str, *legal: str) -> None:
    """Refuse a field value that is not one of the legal words.

    Raises:
        UserError: naming the field, the value and the legal words.
    """
    if value not in legal:
        raise UserError(f"method.{name}={value!r} is unknown: give {' or '.join(legal)}")


def check_range(
    name: str, value: float, low: float, high: float = math.inf, *, open_ends: bool = False
) -> None:
    """Refuse a field value outside low .. high (ends excluded with `open_ends`), NaN included.

    Raises:
        UserError: naming the field, the value and the range.
    """
    inside = low < value < high if open_ends else low <= value <= high
    if not inside:
        ends = (
            f"between {low} and {high}, ends excluded"
            if open_ends
            else (f"{low} or more" if high == math.inf else f"from {low} to {high}")
        )
        raise UserError(f"method.{name}={value} is out of range: give a number {ends}")


def check_odd(name: str, value: int) -> None:
    """Refuse a pooling kernel that is not an odd number >= 1.

    Raises:
        UserError: naming the field and the value.
    """
    if value < 1 or value % 2 == 0:
        raise UserError(f"method.{name}={value} is not odd: give 1, 3, 5, 7 ...")
