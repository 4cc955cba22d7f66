"""How needles found are scored; pure functions of (prediction, sample).

Only the first line of a prediction counts, newlines before it left out; where several numbers are
asked for, all of it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from kvbench.tasks.task import Sample


def classic_scores(prediction: str, sample: Sample) -> Mapping[str, float]:
    """Return overlap, rouge1 and contains of one response; overlap is the main one."""
    response = first_line(prediction)
    return {
        "overlap": overlap(response, sample.answers),
        "rouge1": rouge1(response, " ".join(sample.fields["needles"])),
        "contains": contains(response, sample.answers),
    }


def number_scores(prediction: str, sample: Sample) -> Mapping[str, float]:
    """Return contains, digits, overlap and rouge1 of one response; contains is the main one."""
    response = first_line(prediction) if sample.task.one_line_answers else prediction.strip()
    return {
        "contains": contains(response, sample.answers),
        "digits": digits(response, sample.answers),
        "overlap": overlap(response, sample.answers),
        "rouge1": rouge1(response, " ".join(sample.fields["needles"])),
    }


def first_line(prediction: str) -> str:
    """The first line that is not empty, without space around it."""
    return prediction.strip().partition("\n")[0].strip()


def overlap(response: str, answers: Sequence[str]) -> float:
    """Share of the answers' distinct lower-cased words that the response has.

    What PyramidKV's and SpindleKV's heatmaps show (KVCache-Factory, `visualize.py`): words are cut
    at spaces only, so `day.` is not `day`; further words cost nothing.
    """
    expected = set(" ".join(answers).lower().split())
    return len(expected & set(response.lower().split())) / len(expected)


def rouge1(response: str, needle: str) -> float:
    """F of the response's words against the whole needle's, Porter-stemmed.

    A perfect answer that does not repeat the question gets 0.727 with the classic needle.
    """
    return float(_rouge().score(needle, response)["rouge1"].fmeasure)


def contains(response: str, answers: Sequence[str]) -> float:
    """Share of the answers that stand in the response to the letter."""
    return fmean(answer in response for answer in answers)


def digits(response: str, numbers: Sequence[str]) -> float:
    """Longest beginning of a number that stands in the response / its digits, mean over numbers."""
    return fmean(
        max(n for n in range(len(number) + 1) if number[:n] in response) / len(number)
        for number in numbers
    )


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1"], use_stemmer=True)
