"""Writes the default haystack, `kvbench/data/samples/haystack/everyday.txt`, from a seed.

    python scripts/make_haystack.py [FILE]

Prose about everyday things, put together from `scripts/sample_material/everyday.json`, which was
written for this project: sentences with open places, by theme, and the words that fill them.
Nothing in it may name San Francisco, a sandwich or a magic number: needles do. No sentence of the
text stands twice and no twelve words in a row do; equal bytes every time.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
SEED = "kvbench-haystack-1"
WORD_COUNT = 29_000
"""Words of the text: some 34,000 tokens of a tokenizer with 50,000 entries."""
LONGEST_REPEAT = 11
"""Words in a row that may stand twice."""

T = TypeVar("T")


def material(name: str) -> Any:
    """Return what the file of prose `scripts/sample_material/<name>.json` holds."""
    path = ROOT / "scripts" / "sample_material" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


class Picker:
    """Chooses from lists; equal seeds give equal choices on every Python version.

    `random.Random.random()` is the one generator call whose output Python guarantees across
    versions; `choice` and `shuffle` are built on it here rather than taken from the library.
    """

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


class Prose:
    """Sentences without repeats, from decks of themes, templates and words.

    A paragraph takes its sentences from one theme; `{who:a}` is the same person throughout it,
    every other place is filled anew.
    """

    def __init__(self, seed: str) -> None:
        """Shuffle the decks."""
        self._picker = Picker(seed)
        everyday = material("everyday")
        themes = everyday["themes"]
        self._words = Deck(self._picker, everyday["words"])
        self._templates = Deck(self._picker, themes | {"theme": list(themes)})
        self._tail: list[str] = []
        self._known: set[tuple[str, ...]] = set()

    def paragraphs(self, words: int) -> Iterator[str]:
        """Yield paragraphs of four to seven sentences until there are `words` words."""
        written = 0
        while written < words:
            text = self._paragraph()
            written += len(text.split())
            yield text

    def _paragraph(self) -> str:
        theme = self._templates.draw("theme")
        people = {"who:a": self._words.draw("who"), "who:b": self._words.draw("who")}
        count = self._picker.between(4, 7)
        return " ".join(self._sentence(theme, people) for _ in range(count))

    def _sentence(self, theme: str, people: dict[str, str]) -> str:
        """Fill the theme's next template anew until it repeats nothing; or else the one after."""
        for attempt in range(10_000):
            if attempt % 20 == 0:
                template = self._templates.draw(theme)
            sentence = self._filled(template, people)
            words = re.findall(r"[\w'-]+", sentence.lower())
            length = LONGEST_REPEAT + 1
            line = self._tail + words
            grams = {tuple(line[i : i + length]) for i in range(len(line) - length + 1)}
            if not grams & self._known:
                self._known |= grams
                self._tail = line[-LONGEST_REPEAT:]
                return sentence
        raise RuntimeError(f"{theme} has nothing new to say: give it more sentences")

    def _filled(self, template: str, people: dict[str, str]) -> str:
        used: set[str] = set()

        def put(match: re.Match[str]) -> str:
            name = match.group(1)
            list_name = name.lower().rstrip("_")
            if list_name in people:
                return people[list_name]
            item = self._words.draw(list_name)
            while item in used:
                item = self._words.draw(list_name)
            used.add(item)
            if name == "thing_":
                return item.partition(" ")[2]
            return item[0].upper() + item[1:] if name[0].isupper() else item

        text = re.sub(r"\{([A-Za-z_]+(?::[ab])?)\}", put, template)
        return text[0].upper() + text[1:]


def haystack() -> str:
    """Return the text: paragraphs with an empty line between them."""
    return "\n\n".join(Prose(SEED).paragraphs(WORD_COUNT)) + "\n"


if __name__ == "__main__":
    default = ROOT / "kvbench" / "data" / "samples" / "haystack" / "everyday.txt"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(haystack(), encoding="utf-8")
