"""What a method may ask of a prefill beyond keys and values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reconstruction:
    """How the context is repeated; methods with equal settings share the passes."""

    chunk_tokens: int
    """Context tokens repeated in one pass."""
    first_prompt: str
    """Asks for the first chunk."""
    later_prompt: str
    """Asks for a later one; the last tokens of the chunk before follow."""
    overlap_tokens: int
    """How many of them."""
    sinks: int | None
    """First tokens of the prompt that share the softmax with a chunk; None: the template prefix."""

    def visible_before(self, start: int, prefix_tokens: int) -> int:
        """Leading tokens that share the softmax with a chunk that begins at `start`."""
        return prefix_tokens if self.sinks is None else min(self.sinks, start)


@dataclass(frozen=True)
class Needs:
    """What a method reads from the prefill beyond k and v; a prefill captures the union."""

    window: int = 0
    """Queries captured: the last `window` ones."""
    pre_rope_keys: bool = False
    """Whether `k_pre` and `rotary` are read."""
    column_sums: bool = False
    """Whether `column_sums` is read."""
    last_block_sums: frozenset[int] = frozenset()
    """Sizes of last blocks for which `last_block_sums` are read."""
    query_statistics: frozenset[int] = frozenset()
    """Numbers of first tokens to leave out, for which `query_statistics` are read, and `rotary`."""
    classifiers: frozenset[str] = frozenset()
    """Task classifiers whose answers `task_types` must hold: `oracle`, or folders."""
    template_prefix: bool = False
    """Whether `template_tokens` is read."""
    reconstructions: frozenset[Reconstruction] = frozenset()
    """Reconstruction passes whose scores `reconstructions` must hold."""

    def __or__(self, other: Needs) -> Needs:
        """The needs of both."""
        return Needs(
            max(self.window, other.window),
            self.pre_rope_keys or other.pre_rope_keys,
            self.column_sums or other.column_sums,
            self.last_block_sums | other.last_block_sums,
            self.query_statistics | other.query_statistics,
            self.classifiers | other.classifiers,
            self.template_prefix or other.template_prefix,
            self.reconstructions | other.reconstructions,
        )
