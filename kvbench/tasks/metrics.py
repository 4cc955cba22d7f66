"""The metrics of LongBench, pure functions of (prediction, reference), values in [0, 1].

They reproduce THUDM/LongBench `LongBench/metrics.py` and `LongBench/eval.py` to the last digit,
oddities included, because published numbers were made with them. Knows nothing of models, caches
or tokenizers. Heavy imports (jieba, rouge, rapidfuzz) happen where they are used.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import string
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.base import jsonl
from kvbench.base.errors import UserError
from kvbench.base.suggest import nearest

CODE_SIMILARITIES = ("difflib", "levenshtein")

METRIC_OF_TASK: Mapping[str, str] = {
    "narrativeqa": "qa_f1",
    "qasper": "qa_f1",
    "multifieldqa_en": "qa_f1",
    "multifieldqa_zh": "qa_f1_zh",
    "hotpotqa": "qa_f1",
    "2wikimqa": "qa_f1",
    "musique": "qa_f1",
    "dureader": "rouge_l_zh",
    "gov_report": "rouge_l",
    "qmsum": "rouge_l",
    "multi_news": "rouge_l",
    "vcsum": "rouge_l_zh",
    "trec": "classification",
    "triviaqa": "qa_f1",
    "samsum": "rouge_l",
    "lsht": "classification",
    "passage_count": "count",
    "passage_retrieval_en": "retrieval",
    "passage_retrieval_zh": "retrieval_zh",
    "lcc": "code_similarity",
    "repobench-p": "code_similarity",
}
"""LongBench task -> metric. Source: `dataset2metric` of LongBench/eval.py."""

FIRST_LINE_TASKS = frozenset({"trec", "triviaqa", "samsum", "lsht"})
"""Tasks where only the first line of the prediction counts. Source: LongBench/eval.py."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"\d+")
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WITHOUT_PUNCTUATION_ZH = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)

# The package `rouge` walks back through its table by recursion, one frame per word of the two
# sentences. 20000 frames hold every prediction of 512 tokens; a thread of its own makes the depth
# that fails independent of the caller's stack.
ROUGE_FRAMES = 20_000
_ROUGE_STACK_BYTES = 256 * 2**20
_ROUGE_LOCK = threading.Lock()


def first_line(prediction: str) -> str:
    """Return the first line that is not empty, or what follows the leading newlines."""
    return prediction.lstrip("\n").split("\n")[0]


def token_f1(prediction: Sequence[str], answer: Sequence[str]) -> float:
    """F1 of two token multisets; 0 where they share none."""
    shared = sum((Counter(prediction) & Counter(answer)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(prediction)
    recall = shared / len(answer)
    return (2 * precision * recall) / (precision + recall)


def english_tokens(text: str) -> list[str]:
    """Words in lower case, without punctuation and without the articles a, an and the."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def chinese_tokens(text: str) -> list[str]:
    """Words as jieba cuts them, in lower case, without punctuation; empty ones dropped."""
    bare = (word.lower().translate(_WITHOUT_PUNCTUATION_ZH) for word in _jieba_cut(text))
    return [word for word in ("".join(word.split()) for word in bare) if word]


def qa_f1(prediction: str, answer: str) -> float:
    """Token F1 of English text."""
    return token_f1(english_tokens(prediction), english_tokens(answer))


def qa_f1_zh(prediction: str, answer: str) -> float:
    """Token F1 of Chinese text."""
    return token_f1(chinese_tokens(prediction), chinese_tokens(answer))


def rouge_l_attempt(prediction: str, answer: str) -> tuple[float, bool]:
    """ROUGE-L F of the package `rouge` 1.0.1, and whether it failed (then the value is 0).

    A prediction without a sentence is worth 0 and is no failure.
    """
    from rouge import Rouge

    scorer = Rouge(metrics=["rouge-l"])
    values: list[float] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            values.append(scorer.get_scores([prediction], [answer], avg=True)["rouge-l"]["f"])
        except (RecursionError, MemoryError) as error:
            errors.append(error)
        except ValueError:  # no sentence on one of the sides
            values.append(0.0)

    with _ROUGE_LOCK:
        frames, stack_bytes = sys.getrecursionlimit(), threading.stack_size(_ROUGE_STACK_BYTES)
        try:
            sys.setrecursionlimit(ROUGE_FRAMES)
            thread = threading.Thread(target=attempt, name="rouge")
            thread.start()
            thread.join()
        finally:
            sys.setrecursionlimit(frames)
            threading.stack_size(stack_bytes)
    return (0.0, True) if errors else (float(values[0]), False)


def rouge_l(prediction: str, answer: str) -> float:
    """ROUGE-L F of the package `rouge` 1.0.1; 0 for an empty prediction or a failure."""
    return rouge_l_attempt(prediction, answer)[0]


def rouge_l_zh(prediction: str, answer: str) -> float:
    """ROUGE-L F over the words that jieba cuts."""
    return rouge_l(_spaced_zh(prediction), _spaced_zh(answer))


def classification(prediction: str, answer: str, all_classes: Sequence[str]) -> float:
    """1 / (class names found) where the true one is among them, else 0.

    Found names that are part of the true name are dropped, by an iteration over the list it
    shortens: a name right after a dropped one is never looked at. That is the official behavior.
    """
    found = [name for name in all_classes if name in prediction]
    for name in found:
        if name in answer and name != answer:
            found.remove(name)
    return 1.0 / len(found) if answer in found else 0.0


def count(prediction: str, answer: str) -> float:
    """Share of the numbers in the prediction that are the true one; 0 without a number."""
    numbers = _NUMBER.findall(prediction)
    return sum(number == answer for number in numbers) / len(numbers) if numbers else 0.0


def retrieval(prediction: str, answer: str) -> float:
    """Share of the numbers in the prediction that are the paragraph of `Paragraph 12`."""
    return count(prediction, paragraph_number(answer, "Paragraph "))


def retrieval_zh(prediction: str, answer: str) -> float:
    """Share of the numbers in the prediction that are the paragraph of `段落12`."""
    return count(prediction, paragraph_number(answer, "段落"))


def paragraph_number(answer: str, word: str) -> str:
    """The number after `word` in a retrieval answer.

    Raises:
        UserError: the answer names no paragraph.
    """
    match = re.search(re.escape(word) + r"(\d+)", answer)
    if match is None:
        raise UserError(f"answer {answer!r} names no paragraph: it must look like '{word}12'")
    return match.group(1)


def code_line(prediction: str) -> str:
    """Return the first line without a backtick, '#' or '//'; empty where there is none."""
    lines = prediction.lstrip("\n").split("\n")
    return next((x for x in lines if "`" not in x and "#" not in x and "//" not in x), "")


def edit_similarity(prediction: str, answer: str, backend: str = "difflib") -> float:
    """Edit similarity of the first code line of the prediction, in hundredths.

    Args:
        prediction: generated text.
        answer: the true next line.
        backend: `difflib` is fuzzywuzzy's pure-Python `fuzz.ratio`, the official setting;
            `levenshtein` is the same call where python-Levenshtein is installed (indel distance).
    """
    line = code_line(prediction)
    if line == answer:
        return 1.0
    if not line or not answer:
        return 0.0
    if backend == "difflib":
        # The order of the arguments and the popular-character rule (autojunk) both matter.
        share = difflib.SequenceMatcher(None, line, answer).ratio()
    elif backend == "levenshtein":
        from rapidfuzz.distance import Indel

        share = Indel.normalized_similarity(line, answer)
    else:
        known = " or ".join(CODE_SIMILARITIES)
        raise UserError(f"code_similarity {backend!r} is unknown: give {known}")
    return round(100 * share) / 100


_PAIR_METRICS: Mapping[str, Callable[[str, str], float]] = {
    "qa_f1": qa_f1,
    "qa_f1_zh": qa_f1_zh,
    "count": count,
    "retrieval": retrieval,
    "retrieval_zh": retrieval_zh,
}


def score(
    task: str,
    prediction: str,
    answers: Sequence[str],
    all_classes: Sequence[str] | None = None,
    code_similarity: str = "difflib",
) -> dict[str, float]:
    """Score one prediction as LongBench's eval.py does: the best value over the references.

    Args:
        task: LongBench task name, without the suffix `_e`.
        prediction: generated text.
        answers: references, at least one.
        all_classes: class names; read by trec and lsht only.
        code_similarity: `difflib` or `levenshtein`; read by lcc and repobench-p only.

    Returns:
        metric name -> value in [0, 1], the main one first. ROUGE tasks add `rouge_failed`, the
        share of references on which the package failed and counted 0.
    """
    metric = METRIC_OF_TASK[task]
    if task in FIRST_LINE_TASKS:
        prediction = first_line(prediction)
    if metric in ("rouge_l", "rouge_l_zh"):
        spaced = _spaced_zh if metric == "rouge_l_zh" else str
        tries = [rouge_l_attempt(spaced(prediction), spaced(answer)) for answer in answers]
        failed = sum(failure for _, failure in tries) / len(tries)
        return {metric: max(value for value, _ in tries), "rouge_failed": failed}
    if metric == "classification":
        values = [classification(prediction, answer, all_classes or ()) for answer in answers]
    elif metric == "code_similarity":
        values = [edit_similarity(prediction, answer, code_similarity) for answer in answers]
    else:
        values = [_PAIR_METRICS[metric](prediction, answer) for answer in answers]
    return {metric: max(values)}


def length_bucket(length: int) -> str:
    """LongBench-E's bucket of a record's length: `0-4k`, `4-8k` or `8k+`."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


def score_predictions_file(path: str | Path, code_similarity: str = "difflib") -> float:
    """Score one file of LongBench's own prediction format: mean x100, rounded to 2 decimals.

    The file is `<task>.jsonl` (or `<task>_e.jsonl`), each line with pred, answers, all_classes.

    Raises:
        UserError: the name is not a task, or a line lacks a field (naming file, line and field).
    """
    values = [value for value, _ in _scored_lines(Path(path), code_similarity)]
    return round(100 * sum(values) / len(values), 2)


def score_predictions_file_by_length(
    path: str | Path, code_similarity: str = "difflib"
) -> dict[str, float | None]:
    """Score one prediction file as LongBench-E: bucket of length -> mean x100, None where empty."""
    import numpy as np  # eval.py's mean: pairwise sums can differ from plain ones in the last digit

    buckets: dict[str, list[float]] = {"0-4k": [], "4-8k": [], "8k+": []}
    for value, record in _scored_lines(Path(path), code_similarity):
        buckets[length_bucket(jsonl.length_field(*record))].append(value)
    return {
        name: float(round(100 * np.mean(values), 2)) if values else None
        for name, values in buckets.items()
    }


def score_predictions_folder(
    folder: str | Path, code_similarity: str = "difflib", by_length: bool = False
) -> dict[str, float] | dict[str, dict[str, float | None]]:
    """Score every `<task>.jsonl` of a folder: file stem -> score, or -> bucket -> score."""
    paths = sorted(Path(folder).glob("*.jsonl"))
    if not paths:
        raise UserError(f"{folder} holds no <task>.jsonl: give a folder of LongBench predictions")
    if by_length:
        return {p.stem: score_predictions_file_by_length(p, code_similarity) for p in paths}
    return {p.stem: score_predictions_file(p, code_similarity) for p in paths}


def _scored_lines(
    path: Path, code_similarity: str
) -> list[tuple[float, tuple[dict[str, Any], str]]]:
    """Return (value in [0, 1], (record, its place)) for each line of a prediction file."""
    task = path.stem.removesuffix("_e")
    if task not in METRIC_OF_TASK:
        close = nearest(task, METRIC_OF_TASK)
        raise UserError(f"{path}: {task!r} is not a LongBench task; the nearest is {close!r}")
    try:
        rows = list(jsonl.objects_of_file(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    lines = []
    for place, record in rows:
        prediction = jsonl.text_field(record, "pred", place)
        answers = jsonl.answers_field(record, place)
        needs_classes = METRIC_OF_TASK[task] == "classification"
        classes = jsonl.classes_field(record, place, needs_classes)
        try:
            values = score(task, prediction, answers, classes, code_similarity)
        except UserError as error:
            raise UserError(f"{place}: field 'answers': {error}") from error
        lines.append((next(iter(values.values())), (record, place)))
    if not lines:
        raise UserError(f"{path} holds no predictions: remove the file or fill it")
    return lines


def _spaced_zh(text: str) -> str:
    """The words of `text` as jieba cuts them, one space between them."""
    return " ".join(_jieba_cut(text))


def _jieba_cut(text: str) -> list[str]:
    """Words of `text` in jieba's accurate mode."""
    return list(_jieba_tokenizer().cut(text, cut_all=False))


@lru_cache(maxsize=1)
def _jieba_tokenizer() -> Any:
    """A jieba tokenizer of our own, so that words added elsewhere change no score.

    It caches its dictionary in the user's cache folder: jieba's default is a file of a known name
    in the shared temporary folder, which it would load whoever wrote it.
    """
    import jieba

    jieba.setLogLevel(logging.CRITICAL)
    tokenizer = jieba.Tokenizer()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbench"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.tmp_dir = str(folder)
    except OSError:
        tokenizer.tmp_dir = tempfile.mkdtemp(prefix="kvbench-")
    return tokenizer
