"""One live display of a run; without a terminal, one plain line a minute."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

_PLAIN_EVERY_S = 60.0


class Progress:
    """Results done and to do, what is running, time left, failures so far; written to stderr."""

    def __init__(self, model: str, total: int, console: Console | None = None) -> None:
        """Prepare to show `total` results of `model`."""
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._model = model
        self._total = total
        self._done = 0
        self._failed = 0
        self._sample = ""
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: RichProgress | None = None
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("[bold]{task.fields[model]}[/]"),
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("[red]{task.fields[failed]}[/]"),
                console=self._console,
                transient=True,
                # The time left then settles on the mean of the whole run, not of a few samples.
                speed_estimate_period=3600,
            )
            self._row = self._bar.add_task("", total=total, model=model, failed="")

    def __enter__(self) -> Progress:
        """Start the display."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the display away."""
        if self._bar is not None:
            self._bar.stop()

    def phase(self, name: str, sample: str | None = None) -> None:
        """Show what is running: `prefill`, `compress spindlekv@0.2`, `decode 17 tokens`, ..."""
        self._sample = sample or self._sample
        if self._bar is not None:
            self._bar.update(self._row, description=f"{self._sample} {name}")
        elif time.monotonic() - self._last_line >= _PLAIN_EVERY_S:
            self._last_line = time.monotonic()
            self._print_line()

    def advance(self, done: int, failed: int) -> None:
        """Count finished results, of which some failed."""
        self._done += done
        self._failed += failed
        if self._bar is not None:
            text = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._row, advance=done, failed=text)

    def _print_line(self) -> None:
        elapsed = time.monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done) if self._done else None
        self._console.print(
            f"{self._model} {self._sample}: {self._done} of {self._total} results,"
            f" {_clock(elapsed)} gone, {'?' if left is None else _clock(left)} left,"
            f" {self._failed} failed"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
