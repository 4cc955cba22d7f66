"""Whether a prompt asks to localize information or to aggregate it (WindowKV, section 2.2.1).

The oracle reads it off the task. Trained classifiers read the prompt's text; each is a folder
that `kvbench.classifier.training` wrote, and loading one runs no code from it.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from kvbench.base.errors import UserError
from kvbench.tasks.prompt import prompt_text
from kvbench.tasks.task import Sample, Task

LOCALISATION = "localization"
"""The answer lies in some passage: question answering over documents."""

AGGREGATION = "aggregation"
"""The answer draws on the whole text: everything else."""

TASK_TYPES = (LOCALISATION, AGGREGATION)
"""In the order of an encoder's outputs."""

ORACLE = "oracle"
"""The classifier that knows the task."""

ENDS = 256
"""Tokens read at each end of a prompt (words, without an encoder). Source: the released code."""

MANIFEST = "classifier.json"
"""Says what kind of classifier a folder holds, and its digest; written last."""

TFIDF = "tfidf"
ENCODER = "encoder"

_LOCALISATION_GROUPS = ("Single-Document QA", "Multi-Document QA")
_WORD = re.compile(r"\w\w+")
_T = TypeVar("_T")


def oracle(task: Task) -> str:
    """Task type by the paper's Table 1: question answering over documents localizes."""
    return LOCALISATION if task.group in _LOCALISATION_GROUPS else AGGREGATION


def task_types(classifiers: Iterable[str], sample: Sample) -> dict[str, str]:
    """What each classifier, `oracle` or a folder, says of a sample's prompt."""
    return {
        name: oracle(sample.task) if name == ORACLE else load(name).task_type(prompt_text(sample))
        for name in classifiers
    }


def check_classifier(name: str, value: str) -> None:
    """Refuse a field value that is neither `oracle` nor the folder of a trained classifier.

    Raises:
        UserError: naming the field, the value and the remedy.
    """
    if value != ORACLE:
        try:
            _manifest(value)
        except UserError as error:
            raise UserError(f"method.{name}={error}") from error


def classifier_digest(folder: str) -> str:
    """Fingerprint of a trained classifier's weights, as its folder states it."""
    return _manifest(folder)["digest"]


class TaskClassifier(ABC):
    """A trained classifier."""

    @abstractmethod
    def task_type(self, text: str) -> str:
        """Return `localization` or `aggregation` for a whole prompt."""


@dataclass(frozen=True)
class TfidfClassifier(TaskClassifier):
    """Logistic regression on the TF-IDF of words: plain numbers, read without scikit-learn."""

    words: Mapping[str, tuple[float, float]]
    """Word -> its inverse document frequency, and its coefficient; above 0 for aggregation."""
    intercept: float

    def task_type(self, text: str) -> str:
        """The sign of the decision function."""
        known = Counter(word for word in words_at_both_ends(text) if word in self.words)
        weights = {word: count * self.words[word][0] for word, count in known.items()}
        length = math.sqrt(math.fsum(w * w for w in weights.values())) or 1.0
        decision = math.fsum(w / length * self.words[word][1] for word, w in weights.items())
        return AGGREGATION if decision + self.intercept > 0 else LOCALISATION

    def save(self, folder: Path) -> None:
        """Write one JSON file."""
        values = {"words": self.words, "intercept": self.intercept}
        text = json.dumps(values, ensure_ascii=False, allow_nan=False, sort_keys=True)
        (folder / "tfidf.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TfidfClassifier:
        """Read it again."""
        values = json.loads((folder / "tfidf.json").read_text(encoding="utf-8"))
        words = {str(w): (float(idf), float(c)) for w, (idf, c) in values["words"].items()}
        return cls(words, float(values["intercept"]))


@dataclass(frozen=True)
class EncoderClassifier(TaskClassifier):
    """A transformers sequence classifier with one output per task type."""

    network: Any
    tokenizer: Any

    def task_type(self, text: str) -> str:
        """The larger output; equal ones localize."""
        import torch

        ids = encoder_ids(self.network, self.tokenizer, text)
        with torch.inference_mode():
            logits = self.network(input_ids=torch.tensor([ids], device=self.network.device)).logits
        return TASK_TYPES[int(logits[0].argmax())]

    def save(self, folder: Path) -> None:
        """Write network and tokenizer in transformers' own form."""
        from kvbench.model.loading import quiet_transformers

        with quiet_transformers():
            self.network.save_pretrained(str(folder))
            self.tokenizer.save_pretrained(str(folder))

    @classmethod
    def load(cls, folder: Path) -> EncoderClassifier:
        """Read it from safetensors."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from kvbench.model.loading import quiet_transformers
        from kvbench.model.spec import checked_config

        checked_config(folder / "config.json")
        local = {"local_files_only": True, "trust_remote_code": False}
        with quiet_transformers():
            network: Any = AutoModelForSequenceClassification.from_pretrained(
                str(folder), use_safetensors=True, **local
            )
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **local)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(network.to(device).eval(), tokenizer)


def both_ends(tokens: Sequence[_T], most: int = ENDS) -> list[_T]:
    """The first and the last `most` tokens; all of them where there are no more."""
    if len(tokens) <= 2 * most:
        return list(tokens)
    return [*tokens[:most], *tokens[-most:]]


def words_at_both_ends(text: str) -> list[str]:
    """Lower-case words of two letters or more: what a classifier without an encoder reads."""
    return both_ends(_WORD.findall(text.lower()))


def encoder_ids(network: Any, tokenizer: Any, text: str) -> list[int]:
    """Both ends of a tokenized prompt, special tokens counted, as long as the encoder takes."""
    ids = tokenizer(text, verbose=False)["input_ids"]
    return both_ends(ids, min(ENDS, network.config.max_position_embeddings // 2))


def load(folder: str) -> TaskClassifier:
    """Read a trained classifier, once per process.

    Raises:
        UserError: the folder holds none, or a broken one.
    """
    return _load(folder, classifier_digest(folder))


@lru_cache
def _load(folder: str, digest: str) -> TaskClassifier:
    kinds = {TFIDF: TfidfClassifier.load, ENCODER: EncoderClassifier.load}
    try:
        return kinds[_manifest(folder)["kind"]](Path(folder).expanduser())
    except Exception as error:  # neither we nor transformers check all that a folder holds
        reason = shorten(str(error), 200)
        raise UserError(f"classifier {folder} cannot be loaded ({reason}): train it again") from (
            error
        )


def _manifest(folder: str) -> dict[str, str]:
    """The manifest's kind and digest."""
    path = Path(folder).expanduser() / MANIFEST
    remedy = "give oracle, or a folder that kvbench train-classifier wrote"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind, digest = found["kind"], found["digest"]
    except OSError as error:
        raise UserError(f"{folder} holds no trained classifier: {remedy}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder} has a broken {MANIFEST}: {remedy}") from error
    if kind not in (TFIDF, ENCODER) or not isinstance(digest, str):
        raise UserError(f"{folder} has a broken {MANIFEST}: {remedy}")
    return {"kind": kind, "digest": digest}
