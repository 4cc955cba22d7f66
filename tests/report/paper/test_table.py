"""A paper's table beside ours: what a cell holds, and what is marked as not comparable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.config.catalog import choices
from kvbench.report.paper.published import published_table
from kvbench.report.paper.scores import ScoreNumbers
from kvbench.report.paper.table import Beside, paper_csv, paper_sheets
from kvbench.report.sheets.card import notes
from kvbench.report.table.table import Table, tables_of
from support.cli import cli, done
from support.runs import PROTOCOL, header, records, write_shard

ONE_ROW = Beside(published_table("spindlekv/table2"), {"FullKV": ["fullkv"]})


def small_table(folder: Path, scores: dict[str, dict[str, list[float]]], **changes: Any) -> Table:
    tasks = list(next(iter(scores.values())))
    head = header(labels=list(scores), tasks=tasks, **changes)
    head["config"]["limit"] = None
    write_shard(folder, head, records(scores))
    (table,) = tables_of(folder)
    return table


SIX = ("narrativeqa", "2wikimqa", "qmsum", "triviaqa", "passage_count", "lcc")
LLAMA3 = {"name": "llama3-8b-instruct", "path": "p", "dtype": "bfloat16", "revision": None}
PAPER = {**PROTOCOL, "name": "paper"}


def test_a_cell_holds_ours_published_and_the_difference(tmp_path: Path) -> None:
    scores = {"fullkv": {task: [0.25] for task in SIX}}
    table = small_table(tmp_path, scores, model=LLAMA3, protocol=PAPER)
    (sheet,) = paper_sheets(ONE_ROW, ScoreNumbers([table]))
    narrativeqa, average = sheet.rows[0].cells[3], sheet.rows[0].cells[-1]
    assert (narrativeqa.text, narrativeqa.below) == ("25.00", "24.50\n+0.50")
    assert (average.text, average.below) == ("25.00", "39.77\n-14.77")
    assert not any("cannot be compared" in note for note in sheet.notes)


def test_a_footnote_marks_the_printed_number(tmp_path: Path) -> None:
    tasks = [f.task for f in published_table("spindlekv/table10").figures][:16]
    scores = {"spindlekv@0.3": {task: [0.25] for task in tasks}}
    table = small_table(tmp_path, scores, model=LLAMA3, protocol=PAPER)
    beside = Beside(published_table("spindlekv/table10"), {"SpindleKV": ["spindlekv"]})
    sheet, _ = paper_sheets(beside, ScoreNumbers([table]))
    marked = [cell.below for row in sheet.rows for cell in row.cells if "¹" in cell.below]
    assert marked == ["60.04¹\n-35.04†"]  # its bytes are not its Formula 15


def test_what_cannot_be_compared_is_marked_with_every_reason(tmp_path: Path) -> None:
    data = {**header()["data"], "setting": "sample"}
    scores = {"fullkv": {task: [0.25] for task in SIX}}
    table = small_table(tmp_path, scores, data=data)
    table.headers[-1].stated["limit"] = 2
    (sheet,) = paper_sheets(ONE_ROW, ScoreNumbers([table]))
    assert sheet.rows[0].cells[3].below == "24.50\n+0.50†"
    (note,) = (note for note in sheet.notes if note.startswith("†"))
    for reason in (
        "other model (ours m, published llama3-8b-instruct)",
        "other data",
        "fewer samples (the first 2 of each task)",
        "other protocol (ours official, published paper)",
    ):
        assert reason in note


def test_a_changed_field_of_the_papers_protocol_is_marked(tmp_path: Path) -> None:
    scores = {"fullkv": {task: [0.25] for task in SIX}}
    table = small_table(tmp_path, scores, model=LLAMA3, protocol=PAPER)
    (paper,) = (choice.config for choice in choices("protocol") if choice.name == "paper")
    for changed, marks in (({}, 0), ({"max_new_tokens": 16}, 1)):
        table.headers[-1].stated["protocol"] = {**paper, **changed}
        (sheet,) = paper_sheets(ONE_ROW, ScoreNumbers([table]))
        said = [note for note in sheet.notes if "other protocol (ours max_new_tokens=16)" in note]
        assert len(said) == marks


def test_a_row_that_was_not_run_shows_what_was_published(tmp_path: Path) -> None:
    table = small_table(tmp_path, {"fullkv": {task: [0.25] for task in SIX}})
    (sheet,) = paper_sheets(ONE_ROW, ScoreNumbers([table]))
    assert (sheet.rows[1].cells[3].text, sheet.rows[1].cells[3].below) == ("-", "24.00")


def test_an_average_needs_every_printed_task(tmp_path: Path) -> None:
    table = small_table(tmp_path, {"fullkv": {"narrativeqa": [0.25]}})
    (sheet,) = paper_sheets(ONE_ROW, ScoreNumbers([table]))
    assert sheet.rows[0].cells[3].text == "25.00"
    assert sheet.rows[0].cells[-1].text == "-"


def test_the_best_of_several_rows_counts_on_each_task(tmp_path: Path) -> None:
    tasks = [f.task for f in published_table("kvcrush/table3").figures][:15]
    one = {task: [0.1 * (i % 2)] for i, task in enumerate(tasks)}
    other = {task: [0.1 * (1 - i % 2)] for i, task in enumerate(tasks)}
    scores = {"kvcrush@2048[base=h2o]": one, "kvcrush@2048": other}
    table = small_table(tmp_path, scores, model=LLAMA3)
    rows = {"KVCrush*": ["kvcrush[base=h2o]", "kvcrush"]}
    sheets = paper_sheets(Beside(published_table("kvcrush/table3"), rows), ScoreNumbers([table]))
    starred = sheets[1].rows[-1].cells
    assert starred[0].text.startswith("KVCrush*")
    assert {cell.text for cell in starred[3:]} == {"10.00"}


def test_a_printed_ratio_takes_our_nearest_budget(tmp_path: Path) -> None:
    values = {"0.4": 0.4, "0.3": 0.3, "0.1": 0.1}
    scores = {f"spindlekv@{b}": {task: [v] for task in SIX} for b, v in values.items()}
    table = small_table(tmp_path, scores, model=LLAMA3)
    beside = Beside(published_table("spindlekv/table2"), {"SpindleKV w/. repeat": ["spindlekv"]})
    sheet, _ = paper_sheets(beside, ScoreNumbers([table]))
    found = {
        row.cells[2].text: row.cells[3].text for row in sheet.rows if "w/." in row.cells[1].text
    }
    assert found == {"39.1%": "40.00", "29.3%": "30.00", "21.2%": "-"}


def shared(folder: Path, printed: float, held: float) -> Table:
    """A row at 0.4 that holds these shares, by Formula 15 as printed and in bytes."""
    scores = {label: {task: [0.25] for task in SIX} for label in ("fullkv", "spindlekv@0.4")}
    head = header(labels=list(scores), tasks=list(SIX), model=LLAMA3, protocol=PAPER)
    head["config"]["limit"] = None
    ratios = {"ratio_formula15_printed": printed, "ratio_bytes": held}
    write_shard(folder, head, records(scores, **ratios))
    (table,) = tables_of(folder)
    return table


def test_the_papers_share_stands_beside_ours_in_its_reading_and_in_bytes(tmp_path: Path) -> None:
    beside = Beside(published_table("spindlekv/table2"), {"SpindleKV w/. repeat": ["spindlekv"]})
    numbers = ScoreNumbers([shared(tmp_path, 0.3998, 0.4208)])
    scores, shares = paper_sheets(beside, numbers)
    (row,) = shares.rows
    assert [(cell.text, cell.below) for cell in row.cells] == [
        ("SpindleKV", ""),
        ("w/. repeat", ""),
        ("40.0", "39.1\n+0.9"),
        ("42.1", "39.1\n+3.0"),
    ]
    said = "two readings of memory (SpindleKV's bytes are up to 2.1 points off Formula 15"
    assert any(said in note for note in shares.notes)
    (marked,) = (row for row in scores.rows if row.cells[2].text == "39.1%" and "†" in str(row))
    assert marked.cells[1].text == "w/. repeat"
    lines = [line for line in paper_csv(beside, numbers).splitlines() if "w/. repeat,39.1" in line]
    assert lines and all(",0.3998,0.4208," in line and said in line for line in lines)


def test_a_table_whose_columns_are_methods_shows_the_shares_too(tmp_path: Path) -> None:
    beside = Beside(published_table("spindlekv/table8"), {"SpindleKV": ["spindlekv"]})
    *_, shares = paper_sheets(beside, ScoreNumbers([shared(tmp_path, 0.3998, 0.4208)]))
    assert [cell.text for cell in shares.rows[0].cells] == ["SpindleKV", "40.0", "42.1"]


def test_rows_that_hold_what_formula_15_prints_are_no_obstacle(tmp_path: Path) -> None:
    beside = Beside(published_table("spindlekv/table2"), {"SpindleKV w/. repeat": ["spindlekv"]})
    _, shares = paper_sheets(beside, ScoreNumbers([shared(tmp_path, 0.4, 0.4004)]))
    assert not any("cannot be compared" in note for note in shares.notes)


def test_report_of_an_experiment_reads_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = cli("report", "experiment=spindlekv/table2")
    assert refused.exit_code == 2
    assert "kvbench run experiment=spindlekv/table2" in refused.stderr
    scores = {"fullkv": {task: [0.25] for task in SIX}}
    small_table(Path("results/runs/spindlekv-table2"), scores, model=LLAMA3)
    small_table(Path("mine"), scores, model=LLAMA3)
    for form in ("terminal", "markdown", "latex", "csv"):
        text = done("report", "experiment=spindlekv/table2", "--format", form)
        assert "25.00" in text and "39.77" in text
    assert "39.77" in done("report", "experiment=spindlekv/table2", "out=mine")
    assert "<!doctype html>" in done("report", "experiment=spindlekv/table2", "--format", "html")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=spindlekv/tabel2"], "did you mean spindlekv/table2?"),
        (["experiment=spindlekv/table2", "limit=2"], "'limit=2' is not a word of a report"),
        (["one", "two"], "2 folders are given"),
        (["experiment=first-table"], "give out=FOLDER as well"),
    ],
)
def test_words_that_a_report_cannot_use_are_refused(words: list[str], said: str) -> None:
    refused = cli("report", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr and refused.stderr.count("\n") == 1


def test_a_table_says_which_code_its_rows_stand_for(tmp_path: Path) -> None:
    table = small_table(tmp_path, {"fullkv": {task: [0.25] for task in SIX}})
    rows = {"FullKV": ["fullkv"], "H2O": ["h2o_kvf_published[recent=32]"]}
    rows["SpindleKV"] = ["spindlekv"]
    beside = Beside(published_table("spindlekv/table2"), rows, notes=["Ours is ours."])
    (sheet,) = paper_sheets(beside, ScoreNumbers([table]))
    assert "Our rows: H2O by h2o_kvf_published[recent=32]; SpindleKV by spindlekv." in sheet.notes
    (about,) = (note for note in sheet.notes if note.startswith("h2o_kvf_published: "))
    assert "until 2026-06-22 (before 9f9aa2e)" in about
    assert "Ours is ours." in sheet.notes
    assert not any(note.startswith(("spindlekv:", "fullkv:")) for note in sheet.notes)


def test_a_printed_budget_may_stand_beside_another_of_ours(tmp_path: Path) -> None:
    (choice,) = (c for c in choices("experiment") if c.name == "kvcrush/table2")
    beside = Beside.of(choice.config["experiment"])
    assert beside is not None
    printed = next(f for f in beside.published.figures if f.method == "H2O")
    assert (printed.budget_tokens, beside.at_our_budget(printed).budget_tokens) == ("512", "672")
    tasks = [f.task for f in published_table("kvcrush/table3").figures][:15]
    scores = {f"snapkv@{b}": {task: [0.5] for task in tasks} for b in (2048, 1024)}
    scores["snapkv@1024"] = {task: [0.25] for task in tasks}
    table = small_table(tmp_path, scores, model=LLAMA3)
    for budgets, ours in (({}, "50.00"), ({"2048": "1024"}, "25.00")):
        there = Beside(published_table("kvcrush/table3"), {"SnapKV": ["snapkv"]}, {}, budgets)
        sheets = paper_sheets(there, ScoreNumbers([table]))
        (row,) = (r for r in sheets[1].rows if r.cells[0].text == "SnapKV")
        assert {cell.text for cell in row.cells[3:]} == {ours}


def test_prompts_that_fit_a_budget_in_tokens_are_counted(tmp_path: Path) -> None:
    lines = records({"h2o@672": {"qasper": [0.5] * 3}, "snapkv@672": {"qasper": [0.5] * 3}})
    sizes = {"s0": (10, 10), "s1": (6, 20), "s2": (10, 10)}
    made = []
    for line in lines:
        held, native = sizes[line.sample]
        made.append(replace(line, cache_bytes=held, native_bytes=native))
    write_shard(tmp_path, header(labels=["h2o@672", "snapkv@672"], tasks=["qasper"]), made)
    (table,) = tables_of(tmp_path)
    told = "2 of 3 prompts fit 672 tokens and were kept whole: they tell no methods apart."
    assert told in notes(table)
