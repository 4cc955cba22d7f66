"""Plain words that synthetic tasks make their keys of; all different, no one of them a number."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_LISTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_bytes())

ADJECTIVES = tuple(_LISTS["adjectives"])
NOUNS = tuple(_LISTS["nouns"])


def some(chance: random.Random, items: Sequence[T], count: int) -> list[T]:
    """Return `count` different items; the same ones on every Python version for equal seeds."""
    left = list(items)
    # `random()` is the one call whose stream Python guarantees.
    return [left.pop(int(chance.random() * len(left))) for _ in range(count)]
