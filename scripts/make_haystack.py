"""Writes the default haystack, `kvbench/samples/haystack/everyday.txt`, from a seed.

    python scripts/make_haystack.py [FILE]

Prose about everyday things, put together from `scripts/sample_material/everyday.py`, which was
written for this project. No sentence stands twice and no twelve words in a row do;
equal bytes every time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.sample_material.everyday import THEMES, WORDS  # noqa: E402  (the path comes first)
from scripts.sample_material.pick import Deck, Picker  # noqa: E402

SEED = "kvbench-haystack-1"
WORD_COUNT = 29_000
"""Words of the text: some 34,000 tokens of a tokenizer with 50,000 entries."""
LONGEST_REPEAT = 11
"""Words in a row that may stand twice."""


class Prose:
    """Sentences without repeats, from decks of themes, templates and words."""

    def __init__(self, seed: str) -> None:
        """Shuffle the decks."""
        self._picker = Picker(seed)
        self._words = Deck(self._picker, WORDS)
        self._templates = Deck(self._picker, THEMES | {"theme": tuple(THEMES)})
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
                template = self._templates.draw(theme).strip()
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
    default = ROOT / "kvbench" / "samples" / "haystack" / "everyday.txt"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(haystack(), encoding="utf-8")
