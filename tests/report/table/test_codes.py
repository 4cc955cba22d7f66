"""Results of several codes in one folder, and folders that an older kvbench wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.compress.budget import Budget
from kvbench.records.speed import recorded_speeds
from kvbench.report.run import load_run
from support.cli import done
from support.paths import ROOT
from support.runs import header, records, write_shard

OLD = ROOT / "results" / "baselines" / "smollm2-135m"
"""Written before headers were typed, budgets had units and records named their code."""

SCORES = {"fullkv": {"qasper": [1.0, 1.0]}, "snapkv@0.2": {"qasper": [0.5, 0.5]}}


def folder_of(tmp_path: Path, *codes: str | None) -> Path:
    """A run folder whose results were computed once by each code, oldest first."""
    for number, code in enumerate(codes):
        made = [
            replace(
                record,
                key=f"{record.key} {code}",
                code=code,
                score=(record.score or 0) / (number + 1),
                finished=f"2026-01-0{number + 1}T00:00:00Z",
            )
            for record in records(SCORES)
        ]
        write_shard(tmp_path / "run", header(tasks=["qasper"], samples=2), made)
    return tmp_path / "run"


def test_results_of_one_code_need_no_word(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "aaaa.1111")
    for text in (done("status", str(folder)), done("report", str(folder))):
        assert "code are in the folder" not in text and "versions of the code" not in text


@pytest.mark.parametrize("older", ["aaaa.1111", None])
def test_status_and_report_say_that_an_older_code_made_some(
    tmp_path: Path, older: str | None
) -> None:
    folder = folder_of(tmp_path, older, "bbbb.1111")
    said = "4 results of earlier code are in the folder too: of each sample the newest result"
    for text in (done("status", str(folder)), done("report", str(folder))):
        assert said in " ".join(text.split())
        assert "side by side" not in text
    (table,) = load_run(folder).tables()
    assert [table.mean_score(row) for row in table.rows] == [50.0, 25.0], "the newest counts"


def test_rows_that_mix_codes_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "aaaa.1111")
    other = [
        replace(
            record, key=f"{record.key} again", code="aaaa.2222", finished="2026-02-01T00:00:00Z"
        )
        for record in records({"snapkv@0.2": {"qasper": [0.5]}})
    ]
    write_shard(folder, header(tasks=["qasper"], samples=2), other)
    for text in (done("status", str(folder)), done("report", str(folder))):
        assert "stand side by side (snapkv@0.2 mix them)" in " ".join(text.split())


@pytest.mark.slow
def test_a_folder_of_an_older_kvbench_opens_everywhere(tmp_path: Path) -> None:
    kept = {"fullkv", "snapkv@0.2"}
    (tmp_path / "old").mkdir()
    for shard in OLD.glob("*.jsonl"):
        first, *lines = map(json.loads, shard.read_text(encoding="utf-8").splitlines())
        first["variants"] = [v for v in first["variants"] if v["label"] in kept]
        lines = [line for line in lines if line["variant"] in kept]
        text = "\n".join(map(json.dumps, [first, *lines])) + "\n"
        (tmp_path / "old" / shard.name).write_text(text, encoding="utf-8")
    old = str(tmp_path / "old")
    counted = [line for line in done("status", old).splitlines() if "results done" in line]
    assert sum(int(line.split()[0]) for line in counted) == 24
    assert all(line.endswith("0 missing, 0 failed.") for line in counted)
    for form in ("terminal", "html"):
        assert "snapkv@0.2" in done("report", old, "--format", form)
    assert "0 of 24 scores differ from those recorded" in done("score", old)
    assert "snapkv@0.2" in done("compare", old, old)
    run = load_run(old)
    assert len(run.records()) == 24 and run.header.model.name == "smollm2-135m"
    by_label = {v.label: v for header in run.headers for v in header.variants}
    assert by_label["fullkv"].is_baseline and by_label["fullkv"].series == "fullkv"
    assert by_label["snapkv@0.2"].budget == Budget(fraction=0.2)
    assert by_label["snapkv@0.2"].series == "snapkv"


def test_budgets_of_old_headers_are_told_by_their_text(tmp_path: Path) -> None:
    labels = ["fullkv", "snapkv@0.2", "snapkv@64", "snapkv@1", "snapkv@64[window=8]"]
    scores = {label: {"qasper": [1.0]} for label in labels}
    write_shard(tmp_path, header(labels=labels, tasks=["qasper"]), records(scores))
    variants = {v.label: v for v in load_run(tmp_path).header.variants}
    assert variants["fullkv"].budget == Budget(fraction=1.0)
    assert variants["snapkv@0.2"].budget == Budget(fraction=0.2)
    assert variants["snapkv@64"].budget == Budget(tokens=64)
    assert variants["snapkv@1"].budget == Budget(tokens=1)
    assert variants["snapkv@64[window=8]"].series == "snapkv[window=8]"


def test_speeds_that_an_older_kvbench_measured_are_read(tmp_path: Path) -> None:
    speed = {
        **{"label": "snapkv@0.2", "method": "snapkv", "budget": "0.2", "prefill_s": 1.0},
        **{"compress_s": 0.1, "decode_s": 1.0, "cache_bytes": 1, "native_bytes": 5},
        "peak_bytes": None,
    }
    line = {
        **{"kind": "speed", "model": "m", "weights": "w", "machine": {}, "versions": {}},
        "lengths": {"context": 8, "generate": 4, "repeats": 1},
        "speeds": [speed],
    }
    text = "\n".join(json.dumps(x) for x in (header(), line)) + "\n"
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    (run,) = recorded_speeds(tmp_path)
    assert (run.speeds[0].series, run.speeds[0].budget) == ("snapkv", Budget(fraction=0.2))
    assert "snapkv@0.2" in done("report", str(tmp_path))
    assert "speed: snapkv@0.2 on m, 8 prompt tokens, 4 generated" in done("status", str(tmp_path))
