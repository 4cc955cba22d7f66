"""Ctrl-C that lets the samples at hand be finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interruption:
    """Inside its block the first Ctrl-C is noted and said, the second stops at once.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        """Ready to enter; `notice` is told of the first Ctrl-C, for whoever pressed it."""
        self._notice = notice
        self._asked = False
        self._before: object = None

    @property
    def asked(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked

    def stop_if_asked(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed: called where stopping loses nothing."""
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> Interruption:
        """Take the signal over."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signal back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._notice("kvbench: finishing the samples at hand; Ctrl-C again stops at once")
