"""WindowKV: keep whole windows of consecutive tokens, chosen once per group of layers.

Paper: WindowKV: Task-Adaptive Group-Wise KV Cache Window Selection for Efficient LLM Inference
(Zuo et al., 2025), sections 2.2.1 to 2.2.3. Released code: optim996/WindowKV 002a559.

Differs from the paper:
- p of Eq. 4 has no printed value for aggregation: half the review window, as released.
- Windows are scored per query head and the heads' mean decides, as released; the paper shows one
  head. One set of rows serves all heads, stored once per KV head.
- The line of budgets (Eq. 6 and 7) divides the review context; the observation window counts
  inside the budget. With `suffix=outside` it comes on top, as released.
- The line is real-valued and rounded so that the mean is the budget; of the last window kept, only
  the first rows stay where the whole one would not fit. Where the first group would pass the
  context it is capped and the last one raised. `budget_rule=released` repeats the integer steps,
  a last group that grows with gamma, and whole windows dropped until the group's budget holds.
- The released demo gives questions the aggregation score and all else the localization score,
  against the text: `strategy=released`.
- Where released rules would miss a fraction, the nominal budget is solved for. A budget smaller
  than the observation window keeps the newest tokens only.
- gamma is 7 or 8 in the paper; other models get the divisor of their layers nearest 8.
- The paper's classifier is not published: the oracle knows the task, `kvbench train-classifier`
  trains another. A prompt whose task nobody tells aggregates, and so does the oracle's needle,
  which by the paper's definition localizes: `task_type` states one whatever the classifier says.
- The released code (002a559) rates every later prompt by the first one's task type, which it keeps
  in its layers; b25998c before it, and kvbench, choose for each prompt.
- `shared=false` lets each layer choose its own rows at its group's budget, as Figure 2 does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_rows
from kvbench.cache.store import Compressed
from kvbench.classifier.trained import AGGREGATION, LOCALISATION, ORACLE, check_classifier
from kvbench.compress.budget import Budget, capped_line, rounded_to_sum, whole, window_and_context
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.compress.scores import window_attention
from kvbench.prefill.needs import Needs
from kvbench.prefill.selection import with_window
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class WindowKV(Method):
    """Keep the observation window and the review windows it attends to most."""

    omega_localization: int = 8  # appendix A.3, LLaMA3-8B: tokens of a review window
    alpha_localization: int = 16  # appendix A.3, LLaMA3-8B: tokens of the observation window
    omega_aggregation: int = 16  # appendix A.3, LLaMA3-8B
    alpha_aggregation: int = 32  # appendix A.3, LLaMA3-8B
    gamma: int | None = None  # layers of a group; appendix A.3: 8 for LLaMA3-8B, 7 for Qwen2.5-1.5B
    beta: float = 14.0  # appendix A.3, lambda there: the last group gets 1 / beta of the mean
    shared: bool = True  # section 2.2.2: a group's layers keep its first one's rows; Fig. 2: false
    classifier: str = ORACLE  # who tells the task type; or the folder of a trained classifier
    task_type: str | None = None  # `localization` or `aggregation` for every prompt; null: as told
    strategy: str = "paper"  # `released`: the two scores change places
    budget_rule: str = "paper"  # Eq. 6 and 7; `released`: integer steps, whole windows
    suffix: str = "inside"  # kvbench: a budget counts the window; `outside`: on top, as released

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        for size in ("omega", "alpha"):
            for task_type in (LOCALISATION, AGGREGATION):
                name = f"{size}_{task_type}"
                check_range(name, getattr(self, name), 1)
        if self.gamma is not None:
            check_range("gamma", self.gamma, 1)
        check_range("beta", self.beta, 1)
        check_classifier("classifier", self.classifier)
        if self.task_type is not None:
            check_choice("task_type", self.task_type, LOCALISATION, AGGREGATION)
        check_choice("strategy", self.strategy, "paper", "released")
        check_choice("budget_rule", self.budget_rule, "paper", "released")
        check_choice("suffix", self.suffix, "inside", "outside")

    @property
    def needs(self) -> Needs:
        """The observation window's queries, and the task type."""
        return Needs(
            window=max(self.alpha_localization, self.alpha_aggregation),
            classifiers=frozenset([self.classifier] if self.task_type is None else []),
        )

    @property
    def bytes_follow_data(self) -> bool:
        """What the released rules keep at a budget depends on the prompt's length."""
        return self.budget_rule == "released" or self.suffix == "outside"

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the same rows for all layers of a group, by its first layer's scores.

        Unless `shared` is false: each layer's own are then as many.
        """
        layers, tokens = prefill.layers, prefill.tokens
        task_type = self.task_type or prefill.task_types.get(self.classifier, AGGREGATION)
        localize = (task_type == LOCALISATION) == (self.strategy == "paper")
        omega = self.omega_localization if localize else self.omega_aggregation
        alpha = self.alpha_localization if localize else self.alpha_aggregation
        best = omega if localize else max(1, omega // 2)
        gamma = nearest_divisor(len(layers), 8) if self.gamma is None else self.gamma
        if len(layers) % gamma:
            raise UserError(
                f"method.gamma={gamma} does not divide the model's {len(layers)} layers: give a "
                "divisor, or null"
            )

        mean = budget.tokens_per_head(tokens)
        window, context = window_and_context(mean, alpha, tokens)
        if self.suffix == "outside":
            context = mean
        whole_windows = self.budget_rule == "released"
        stores = []
        for group, count in enumerate(
            self.group_budgets(context, tokens - window, len(layers), gamma)
        ):
            members = layers[group * gamma : (group + 1) * gamma]
            for place, layer in enumerate(members):
                if place == 0 or not self.shared:
                    scores = review_window_scores(layer, window, omega, best)
                    chosen = rows_of_windows(scores, omega, tokens - window, count, whole_windows)
                    rows = with_window(chosen[None], tokens, window)
                stores.append(store_rows(layer, rows.to(layer.k.device).expand(layer.kv_heads, -1)))
        return Compressed(tuple(stores), {"task_type": task_type})

    def group_budgets(self, context: float, most: int, layers: int, gamma: int) -> list[int]:
        """Review context rows of each layer, by group: a line that falls with depth.

        Args:
            context: mean over layers, real-valued.
            most: rows of the review context.
            layers: m.
            gamma: layers of a group; divides m.
        """
        groups = layers // gamma
        if self.budget_rule == "released":
            return released_budgets(whole(context), groups, gamma, self.beta)
        context = min(context, most)
        return rounded_to_sum(capped_line(context, context / self.beta, groups, most), most)


def released_budgets(context: int, groups: int, gamma: int, beta: float) -> list[int]:
    """Review context rows of each layer, by group, as the released code computes them.

    The last group's grow with gamma; the others' fall in whole steps from twice the mean less it.
    """
    if groups == 1:
        return [context]  # the released step would divide by zero
    last = int(context * gamma // beta)
    first = max(0, 2 * context - last)
    step = (first - last) // (groups - 1)
    return [first - group * step for group in range(groups - 1)] + [last]


def review_window_scores(layer: LayerState, window: int, omega: int, best: int) -> Tensor:
    """Score each review window by its `best` highest token scores (Eq. 2 to 4).

    Args:
        layer: the state of a group's first layer.
        window: alpha, tokens of the observation window.
        omega: tokens of a review window; the last one may be shorter.
        best: p, tokens that count; all of them for p = omega.

    Returns:
        [ceil((T - alpha) / omega)] float32: the mean, over query heads too.
    """
    attention = window_attention(layer, window)[:, :, : layer.tokens - window]
    scores = attention.mean(1)
    padded = F.pad(scores, (0, -scores.shape[1] % omega), value=float("-inf"))
    windows = padded.reshape(len(scores), padded.shape[1] // omega, omega)  # [Q, n, omega]
    top = windows.topk(min(best, omega), dim=-1).values
    there = top.isfinite()
    return (top.masked_fill(~there, 0).sum(-1) / there.sum(-1)).mean(0)


def rows_of_windows(
    scores: Tensor, omega: int, context: int, count: int, whole_windows: bool
) -> Tensor:
    """Rows of the best windows: ascending int64.

    Args:
        scores: [n] of the windows; equal ones go to the earlier window.
        omega: tokens of a window; the last one may be shorter.
        context: tokens of all windows.
        count: rows wanted.
        whole_windows: drop whole windows, the worst first, until at least `context - count` of
            their nominal tokens are gone (released); else keep `count` rows, the first ones of
            the last window.
    """
    order = scores.sort(descending=True, stable=True).indices
    if whole_windows:
        dropped = -(-max(0, context - count) // omega)
        order = order[: max(0, len(order) - dropped)]
    rows = (order[:, None] * omega + torch.arange(omega, device=order.device)).flatten()
    rows = rows[rows < context]
    return (rows if whole_windows else rows[:count]).sort().values


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a whole number nearest the one wanted; of two as near, the smaller."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    return min(divisors, key=lambda d: (abs(d - wanted), d))
