"""Needle-in-a-Haystack: sentences in a long text, asked for at every length and depth.

The classic needle is Greg Kamradt's, asked as KVCache-Factory's `run_needle_in_haystack.py` does;
number needles are worded as in RULER (Hsieh et al. 2024, arXiv 2404.06654, `niah.py`). A cell of
the grid is one sample.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean
from kvbench.tasks.haystack import Hay, Haystack, ends_of_tokens, grid_of
from kvbench.tasks.needle_metrics import classic_scores, number_scores
from kvbench.tasks.suite import FIRST_TOKENS
from kvbench.tasks.task import Sample, Task
from kvbench.tasks.words import ADJECTIVES, NOUNS, some

GROUP = "Needle"
"""Column group of these tasks, by which reports know them."""

DEPTHS = (0, 11, 22, 33, 44, 56, 67, 78, 89, 100)
"""Percent: round(linspace(0, 100, 10)), KVCache-Factory's."""

PROFILES = ("classic", "chat")

_BOOK = (
    "This is a very long story book: <book> {context} </book>.\n"
    " Based on the content of the book, Question: {input}\nAnswer:"
)
_NUMBERS = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it."
    " I will quiz you about the numbers afterwards.\n{context}\n{input}"
)


@dataclass(frozen=True)
class Family:
    """How many needles there are, and how many are asked for."""

    keys: int
    values: int
    """Numbers of each key."""
    asked: int
    """Keys asked for."""
    max_new_tokens: int

    @property
    def answers(self) -> int:
        """Numbers asked for."""
        return self.asked * self.values


FAMILIES = {
    "classic": Family(1, 1, 1, 30),
    "single": Family(1, 1, 1, 30),
    # Four, as RULER's niah_multikey_1, niah_multivalue and niah_multiquery; 128 are its tokens.
    "multi_key": Family(4, 1, 1, 30),
    "multi_value": Family(1, 4, 1, 128),
    "multi_query": Family(4, 1, 4, 128),
}


@dataclass(frozen=True)
class Search:
    """What is hidden in one cell, and how it is asked for."""

    needles: tuple[str, ...]
    """Sentences; those asked for come first."""
    question: str
    answers: tuple[str, ...]
    """One for each needle asked for."""
    stem: str
    """How an answer begins."""


@dataclass(frozen=True)
class Needle:
    """A sentence in a long text, found again at every length and depth."""

    family: str = "classic"
    """classic, or numbers by key: single, multi_key, multi_value, multi_query."""
    lengths: tuple[int, ...] | list[int] | str | int = (512, 1024, 2048)
    """Tokens, `reserve` included: a list, or start:stop:step."""
    depths: tuple[int, ...] | list[int] | str | int = DEPTHS
    """Percent of the text before the needle: a list, or start:stop:step."""
    haystack: str | None = None
    """Folder of .txt files; null: the prose that ships with kvbench."""
    profile: str = "chat"
    """chat: in the tokenizer's chat template; classic: without one, as published."""
    needle: str = (
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a"
        " sunny day."
    )
    """The classic needle."""
    question: str = "The best thing to do in San Francisco is: "
    """Its question."""
    answer: str | None = None
    """Its expected answer; null: the needle without the words of the question."""
    answer_prefix: str | None = None
    """Begins the model's answer; null: the question's stem, none in the classic profile."""
    reserve: int = 200
    """Tokens of each length left for question, template and answer, as published."""
    seed: int = 0
    """Of keys and numbers."""
    first_token: str = "prefill"
    """Where the first generated token comes from unless the protocol says: prefill, as published,
    or compressed."""

    def __post_init__(self) -> None:
        """Refuse values that make no grid."""
        legal = {"family": tuple(FAMILIES), "profile": PROFILES, "first_token": FIRST_TOKENS}
        for name, known in legal.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"needle.{name}={value} is unknown: {did_you_mean(value, known)}")
        check_whole_number("needle.reserve", self.reserve, least=0)
        object.__setattr__(self, "lengths", grid_of("needle.lengths", self.lengths, least=1))
        object.__setattr__(self, "depths", grid_of("needle.depths", self.depths))
        for depth in self.grid[1]:
            if not 0 <= depth <= 100:
                raise UserError(f"needle.depths={depth} is outside 0 to 100: depths are percent")
        if self.answer is None and not self.needle.startswith(_stem(self.question)):
            raise UserError(
                "needle.answer is not set, and needle.needle does not begin with the words of"
                " needle.question: give needle.answer"
            )
        if (self.answer or "") not in self.needle:
            raise UserError(f"needle.answer={self.answer} does not stand in needle.needle")

    @property
    def grid(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Lengths and depths, ascending."""
        return self.lengths, self.depths  # type: ignore[return-value]

    @property
    def longest(self) -> int:
        """The largest of `lengths`."""
        return max(self.grid[0])

    @property
    def longest_prompt(self) -> int:
        """Tokens that the longest prompt has at least."""
        return self.longest - self.reserve

    @property
    def own_data(self) -> str:
        """`needle`, and the haystack's folder where it is the user's."""
        return Haystack.label("needle", self.haystack)

    def source(self, data: str, *, hub_repo: str, revision: str | None) -> Haystack:
        """Open the haystack; the settings for LongBench's records mean nothing here."""
        names = ("family", "profile", "needle", "question", "answer", "answer_prefix")
        settings = {name: getattr(self, name) for name in (*names, "reserve", "seed")}
        return Haystack(self.haystack, json.dumps(settings, sort_keys=True))

    def tasks(self, code_similarity: str = "difflib") -> tuple[Task, ...]:
        """Return the one task: `needle`, or `needle_` and the family."""
        classic = self.family == "classic"
        return (
            Task(
                name="needle" if classic else f"needle_{self.family}",
                group=GROUP,
                template=_BOOK if classic else _NUMBERS,
                max_new_tokens=FAMILIES[self.family].max_new_tokens,
                score=classic_scores if classic else number_scores,
                chat_template=self.profile == "chat",
                # Several numbers may stand on lines of their own, as in RULER.
                one_line_answers=FAMILIES[self.family].answers == 1,
                length_setting="needle.lengths",
            ),
        )

    def samples(
        self,
        task: Task,
        source: Haystack,
        limit: int | None = None,
        tokenizer: Callable[[], Any] | None = None,
    ) -> Iterator[Sample]:
        """Yield a sample for each cell, by length and then depth; the haystack is read once."""
        assert tokenizer is not None
        loaded = tokenizer()
        lengths, depths = self.grid
        hay = Hay.tokenized(source.text(), max(lengths), loaded)
        cells = [(length, depth) for length in lengths for depth in depths]
        for length, depth in cells[:limit]:
            yield self._cell(task, hay, loaded, length, depth)

    def _cell(self, task: Task, hay: Hay, tokenizer: Any, length: int, depth: int) -> Sample:
        search = self._search(length, depth)
        needles = search.needles
        needle_tokens = sum(len(ends_of_tokens(f"\n{needle}\n", tokenizer)) for needle in needles)
        tokens = length - self.reserve - needle_tokens
        if tokens < 1:
            raise UserError(
                f"needle.lengths={length} has no room for a needle of {needle_tokens} tokens beside"
                f" needle.reserve={self.reserve}: give at least {length - tokens + 1}"
            )
        # The first stands at the cell's depth, the others at equal distances around it.
        around = [(depth + 100 * i / len(needles)) % 100 for i in range(1, len(needles))]
        placed = list(zip([depth, *around], needles, strict=True))
        context, spans = hay.with_sentences(tokens, placed)
        for needle in needles:
            if context.count(needle) != 1:
                raise UserError(f"the haystack holds the needle {needle!r} already: give another")
        asked = len(search.answers)
        names = ["needle", *(f"needle_{i}" for i in range(2, asked + 1))]
        names += [f"distractor_{i}" for i in range(1, len(needles) - asked + 1)]
        return Sample(
            task=task,
            id=f"{length} at {depth}%",
            context=context,
            input=search.question,
            answers=search.answers,
            fields={
                "family": self.family,
                "length": length,
                "depth": depth,
                "needles": list(needles[:asked]),
            },
            answer_prefix=self._answer_prefix(search.stem),
            spans=dict(zip(names, spans, strict=True)),
        )

    def _answer_prefix(self, stem: str) -> str:
        prefix = self.answer_prefix
        if prefix is None:
            prefix = "" if (self.family, self.profile) == ("classic", "classic") else stem
        return f" {prefix}" if prefix and self.profile == "classic" else prefix

    def _search(self, length: int, depth: int) -> Search:
        if self.family != "classic":
            return number_search(self.family, f"{self.seed}/{self.family}/{length}/{depth}")
        stem = _stem(self.question)
        answer = self.answer or self.needle.removeprefix(stem).strip()
        return Search((self.needle,), self.question, (answer,), stem)


def number_search(family: str, seed: str) -> Search:
    """Return numbers of seven digits under keys of two words, drawn from a seed."""
    chance = random.Random(seed)
    counts = FAMILIES[family]
    pairs = zip(some(chance, ADJECTIVES, 4), some(chance, NOUNS, 4), strict=True)
    keys = ["-".join(pair) for pair in pairs]
    numbers: list[tuple[str, str]] = []
    while len(numbers) < counts.keys * counts.values:
        number = str(1_000_000 + int(chance.random() * 9_000_000))
        if number not in (known for _, known in numbers):
            numbers.append((keys[len(numbers) // counts.values], number))
    asked = keys[: counts.asked]
    answers = tuple(number for key, number in numbers if key in asked)
    needles = tuple(f"One of the special magic numbers for {k} is: {n}." for k, n in numbers)
    listed = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + f", and {asked[-1]}"
    if len(answers) == 1:
        question = f"What is the special magic number for {listed} mentioned in the provided text?"
        stem = f"The special magic number for {listed} mentioned in the provided text is"
    else:
        question = (
            f"What are all the special magic numbers for {listed} mentioned in the provided text?"
        )
        stem = f"The special magic numbers for {listed} mentioned in the provided text are"
    return Search(needles, question, answers, stem)


def _stem(question: str) -> str:
    """The words of a question that its answer continues."""
    return question.rstrip().rstrip(":?").rstrip()
