"""What a run did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        return "\n".join(lines) + "\n"

    def __add__(self, other: Summary) -> Summary:
        """Both together."""
        return Summary(
            self.computed + other.computed,
            self.failed + other.failed,
            self.known + other.known,
            self.failed_before + other.failed_before,
        )
