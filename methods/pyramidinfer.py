"""PyramidInfer: drop context tokens between layers while the prompt is read, deeper layers more.

Paper: PyramidInfer: Pyramid KV Cache Compression for High-throughput LLM Inference (Yang et al.,
2024), section 4. Official code read: mutonix/pyramidinfer, legacy model and configurations.

Differs from the paper:
- A budget is met: the cosine schedule's decay is solved for it. The released decays are budgets on
  8000 tokens: 0.766 for 7B (0.9, 32 layers), 0.724 for 13B (0.8, 40 layers, every second one) and
  0.782 for 70B (0.9, 80 layers, every third one). `decay` sets one whatever the budget; the fact
  `over_budget` says where that keeps more. Below the schedule's floor, about 0.47, the decay is
  the same in every layer, as the released `linear` in effect is, and the recent share shrinks with
  the budget; on short prompts and small budgets `min_context` gives way. The facts say which.
- The first layer is fed every token, so no budget below 1 / layers can be met; the facts then say
  `floor`.
- A layer that would fall below `min_context` is fed exactly that many; the released code lets it
  keep all it had.
- `during_decode`: a generated token's score is the mean attention it received from the tokens
  after it and from itself; the released code takes the newest 1 + r of them, weighted. What is fed
  after compression counts as generated. The prompt's rows are never touched, as the README intends;
  the released port compares lengths of different layers and evicts them.
- Counts are rounded down with 0.6 * 1000 = 600. Released slips are not repeated: weights that
  change the stored attention, lengths taken from another layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvbench.cache.rows import RowStore, store_whole
from kvbench.cache.store import Band, Compressed, Lane, Store, Tail
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.selection import top_rows
from kvbench.prefill.state import Prefill


@dataclass(frozen=True)
class Schedule:
    """How one prompt is pruned."""

    strategy: str
    """`cosine`: the share kept falls from 1 to `decay` over the layers; `constant`: `decay`."""
    recent_ratio: float
    """Share of the prompt whose newest tokens are never dropped."""
    decay: float
    """Context kept from layer to layer, where the strategy's curve ends."""
    min_context: int
    """Context tokens that no layer falls below."""

    def context(self, tokens: int, layers: int, interval: int = 1) -> tuple[int, ...]:
        """Context tokens each layer is fed, the protected tail not counted."""
        fed = [tokens - self.tail(tokens)]
        least = min(self.min_context, fed[0])
        for layer in range(layers - 1):
            share = self.share(layer, layers) if layer % interval == 0 else 1.0
            fed.append(max(least, whole(fed[-1] * share)))
        return tuple(fed)

    def tail(self, tokens: int) -> int:
        """Newest tokens that are never dropped: the last one and the recent share."""
        return min(tokens, 1 + whole(tokens * self.recent_ratio))

    def share(self, layer: int, layers: int) -> float:
        """Share of its context tokens that a layer passes on."""
        if self.strategy == "constant":
            return self.decay
        return (1 - self.decay) * (math.cos(math.pi * layer / layers) + 1) / 2 + self.decay

    def kept_ratio(self, tokens: int, layers: int, interval: int = 1) -> float:
        """Mean over layers of tokens fed / prompt tokens."""
        fed = self.context(tokens, layers, interval)
        return (sum(fed) / layers + self.tail(tokens)) / tokens


@dataclass(frozen=True)
class PyramidInfer(Method):
    """Feed each layer the newest tokens and those of the context that they attend to most."""

    recent_ratio: float = 0.2  # released configurations; smaller below the cosine floor
    strategy: str = "auto"  # `cosine` (released configurations) or `constant`; auto: what fits
    min_context: int = 64  # released configurations: min_context_length
    decay: float | None = None  # released: 0.9, 13B 0.8; null: solved for the budget
    interval: int = 1  # released 7B and 8B: layerwise_downsample_interval
    sinks: int = 4  # released configurations: streamingllm_sink_len
    distance_weight: float = 1.2  # released configurations; weight of the newest query
    during_decode: bool = False  # also drop generated tokens, block by block
    decode_block: int = 16  # released configurations: exceed_length_to_compress
    decode_kept_ratio: float = 0.9  # released configurations: gen_compress_ratio, of a block
    decode_decay: float = 0.1  # released configurations: gen_decay_ratio, of it in the last layer

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_range("recent_ratio", self.recent_ratio, 0, 1)
        check_choice("strategy", self.strategy, "auto", "cosine", "constant")
        check_range("min_context", self.min_context, 0)
        if self.decay is not None:
            check_range("decay", self.decay, 0, 1)
        check_range("interval", self.interval, 1)
        check_range("sinks", self.sinks, 0)
        check_range("distance_weight", self.distance_weight, 0)
        check_range("decode_block", self.decode_block, 1)
        check_range("decode_kept_ratio", self.decode_kept_ratio, 0, 1)
        check_range("decode_decay", self.decode_decay, 0, 1)

    @property
    def acts_after_prefill(self) -> bool:
        """It prunes during the prefill, so its first token is its own."""
        return False

    def pruning_schedule(self, tokens: int, layers: int, budget: Budget) -> PruningSchedule | None:
        """The pruning that meets the budget."""
        if budget.keeps_whole(tokens):
            return None
        schedule = self.schedule(tokens, layers, budget)
        context = schedule.context(tokens, layers, self.interval)
        return PruningSchedule(context, schedule.tail(tokens), self.sinks, self.distance_weight)

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return what the pruning prefill left; nothing more is dropped."""
        tokens, layers = prefill.tokens, len(prefill.layers)
        pruning = self.pruning_schedule(tokens, layers, budget)
        fed = tuple(layer.tokens for layer in prefill.layers)
        if pruning is not None and fed != tuple(n + pruning.tail for n in pruning.context):
            raise ValueError("PyramidInfer needs the prefill of its own pruning")
        schedule = self.schedule(tokens, layers, budget)
        stores: list[Store] = [store_whole(layer) for layer in prefill.layers]
        if self.during_decode:
            stores = [
                BlockwiseStore(
                    rows,
                    torch.empty(0, device=layer.k.device),
                    kept,
                    self.decode_block,
                    schedule.tail(tokens),
                    self.decode_block + schedule.tail(tokens),
                )
                for layer, rows, kept in zip(
                    prefill.layers, stores, self.block_kept(layers), strict=True
                )
            ]
        over = sum(fed) / layers > budget.tokens_per_head(tokens)
        return Compressed(
            tuple(stores),
            {
                "strategy": schedule.strategy,
                "recent_ratio": schedule.recent_ratio,
                "decay": schedule.decay,
                "min_context": schedule.min_context,
                # Solved for, only the least that can be kept exceeds a budget.
                "floor" if self.decay is None else "over_budget": over,
            },
        )

    def block_kept(self, layers: int) -> list[int]:
        """Generated tokens that each layer keeps of a block."""
        curve = Schedule("cosine", 0.0, self.decode_decay, 0)
        most = self.decode_block * self.decode_kept_ratio
        return [max(1, whole(most * curve.share(i, layers))) for i in range(layers)]

    def schedule(self, tokens: int, layers: int, budget: Budget) -> Schedule:
        """The first schedule that can meet the budget, its decay the largest that does.

        Where none can, the one that keeps least. A decay that was given is taken as it is.
        """
        if self.decay is not None:
            strategy = "constant" if self.strategy == "constant" else "cosine"
            return Schedule(strategy, self.recent_ratio, self.decay, self.min_context)
        wanted = budget.tokens_per_head(tokens) / tokens
        for floor in self._floors(tokens, layers, wanted):
            if floor.kept_ratio(tokens, layers, self.interval) <= wanted:
                return _solved(floor, tokens, layers, self.interval, wanted)
        return floor

    def _floors(self, tokens: int, layers: int, wanted: float) -> Iterator[Schedule]:
        """Schedules to try, the published one first, each at decay 0, where it keeps least."""
        cosine = Schedule("cosine", self.recent_ratio, 0.0, self.min_context)
        recent_ratio = self.recent_ratio
        if self.strategy != "constant":
            yield cosine
            yield Schedule("cosine", self.recent_ratio, 0.0, 0)
        if self.strategy == "auto":
            recent_ratio *= min(1.0, wanted / cosine.kept_ratio(tokens, layers, self.interval))
        if self.strategy != "cosine":
            yield Schedule("constant", recent_ratio, 0.0, self.min_context)
            yield Schedule("constant", recent_ratio, 0.0, 0)
            yield Schedule("constant", 0.0, 0.0, 0)


def _solved(floor: Schedule, tokens: int, layers: int, interval: int, wanted: float) -> Schedule:
    """The schedule with the largest decay in 0 .. 1 whose mean kept ratio is at most `wanted`."""

    def at(decay: float) -> Schedule:
        return Schedule(floor.strategy, floor.recent_ratio, decay, floor.min_context)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if at(middle).kept_ratio(tokens, layers, interval) <= wanted:
            low = middle
        else:
            high = middle
    return at(low)


@dataclass(frozen=True)
class BlockwiseStore(Store):
    """The prompt's rows and the generated ones, of which whole blocks are thinned out."""

    rows: Store
    """[G, n, D] in one band: the prompt's, the generated ones kept, those not yet decided on."""
    received: Tensor
    """[w] float32 attention that each of the last w rows, not yet decided on, has received."""
    kept: int
    """Rows kept of a block."""
    block: int
    recent: int
    """Newest generated tokens that no block reaches into."""
    absorb_every: int
    tail_needs_attention: bool = True

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """The rows and their scores."""
        return {**self.rows.tensors(), "scores": (self.received,)}

    def materialize(self) -> tuple[Band, ...]:
        """The rows of all heads in one band."""
        return self.rows.materialize()

    def segments(self) -> tuple[Lane, ...]:
        """As the rows' own store."""
        return self.rows.segments()

    @property
    def heads(self) -> int:
        """G."""
        return self.rows.heads

    @property
    def kept_vectors(self) -> int:
        """As the rows' own store."""
        return self.rows.kept_vectors

    @property
    def stored_vectors(self) -> int:
        """As the rows' own store."""
        return self.rows.stored_vectors

    def absorb(self, tail: Tail) -> BlockwiseStore:
        """Add the tail's rows and its queries' attention, then thin out full blocks."""
        assert tail.attention is not None
        (band,) = self.materialize()
        (attention,) = tail.attention  # [G, g, n + t]
        heads = len(band.k)
        band = Band(
            torch.cat([band.k, tail.k], 1),
            torch.cat([band.v, tail.v], 1),
            torch.cat([band.positions, tail.positions.int().expand(heads, -1)], 1),
        )
        waiting = len(self.received) + len(tail.positions)
        received = attention.mean((0, 1))[-waiting:]
        received[: len(self.received)] += self.received
        while waiting >= self.block + self.recent:
            before = band.k.shape[1] - waiting
            newest = band.positions[0, -1]
            seen_by = newest - band.positions[0, before : before + self.block] + 1
            best = top_rows((received[: self.block] / seen_by)[None], self.kept)[0]
            at = torch.cat(
                [
                    torch.arange(before, device=best.device),
                    before + best,
                    torch.arange(before + self.block, band.k.shape[1], device=best.device),
                ]
            )
            band = Band(band.k[:, at], band.v[:, at], band.positions[:, at])
            received, waiting = received[self.block :], waiting - self.block
        reads_positions = "positions" in self.rows.tensors()
        return replace(
            self,
            rows=RowStore((band,), reads_positions),
            received=received.clone(),
            absorb_every=self.block + self.recent - waiting,
        )
