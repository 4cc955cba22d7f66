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
    dialogues,
    handbooks,
    meetings,
    multidoc,
    news,
    paragraphs,
    programs,
    questions,
    quiz,
    reports,
    stories,
)
from scripts.sample_material.pick import Picker  # noqa: E402

SEED = "kvbench-sample-1"


def picker(task: str, index: int) -> Picker:
    """Return the seeded source of chance for one record."""
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
    """Yield stories, articles and handbooks with a question each."""
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
    """Yield several entries with a question over two of them."""
    for task, asked in (
        ("hotpotqa", multidoc.HOTPOTQA),
        ("2wikimqa", multidoc.TWOWIKI),
        ("musique", multidoc.MUSIQUE),
    ):
        for index, question in enumerate(asked):
            text = multidoc.context(picker(task, index), question, 9)
            yield record(task, text, question.answers, question.text)


def few_shot() -> Iterator[dict[str, Any]]:
    """Yield examples of a format, and one to go on with."""
    for index, label in enumerate(questions.CLASSES[1::3]):
        context, last = questions.sample(picker("trec", index), label)
        yield record("trec", context, (label,), last, classes=questions.CLASSES)
    for index, item in enumerate(quiz.ASKED):
        context, last = quiz.sample(picker("triviaqa", index), item, 6)
        yield record("triviaqa", context, item.answers, last)
    for index, dialogue in enumerate(dialogues.ASKED):
        context, last = dialogues.sample(picker("samsum", index), dialogue, 8, 2)
        yield record("samsum", context, dialogue.summaries, last)


def summarization() -> Iterator[dict[str, Any]]:
    """Yield reports, meetings and news with a summary."""
    # Two each: the model seldom ends a summary by itself, so each costs all 512 tokens.
    for index, report in enumerate(reports.REPORTS[:2]):
        text = reports.context(picker("gov_report", index), report, 30)
        yield record("gov_report", text, (report.summary,))
    for index, meeting in enumerate(meetings.MEETINGS[:2]):
        text = meetings.context(picker("qmsum", index), meeting, 11)
        yield record("qmsum", text, meeting.answers, meeting.query)
    for index, event in enumerate(news.EVENTS[:2]):
        text = news.context(picker("multi_news", index), event, 30)
        yield record("multi_news", text, (event.summary,))


def synthetic() -> Iterator[dict[str, Any]]:
    """Yield paragraphs to count and paragraphs to find."""
    for index, (total, unique) in enumerate(((9, 6), (10, 8), (11, 7), (12, 10))):
        context = paragraphs.counted(picker("passage_count", index), total, unique)
        yield record("passage_count", context, (str(unique),))
    for index, source in enumerate((4, 11, 17, 8)):
        context, abstract = paragraphs.retrieved(picker("passage_retrieval_en", index), 30, source)
        yield record("passage_retrieval_en", context, (f"Paragraph {source}",), abstract)


def code() -> Iterator[dict[str, Any]]:
    """Yield files and projects cut before a line."""
    for index, script in enumerate(programs.SCRIPTS):
        text, line = programs.cut_file(picker("lcc", index), script, 5, 16)
        yield record("lcc", text, (line,), language="python")
    for index, script in enumerate(programs.SCRIPTS):
        context, cut, line = programs.cut_project(picker("repobench-p", index), script, 16)
        yield record("repobench-p", context, (line,), cut, language="python")


def records() -> Iterator[dict[str, Any]]:
    """Yield every record of the suite, in table order of the groups."""
    yield from single_document()
    yield from multi_document()
    yield from summarization()
    yield from few_shot()
    yield from synthetic()
    yield from code()


def main(folder: Path) -> None:
    """Write one file per task."""
    lines: dict[str, list[str]] = {}
    for item in records():
        lines.setdefault(item["dataset"], []).append(json.dumps(item, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in lines.items():
        (folder / f"{task}.jsonl").write_bytes("".join(f"{row}\n" for row in rows).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "kvbench" / "samples")
