"""KVzip: keep the KV pairs that the model reads when it repeats its own context.

Paper: KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction (Kim et al., 2025),
section 3. Official code read: snu-mllab/KVzip 4c2ed0f and 04d315b.

With `level=pair` one budget is shared by all pairs of the model: layers and heads keep very
different shares of the prompt, and much of its lead over methods with equal shares is that
(`level=uniform` gives every head as much). Scoring costs up to twice the prefill, on top of it.

Differs from the paper:
- The prefix that is always kept is the chat template's, beginning of sequence included; a task's
  own instruction is context. The kept prefix counts as part of the budget.
- With `query_aware=true` the question is part of the context: repeated, and evicted like the rest.
  The paper's setting is `query_aware=false`.
- Exactly the budget's number of pairs is kept, ties to the lower position; the released threshold
  keeps at least one pair fewer. Softmax in float32, not in the model's dtype.
- `level=head` takes a head's score from the prompt at hand, the maximum over its tokens, unless
  `head_scores` gives one per layer and KV head; the paper takes it from one calibration sample. The
  head on the border of the budget keeps its first tokens.
- In layers with a sliding window a token that the repeated context cannot see scores 0.
- What is fed stands behind the prompt. Where it would pass the model's context, chunks are shorter,
  64 tokens at least; the facts then say `chunk_tokens`, and `past_context`, by how much, where even
  those pass it. The released code passes it unsaid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import store_ragged_rows, store_rows
from kvbench.cache.store import Compressed, Store
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.prefill.needs import Needs, Reconstruction
from kvbench.prefill.state import LayerState, Prefill

_FIRST_PROMPT = "\n\nRepeat the previous context exactly."
_LATER_PROMPT = "\n\nRepeat the part of the previous context exactly, starting with "


@dataclass(frozen=True)
class KVzip(Method):
    """Keep the template and the pairs with the highest reconstruction scores."""

    level: str = "pair"  # section 3.3, who competes: all pairs; `layer`, `uniform`, `head`
    chunk_tokens: int = 2000  # section 3.2: m = 2K
    overlap_tokens: int = 8  # section 3.2: the last 8 tokens of the chunk before
    first_prompt: str = _FIRST_PROMPT  # released code
    later_prompt: str = _LATER_PROMPT  # released code
    sinks: int | None = None  # leading tokens always kept; null: the whole template prefix
    head_scores: Sequence[Sequence[float]] | None = None  # with level=head: [layer][KV head]

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_choice("level", self.level, "pair", "uniform", "layer", "head")
        check_range("chunk_tokens", self.chunk_tokens, 1)
        check_range("overlap_tokens", self.overlap_tokens, 0)
        if self.sinks is not None:
            check_range("sinks", self.sinks, 0)
        if self.head_scores is not None:
            check_choice("level", self.level, "head")
            object.__setattr__(self, "head_scores", tuple(tuple(x) for x in self.head_scores))

    @property
    def reconstruction(self) -> Reconstruction:
        """The passes whose scores are read."""
        return Reconstruction(
            self.chunk_tokens, self.first_prompt, self.later_prompt, self.overlap_tokens, self.sinks
        )

    @property
    def needs(self) -> Needs:
        """The template's length, and the passes unless scores are given."""
        passes = () if self.head_scores is not None else (self.reconstruction,)
        return Needs(template_prefix=True, reconstructions=frozenset(passes))

    @property
    def keeps_newest(self) -> bool:
        """Nothing is kept for being recent."""
        return False

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the protected tokens of each head and the best pairs; heads may be empty."""
        tokens = prefill.tokens
        mean_tokens = budget.tokens_per_head(tokens)
        protected = prefill.template_tokens if self.sinks is None else min(self.sinks, tokens)
        protected = min(protected, whole(mean_tokens))
        scores = self.scores(prefill)
        scores[:, :, :protected] = torch.inf
        kept = best_pairs(scores, mean_tokens, self.level)
        facts = {"protected_tokens": protected, **self._repetition(prefill)}
        return Compressed(_stored(prefill.layers, kept), facts)

    def _repetition(self, prefill: Prefill) -> dict[str, int]:
        """Facts of passes that could not be as they were asked for."""
        how = prefill.repetitions.get(self.reconstruction)
        if self.head_scores is not None or how is None:
            return {}
        facts = {}
        if how.chunk_tokens < self.chunk_tokens:
            facts["chunk_tokens"] = how.chunk_tokens
        if how.past_context:
            facts["past_context"] = how.past_context
        return facts

    def scores(self, prefill: Prefill) -> Tensor:
        """What each pair is ranked by: [L, G, T] float32, on the first layer's device."""
        tokens = prefill.tokens
        device = prefill.layers[0].k.device
        if self.head_scores is None:
            key = self.reconstruction
            found = torch.stack([s.reconstructions[key].to(device) for s in prefill.layers])
            if self.level == "head":
                return found.amax(-1, keepdim=True).repeat(1, 1, tokens)
            return found
        given = [len(x) for x in self.head_scores]
        if given != [s.kv_heads for s in prefill.layers]:
            raise UserError(
                f"method.head_scores has {given} scores: give one per KV head of each of the"
                f" {len(prefill.layers)} layers, {prefill.layers[0].kv_heads} each"
            )
        given_scores = torch.tensor(self.head_scores, dtype=torch.float32, device=device)
        return given_scores[:, :, None].repeat(1, 1, tokens)


def best_pairs(scores: Tensor, mean_tokens: float, level: str) -> Tensor:
    """The highest scores, floor(mean_tokens * heads) of the heads that compete with each other.

    Args:
        scores: [L, G, T]; equal ones go to the lower position, then the earlier layer and head.
        mean_tokens: pairs kept per head on average, real-valued, in (0, T].
        level: `pair` and `head`: all compete; `layer`: those of one layer; `uniform`: of one head.

    Returns:
        [L, G, T] bool.
    """
    layers, heads, tokens = scores.shape
    rivals = {"pair": layers * heads, "head": layers * heads, "layer": heads, "uniform": 1}[level]
    by_position = scores.reshape(-1, rivals, tokens).transpose(1, 2).flatten(1)  # [., T * rivals]
    count = whole(mean_tokens * rivals)
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = by_position.topk(count, sorted=False).values.amin(1, keepdim=True)
    above, equal = by_position > threshold, by_position == threshold
    room = count - above.sum(1, keepdim=True)
    kept = above | (equal & (equal.cumsum(1) <= room))
    return kept.view(-1, tokens, rivals).transpose(1, 2).reshape(layers, heads, tokens)


def _stored(layers: Sequence[LayerState], kept: Tensor) -> tuple[Store, ...]:
    """The kept rows of each layer: [L, G, T] bool, whose device is waited for once."""
    counts: list[list[int]] = kept.sum(-1).tolist()
    stores: list[Store] = []
    for layer, mask, lengths in zip(layers, kept, counts, strict=True):
        here = mask.to(layer.k.device, torch.uint8)
        places = here.sort(dim=-1, descending=True, stable=True).indices  # the kept ones, ascending
        if len(set(lengths)) == 1:
            stores.append(store_rows(layer, places[:, : lengths[0]]))
        else:
            rows = [of_head[:n] for of_head, n in zip(places, lengths, strict=True)]
            stores.append(store_ragged_rows(layer, rows))
    return tuple(stores)
