"""RULER's synthetic tasks beside needles: variables, common words, coded words, passages.

Source: RULER (Hsieh et al. 2024, arXiv 2404.06654), `scripts/data/synthetic` and `constants.py`:
templates, answer prefixes, limits of generated tokens and string-match scoring.

Differs from RULER: no worked example stands before the question; variables hide in this project's
haystack rather than in repeated sentences; words are pairs of this project's lists; passages and
questions are this project's, or the user's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbench.base import jsonl
from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean
from kvbench.tasks.haystack import Hay, Haystack, ends_of_tokens, grid_of
from kvbench.tasks.puzzles import (
    HOPS,
    Puzzle,
    Room,
    common_words,
    frequent_words,
    passages,
    variables,
)
from kvbench.tasks.task import Sample, Task

GROUP = "RULER"
"""Column groups begin with it; one for each length."""

PASSAGES = Path(__file__).with_name("passages.jsonl")
"""Passages with a question each, written for kvbench."""

RESERVE = 64
"""Tokens of each length left for the chat template."""


@dataclass(frozen=True)
class Family:
    """A task of RULER: how it asks, and how its answers score."""

    puzzle: Callable[[Room, str], Puzzle]
    template: str
    prefix: str
    """Begins the answer."""
    max_new_tokens: int
    all_answers: bool
    """Every answer must be found (`string_match_all`), or any (`string_match_part`)."""


_DOCUMENTS = (
    "Answer the question based on the given documents. Only give me the answer and do not output"
    " any other words.\n\n"
)

_LAST_PIECE = 1024
"""Tokens that a puzzle leaves empty at most, where its next piece would not fit."""

FAMILIES = {
    "vt": Family(
        variables,
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
        "{context}\nQuestion: Find all variables that are assigned the value {input} in the text"
        " above.",
        f" Answer: According to the chain(s) of variable assignment in the text above, {HOPS + 1}"
        " variables are assigned the value {input}, they are:",
        30,
        True,
    ),
    "cwe": Family(
        common_words,
        "Below is a numbered list of words. In these words, some appear more often than others."
        " Memorize the ones that appear most often.\n{context}\nQuestion: What are the 10 most"
        " common words in the above list?",
        " Answer: The top 10 words that appear most often in the list are:",
        120,
        True,
    ),
    "fwe": Family(
        frequent_words,
        "Read the following coded text and track the frequency of each coded word. Find the three"
        " most frequently appeared coded words. {context}\nQuestion: Do not provide any"
        " explanation. Please ignore the dots '....'. What are the three most frequently appeared"
        " words in the above coded text?",
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        50,
        True,
    ),
    "qa": Family(
        passages,
        _DOCUMENTS
        + "The following are given documents.\n\n{context}\n\n"
        + _DOCUMENTS
        + "Question: {input}",
        " Answer:",
        32,
        False,
    ),
}


@dataclass(frozen=True)
class Ruler:
    """Four synthetic tasks of RULER at each length, made from seeds."""

    families: list[str] | tuple[str, ...] = tuple(FAMILIES)
    """vt: variable tracking; cwe: common words; fwe: frequent coded words; qa: passages."""
    lengths: tuple[int, ...] | list[int] | str | int = (4096,)
    """Tokens of prompt and answer together: a list, or start:stop:step."""
    samples_each: int = 5
    """Samples of each task and length; RULER takes 500."""
    haystack: str | None = None
    """Folder of .txt files; null: the prose that ships with kvbench."""
    passages: str | None = None
    """JSONL file with passage, question and answers; null: those that ship with kvbench."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that name no task."""
        for name in self.families:
            if name not in FAMILIES:
                known = tuple(FAMILIES)
                raise UserError(f"ruler.families={name} is unknown: {did_you_mean(name, known)}")
        if not self.families:
            raise UserError(f"ruler.families is empty: give some of {', '.join(FAMILIES)}")
        check_whole_number("ruler.samples_each", self.samples_each)
        object.__setattr__(self, "lengths", grid_of("ruler.lengths", self.lengths, least=1))

    @property
    def longest(self) -> int:
        """The largest of `lengths`."""
        return max(self.lengths)  # type: ignore[arg-type, return-value]

    @property
    def longest_prompt(self) -> int:
        """Tokens that the longest prompt has at least."""
        answer = max(FAMILIES[name].max_new_tokens for name in self.families)
        return self.longest - answer - RESERVE - _LAST_PIECE

    @property
    def first_token(self) -> str:
        """As on the published grids."""
        return "prefill"

    @property
    def own_data(self) -> str:
        """`ruler`, and the haystack's folder where it is the user's."""
        return Haystack.label("ruler", self.haystack)

    def source(self, data: str, *, hub_repo: str, revision: str | None) -> Haystack:
        """Open the haystack; the settings for LongBench's records mean nothing here."""
        settings = [self.seed, self._passages()]
        return Haystack(self.haystack, json.dumps(settings, sort_keys=True))

    def tasks(self, code_similarity: str = "difflib") -> tuple[Task, ...]:
        """Return a task for each length and family, such as `vt_4096`."""
        return tuple(
            Task(
                name=f"{name}_{length}",
                group=f"{GROUP} {length}",
                template=FAMILIES[name].template,
                max_new_tokens=FAMILIES[name].max_new_tokens,
                score=match_all if FAMILIES[name].all_answers else match_part,
                length_setting="ruler.lengths",
            )
            for length in self.lengths  # type: ignore[union-attr]
            for name in self.families
        )

    def samples(
        self,
        task: Task,
        source: Haystack,
        limit: int | None = None,
        tokenizer: Callable[[], Any] | None = None,
    ) -> Iterator[Sample]:
        """Yield samples that fill the task's length, each from a seed of its own."""
        assert tokenizer is not None
        loaded = tokenizer()
        name, _, length = task.name.rpartition("_")

        def count(text: str) -> int:
            return len(ends_of_tokens(text, loaded))

        text = source.text()
        around = count(task.template + FAMILIES[name].prefix) + task.max_new_tokens + RESERVE
        tokens = int(length) - around
        hay = Hay.tokenized(text, max(1, tokens), loaded)
        room = Room(task.name, tokens, count, hay, self._passages(), _split(text))
        if tokens < 1:
            raise room.too_small()
        for i in range(self.samples_each)[:limit]:
            yield self._sample(task, name, room, i)

    def _sample(self, task: Task, name: str, room: Room, number: int) -> Sample:
        puzzle = FAMILIES[name].puzzle(room, f"{self.seed}/{task.name}/{number}")
        return Sample(
            task=task,
            id=f"{task.name}-{number}",
            context=puzzle.context,
            input=puzzle.query,
            answers=puzzle.answers,
            fields={"length": int(task.name.rpartition("_")[2])},
            answer_prefix=FAMILIES[name].prefix.replace("{input}", puzzle.query),
            spans=puzzle.spans,
        )

    def _passages(self) -> list[dict[str, Any]]:
        path = PASSAGES if self.passages is None else Path(self.passages).expanduser()
        try:
            rows = list(jsonl.objects_of_file(path))
        except OSError as error:
            raise UserError(f"ruler.passages={path} cannot be read: {error.strerror}") from error
        if not rows:
            raise UserError(f"ruler.passages={path} holds no passage: give one a line")
        for place, row in rows:
            jsonl.text_field(row, "passage", place)
            jsonl.text_field(row, "question", place)
            jsonl.answers_field(row, place)
        return [row for _, row in rows]


def match_all(prediction: str, sample: Sample) -> Mapping[str, float]:
    """Share of the answers that stand in the prediction, whatever the case."""
    found = prediction.lower()
    return {"match_all": fmean(answer.lower() in found for answer in sample.answers)}


def match_part(prediction: str, sample: Sample) -> Mapping[str, float]:
    """1 where any answer stands in the prediction, whatever the case."""
    found = prediction.lower()
    return {"match_part": float(any(answer.lower() in found for answer in sample.answers))}


def _split(text: str) -> list[str]:
    """The paragraphs of a text."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]
