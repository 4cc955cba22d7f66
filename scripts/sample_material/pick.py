"""A seeded source of choices that gives the same stream on every Python version.

`random.Random.random()` is the one generator call whose output Python guarantees across
versions; `choice` and `shuffle` are built on it here rather than taken from the library.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Picker:
    """Chooses from lists; equal seeds give equal choices."""

    def __init__(self, seed: str) -> None:
        """Start the stream named `seed`."""
        self._random = random.Random(seed)

    def below(self, stop: int) -> int:
        """Return an integer in [0, stop)."""
        return int(self._random.random() * stop)

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high], both included."""
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in a new order (Fisher-Yates)."""
        rest = list(items)
        for last in range(len(rest) - 1, 0, -1):
            other = self.below(last + 1)
            rest[last], rest[other] = rest[other], rest[last]
        return rest

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in random order."""
        if count > len(items):
            raise ValueError(f"asked for {count} of {len(items)} items")
        return self.shuffled(items)[:count]

    def in_order(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in their original order."""
        chosen = sorted(self.some(range(len(items)), count))
        return [items[index] for index in chosen]


class Deck:
    """Draws from several named lists without repeats until a list is used up."""

    def __init__(self, picker: Picker, lists: Mapping[str, Sequence[str]]) -> None:
        """Shuffle every list once."""
        self._picker = picker
        self._lists = lists
        self._left: dict[str, list[str]] = {name: [] for name in lists}

    def draw(self, name: str) -> str:
        """Return the next item of list `name`; an exhausted list is shuffled again."""
        if not self._left[name]:
            self._left[name] = self._picker.shuffled(self._lists[name])
        return self._left[name].pop()

    def fill(self, text: str) -> str:
        """Replace `{list}` by a fresh draw and `{list:a}` by a draw remembered under `list:a`.

        Remembered names hold within one call only.
        """
        known: dict[str, str] = {}

        def put(match: re.Match[str]) -> str:
            key = match.group(1)
            if ":" not in key:
                return self.draw(key)
            if key not in known:
                known[key] = self.draw(key.split(":")[0])
            return known[key]

        return re.sub(r"\{([a-z_]+(?::[a-z0-9]+)?)\}", put, text)
