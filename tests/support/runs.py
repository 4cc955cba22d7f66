"""Run folders written by hand, for what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvbench.records.header import SCHEMA, RunHeader, read_header
from kvbench.records.record import Record
from kvbench.tasks.longbench import LONGBENCH_16, LongBench

PROTOCOL = {
    "name": "official",
    "truncation": "middle",
    "chat_template": "official",
    "stop": "eos_or_newline",
    "min_new_tokens": "newline_tasks",
    "code_similarity": "difflib",
    "query_aware": True,
    "first_token": "prefill",
    "max_input_tokens": None,
    "max_new_tokens": None,
}

A_RECORD = Record(
    key="k",
    model="m",
    suite="longbench",
    task="qasper",
    group="Single-Document QA",
    sample="s0",
    variant="snapkv@0.2",
    method="snapkv",
    method_config={"window": 32},
    budget=0.2,
    budget_unit="fraction",
    query_aware=True,
    prompt_tokens=100,
    prefill_tokens=100,
    tokens_cut=0,
    spans={},
    span_kept={},
    prediction="a cat",
    generated_tokens=2,
    answers=["a cat"],
    scored_fields={"all_classes": None, "length": 80},
    metric="qa_f1",
    score=1.0,
    scores={"qa_f1": 1.0},
    kept_ratio=0.2,
    ratio_bytes=0.21,
    ratio_formula15=0.2,
    ratio_formula15_printed=0.2,
    r1=[0.2, 0.2],
    r2=[1.0, 1.0],
    cache_bytes=210,
    native_bytes=1000,
    decode_bytes=230,
    reader="rows (torch)",
    bytes_by_part={"rows": 210},
    kept_tokens=[20.0, 20.0],
    facts={},
    decode_width=3,
    capture_s=0.1,
    compress_s=0.1,
    decode_s=0.1,
    error=None,
    finished="2026-01-01T00:00:00Z",
)


def header(
    labels: Sequence[str] = ("fullkv", "snapkv@0.2"),
    tasks: Sequence[str] = LONGBENCH_16,
    samples: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """A run header; `changes` replace its top-level entries."""
    return {
        "kind": "header",
        "schema": SCHEMA,
        "kvbench": "0",
        "run": "r",
        "started": "2026-01-01T00:00:00Z",
        "model": {"name": "m", "path": "p", "dtype": "float32", "revision": None},
        "suite": "longbench",
        "data": {
            "setting": "/d/longbench",
            "description": "files",
            "revision": None,
            "hashes": {task: f"hash of {task}" for task in tasks},
        },
        "protocol": PROTOCOL,
        "variants": [
            {
                "label": label,
                "method": label.partition("@")[0],
                "budget": label.partition("@")[2].partition("[")[0] or "1",
                "config": {},
            }
            for label in labels
        ],
        "tasks": [
            {
                "name": task.name,
                "group": task.group,
                "samples": samples,
                "max_new_tokens": task.max_new_tokens,
                "one_token_answers": task.one_token_answers,
            }
            for task in LongBench(tasks).tasks()
        ],
        "config": {
            "task": {
                "_target_": "kvbench.tasks.longbench.LongBench",
                "tasks": list(tasks),
                "extended": False,
            }
        },
        "versions": {"kvbench": "0", "torch": "2"},
        "git": {"commit": "c" * 40, "dirty": False},
        "machine": {},
        **changes,
    }


def typed_header() -> RunHeader:
    """The header as readers see it."""
    return read_header(Path("made"), header())


def records(scores: Mapping[str, Mapping[str, Sequence[float]]], **changes: Any) -> list[Record]:
    """One record for each score of {label: {task: scores}}."""
    groups = {task.name: task.group for task in LongBench(LONGBENCH_16).tasks()}
    return [
        replace(
            A_RECORD,
            key=f"{label} {task} {i}",
            variant=label,
            method=label.partition("@")[0],
            task=task,
            group=groups[task],
            sample=f"s{i}",
            score=score,
            **changes,
        )
        for label, by_task in scores.items()
        for task, values in by_task.items()
        for i, score in enumerate(values)
    ]


def write_shard(folder: Path, head: Mapping[str, Any], lines: Sequence[Record]) -> Path:
    """Write one shard into a run folder, newest by name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"shard-{len(list(folder.iterdir())):03}.jsonl"
    texts = [json.dumps(head), *(json.dumps({"kind": "record", **asdict(r)}) for r in lines)]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path
