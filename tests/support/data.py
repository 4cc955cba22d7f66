"""Short records in LongBench's format, for runs whose answers do not matter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def record(task: str, i: int, **changes: Any) -> dict[str, Any]:
    """One record of a few hundred characters, whose question ends with `i`."""
    story = " ".join(f"On day {d} the {task} clerk wrote {d * i} in the book." for d in range(14))
    return {
        "_id": f"{task}-{i}",
        "input": f"What did the clerk write on day {i}?",
        "context": story,
        "answers": [str(i * i), "nothing"],
        "all_classes": ["Number", "Person"] if task == "trec" else None,
        "length": len(story.split()),
        "dataset": task,
        "language": "en",
        **changes,
    }


def write_data(folder: Path, counts: Mapping[str, int]) -> Path:
    """The folder, holding so many records of each task."""
    folder.mkdir(parents=True)
    for task, count in counts.items():
        lines = [json.dumps(record(task, i + 1)) for i in range(count)]
        (folder / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
