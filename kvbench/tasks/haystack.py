"""Haystacks: long texts, and sentences put into them at a depth counted in tokens.

The rule of the published harness (KVCache-Factory, `run_needle_in_haystack.py`): the text's first
tokens are taken, and at depth d a sentence goes to d percent of them, moved back to just after the
nearest sentence end. The result is text; where its sentences stand is counted in characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.data.files import SAMPLES, Source, sized_blocks

SAMPLE_HAYSTACK = SAMPLES / "haystack"
"""Prose about everyday things, written for kvbench by scripts/make_haystack.py."""

_SENTENCE_END = re.compile(r"(?:[.!?][\"'”’)\]]*(?=\s|$)|[。！？][”’」）]*)(\s*)")


class Haystack(Source):
    """A folder of .txt files, joined by newlines in the order of their names."""

    def __init__(self, folder: str | None, settings: str) -> None:
        """Find the files.

        Args:
            folder: its path; None: the text that ships with kvbench.
            settings: how samples are made of it; part of what is hashed.

        Raises:
            UserError: there is no such folder, or no .txt file with text in it.
        """
        self.folder = SAMPLE_HAYSTACK if folder is None else Path(folder).expanduser()
        if not self.folder.is_dir():
            raise UserError(f"haystack={folder} is not a folder: give a folder of .txt files")
        self._paths = sorted(self.folder.glob("*.txt"))
        if not self._paths:
            raise UserError(f"haystack={folder} holds no .txt file: give a folder of .txt files")
        name = "kvbench's own prose" if folder is None else f"text files in {folder}"
        self.description = f"haystack of {name}"
        self._settings = settings

    @staticmethod
    def label(suite: str, folder: str | None) -> str:
        """Short name of a suite's data: `needle`, or `needle-FOLDER`."""
        return suite if folder is None else f"{suite}-{Path(folder).expanduser().resolve().name}"

    def _content(self, task: str) -> Iterator[bytes]:
        for content in [*self._texts(), self._settings.encode()]:
            yield from sized_blocks(task, len(content), BytesIO(content))

    def _texts(self) -> list[bytes]:
        try:
            return [path.read_bytes() for path in self._paths]
        except OSError as error:
            raise UserError(f"haystack={self.folder} cannot be read: {error.strerror}") from error

    def text(self) -> str:
        """Return the whole text.

        Raises:
            UserError: it is empty or not UTF-8.
        """
        try:
            parts = [content.decode("utf-8") for content in self._texts()]
        except UnicodeDecodeError as error:
            raise UserError(f"haystack={self.folder}: a file is not UTF-8: save it so") from error
        text = "\n".join(part.strip("\n") for part in parts)
        if not text.strip():
            raise UserError(f"haystack={self.folder} is empty: give .txt files with text in them")
        return text


@dataclass(frozen=True)
class Hay:
    """The first tokens of a haystack, which every cell of a grid takes its share of."""

    text: str
    ends: Sequence[int]
    """Per token: the end of its characters in the text."""
    gaps: frozenset[int]
    """Characters before which a sentence has ended and after which the next has not begun."""

    @classmethod
    def tokenized(cls, text: str, tokens: int, tokenizer: Any) -> Hay:
        """Take `tokens` tokens of the text, which is repeated until it has so many."""
        characters = 8 * tokens
        while True:
            repeated = "\n".join([text] * (characters // (len(text) + 1) + 1))[:characters]
            ends = ends_of_tokens(repeated, tokenizer)
            if len(ends) >= tokens:
                break
            characters *= 2
        ends = ends[:tokens]
        kept = repeated[: ends[-1]] if ends else ""
        found = _SENTENCE_END.finditer(kept)
        gaps = frozenset(at for m in found for at in range(m.start(1), m.end(1) + 1))
        return cls(kept, ends, gaps)

    def place(self, tokens: int, depth: float) -> int:
        """Return the character at which a sentence goes in.

        Args:
            tokens: tokens of the text that are used.
            depth: percent of them; 100 appends, less goes back to the nearest sentence end, or to
                the start where there is none.
        """
        if depth >= 100:
            return self.ends[tokens - 1] if tokens else 0
        for token in range(int(tokens * depth / 100), 0, -1):
            if self.ends[token - 1] in self.gaps:
                return self.ends[token - 1]
        return 0

    def with_sentences(
        self, tokens: int, sentences: Sequence[tuple[float, str]]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Put sentences into the first tokens, each on a line of its own.

        Args:
            tokens: tokens of the text that are used.
            sentences: (depth in percent, sentence) each; those of one depth keep their order.

        Returns:
            The text, and the characters [start, end) of each sentence, in the order given.
        """
        end = self.ends[tokens - 1] if tokens else 0
        places = [self.place(tokens, depth) for depth, _ in sentences]
        text, done = "", 0
        spans = [(0, 0)] * len(sentences)
        for i in sorted(range(len(sentences)), key=places.__getitem__):
            text += self.text[done : places[i]] + "\n"
            spans[i] = (len(text), len(text) + len(sentences[i][1]))
            text += sentences[i][1] + "\n"
            done = places[i]
        return text + self.text[done:end], spans


def ends_of_tokens(text: str, tokenizer: Any) -> list[int]:
    """Per token of a text, special ones left out: the end of its characters."""
    encoding = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )
    return [end for _, end in encoding["offset_mapping"]]


def grid_of(setting: str, value: object, least: int | None = None) -> tuple[int, ...]:
    """Return the whole numbers that a setting lists, ascending and once each.

    Args:
        setting: its name in complaints, such as `needle.lengths`.
        value: a number, a list, or the text `start:stop:step`, stop included.
        least: the smallest number that makes sense; None: any does.

    Raises:
        UserError: it is none of these, lists nothing, or a number below the least.
    """
    found: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, str):
        parts = value.split(":")
        if len(parts) == 3 and all(re.fullmatch(r"\s*\d+\s*", part) for part in parts):
            start, stop, step = map(int, parts)
            found = list(range(start, stop + 1, step)) if step else []
    wrong = [v for v in found if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not found:
        raise UserError(
            f"{setting}={value} lists no whole numbers: give a list such as [512,1024] or"
            " start:stop:step"
        )
    if least is not None and min(found) < least:
        raise UserError(f"{setting}={min(found)} is out of range: give {least} or more")
    return tuple(sorted(set(found)))
