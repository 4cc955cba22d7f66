"""What a run did, in numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


def reason_of(error: str) -> str:
    """What went wrong, without what tells one sample from another."""
    return re.sub(r" of \d+ tokens", "", error, count=1)


def commonest(reasons: Mapping[str, int]) -> str:
    """The most frequent of some reasons and how many others there are, in one line."""
    reason, count = Counter(reasons).most_common(1)[0]
    others = len(reasons) - 1
    more = f" ({others} other reason{'s' * (others > 1)} beside it)" if others else ""
    return f"{count} failed with: {reason}{more}"


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
    reasons: Mapping[str, int] = field(default_factory=dict)
    """What went wrong in the failures recorded now -> how often."""
    prefills: tuple[int, int] | None = None
    """Prefills read from the prefill cache and computed; None where none is kept."""

    def text(self, folder: Path) -> str:
        """What was done in a run folder, as a line or two."""
        lines = [
            f"{folder}: {self.computed} results recorded, {self.failed} of them failed,"
            f" {self.known} known before; kvbench report {folder}"
        ]
        if self.failed_before:
            lines.append(
                f"{self.failed_before} results failed before: --retry-failed computes them again"
            )
        if self.prefills is not None:
            read, made = self.prefills
            lines.append(f"prefill_cache: {read} prefills read from it, {made} computed")
        if self.reasons:
            lines.append(commonest(self.reasons))
        return "\n".join(lines) + "\n"

    def __add__(self, other: Summary) -> Summary:
        """Both together."""
        return Summary(
            self.computed + other.computed,
            self.failed + other.failed,
            self.known + other.known,
            self.failed_before + other.failed_before,
            dict(Counter(self.reasons) + Counter(other.reasons)),
            _sum(self.prefills, other.prefills),
        )


def _sum(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """Both counts together; None where neither was taken."""
    counted = [pair for pair in (one, other) if pair is not None]
    return (sum(p[0] for p in counted), sum(p[1] for p in counted)) if counted else None
