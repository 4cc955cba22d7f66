"""Trains the task classifiers of `kvbench.classifier.trained`, and tests them in two ways.

On the held-out tenth of several splits, whose tasks were trained on; and on each task whole, by a
classifier that was trained on the others, which is what a prompt of a new kind meets.

With an encoder as WindowKV's appendix A.3 does; without one, logistic regression on TF-IDF.
Differs from the released classifier: a linear head without its ReLU, AdamW.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from textwrap import shorten
from typing import Any

from kvbench.base import jsonl
from kvbench.base.errors import UserError
from kvbench.base.version import __version__
from kvbench.classifier.trained import (
    AGGREGATION,
    ENCODER,
    LOCALISATION,
    MANIFEST,
    TASK_TYPES,
    TFIDF,
    EncoderClassifier,
    TaskClassifier,
    TfidfClassifier,
    encoder_ids,
    oracle,
    words_at_both_ends,
)
from kvbench.data.source import open_source
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.prompt import prompt_text

_MOST_WORDS = 20_000


@dataclass(frozen=True)
class Example:
    """A labeled prompt."""

    text: str
    task_type: str
    task: str = field(default="", compare=False)
    """Which task it is of; empty: not known."""

    @cached_property
    def words(self) -> list[str]:
        """What is read of it without an encoder."""
        return words_at_both_ends(self.text)


@dataclass(frozen=True)
class Training:
    """How a classifier is trained; the defaults for an encoder are appendix A.3's."""

    encoder: str | None = None
    """Folder or hub id of a transformers encoder; None: TF-IDF."""
    epochs: int = 10
    batch_size: int = 16
    learning_rate: float = 1e-6
    dropout: float = 0.5
    """Before the linear head."""
    seed: int = 0
    """Of the split, the new head, dropout and the order of prompts."""
    splits: int = 10
    """Splits that it is tested on, of this seed and the following ones."""
    leave_out: bool = True
    """Whether it is tested on each task by one that was trained on the others."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        for name in ("epochs", "batch_size", "splits"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} is out of range: give 1 or more")
        if not self.learning_rate > 0:
            raise UserError(f"learning_rate {self.learning_rate} is out of range: give above 0")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout {self.dropout} is out of range: give from 0 to below 1")


@dataclass(frozen=True)
class HeldOut:
    """How a classifier did on prompts it was not trained on; localization counts as positive."""

    prompts: int
    accuracy: float
    """In [0, 1], as all of them."""
    recall: float
    f1: float


@dataclass(frozen=True)
class LeftOut:
    """How a classifier did on all prompts of a task, trained on the other tasks."""

    task: str
    task_type: str
    prompts: int
    right: int
    """Of the prompts, those given their task's type."""


@dataclass(frozen=True)
class Tested:
    """How a way of training did."""

    held_out: HeldOut
    """The classifier that is kept, on its own held-out tenth."""
    splits: tuple[HeldOut, ...]
    """One classifier a seed, on its own held-out tenth; the one that is kept first."""
    left_out: tuple[LeftOut, ...]
    """By task; empty where no prompt says its task."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it in words."""
        accuracies = [100 * split.accuracy for split in self.splits]
        found = [
            f"{len(accuracies)} splits: accuracy {fmean(accuracies):.2f}% on average,"
            f" {min(accuracies):.2f}% to {max(accuracies):.2f}%, on prompts of the tasks that were"
            " trained on"
        ]
        counted = []
        for task_type in TASK_TYPES:
            of_type = [task for task in self.left_out if task.task_type == task_type]
            right, prompts = sum(t.right for t in of_type), sum(t.prompts for t in of_type)
            counted += [f"{task_type} {right} of {prompts} right"] * bool(of_type)
        if counted:
            missed = [task.task for task in self.left_out if not task.right]
            none = f"; none right of {', '.join(missed)}" if missed else ""
            found.append(f"each task left out of the training: {', '.join(counted)}{none}")
        else:
            found.append("no task was left out of the training: how it does on others is unknown")
        return tuple(found)


def train(out: Path, examples: Sequence[Example], training: Training) -> Tested:
    """Train a classifier, test it on held-out prompts and left-out tasks, and write its folder.

    Args:
        out: the folder; a classifier that is there is replaced.
        examples: labeled prompts of both task types.
        training: of what, and how.

    Raises:
        UserError: too few prompts of a task type, or a path that cannot be used.
    """
    if out.exists() and not (out / MANIFEST).is_file() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out} is not a classifier's folder: give a new one")
    training_set, held_out = split(examples, training.seed)
    classifier = _trained(training_set, training)
    first = held_out_scores(classifier, held_out)
    seeds = range(training.seed + 1, training.seed + training.splits)
    splits = (first, *(_on_split(examples, replace(training, seed=seed)) for seed in seeds))
    left_out = tuple(_on_left_out(examples, training)) if training.leave_out else ()
    found = Tested(first, splits, left_out)
    try:
        _save(out, classifier, training, len(training_set), found)
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror}): give another folder") from error
    return found


def _trained(
    examples: Sequence[Example], training: Training
) -> TfidfClassifier | EncoderClassifier:
    if training.encoder is None:
        return trained_tfidf(examples, training.seed)
    return _fine_tuned(training.encoder, examples, training)


def _on_split(examples: Sequence[Example], training: Training) -> HeldOut:
    training_set, held_out = split(examples, training.seed)
    return held_out_scores(_trained(training_set, training), held_out)


def _on_left_out(examples: Sequence[Example], training: Training) -> Iterator[LeftOut]:
    """Test on each task in turn; not on one without which a task type has no prompts."""
    for task in dict.fromkeys(e.task for e in examples if e.task):
        others = [e for e in examples if e.task != task]
        if {e.task_type for e in others} < set(TASK_TYPES):
            continue
        classifier = _trained(others, training)
        for task_type in TASK_TYPES:  # of LongBench's tasks each has one
            own = [e for e in examples if (e.task, e.task_type) == (task, task_type)]
            right = sum(classifier.task_type(e.text) == task_type for e in own)
            if own:
                yield LeftOut(task, task_type, len(own), right)


def labeled_prompts(data: str, tasks: Sequence[str], limit: int | None = None) -> list[Example]:
    """Read labeled prompts, without repeats.

    Args:
        data: a `.jsonl` file with `text` and `label` (a task type) on each line, and `task` where
            it is known; or a source of LongBench tasks, which the oracle labels.
        tasks: LongBench tasks to read.
        limit: first records of each task; None: all.

    Raises:
        UserError: nothing is there, or a line is bad.
    """
    if data.endswith(".jsonl"):
        return list(dict.fromkeys(_from_file(Path(data).expanduser())))
    source, suite = open_source(data), LongBench(tasks)
    return list(
        dict.fromkeys(
            Example(prompt_text(sample), oracle(task), task.name)
            for task in suite.tasks()
            for sample in suite.samples(task, source, limit)
        )
    )


def _from_file(path: Path) -> Iterator[Example]:
    try:
        rows = list(jsonl.objects_of_file(path))
    except OSError as error:
        raise UserError(f"data={path} cannot be read: {error.strerror}") from error
    for place, record in rows:
        label = jsonl.text_field(record, "label", place)
        if label not in TASK_TYPES:
            known = " or ".join(TASK_TYPES)
            raise UserError(f"{place}: field 'label' is {label!r}: give {known}")
        task = jsonl.text_field(record, "task", place) if "task" in record else ""
        yield Example(jsonl.text_field(record, "text", place), label, task)


def split(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """A training set and a held-out tenth, of each task type at least one prompt.

    Raises:
        UserError: a task type has fewer than two prompts.
    """
    rng = random.Random(seed)
    kept: list[Example] = []
    held_out: list[Example] = []
    for task_type in TASK_TYPES:
        of_type = [e for e in examples if e.task_type == task_type]
        if len(of_type) < 2:
            raise UserError(
                f"{len(of_type)} {task_type} prompts are too few: give at least 2 of each task type"
            )
        rng.shuffle(of_type)
        tenth = max(1, round(len(of_type) / 10))
        held_out += of_type[:tenth]
        kept += of_type[tenth:]
    return kept, held_out


def held_out_scores(classifier: TaskClassifier, examples: Sequence[Example]) -> HeldOut:
    """Accuracy over all, recall and F1 of localization."""
    pairs = [(e.task_type, classifier.task_type(e.text)) for e in examples]
    hits = sum(truth == said == LOCALISATION for truth, said in pairs)
    relevant = sum(truth == LOCALISATION for truth, _ in pairs)
    claimed = sum(said == LOCALISATION for _, said in pairs)
    return HeldOut(
        prompts=len(pairs),
        accuracy=sum(truth == said for truth, said in pairs) / len(pairs),
        recall=hits / relevant if relevant else 0.0,
        f1=2 * hits / (relevant + claimed) if relevant + claimed else 0.0,
    )


def trained_tfidf(examples: Sequence[Example], seed: int) -> TfidfClassifier:
    """Fit logistic regression to the TF-IDF of the words at both ends of prompts.

    Raises:
        UserError: scikit-learn is not installed, or the prompts hold no words.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UserError(
            "a classifier without an encoder is trained with scikit-learn: pip install"
            " 'kvbench[classifier]', or give --encoder"
        ) from error
    vectorizer = TfidfVectorizer(analyzer=lambda e: e.words, max_features=_MOST_WORDS)
    try:
        features = vectorizer.fit_transform(examples)
    except ValueError as error:
        raise UserError("the prompts hold no words: give text in words, or --encoder") from error
    model = LogisticRegression(class_weight="balanced", max_iter=1000, random_state=seed)
    model.fit(features, [e.task_type == AGGREGATION for e in examples])
    columns = zip(
        vectorizer.get_feature_names_out(),
        vectorizer.idf_.tolist(),
        model.coef_[0].tolist(),
        strict=True,
    )
    words = {str(word): (idf, coefficient) for word, idf, coefficient in columns}
    return TfidfClassifier(words, float(model.intercept_[0]))


def _fine_tuned(encoder: str, examples: Sequence[Example], training: Training) -> EncoderClassifier:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        network, tokenizer = _encoder(encoder, training.dropout)
        rows = [torch.tensor(encoder_ids(network, tokenizer, e.text)) for e in examples]
        truth = torch.tensor([TASK_TYPES.index(e.task_type) for e in examples])
        optimizer = torch.optim.AdamW(network.parameters(), lr=training.learning_rate)
        network.train()
        for _ in range(training.epochs):
            for batch in torch.split(torch.randperm(len(rows)), training.batch_size):
                ids = pad_sequence([rows[i] for i in batch], batch_first=True)
                lengths = torch.tensor([len(rows[i]) for i in batch])
                seen = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
                output = network(
                    input_ids=ids.to(network.device),
                    attention_mask=seen.to(network.device),
                    labels=truth[batch].to(network.device),
                )
                output.loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return EncoderClassifier(network.eval(), tokenizer)


def _encoder(encoder: str, dropout: float) -> tuple[Any, Any]:
    """An encoder with a new head, and its tokenizer; safetensors only, no code."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from kvbench.model.loading import quiet_transformers
    from kvbench.model.spec import checked_config

    local = Path(encoder).expanduser().is_dir()
    where = str(Path(encoder).expanduser()) if local else encoder
    labels = {
        "num_labels": len(TASK_TYPES),
        "id2label": dict(enumerate(TASK_TYPES)),
        "label2id": {name: i for i, name in enumerate(TASK_TYPES)},
    }
    try:
        if local:
            checked_config(Path(where, "config.json"))
        with quiet_transformers():
            config: Any = AutoConfig.from_pretrained(where, trust_remote_code=False, **labels)
            if hasattr(config, "classifier_dropout"):
                config.classifier_dropout = dropout
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            network: Any = AutoModelForSequenceClassification.from_pretrained(
                where,
                config=config,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
            )
    except Exception as error:  # transformers checks little of what a folder holds
        reason = shorten(str(error), 200)
        raise UserError(
            f"encoder {encoder} cannot be loaded ({reason}): give a folder, or"
            " classifier.encoder=null for TF-IDF"
        ) from error
    return network.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _save(
    out: Path,
    classifier: TfidfClassifier | EncoderClassifier,
    training: Training,
    trained_on: int,
    found: Tested,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    classifier.save(out)
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(p for p in out.iterdir() if p.is_file()):
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    manifest = {
        "kind": TFIDF if training.encoder is None else ENCODER,
        "digest": digest.hexdigest(),
        "training": asdict(training),
        "trained_on": trained_on,
        **asdict(found),
        "kvbench": __version__,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
