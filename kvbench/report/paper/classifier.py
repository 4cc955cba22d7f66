"""A task classifier's tests: as tables, and as numbers beside a paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbench.base.errors import UserError
from kvbench.classifier.trained import MANIFEST
from kvbench.classifier.training import HeldOut, LeftOut, Tested
from kvbench.report.paper.published import Figure
from kvbench.report.paper.table import Beside, Number, Shares
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells

_QUANTITIES = ("accuracy", "recall", "f1")


@dataclass(frozen=True)
class TestedClassifier:
    """What a classifier's folder says of it."""

    encoder: str | None
    """None: TF-IDF."""
    trained_on: int
    """Prompts."""
    tested: Tested

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy, recall and f1 in [0, 1], the means over the splits."""
        return {
            name: fmean(getattr(split, name) for split in self.tested.splits)
            for name in _QUANTITIES
        }

    @property
    def name(self) -> str:
        """The encoder's name without its owner."""
        return "TF-IDF" if self.encoder is None else self.encoder.rstrip("/").rpartition("/")[2]


def tested_classifier(folder: Path) -> TestedClassifier | None:
    """Read the test of a trained classifier; None where the folder holds none.

    Raises:
        UserError: its file is broken.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        held_out = _held_out(found["held_out"])
        # Older ones were tested on one split.
        splits = tuple(map(_held_out, found.get("splits", []))) or (held_out,)
        left_out = tuple(
            LeftOut(str(o["task"]), str(o["task_type"]), int(o["prompts"]), int(o["right"]))
            for o in found.get("left_out", [])
        )
        encoder = found["training"]["encoder"]
        return TestedClassifier(
            encoder, int(found["trained_on"]), Tested(held_out, splits, left_out)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is broken: train the classifier again") from error


def _held_out(values: dict[str, Any]) -> HeldOut:
    return HeldOut(int(values["prompts"]), *(float(values[name]) for name in _QUANTITIES))


def classifier_sheets(classifier: TestedClassifier) -> list[Sheet]:
    """Return a row for each split, then a row for each task that was left out."""
    splits = classifier.tested.splits
    headings = (Heading("split"), Heading("prompts"), *map(Heading, _QUANTITIES))
    rows = [
        SheetRow(cells(str(number), str(split.prompts), *_percents(vars(split))))
        for number, split in enumerate(splits, 1)
    ]
    rows.append(SheetRow(cells("mean", "", *_percents(classifier.scores))))
    title = f"Task classifier: {classifier.name}, held-out prompts of its own tasks"
    sheets = [Sheet(title, headings, tuple(rows))]
    if classifier.tested.left_out:
        names = ("task", "type", "prompts", "right")
        left_out = tuple(
            SheetRow(cells(o.task, o.task_type, str(o.prompts), str(o.right)))
            for o in classifier.tested.left_out
        )
        title = f"Task classifier: {classifier.name}, each task left out of the training"
        sheets.append(Sheet(title, tuple(map(Heading, names)), left_out, labels=2))
    return [*sheets[:-1], replace(sheets[-1], notes=_tested(classifier))]


def _percents(scores: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{100 * scores[name]:.2f}" for name in _QUANTITIES)


def _tested(classifier: TestedClassifier) -> tuple[str, ...]:
    return (
        f"Trained on {classifier.trained_on} prompts, tested on"
        f" {classifier.tested.held_out.prompts} held-out ones in each split; localization counts"
        " as positive.",
        *(f"{line[0].upper()}{line[1:]}." for line in classifier.tested.lines),
    )


@dataclass(frozen=True)
class ClassifierNumbers:
    """Numbers of `analysis=classifier`."""

    classifier: TestedClassifier

    @property
    def card(self) -> tuple[str, ...]:
        """How many prompts it was trained and tested on, and how it did on tasks left out."""
        return _tested(self.classifier)

    def ours(self, figure: Figure, beside: Beside, columns: set[str]) -> Number:
        """Our accuracy, recall or F1 in per cent, the mean over the splits."""
        return Number(figure.whole * self.classifier.scores[figure.task])

    def shares(self, figure: Figure, beside: Beside) -> Shares | None:
        """A classifier holds no cache."""
        return None

    def obstacles(self, figure: Figure, beside: Beside) -> list[str]:
        """The paper's prompts are its own; the encoder may differ."""
        found = ["other prompts (the paper's 9551 are not published)"]
        if self.classifier.name != figure.model:
            other = f"other encoder (ours {self.classifier.name}, published {figure.model})"
            return [other, *found]
        return found
