"""One live display of a run; without a terminal, one plain line a minute."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

_PLAIN_EVERY_S = 60.0


class _Doing(TextColumn):
    """What is running: the one column that gives way where the terminal is narrow."""

    def render(self, task: Task) -> Text:
        """Its text, cut to the column."""
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class Progress:
    """Results done and to do, what is running, time left, failures so far; written to stderr."""

    def __init__(
        self, model: str, total: int, console: Console | None = None, shown: bool = True
    ) -> None:
        """Prepare to show `total` results of `model`; nothing is written unless `shown`."""
        self._console = console or Console(file=sys.stderr, highlight=False, quiet=not shown)
        self._model = model
        self._total = total
        self._done = 0
        self._failed = 0
        self._sample = ""
        self._phase = ""
        self._tokens = 0
        self._decode_s = 0.0
        self._started = self._phase_began = self._last_line = time.monotonic()
        self._bar: RichProgress | None = None
        if shown and self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("[bold]{task.fields[model]}[/]"),
                _Doing("{task.description}", table_column=Column(min_width=8)),
                BarColumn(bar_width=None, table_column=Column(max_width=20, min_width=4)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[left]} left"),
                TextColumn("[red]{task.fields[failed]}[/]"),
                console=self._console,
                transient=True,
            )
            self._row = self._bar.add_task("", total=total, model=model, failed="", left="?")

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

    def note(self, text: str) -> None:
        """Write a line beside the display."""
        self._console.print(text, markup=False, soft_wrap=True)

    def sample(self, name: str) -> None:
        """Show which sample is at hand: `narrativeqa 1a2b3c`."""
        self._sample = name

    def phase(self, name: str) -> None:
        """Show what is running: `prefill`, `compress spindlekv@0.2`, `decode`, ..."""
        self._phase = name
        self._phase_began = time.monotonic()
        self._show()

    def generated(self, tokens: int) -> None:
        """Count the tokens that the phase has generated, over all rows, and show how many a second.

        The rate is that of the whole run: single steps follow one another too fast to be read.
        """
        self._tokens += tokens
        self._decode_s += time.monotonic() - self._phase_began
        self._phase_began = time.monotonic()
        self._show()

    def advance(self, done: int, failed: int) -> None:
        """Count finished results, of which some failed."""
        self._done += done
        self._failed += failed
        if self._bar is not None:
            text = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._row, advance=done, failed=text)

    def _show(self) -> None:
        now = time.monotonic()
        if self._bar is not None:
            doing = f"{self._sample} {self._doing()}"
            self._bar.update(self._row, description=doing, left=self._left(now))
        elif now - self._last_line >= _PLAIN_EVERY_S:
            self._last_line = now
            self._print_line(now)

    def _doing(self) -> str:
        if not self._tokens:
            return self._phase
        return f"{self._phase}, {self._tokens / max(self._decode_s, 1e-9):.0f} tokens/s decoded"

    def _left(self, now: float) -> str:
        """Time left at the mean pace of the whole run: results come in bursts of one sample's."""
        if not self._done:
            return "?"
        return _clock((now - self._started) / self._done * (self._total - self._done))

    def _print_line(self, now: float) -> None:
        self._console.print(
            f"{self._model} {self._sample} {self._doing()}: {self._done} of {self._total}"
            f" results, {_clock(now - self._started)} gone, {self._left(now)} left,"
            f" {self._failed} failed",
            soft_wrap=True,
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
