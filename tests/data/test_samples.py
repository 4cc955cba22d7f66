"""The sample suite: LongBench's format, made by its script, none of LongBench's text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.data.files import SAMPLES
from kvbench.tasks.longbench import LONGBENCH_16
from support.paths import ROOT

DATA = Path(os.environ.get("KVBENCH_DATA", "/nowhere")) / "longbench"

FIELDS = {
    "input",
    "context",
    "answers",
    "length",
    "dataset",
    "language",
    "all_classes",
    "_id",
}


def _records(task: str, folder: Path = SAMPLES) -> list[dict[str, Any]]:
    lines = (folder / f"{task}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def test_the_script_makes_the_shipped_files_byte_for_byte(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "make_samples.py", tmp_path], check=True)
    made = {p.name: p.read_bytes() for p in tmp_path.glob("*.jsonl")}
    assert made == {p.name: p.read_bytes() for p in SAMPLES.glob("*.jsonl")}
    assert made.keys() == {f"{task}.jsonl" for task in LONGBENCH_16}


@pytest.mark.parametrize("task", LONGBENCH_16)
def test_records_have_longbenchs_fields(task):
    records = _records(task)
    assert len(records) >= 2
    assert len({r["_id"] for r in records}) == len(records)
    for r in records:
        assert r.keys() == FIELDS
        assert r["dataset"] == task
        assert r["answers"]
        assert all(r["answers"])
        assert (r["all_classes"] is not None) == (task == "trec")
        assert r["length"] == len(f"{r['context']} {r['input']}".split())


@pytest.mark.parametrize("task", LONGBENCH_16)
def test_contexts_are_long_enough_for_eviction_to_hurt_and_short_enough_to_run(task):
    for r in _records(task):
        assert 1200 < len(r["context"] + r["input"]) < 12000


@pytest.mark.parametrize(
    "task", ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"]
)
def test_answers_stand_in_the_context_before_its_last_fifth(task):
    for r in _records(task):
        places = [r["context"].lower().find(a.lower()) for a in r["answers"]]
        found = [p for p in places if p >= 0]
        assert found, r["answers"]
        assert min(found) < 0.8 * len(r["context"])


@pytest.mark.skipif(not DATA.is_dir(), reason="KVBENCH_DATA does not name the LongBench records")
@pytest.mark.parametrize("task", LONGBENCH_16)
def test_no_text_comes_from_longbench(task):
    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[i : i + 12]) for i in range(len(words) - 11)}

    real = set().union(*(runs(r["context"]) for r in _records(task, DATA)))
    for r in _records(task):
        assert not runs(r["context"]) & real
