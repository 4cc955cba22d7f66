from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.report.table.columns import best_rows, columns_of
from kvbench.report.table.comparison import comparison, difference, score_interval
from kvbench.report.table.stats import holm, mean_interval
from kvbench.report.table.table import Table, tables_of
from support.runs import header, records, write_shard

Scores = Mapping[str, Mapping[str, Sequence[float]]]

TASKS = ("qasper", "trec")

CLEAR: Scores = {
    "fullkv": {"qasper": [0.8, 0.6, 0.9, 0.7, 0.8, 0.9], "trec": [1.0, 1.0, 0.0, 1.0]},
    "snapkv@0.2": {"qasper": [0.7, 0.5, 0.8, 0.6, 0.7, 0.8], "trec": [1.0, 1.0, 0.0, 1.0]},
    "tova@0.2": {"qasper": [0.1, 0.0, 0.3, 0.1, 0.2, 0.1], "trec": [1.0, 0.0, 1.0, 0.0]},
}
"""SnapKV is always 0.1 below FullKV on qasper and equal on trec."""


def table_of(folder: Path, scores: Scores = CLEAR, samples: int = 6) -> Table:
    head = header(labels=list(scores), tasks=TASKS, samples=samples)
    for task in head["tasks"]:
        task["samples"] = max(len(by_task[task["name"]]) for by_task in scores.values())
    write_shard(folder, head, records(scores))
    (table,) = tables_of(folder)
    return table


def report(folder: Path, *flags: str) -> str:
    done = CliRunner().invoke(app, ["report", str(folder), *flags], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_score_has_the_interval_of_its_samples_within_tasks(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    average = columns_of(table, per_task=True)[-1]
    values = [[100 * s for s in CLEAR["fullkv"][task]] for task in TASKS]
    assert score_interval(table.rows[0], average.tasks) == mean_interval(values)


def test_differences_are_paired_by_sample_whatever_their_order(tmp_path: Path) -> None:
    made = records(CLEAR)
    head = header(labels=list(CLEAR), tasks=TASKS, samples=4)
    write_shard(tmp_path, head, made[::-1])
    (table,) = tables_of(tmp_path)
    by_label = {row.label: row for row in table.rows}
    found = difference(by_label["snapkv@0.2"], by_label["fullkv"], table.tasks[:1])
    assert found is not None and found.interval is not None
    ends = (found.mean, found.interval.low, found.interval.high)
    assert ends == (pytest.approx(-10),) * 3


def test_only_samples_that_both_rows_have_are_paired(tmp_path: Path) -> None:
    scores = {**CLEAR, "tova@0.2": {"qasper": [0.1, 0.0], "trec": [1.0]}}
    table = table_of(tmp_path, scores)
    full, _, tova = table.rows
    found = difference(tova, full, table.tasks[:1])
    assert found is not None
    assert found.mean == pytest.approx(-65.0)


def test_a_row_without_a_shared_sample_is_not_compared(tmp_path: Path) -> None:
    scores = {**CLEAR, "tova@0.2": {"qasper": [], "trec": [1.0, 1.0, 0.0, 1.0]}}
    table = table_of(tmp_path, scores)
    assert difference(table.rows[2], table.rows[0], table.tasks) is None
    compared = comparison(table, columns_of(table, per_task=True))
    assert [cell is None for cell in compared.cells[1]] == [True, False, True]
    assert compared.count == 4


def test_p_is_corrected_for_every_comparison_of_the_table(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    compared = comparison(table, columns_of(table, per_task=True))
    cells = [cell for line in compared.cells for cell in line if cell is not None]
    assert len(cells) == compared.count == 6
    assert [c.corrected_p for c in cells] == holm([c.difference.p for c in cells])
    snap_on_qasper = compared.cells[0][0]
    assert snap_on_qasper is not None
    assert snap_on_qasper.difference.p == pytest.approx(2 / 2**6)
    assert not snap_on_qasper.significant


def test_a_leader_is_clear_where_its_difference_to_the_next_is(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    qasper, trec, _ = columns_of(table, per_task=True)
    assert best_rows(table, qasper) == {1: True}
    assert best_rows(table, trec) == {1: False}


def test_a_shared_lead_is_never_clear(tmp_path: Path) -> None:
    scores = {**CLEAR, "h2o@0.2": CLEAR["snapkv@0.2"]}
    table = table_of(tmp_path, scores)
    leaders = best_rows(table, columns_of(table, per_task=True)[0])
    assert list(leaders.values()) == [False, False]


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_a_bold_score_without_a_clear_lead_is_marked(tmp_path: Path, form: str) -> None:
    table_of(tmp_path)
    text = report(tmp_path, "--tasks", "--format", form)
    assert "75.00~" in text and "68.33~" not in text
    assert "its lead is not clear" in text


def test_one_sample_per_task_gives_no_interval_and_no_clear_lead(tmp_path: Path) -> None:
    one = {
        label: {task: list(values)[:1] for task, values in by_task.items()}
        for label, by_task in CLEAR.items()
    }
    table = table_of(tmp_path, one)
    qasper = columns_of(table, per_task=True)[0]
    assert score_interval(table.rows[0], qasper.tasks) is None
    assert best_rows(table, qasper) == {1: False}
    text = report(tmp_path, "--intervals", "--differences")
    assert "cannot be known from one sample per task" in " ".join(text.split())
    assert ".." not in text


def test_the_differences_stand_below_the_scores(tmp_path: Path) -> None:
    table_of(tmp_path)
    text = report(tmp_path, "--differences")
    scores, differences = text.split("its lead is not clear")
    assert "tova@0.2" in scores and "p \n" in differences
    lines = differences.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("snapkv@0.2"))
    assert lines[at].split()[1:4] == ["-10.00", "+0.00", "-5.00"]
    assert lines[at + 1].split() == ["-10..-10", "0..0", "-5..-5"]
    assert "Differences to fullkv, paired per sample" in text
    assert max(map(len, text.splitlines())) <= 100


def test_another_row_can_be_the_reference(tmp_path: Path) -> None:
    table_of(tmp_path)
    text = report(tmp_path, "--reference", "tova@0.2", "--format", "markdown")
    assert "**Differences to tova@0.2**" in text
    assert "| fullkv | +65.00" in text


def test_an_unknown_reference_is_refused_in_one_line(tmp_path: Path) -> None:
    table_of(tmp_path)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--reference", "snapkv@0.4"])
    assert done.exit_code == 2
    assert "did you mean snapkv@0.2?" in done.stderr and done.stderr.count("\n") == 1


def test_without_fullkv_a_reference_must_be_named(tmp_path: Path) -> None:
    table_of(tmp_path, {k: v for k, v in CLEAR.items() if k != "fullkv"})
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--differences"])
    assert done.exit_code == 2
    assert "snapkv@0.2, tova@0.2" in done.stderr


def test_csv_holds_intervals_and_differences(tmp_path: Path) -> None:
    table_of(tmp_path)
    text = report(tmp_path, "--format", "csv", "--tasks", "--differences")
    full, snap, _ = csv.DictReader(io.StringIO(text))
    assert full["qasper"] == "78.33"
    assert float(full["qasper low"]) < 78.33 < float(full["qasper high"])
    assert full["qasper difference"] == ""
    assert (snap["reference"], snap["qasper difference"]) == ("fullkv", "-10.00")
    assert (snap["qasper p"], snap["qasper p holm"]) == ("0.0312", "0.1875")


def test_rows_that_lack_the_same_share_one_line(tmp_path: Path) -> None:
    labels = ["fullkv", *(f"snapkv@{n}" for n in (64, 128, 256, 512))]
    scores = {label: {"qasper": [0.5], "trec": []} for label in labels}
    head = header(labels=labels, tasks=TASKS, samples=1)
    write_shard(tmp_path, head, records(scores))
    (line,) = (x for x in report(tmp_path).splitlines() if x.startswith("Incomplete"))
    assert "fullkv, snapkv@64, snapkv@128 and 2 more lack all of trec" in line
