"""A task classifier's test on held-out prompts: as a table, and as numbers beside a paper's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.classifier.trained import MANIFEST
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
    held_out: int
    """Prompts that it was tested on."""
    scores: dict[str, float]
    """Accuracy, recall and f1, in [0, 1]."""

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
        held_out = found["held_out"]
        return TestedClassifier(
            found["training"]["encoder"],
            int(found["trained_on"]),
            int(held_out["prompts"]),
            {name: float(held_out[name]) for name in _QUANTITIES},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is broken: train the classifier again") from error


def classifier_sheet(classifier: TestedClassifier) -> Sheet:
    """Return one row."""
    values = (f"{100 * classifier.scores[name]:.2f}" for name in _QUANTITIES)
    headings = (Heading("classifier"), *map(Heading, _QUANTITIES))
    row = SheetRow(cells(classifier.name, *values))
    return Sheet("Task classifier", headings, (row,), notes=(_tested(classifier),))


def _tested(classifier: TestedClassifier) -> str:
    return (
        f"Trained on {classifier.trained_on} prompts, tested on {classifier.held_out} held-out"
        " ones; localization counts as positive."
    )


@dataclass(frozen=True)
class ClassifierNumbers:
    """Numbers of `analysis=classifier`."""

    classifier: TestedClassifier

    @property
    def card(self) -> tuple[str, ...]:
        """How many prompts it was trained and tested on."""
        return (_tested(self.classifier),)

    def ours(self, figure: Figure, beside: Beside, columns: set[str]) -> Number:
        """Our accuracy, recall or F1 in per cent."""
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
