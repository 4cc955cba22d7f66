"""Writes the sample suite, `kvbench/samples/<task>.jsonl`, from seeds; equal bytes every time.

    python scripts/make_samples.py [FOLDER]

The records have LongBench's format and none of its text: everything is put together from the
material in `scripts/sample_material`, which was written for this project.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.sample_material import (  # noqa: E402  (the path comes first)
    articles,
    handbooks,
    multidoc,
    stories,
)
from scripts.sample_material.pick import Picker  # noqa: E402

SEED = "kvbench-sample-1"


def picker(task: str, index: int) -> Picker:
    return Picker(f"{SEED}/{task}/{index}")


def record(
    task: str,
    context: str,
    answers: tuple[str, ...],
    question: str = "",
    language: str = "en",
    classes: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Return one record with LongBench's fields; `length` counts words of context and input."""
    return {
        "input": question,
        "context": context,
        "answers": list(answers),
        "length": len(f"{context} {question}".split()),
        "dataset": task,
        "language": language,
        "all_classes": None if classes is None else list(classes),
        "_id": hashlib.blake2b(f"{task}{context}{question}".encode(), digest_size=24).hexdigest(),
    }


def single_document() -> Iterator[dict[str, Any]]:
    for index, story in enumerate(stories.STORIES):
        text = stories.context(picker("narrativeqa", index), story, 8)
        yield record("narrativeqa", text, story.answers, story.question)
    for index, study in enumerate(articles.STUDIES):
        text = articles.context(picker("qasper", index), study)
        yield record("qasper", text, study.answers, study.question)
    for index, handbook in enumerate(handbooks.HANDBOOKS):
        text = handbooks.context(picker("multifieldqa_en", index), handbook, 11)
        yield record("multifieldqa_en", text, handbook.answers, handbook.question)


def multi_document() -> Iterator[dict[str, Any]]:
    for task, questions in (
        ("hotpotqa", multidoc.HOTPOTQA),
        ("2wikimqa", multidoc.TWOWIKI),
        ("musique", multidoc.MUSIQUE),
    ):
        for index, question in enumerate(questions):
            text = multidoc.context(picker(task, index), question, 9)
            yield record(task, text, question.answers, question.text)


def records() -> Iterator[dict[str, Any]]:
    yield from single_document()
    yield from multi_document()


def main(folder: Path) -> None:
    lines: dict[str, list[str]] = {}
    for item in records():
        lines.setdefault(item["dataset"], []).append(json.dumps(item, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in lines.items():
        (folder / f"{task}.jsonl").write_bytes("".join(f"{row}\n" for row in rows).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "kvbench" / "samples")
