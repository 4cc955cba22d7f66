from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from statistics import fmean

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.report.paper.published import FOOTNOTES, Figure, published_table, published_tables
from kvbench.report.paper.shape import blocks, published_sheets
from kvbench.report.sheet import Sheet

TABLES = published_tables()

TRUNCATED = 0.01
"""Papers cut the third digit or round it."""


def cli(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows_with_an_average() -> Iterator[tuple[str, str, list[Figure], Figure]]:
    for name, table in TABLES.items():
        rows: dict[tuple[str, ...], list[Figure]] = {}
        for figure in table.figures:
            key = (figure.model, figure.method, figure.setting, figure.reserve_ratio)
            rows.setdefault((*key, figure.budget_tokens), []).append(figure)
        for key, figures in rows.items():
            averages = [figure for figure in figures if figure.task == "AVG"]
            tasks = [figure for figure in figures if figure.task != "AVG"]
            if averages and tasks:
                yield name, " ".join(key), tasks, averages[0]


def body(sheet: Sheet) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in sheet.rows]


def test_every_number_of_the_papers_is_there() -> None:
    assert sum(len(table.figures) for table in TABLES.values()) == 1780
    for table in TABLES.values():
        for figure in table.figures:
            assert float(figure.score) >= 0


def test_published_averages_recompute_but_for_the_footnoted_two() -> None:
    wrong = {
        (name, key): fmean(float(f.score) for f in tasks)
        for name, key, tasks, average in rows_with_an_average()
        if abs(fmean(float(f.score) for f in tasks) - float(average.score)) > TRUNCATED
    }
    checked = len(list(rows_with_an_average()))
    assert checked > 80
    assert len(wrong) == 2
    printed_as_32 = wrong["spindlekv/table1", "mistral-7b-instruct-v0.2 PyramidInfer  25.1% "]
    assert printed_as_32 == pytest.approx(31.955)
    assert ("windowkv/table1", "llama3-8b-instruct PyramidKV   512") in wrong


def test_the_blank_cell_is_what_its_footnote_says() -> None:
    figures = [
        f
        for f in TABLES["windowkv/table1"].figures
        if (f.model, f.method, f.budget_tokens) == ("llama3-8b-instruct", "PyramidKV", "512")
    ]
    tasks = [float(f.score) for f in figures if f.task != "AVG"]
    (average,) = (float(f.score) for f in figures if f.task == "AVG")
    assert len(tasks) == 15 and "narrativeqa" not in {f.task for f in figures}
    assert 16 * average - sum(tasks) == pytest.approx(24.24)


def test_table_8_repeats_table_10s_averages() -> None:
    ten = {
        f.reserve_ratio: f.score
        for f in TABLES["spindlekv/table10"].figures
        if (f.method, f.task) == ("SpindleKV", "AVG")
    }
    eight = [f.score for f in TABLES["spindlekv/table8"].figures if f.method == "SpindleKV"]
    assert eight == [ten["21.2%"], ten["39.1%"]]


def test_outliers_stand_out_as_their_footnotes_say() -> None:
    for name, task, ratio, gap in (
        ("spindlekv/table10", "repobench-p", "29.3%", 5),
        ("spindlekv/table11", "triviaqa", "16.7%", 3),
    ):
        column = [f for f in TABLES[name].figures if f.task == task and f.method != "PyramidInfer"]
        (outlier,) = (f for f in column if f.reserve_ratio == ratio and f.method == "SpindleKV")
        assert all(float(outlier.score) - float(f.score) > gap for f in column if f is not outlier)


def test_the_mistral_row_looks_like_llama3() -> None:
    def full(name: str, model: str) -> dict[str, float]:
        figures = (f for f in TABLES[name].figures if f.method == "FullKV" and f.model == model)
        return {f.task: float(f.score) for f in figures}

    suspect = full("spindlekv/table1", "mistral-7b-instruct-v0.2")
    llama3 = full("spindlekv/table10", "llama3-8b-instruct")
    mistral = full("kvcrush/table3", "mistral-7b-instruct-v0.2")
    for task in ("trec", "triviaqa", "passage_retrieval_en"):
        assert abs(suspect[task] - llama3[task]) < abs(suspect[task] - mistral[task])


def test_every_footnote_finds_its_numbers() -> None:
    for note in FOOTNOTES:
        found = [f for f in TABLES[note.table].figures if note.means(f)]
        assert bool(found) == bool(note.where), note.text


def test_a_table_has_its_papers_shape() -> None:
    qwen, llama = published_sheets(published_table("windowkv/table1"))
    assert [len(qwen.rows), len(llama.rows)] == [13, 13]
    assert [h.name for h in qwen.headings][:3] == ["method", "KV size", "narrativeqa"]
    assert qwen.headings[-1].name == "AVG"
    assert body(qwen)[0][:3] == ["FullKV", "full", "17.51"]
    assert [row.ends_section for row in qwen.rows].count(True) == 3


@pytest.mark.parametrize(
    ("name", "headings", "first"),
    [
        ("spindlekv/table4", ["method", "llama3-8b-instruct"], ["PyramidInfer", "0.615"]),
        ("spindlekv/table8", ["ratio", "H2O"], ["20.0%", "36.12"]),
        ("spindlekv/table9", ["model", "FullKV"], ["llama3-8b-instruct", "22.16"]),
        ("windowkv/table3", ["model", "shared_layers=1"], ["qwen2.5-1.5b-instruct", "32.13"]),
    ],
)
def test_tables_of_one_quantity_keep_their_axes(
    name: str, headings: list[str], first: list[str]
) -> None:
    (sheet,) = published_sheets(published_table(name))
    assert [h.name for h in sheet.headings][:2] == headings
    assert body(sheet)[0][:2] == first


def test_shared_layers_stand_in_their_order() -> None:
    (block,) = blocks(published_table("windowkv/table3"))
    assert [int(name.partition("=")[2]) for name in block.columns] == [1, 4, 7, 8, 14, 16]


def test_a_footnote_marks_its_number_or_its_whole_row() -> None:
    (sheet,) = published_sheets(published_table("spindlekv/table1"))
    texts = body(sheet)
    assert texts[0][0] == "FullKV¹" and "¹" not in "".join(texts[0][1:])
    (marked,) = (cell for row in texts for cell in row if cell.endswith("²"))
    assert marked == "32.00²"
    assert sheet.notes[1].startswith("² Printed 32.00")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_every_table_prints_in_every_form(name: str, form: str) -> None:
    text = cli("report", "--published", name, "--format", form)
    for figure in TABLES[name].figures:
        assert figure.score in text
    if form == "terminal":
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", sorted(published_tables()))
def test_every_table_fits_the_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, cli("report", "--published", name).splitlines())) <= columns


def test_csv_gives_the_numbers_as_printed_with_their_footnotes() -> None:
    text = cli("report", "--published", "spindlekv/table10", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 272
    (odd,) = (line for line in lines if line["footnote"])
    assert (odd["task"], odd["score"]) == ("repobench-p", "60.04")


def test_list_names_every_table() -> None:
    text = cli("list", "published")
    assert [line.split()[0] for line in text.splitlines() if line[0] != " "] == list(TABLES)


def test_an_unknown_table_is_refused_in_one_line() -> None:
    done = CliRunner().invoke(app, ["report", "--published", "windowkv/tabel1"])
    assert done.exit_code == 2
    assert "did you mean windowkv/table1?" in done.stderr and done.stderr.count("\n") == 1
