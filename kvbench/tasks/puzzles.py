"""The puzzles of RULER's synthetic tasks: each fills the room it is given, from a seed.

Source: RULER (Hsieh et al. 2024, arXiv 2404.06654), `scripts/data/synthetic`; `kvbench.tasks.ruler`
says where these differ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from kvbench.base.errors import UserError
from kvbench.tasks.haystack import Hay
from kvbench.tasks.words import ADJECTIVES, NOUNS, some

HOPS = 4  # `num_hops`: five variables hold the value
COMMON, COMMON_TIMES, RARE_TIMES = 10, 30, 3  # `num_cw`, `freq_cw`, `freq_ucw`
CODE_LETTERS = 6  # `coded_wordlen`


@dataclass(frozen=True)
class Puzzle:
    """What one sample asks."""

    context: str
    query: str
    """Fills `{input}` of the question."""
    answers: tuple[str, ...]
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Room:
    """What a puzzle may fill."""

    task: str
    tokens: int
    """Of the context."""
    count: Callable[[str], int]
    """Tokens of a text."""
    hay: Hay
    passages: Sequence[Mapping[str, Any]]
    paragraphs: Sequence[str]
    """Of the haystack, as further documents."""

    def largest(self, text: Callable[[int], str], least: int, most: int) -> int:
        """Return the largest number of items whose text fits.

        Raises:
            UserError: not even `least` fit.
        """
        if self.count(text(least)) > self.tokens:
            raise self.too_small()
        low, high = least, most + 1
        step = max(1, least)
        while low + step < high and self.count(text(low + step)) <= self.tokens:
            low, step = low + step, 2 * step
        high = min(high, low + step)
        while high - low > 1:
            middle = (low + high) // 2
            if self.count(text(middle)) <= self.tokens:
                low = middle
            else:
                high = middle
        return low

    def too_small(self) -> UserError:
        """The complaint where a puzzle has no place."""
        return UserError(
            f"ruler.lengths leave {max(0, self.tokens)} tokens of context for {self.task}, too few:"
            " give larger ones, such as 4096"
        )


def variables(room: Room, seed: str) -> Puzzle:
    """A chain of assignments, scattered in order: which variables hold the first one's value?"""
    chance = random.Random(seed)
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(some(chance, ascii_uppercase, 5))
        if name not in names:
            names.append(name)
    value = str(10_000 + int(chance.random() * 90_000))
    lines = [f"VAR {names[0]} = {value}"]
    lines += [f"VAR {new} = VAR {old}" for old, new in pairwise(names)]
    depths = sorted(100 * chance.random() for _ in lines)
    tokens = room.tokens - sum(room.count(f"\n{line}\n") for line in lines)
    if tokens < 1:
        raise room.too_small()
    context, spans = room.hay.with_sentences(tokens, list(zip(depths, lines, strict=True)))
    of_lines = {f"assignment_{i}": span for i, span in enumerate(spans, start=1)}
    return Puzzle(context, value, tuple(names), of_lines)


def common_words(room: Room, seed: str) -> Puzzle:
    """A numbered list in which ten words stand thirty times and the others three times."""
    pairs = [f"{a}-{n}" for a in ADJECTIVES for n in NOUNS]
    # An entry takes four tokens at least: number, dot, and two for the word.
    most = min(len(pairs), COMMON + room.tokens // (4 * RARE_TIMES) + 1)
    words = some(random.Random(seed), pairs, most)

    def text(rare: int) -> str:
        listed = words[:COMMON] * COMMON_TIMES + words[COMMON : COMMON + rare] * RARE_TIMES
        mixed = some(random.Random(seed), listed, len(listed))
        return " ".join(f"{i}. {word}" for i, word in enumerate(mixed, start=1))

    rare = room.largest(text, 1, len(words) - COMMON)
    return Puzzle(text(rare), "", tuple(words[:COMMON]))


def frequent_words(room: Room, seed: str) -> Puzzle:
    """Coded words whose counts fall with the square of their rank; the first rank is dots."""
    chance = random.Random(seed)
    words = ["...."]
    while len(words) < max(4, room.tokens // 50):
        word = "".join(ascii_lowercase[int(26 * chance.random())] for _ in range(CODE_LETTERS))
        if word not in words:
            words.append(word)

    def text(count: int) -> str:
        zeta = math.pi**2 / 6  # of alpha = 2, so that the counts add up to `count`
        times = [int(count / (rank**2 * zeta)) for rank in range(1, len(words) + 1)]
        listed = [word for word, n in zip(words, times, strict=True) for _ in range(n)]
        return " ".join(some(random.Random(seed), listed, len(listed)))

    # From 180 words on, the fourth rank has fewer than the third and more than the fifth.
    count = room.largest(text, 180, room.tokens)
    return Puzzle(text(count), "", tuple(words[1:4]))


def passages(room: Room, seed: str) -> Puzzle:
    """A question about one of many documents; the others are other passages, then the haystack."""
    chance = random.Random(seed)
    gold, *others = some(chance, room.passages, len(room.passages))
    further = [*(str(other["passage"]) for other in others)]
    further += some(chance, room.paragraphs, len(room.paragraphs))
    # A length may take more documents than there are; they stand more than once then.
    further *= room.tokens // room.count(" ".join(further)) + 1
    place = chance.random()

    def documents(count: int) -> list[str]:
        chosen = further[: count - 1]
        chosen.insert(int(place * count), str(gold["passage"]))
        return [f"Document {i}:\n{text}\n" for i, text in enumerate(chosen, start=1)]

    query = str(gold["question"])
    count = room.largest(lambda n: "\n".join([*documents(n), query]), 1, len(further) + 1)
    context = "\n".join(documents(count))
    start = context.index(str(gold["passage"]))
    spans = {"passage": (start, start + len(gold["passage"]))}
    return Puzzle(context, query, tuple(gold["answers"]), spans)
