"""PyramidKV: SnapKV's selection with a budget that shrinks from the first layer to the last.

Paper: PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling
(Cai et al., 2024), section 4.2. Released code: KVCache-Factory c97f9d7.

Differs from the paper:
- The line of layer budgets is real-valued and rounded by largest remainder, so that the mean is
  the budget; `schedule=released` repeats the released integers, whose mean exceeds it.
- Where the first layer would pass the context, it is capped and the last one raised to keep the
  mean, as the released code does; the paper does not say.
- One set of rows per KV head by default, as in SnapKV here.
- The window is kept beside each layer's share, as in the released code; kvpress counts it inside
  (`schedule=kvpress`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.compress.budget import Budget, capped_line, rounded_to_sum, whole, window_and_context
from kvbench.compress.method import check_choice, check_range
from kvbench.prefill.state import Prefill

from .snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """Keep the window and a layer-dependent number of the best context rows."""

    window: int = 8  # section 5.1: alpha = 8 instruction tokens
    beta: float = 20.0  # released default; the last layer keeps the mean context / beta
    schedule: str = "paper"  # `released`: integer steps, flat for short prompts; or `kvpress`

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        check_range("beta", self.beta, 1)
        check_choice("schedule", self.schedule, "paper", "released", "kvpress")

    def context_rows(self, prefill: Prefill, budget: Budget) -> list[tuple[int, int]]:
        """Window and context rows of each layer's heads: a line that falls with depth."""
        tokens, layers = prefill.tokens, len(prefill.layers)
        mean = budget.tokens_per_head(tokens, self.copies(prefill))
        if self.schedule == "kvpress":
            totals = kvpress_schedule(mean, tokens, self.window, layers, self.beta)
            return [(min(self.window, n), max(0, n - self.window)) for n in totals]
        window, context = window_and_context(mean, self.window, tokens)
        if self.schedule == "released":
            rows = released_schedule(
                max(0, whole(mean) - window), tokens, window, layers, self.beta
            )
        else:
            most = tokens - window
            line = capped_line(context, context / self.beta, layers, most)
            rows = rounded_to_sum(line, most)
        return [(window, n) for n in rows]


def released_schedule(
    context: int, tokens: int, window: int, layers: int, beta: float
) -> list[int]:
    """Context rows per layer as KVCache-Factory computes them, in integers.

    Prompts shorter than twice the context budget get the same number in every layer.

    Args:
        context: mean context rows asked for, the capacity less the window.
        tokens: T.
        window: W, kept on top.
        layers: L.
        beta: the last layer's share of the mean is 1 / beta.
    """
    if tokens < 2 * context:
        return [min(context, tokens - window)] * layers
    last = int(context // beta)
    first = 2 * context - last
    if first >= tokens - window:
        first = tokens - window
        last = 2 * context - first
    step = (first - last) // max(1, layers - 1)
    return [first - i * step for i in range(layers)]


def kvpress_schedule(mean: float, tokens: int, window: int, layers: int, beta: float) -> list[int]:
    """Rows per layer as kvpress 0.5.5 computes them, the window inside the line.

    The same number in every layer where the last one would keep less than the window: with a window
    of 64 and a beta of 20, below 1280 tokens.

    Args:
        mean: tokens per head, window included, real-valued.
        tokens: T.
        window: W.
        layers: L.
        beta: the last layer's share of the mean is 1 / beta.
    """
    line = capped_line(mean, mean / beta, layers, tokens - window)
    if not tokens >= line[0] >= line[-1] >= window:
        return [max(1, round(mean))] * layers
    return [round(n) for n in line]
