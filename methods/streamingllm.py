"""StreamingLLM: keep the first tokens (attention sinks) and the most recent ones.

Paper: Efficient Streaming Language Models with Attention Sinks (Xiao et al., 2024), section 3.2.
Official code: mit-han-lab/streaming-llm.

Differs from the paper:
- Acts once, after the prefill, unless `during_decode`; the official code evicts before each turn,
  or after each token in its perplexity script, which is what `during_decode` does.
- The official code reads a prompt token by token as well; `during_decode` evicts from the first
  generated token on, after an ordinary prefill that sees the whole prompt.
- Keys keep their original positions; `positions=cache` re-rotates them to their index in the
  cache, as the official code does.
- Rows are stored once per KV head; `store=repeat` stores a copy per query head, as KVCache-Factory
  does, and the copies count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.cache.rows import RowStore, gather_rows, store_rows
from kvbench.cache.segments import PlainRows
from kvbench.cache.store import Band, Compressed, Lane, Store, Tail
from kvbench.classifier.trained import LOCALISATION, ORACLE
from kvbench.compress.budget import Budget, whole
from kvbench.compress.method import Method, check_choice, check_range
from kvbench.model.rotary import Rotary
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState, Prefill


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Keep `sinks` initial tokens and the newest ones up to the budget."""

    sinks: int = 4  # section 3.2: four initial tokens suffice
    recent: int | None = None  # newest tokens; set: the rest of the budget are initial tokens
    recent_localization: int | None = None  # WindowKV, A.2: `recent` of tasks that localize
    positions: str = "original"  # `cache`: official code, rotate by index in the cache
    during_decode: bool = False  # official: evict after each forward; kvbench: the prompt only
    store: str = "native"  # `repeat`: a copy per query head, as KVCache-Factory

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_range("sinks", self.sinks, 0)
        if self.recent is not None:
            check_range("recent", self.recent, 1)
        if self.recent_localization is not None:
            check_range("recent_localization", self.recent_localization, 1)
        check_choice("positions", self.positions, "original", "cache")
        check_choice("store", self.store, "native", "repeat")
        if self.store == "repeat" and self.during_decode:
            raise UserError("method.store=repeat keeps what is generated: give during_decode=false")

    @property
    def needs(self) -> Needs:
        """Pre-RoPE keys where they are rotated again; the task type where that decides."""
        return Needs(
            pre_rope_keys=self.positions == "cache",
            classifiers=frozenset([] if self.recent_localization is None else [ORACLE]),
        )

    def compress(self, prefill: Prefill, budget: Budget) -> Compressed:
        """Return the same rows for every layer and head; no score is computed."""
        tokens = prefill.tokens
        layer = prefill.layers[0]
        copies = layer.query_heads // layer.kv_heads if self.store == "repeat" else 1
        kept = max(1, whole(budget.tokens_per_head(tokens, copies)))
        recent = self.recent
        if self.recent_localization and prefill.task_types.get(ORACLE) == LOCALISATION:
            recent = self.recent_localization
        newest = kept - min(self.sinks, kept - 1) if recent is None else min(recent, kept)
        rows = torch.cat([torch.arange(kept - newest), torch.arange(tokens - newest, tokens)])
        store = self._stream if self.during_decode else self._store
        layers = tuple(store(s, rows.to(s.k.device), newest) for s in prefill.layers)
        return Compressed(layers, next_position=kept if self.positions == "cache" else None)

    def _stream(self, layer: LayerState, kept: Tensor, newest: int) -> Store:
        rows = kept.expand(layer.kv_heads, -1)
        if self.positions == "original":
            (band,) = store_rows(layer, rows).materialize()
            return Stream(band, newest, None, layer.rule.sliding_window is not None)
        assert layer.k_pre is not None
        band = Band(gather_rows(layer.k_pre, rows), gather_rows(layer.v, rows), rows.int())
        return Stream(band, newest, layer.rotary, layer.rule.sliding_window is not None)

    def _store(self, layer: LayerState, kept: Tensor, newest: int) -> Store:
        rows = kept.expand(layer.query_heads if self.store == "repeat" else layer.kv_heads, -1)
        if self.positions == "original":
            return store_rows(layer, rows)
        assert layer.k_pre is not None
        assert layer.rotary is not None
        index = torch.arange(len(kept), device=kept.device).expand(len(rows), -1)
        keys = layer.rotary.rotate(gather_rows(layer.k_pre, rows), index)
        band = Band(keys, gather_rows(layer.v, rows), index.to(torch.int32))
        return RowStore((band,), layer.rule.sliding_window is not None)


@dataclass(frozen=True)
class Stream(Store):
    """Initial and newest rows of one layer; what is neither is evicted while decoding."""

    band: Band
    """[G, n, D]; keys before RoPE where `rotary` is given."""
    newest: int
    """Of the rows, those kept for being the newest."""
    rotary: Rotary | None
    """Rotates each key to its index in the cache; None: keys are rotated to their positions."""
    reads_positions: bool
    absorb_every: int = 1

    @property
    def tail_needs_pre_rope(self) -> bool:  # type: ignore[override]
        """Where keys are rotated again."""
        return self.rotary is not None

    @property
    def next_position(self) -> int | None:
        """The rows' number where they are numbered anew."""
        return None if self.rotary is None else self.band.k.shape[1]

    def tensors(self) -> Mapping[str, tuple[Tensor, ...]]:
        """The rows, and their positions where decoding reads them."""
        parts: dict[str, tuple[Tensor, ...]] = {"rows": (self.band.k, self.band.v)}
        if self.reads_positions and self.rotary is None:
            parts["positions"] = (self.band.positions,)
        return parts

    def materialize(self) -> tuple[Band, ...]:
        """The rows, rotated to their index in the cache where asked for."""
        if self.rotary is None:
            return (self.band,)
        return (Band(self.rotary.rotate(self.band.k, self._index), self.band.v, self._index),)

    def segments(self) -> tuple[Lane, ...]:
        """The rows; keys are rotated as they are read where asked for."""
        at = self.band.positions if self.rotary is None else self._index
        return ((PlainRows(self.band.k, self.band.v, at, rotary=self.rotary),),)

    @property
    def _index(self) -> Tensor:
        """[G, n] int32 index of each row in the cache."""
        heads, rows, _ = self.band.k.shape
        return torch.arange(rows, dtype=torch.int32, device=self.band.k.device).expand(heads, -1)

    @property
    def heads(self) -> int:
        """G."""
        return len(self.band.k)

    @property
    def kept_vectors(self) -> int:
        """Keys and values."""
        return 2 * self.band.k.shape[0] * self.band.k.shape[1]

    @property
    def stored_vectors(self) -> int:
        """All of them."""
        return self.kept_vectors

    def absorb(self, tail: Tail) -> Stream:
        """Add the tail's rows and keep as many as before: the same initial ones, the newest."""
        keys = tail.k if self.rotary is None else tail.k_pre
        assert keys is not None
        rows = self.band.k.shape[1]
        at = tail.positions.int().expand(self.heads, -1)
        first = rows - self.newest

        def joined(old: Tensor, new: Tensor) -> Tensor:
            everything = torch.cat([old, new], 1)
            return torch.cat(
                [everything[:, :first], everything[:, everything.shape[1] - self.newest :]], 1
            )

        return replace(
            self,
            band=Band(
                joined(self.band.k, keys),
                joined(self.band.v, tail.v),
                joined(self.band.positions, at),
            ),
        )
