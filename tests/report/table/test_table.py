from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvbench.cli.main import app
from kvbench.report.run import load_run, newest_run
from kvbench.report.sheets.card import notes
from kvbench.report.table.columns import best_rows, columns_of
from kvbench.report.table.comparison import score_interval
from kvbench.report.table.table import Table, tables_of
from kvbench.tasks.longbench import LONGBENCH_16
from support.runs import A_RECORD, PROTOCOL, header, records, write_shard

Scores = Mapping[str, Mapping[str, Sequence[float]]]


def everywhere(value: float) -> dict[str, list[float]]:
    """The same score on one sample of each of the 16 tasks."""
    return {task: [value] for task in LONGBENCH_16}


def table_of(folder: Path, scores: Scores, **changes: object) -> Table:
    write_shard(folder, header(labels=list(scores), **changes), records(scores))
    (table,) = tables_of(folder)
    return table


def report(folder: Path, *flags: str) -> str:
    done = CliRunner().invoke(app, ["report", str(folder), *flags], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2
    assert done.stderr.startswith("kvbench: ") and done.stderr.count("\n") == 1
    return done


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_a_report_is_as_wide_as_the_terminal(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    scores = {label: {task: [1.0] for task in LONGBENCH_16} for label in ("fullkv", "snapkv@0.2")}
    write_shard(tmp_path / "run", header(), records(scores))
    text = load_run(tmp_path / "run").table(per_task=True)
    assert columns - 20 < max(map(len, text.splitlines())) <= columns
    assert text.count("method  ") == {80: 3, 120: 2, 160: 2}[columns], "tables"
    assert max(map(len, load_run(tmp_path / "run").status().splitlines())) <= columns


@pytest.mark.parametrize("form", ["csv", "markdown", "terminal"])
def test_what_compressing_costs_has_a_column(tmp_path: Path, form: str) -> None:
    scores = {"fullkv": {"qasper": [1.0, 0.5]}, "snapkv@0.2": {"qasper": [1.0, 0.5]}}
    lines = [replace(r, compress_s=0.1 + 0.2 * (r.sample == "s1")) for r in records(scores)]
    write_shard(tmp_path / "run", header(tasks=["qasper"]), lines)
    text = load_run(tmp_path / "run").table(form, ratios=True)
    assert "compress_s" in text and "0.200" in text


def test_avg_is_the_plain_mean_of_the_sixteen_tasks(tmp_path: Path) -> None:
    scores = {task: [i / 100] for i, task in enumerate(LONGBENCH_16)}
    table = table_of(tmp_path, {"fullkv": scores})
    average = columns_of(table, per_task=False)[-1]
    assert average.name == "AVG"
    assert average.values == (pytest.approx(7.5),)


def test_a_group_is_the_mean_of_its_tasks_whatever_their_sample_counts(tmp_path: Path) -> None:
    scores = {"lcc": [0.2, 0.4, 0.6], "repobench-p": [1.0]}
    table = table_of(tmp_path, {"fullkv": scores}, tasks=list(scores))
    code = columns_of(table, per_task=False)[0]
    assert (code.name, code.values) == ("Code", (pytest.approx(70.0),))


def test_fullkv_stands_first_and_budgets_ascend(tmp_path: Path) -> None:
    labels = ["snapkv@512", "snapkv@0.4", "pyramidkv@0.2", "snapkv@0.2", "fullkv"]
    table = table_of(tmp_path, {label: everywhere(0.5) for label in labels})
    order = [row.label for row in table.rows]
    assert order == ["fullkv", "pyramidkv@0.2", "snapkv@0.2", "snapkv@0.4", "snapkv@512"]


def test_the_best_method_of_a_budget_is_bold_and_fullkv_never(tmp_path: Path) -> None:
    values = {
        "fullkv": 0.9,
        "snapkv@0.2": 0.3,
        "pyramidkv@0.2": 0.4,
        "snapkv@0.4": 0.5,
        "pyramidkv@0.4": 0.5,
    }
    table = table_of(tmp_path, {label: everywhere(value) for label, value in values.items()})
    average = columns_of(table, per_task=False)[-1]
    best = {table.rows[i].label for i in best_rows(table, average)}
    assert best == {"pyramidkv@0.2"}
    assert "**40.00~**" in report(tmp_path, "--format", "markdown")


def test_an_incomplete_row_has_no_mean_and_the_table_says_why(tmp_path: Path) -> None:
    partial = everywhere(0.5)
    del partial["trec"], partial["lcc"]
    table = table_of(tmp_path, {"fullkv": everywhere(0.5), "snapkv@0.2": partial})
    by_name = {c.name: c.values for c in columns_of(table, per_task=False)}
    assert by_name["Few-shot Learning"] == (50.0, None)
    assert by_name["Code"] == (50.0, None)
    assert by_name["Synthetic"] == (50.0, 50.0)
    assert by_name["AVG"] == (50.0, None)
    (line,) = [line for line in notes(table) if "Incomplete" in line]
    assert "snapkv@0.2 lacks all of trec, lcc" in line


def test_a_task_with_missing_samples_is_marked_and_left_out_of_means(tmp_path: Path) -> None:
    scores = {"fullkv": {"lcc": [0.5, 0.5]}, "snapkv@0.2": {"lcc": [1.0]}}
    table = table_of(tmp_path, scores, tasks=["lcc"], samples=2)
    task, average = columns_of(table, per_task=True)
    assert task.values == (50.0, 100.0)
    assert task.partial == (False, True)
    assert average.values == (50.0, None)
    text = report(tmp_path, "--tasks")
    assert "100.00*" in text and "1 of 2 in lcc" in text


def test_a_failed_sample_counts_as_missing_and_its_error_is_printed(tmp_path: Path) -> None:
    made = records({"fullkv": {"lcc": [0.5, 0.5]}})
    made[1] = replace(made[1], error="out of memory", score=None, prediction=None)
    write_shard(tmp_path, header(labels=["fullkv"], tasks=["lcc"], samples=2), made)
    text = report(tmp_path)
    assert "fullkv: 1 failed, first lcc s1: out of memory" in text
    assert "lacks 1 of 2 in lcc" in text


def test_samples_that_were_repeated_past_the_context_are_counted(tmp_path: Path) -> None:
    scores = {"fullkv": {"lcc": [0.5, 0.5]}, "kvzip@0.2": {"lcc": [0.5, 0.5]}}
    made = [
        replace(r, facts={"past_context": 40 + int(r.sample[1:])}) if "kvzip" in r.variant else r
        for r in records(scores)
    ]
    write_shard(tmp_path / "past", header(labels=list(scores), tasks=["lcc"], samples=2), made)
    note = "kvzip@0.2: the context was repeated past the model's own in 2 of 2 samples, 41"
    assert note in " ".join(report(tmp_path / "past").split())
    made[-1] = replace(made[-1], facts={"protected_tokens": 1})
    write_shard(tmp_path / "once", header(labels=list(scores), tasks=["lcc"], samples=2), made)
    text = " ".join(report(tmp_path / "once").split())
    assert "in 1 of 2 samples, 40 positions at most." in text
    write_shard(tmp_path / "none", header(labels=["fullkv"], tasks=["lcc"], samples=2), made[:2])
    assert "repeated past" not in report(tmp_path / "none")


def test_a_run_of_fewer_tasks_says_over_how_many_it_averages(tmp_path: Path) -> None:
    scores = {"fullkv": {"qasper": [0.1], "trec": [0.3]}}
    table = table_of(tmp_path, scores, tasks=["qasper", "trec"])
    average = columns_of(table, per_task=False)[-1]
    assert (average.name, average.values) == ("AVG of 2 tasks", (pytest.approx(20.0),))


def test_shards_of_several_tasks_make_one_table(tmp_path: Path) -> None:
    for task in ("qasper", "trec"):
        made = records({"fullkv": {task: [0.5]}})
        write_shard(tmp_path, header(labels=["fullkv"], tasks=[task]), made)
    (table,) = tables_of(tmp_path)
    assert [task.name for task in table.tasks] == ["qasper", "trec"]


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": {**PROTOCOL, "stop": "tokenizer_eos"}},
        {"model": {"name": "m", "path": "p", "dtype": "bfloat16", "revision": None}},
        {
            "data": {
                "setting": "/d/longbench",
                "description": "files",
                "revision": None,
                "hashes": {"lcc": "another"},
            }
        },
    ],
    ids=["protocol", "model", "data"],
)
def test_results_that_cannot_be_compared_come_in_separate_tables(
    tmp_path: Path, change: dict[str, object]
) -> None:
    made = records({"fullkv": {"lcc": [0.5]}})
    write_shard(tmp_path, header(labels=["fullkv"], tasks=["lcc"]), made)
    write_shard(tmp_path, header(labels=["fullkv"], tasks=["lcc"], **change), made)
    assert len(tables_of(tmp_path)) == 2


def test_of_a_sample_computed_twice_the_newer_result_counts(tmp_path: Path) -> None:
    old = replace(A_RECORD, key="old code", score=0.1, finished="2026-01-01T00:00:00Z")
    new = replace(A_RECORD, key="new code", score=0.7, finished="2026-01-02T00:00:00Z")
    write_shard(tmp_path, header(labels=["snapkv@0.2"], tasks=["qasper"]), [new, old])
    (table,) = tables_of(tmp_path)
    assert columns_of(table, per_task=True)[0].values == (70.0,)


def test_the_measured_ratio_has_its_own_column(tmp_path: Path) -> None:
    write_shard(tmp_path, header(labels=["snapkv@0.2"], tasks=["qasper"]), [A_RECORD])
    (line,) = csv.DictReader(io.StringIO(report(tmp_path, "--format", "csv")))
    assert (line["budget"], line["ratio_bytes"], line["kept_ratio"]) == ("0.2", "0.2100", "0.2000")
    assert line["Single-Document QA"] == "100.00"


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_the_other_ratios_are_shown_where_asked_for(tmp_path: Path, form: str) -> None:
    ratios = {"kept_ratio": 0.25, "ratio_formula15": 0.31, "ratio_formula15_printed": 0.42}
    made = [replace(A_RECORD, **ratios)]
    write_shard(tmp_path, header(labels=["snapkv@0.2"], tasks=["qasper"]), made)
    assert "0.420" not in report(tmp_path, "--format", form)
    text = report(tmp_path, "--format", form, "--ratios")
    (row,) = (line.replace("|", " ").split() for line in text.splitlines() if "0.420" in line)
    assert row[:7] == ["snapkv@0.2", "0.2", "0.210", "0.230", "0.250", "0.310", "0.420"]
    assert max(map(len, text.splitlines())) <= 100 or form == "markdown"


def test_the_sample_suite_says_that_it_is_not_longbench(tmp_path: Path) -> None:
    data = {**header()["data"], "setting": "sample"}
    write_shard(tmp_path, header(labels=["fullkv"], data=data), records({"fullkv": everywhere(1)}))
    for form in ("terminal", "markdown"):
        assert "NOT LongBench" in report(tmp_path, "--format", form)


def test_the_protocol_card_stands_under_the_table(tmp_path: Path) -> None:
    table_of(tmp_path, {"fullkv": everywhere(0.5)})
    text = " ".join(report(tmp_path).split())
    for fact in (
        "protocol official",
        "truncation middle",
        "chat template official",
        "stop eos_or_newline",
        "32 to 512 generated tokens",
        "query_aware true",
        "first_token prefill",
        "code similarity difflib",
        "torch 2",
        "hash ",
        "n = 1 per task",
    ):
        assert fact in text


@pytest.mark.parametrize("flags", [(), ("--tasks",)])
def test_the_terminal_table_fits_a_hundred_columns(tmp_path: Path, flags: tuple[str, ...]) -> None:
    labels = ["fullkv", "spindlekv@0.2", "streamingllm@0.2", "streamingllm_windowkv@0.2"]
    table_of(tmp_path, {label: everywhere(0.9) for label in labels})
    text = report(tmp_path, *flags)
    assert max(map(len, text.splitlines())) <= 100
    for label in labels:
        assert label in text
    assert "…" not in text
    heads = [line for line in text.splitlines() if line.startswith("method")]
    assert len(heads) == (2 if flags else 1)
    assert heads[-1].split()[-1] == "AVG"


def test_output_goes_to_a_file_without_colors(tmp_path: Path) -> None:
    table_of(tmp_path / "run", {"fullkv": everywhere(0.5)})
    target = tmp_path / "table.md"
    assert report(tmp_path / "run", "--format", "markdown", "--output", str(target)) == ""
    assert target.read_text(encoding="utf-8").startswith("**m on LongBench")


def test_a_folder_without_records_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "holds no records" in refused("report", str(tmp_path)).stderr
    assert "is not a folder" in refused("report", str(tmp_path / "nowhere")).stderr


def test_without_a_path_the_newest_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run in" in refused("report").stderr
    write_shard(tmp_path / "results/runs/old", header(), [A_RECORD])
    shard = write_shard(tmp_path / "results/runs/new", header(), [A_RECORD])
    assert newest_run(tmp_path / "results/runs").folder == shard.parent


def test_rescoring_counts_the_scores_that_changed(tmp_path: Path) -> None:
    wrong = replace(A_RECORD, key="w", sample="s1", prediction="a dog", score=1.0)
    write_shard(tmp_path, header(labels=["snapkv@0.2"], tasks=["qasper"]), [A_RECORD, wrong])
    done = CliRunner().invoke(app, ["score", str(tmp_path)], catch_exceptions=False)
    assert "50.00  snapkv@0.2  qasper" in done.stdout
    assert "1 of 2 scores differ" in done.stdout


def test_rescoring_takes_another_code_similarity(tmp_path: Path) -> None:
    answer = "int total = counter.size();"
    code = replace(A_RECORD, task="lcc", prediction="private int count = 0;", answers=[answer])
    write_shard(tmp_path, header(labels=["snapkv@0.2"], tasks=["lcc"]), [code])
    found = {}
    for backend in ("difflib", "levenshtein"):
        words = ["score", str(tmp_path), "--code-similarity", backend, "--json"]
        found[backend] = json.loads(CliRunner().invoke(app, words).stdout)["snapkv@0.2"]["lcc"]
    assert found == {"difflib": 41.0, "levenshtein": 45.0}


def test_other_metrics_of_lm_eval_are_columns_and_no_part_of_the_mean(tmp_path: Path) -> None:
    lines = records({"fullkv": {"qasper": [1.0, 0.0]}, "snapkv@0.2": {"qasper": [0.0, 0.0]}})
    told = {"strict": 0.0, "flexible": 0.5}
    lines = [replace(r, metric="strict", scores={**told, "strict": r.score}) for r in lines]
    labels = ["fullkv", "snapkv@0.2"]
    write_shard(tmp_path, header(labels, ["qasper"], 2, suite="lm-eval"), lines)
    (table,) = tables_of(tmp_path)
    columns = columns_of(table, per_task=True)
    assert [(c.name, c.values) for c in columns] == [
        ("qasper", (50.0, 0.0)),
        ("qasper flexible", (50.0, 50.0)),
        ("AVG of 1 task", (50.0, 0.0)),
    ]
    (other,) = columns[1].tasks
    assert score_interval(table.rows[0], [other]) is not None
    assert "qasper is strict; other metrics follow." in notes(table)


def test_what_stands_beside_a_longbench_score_is_no_column(tmp_path: Path) -> None:
    lines = records({"fullkv": {"qmsum": [0.5]}})
    lines = [
        replace(r, metric="rouge_l", scores={"rouge_l": 0.5, "rouge_failed": 0.0}) for r in lines
    ]
    write_shard(tmp_path, header(["fullkv"], ["qmsum"]), lines)
    (table,) = tables_of(tmp_path)
    assert [c.name for c in columns_of(table, per_task=True)] == ["qmsum", "AVG of 1 task"]
