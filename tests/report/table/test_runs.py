from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvbench.cli.main import app
from kvbench.report.table.runs import changed_samples, compare_runs
from support.runs import PROTOCOL, header, records, write_shard

MODEL, DATA = header(tasks=["qasper"])["model"], header(tasks=["qasper"])["data"]

BEFORE = {"fullkv": {"qasper": [1.0, 0.5, 0.0, 1.0]}, "snapkv@0.2": {"qasper": [0.5, 0.5, 0.0]}}
AFTER = {"fullkv": {"qasper": [1.0, 0.5, 0.0, 1.0]}, "snapkv@0.2": {"qasper": [0.5, 0.0, 0.25]}}


def run_of(folder: Path, scores: Mapping[str, Mapping[str, Sequence[float]]], word: str) -> Path:
    lines = [
        replace(r, prediction=f"{word} {r.sample}" if r.variant == "snapkv@0.2" else "the same")
        for r in records(scores)
    ]
    write_shard(folder, header(labels=list(scores), tasks=["qasper"]), lines)
    return folder


def compared(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return run_of(tmp_path / "a", BEFORE, "old"), run_of(tmp_path / "b", AFTER, "new")


def test_samples_are_paired_by_variant_and_task(runs: tuple[Path, Path]) -> None:
    full, snap = compare_runs(*runs).cells
    assert (full.variant, full.task, len(full.pairs)) == ("fullkv", "qasper", 4)
    assert full.difference.mean == 0 and full.corrected_p == 1
    assert all(pair.same_prediction for pair in full.pairs)
    assert [pair.change for pair in snap.pairs] == [0, -0.5, 0.25]
    assert snap.difference.mean == pytest.approx(100 * (-0.5 + 0.25) / 3)


def test_a_sample_that_one_run_lacks_is_left_out(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", BEFORE, "old")
    b = run_of(tmp_path / "b", {"fullkv": {"qasper": [1.0, 0.5]}}, "old")
    (full,) = compare_runs(a, b).cells
    assert len(full.pairs) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": {**PROTOCOL, "name": "paper"}}, "protocol official and paper"),
        ({"protocol": {**PROTOCOL, "query_aware": False}}, "protocol.query_aware True and False"),
        ({"model": {**MODEL, "name": "n", "dtype": "float16"}}, "model m and n"),
        ({"model": {**MODEL, "dtype": "float16"}}, "model.dtype float32 and float16"),
        ({"data": {**DATA, "hashes": {"qasper": "x"}}}, "data /d/longbench and /d/longbench, of"),
    ],
)
def test_runs_that_are_not_alike_are_compared_only_where_asked(
    tmp_path: Path, changes: Mapping[str, Any], said: str
) -> None:
    scores = {"fullkv": {"qasper": [1.0, 0.5]}}
    write_shard(tmp_path / "a", header(["fullkv"], ["qasper"]), records(scores))
    write_shard(tmp_path / "b", header(["fullkv"], ["qasper"], **changes), records(scores))
    refused = compared(tmp_path / "a", tmp_path / "b")
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert f"({said}" in refused.stderr and "--anyway" in refused.stderr
    paired = compared(tmp_path / "a", tmp_path / "b", "--anyway")
    assert paired.exit_code == 0 and f"NOT ALIKE: the runs differ in {said}" in paired.stdout


def test_what_changed_most_is_shown_first_with_both_predictions(runs: tuple[Path, Path]) -> None:
    text = changed_samples(compare_runs(*runs).cells, 2)
    assert text.startswith("3 of 7 predictions differ.\n")
    first, second = text.split("\n\n")[1:]
    assert first.startswith("snapkv@0.2, qasper, sample s1: -50.00")
    assert "before  old s1" in first and "after   new s1" in first
    assert second.startswith("snapkv@0.2, qasper, sample s2: +25.00")


def test_a_prediction_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", BEFORE, "old")
    b = run_of(tmp_path / "b", AFTER, "\x1b[2Jnew\r\n")
    assert "\x1b" not in compared(a, b).stdout
    assert "\\x1b[2Jnew" in compared(a, b).stdout


def test_the_table_has_a_row_for_each_variant_and_task(runs: tuple[Path, Path]) -> None:
    done = compared(*runs, "--format", "markdown", "--changed", "1")
    assert done.exit_code == 0, done.output
    assert "| snapkv@0.2 | qasper | 3 | 33.33 | 25.00 | -8.33 |" in done.stdout
    assert done.stdout.count("before  ") == 1


def test_a_run_compared_with_itself_has_no_change(runs: tuple[Path, Path]) -> None:
    assert "0 of 7 predictions differ." in compared(runs[0], runs[0]).stdout


def test_runs_without_a_shared_sample_are_refused_in_one_line(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", BEFORE, "old")
    b = run_of(tmp_path / "b", {"knorm@0.2": {"qasper": [1.0]}}, "old")
    for words in ((a, b), (a, tmp_path / "nowhere"), (a, b, "--format", "html")):
        result = compared(*words)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
