"""What a budget means in tokens, per head and per layer; the only module that rounds.

A fraction r is a share of the prompt's native KV cache (methods.md A1); an integer C is tokens
kept per head and layer on average, window included.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from kvbench.base.errors import UserError

_FORMS = "give a fraction in (0, 1] such as 0.2, or a whole number of tokens >= 1 such as 512"

MOST_TOKENS = 2**31 - 1
"""What a budget in tokens can be: beyond it is a slip of the pen."""


def whole(x: float) -> int:
    """Floor of x, where x within 1e-9 below a whole number counts as that number (0.6 * 1000)."""
    return math.floor(x + 1e-9)


@dataclass(frozen=True)
class Budget:
    """What a method may hold: exactly one of the two is set."""

    fraction: float | None = None
    """Share of the native cache, in (0, 1]."""
    tokens: int | None = None
    """Tokens per head and layer on average, >= 1."""

    @classmethod
    def parse(cls, value: object) -> Budget:
        """Read a budget as written by a user: 0.2 is a fraction, 512 is tokens.

        Raises:
            UserError: the value is neither a fraction in (0, 1] nor a whole number >= 1.
        """
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UserError(f"budget {value!r} is not a number: {_FORMS}")
        x = math.inf if isinstance(value, int) and value > MOST_TOKENS else float(value)
        if isinstance(value, numbers.Integral) and 1 <= x <= MOST_TOKENS:
            return cls(tokens=int(value))
        if 0 < x <= 1:
            return cls(fraction=x)
        if 1 < x <= MOST_TOKENS and x.is_integer():
            return cls(tokens=int(x))
        raise UserError(f"budget {value} is out of range: {_FORMS}")

    def tokens_per_head(self, prompt_tokens: int, copies: int = 1) -> float:
        """Mean tokens per stored head and layer, window included; real-valued, in (0, T].

        Args:
            prompt_tokens: T.
            copies: stored heads per KV head (g where each query head stores its own copy). A
                fraction pays for every copy; tokens are per stored head already.
        """
        if self.tokens is not None:
            return float(min(self.tokens, prompt_tokens))
        assert self.fraction is not None
        return self.fraction * prompt_tokens / copies

    def times(self, share: float) -> Budget:
        """This budget times a share in [0, 1]; tokens are rounded down."""
        if self.tokens is not None:
            return Budget(tokens=whole(share * self.tokens))
        assert self.fraction is not None
        return Budget(fraction=share * self.fraction)

    def keeps_whole(self, prompt_tokens: int) -> bool:
        """Whether the whole prompt fits (methods.md A1.6)."""
        if self.tokens is not None:
            return self.tokens >= prompt_tokens
        return self.fraction == 1.0

    @property
    def unit(self) -> str:
        """`fraction` or `tokens`."""
        return "fraction" if self.tokens is None else "tokens"

    @property
    def value(self) -> float:
        """The one that is set."""
        return float(self.fraction or 0.0) if self.tokens is None else self.tokens

    @classmethod
    def of(cls, value: float, unit: str) -> Budget:
        """Make one of its value and unit, as records hold them."""
        return cls(tokens=whole(value)) if unit == "tokens" else cls(fraction=float(value))

    @property
    def place(self) -> tuple[bool, float]:
        """Where it stands in a table: shares before tokens, small before large."""
        return self.tokens is not None, self.value

    def __str__(self) -> str:
        """As the user writes it, which tells the two apart: 0.2, 1.0, or 512."""
        if self.tokens is not None:
            return str(self.tokens)
        text = f"{self.fraction:g}"
        return text if set(text) & set(".e") else f"{text}.0"


def window_and_context(mean_tokens: float, window: int, tokens: int) -> tuple[int, float]:
    """Split a layer's mean tokens into the kept window and the context beside it.

    A budget smaller than the window keeps the newest tokens only, so that no method ever holds
    more than its budget.

    Args:
        mean_tokens: tokens per head, window included, real-valued.
        window: W, recent tokens the method always keeps; 0: none.
        tokens: T.

    Returns:
        The window that fits, at least 1 unless W is 0, and the context tokens per head,
        real-valued, >= 0.
    """
    fits = max(min(window, 1), min(window, tokens, whole(mean_tokens)))
    return fits, max(0.0, min(mean_tokens, tokens) - fits)


def rounded_to_sum(shares: list[float], most: int) -> list[int]:
    """Round real layer budgets so that their sum is the whole part of the exact sum.

    Largest remainder, ties to the earlier layer; each result lies in 0 .. `most`.
    """
    floors = [min(most, max(0, whole(x))) for x in shares]
    spare = whole(sum(min(most, max(0.0, x)) for x in shares)) - sum(floors)
    by_remainder = sorted(range(len(shares)), key=lambda i: (floors[i] - shares[i], i))
    for i in by_remainder:
        if spare > 0 and floors[i] < most:
            floors[i] += 1
            spare -= 1
    return floors


def linear_budgets(first: float, last: float, layers: int) -> list[float]:
    """Layer budgets on a straight line from the first layer to the last, both included."""
    if layers == 1:
        return [(first + last) / 2]
    return [first + (last - first) * i / (layers - 1) for i in range(layers)]


def capped_line(mean: float, last: float, layers: int, most: float) -> list[float]:
    """Straight line of mean `mean` that ends at `last`; pivots where it would pass `most`.

    The first layer is 2 * mean - last; where that exceeds `most`, it is `most` and the last
    layer becomes 2 * mean - most, so that the mean stays.
    """
    first = 2 * mean - last
    if first > most:
        first, last = most, 2 * mean - most
    return linear_budgets(first, last, layers)
