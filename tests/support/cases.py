"""Cases of a sweep: a few of each kind run every time, the repetitions with `make test-slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case of `parametrize` for `make test-slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_unless(quick: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which those that are not quick are for `make test-slow`."""
    return [case if quick(case) else slow(case) for case in cases]
