"""What a run did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Results of a run, counted."""

    computed: int
    """Results recorded now, failures included."""
    failed: int
    """Of these, the failures."""
    known: int
    """Results that were recorded before, failures included."""
    failed_before: int = 0
    """Of these, the failures, which are computed again only if asked for."""

    def __add__(self, other: Summary) -> Summary:
        """Both together."""
        return Summary(
            self.computed + other.computed,
            self.failed + other.failed,
            self.known + other.known,
            self.failed_before + other.failed_before,
        )
