"""Score against bytes, as files and on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvbench.report.figures.curves import curve_figures, drawn_columns
from kvbench.report.look import Look
from kvbench.report.render import figure_files, report
from kvbench.report.table.comparison import score_interval
from kvbench.report.table.table import Table, tables_of
from support.cli import cli
from support.needles import needle_header, needle_records
from support.runs import header, records, write_shard

SVG = "{http://www.w3.org/2000/svg}"
SCORES = {
    "fullkv": {"qasper": [1.0, 0.5, 0.8], "trec": [1.0, 0.0]},
    "snapkv@0.2": {"qasper": [0.7, 0.5, 0.1], "trec": [1.0, 0.0]},
    "snapkv@0.4": {"qasper": [0.9, 0.5, 0.4], "trec": [1.0, 1.0]},
    "h2o@0.2": {"qasper": [0.2, 0.1, 0.0], "trec": [0.0, 1.0]},
}


def run_folder(folder: Path) -> Path:
    head = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=3)
    head["tasks"][1]["samples"] = 2
    shares = {"fullkv": 1.0, "snapkv@0.2": 0.21, "snapkv@0.4": 0.42, "h2o@0.2": 0.21}
    made = [replace(record, ratio_bytes=shares[record.variant]) for record in records(SCORES)]
    write_shard(folder, head, made)
    return folder


def table_of(folder: Path) -> Table:
    (table,) = tables_of(folder)
    return table


def drawn_points(path: Path, series: str) -> list[list[tuple[float, float]]]:
    """The lines and bars of a series in an SVG file, panel by panel, in the file's units."""
    found = []
    for group in ElementTree.parse(path).iter(f"{SVG}g"):
        if group.get("id") == f"series:{series}":
            words = next(group.iter(f"{SVG}path")).attrib["d"].replace("M", " ").replace("L", " ")
            numbers = list(map(float, words.split()))
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def test_the_figure_has_a_panel_for_avg_and_each_group_and_repeats_its_bytes(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path / "run")
    done = cli("report", str(folder), "--figures")
    assert done.exit_code == 0, done.output
    said = f"kvbench: 3 figure files (PNG, PDF, SVG) in {folder / 'figures'}\n"
    assert done.stderr == said
    names = ["scores.pdf", "scores.png", "scores.svg"]
    assert sorted(path.name for path in (folder / "figures").iterdir()) == names
    for path in curve_figures(tables_of(folder), tmp_path):
        assert path.read_bytes() == (folder / "figures" / path.name).read_bytes()
    drawn = ElementTree.parse(folder / "figures" / "scores.svg")
    texts = ["".join(node.itertext()) for node in drawn.iter(f"{SVG}text")]
    for part in ("AVG of 2 tasks", "Single-Document QA", "Few-shot Learning"):
        assert texts.count(part) == 1
    assert {"fullkv", "snapkv", "h2o", "m on LongBench, protocol official"} <= set(texts)
    assert any("share of the native" in text for text in texts)


def test_points_and_bars_stand_where_the_table_says(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    path = next(p for p in curve_figures(tables_of(folder), tmp_path) if p.suffix == ".svg")
    table = table_of(folder)
    average = drawn_columns(table)[0]
    rows = {row.label: i for i, row in enumerate(table.rows)}
    line, *bars = drawn_points(path, "snapkv")[:3]
    ((_, full), *_) = drawn_points(path, "fullkv")[0]
    (x1, y1), (x2, y2) = line
    low, high = (average.values[rows[label]] for label in ("snapkv@0.2", "snapkv@0.4"))
    baseline = average.values[rows["fullkv"]]
    assert low is not None and high is not None and baseline is not None
    scale = (y2 - y1) / (high - low)  # y runs down in SVG
    assert scale < 0 and (full - y1) / scale == pytest.approx(baseline - low, abs=0.01)
    places = (("snapkv@0.2", low, x1, y1), ("snapkv@0.4", high, x2, y2))
    for bar, (label, value, x, at) in zip(bars, places, strict=True):
        interval = score_interval(table.rows[rows[label]], average.tasks)
        assert interval is not None
        assert [a for a, _ in bar] == pytest.approx([x, x])
        ends = [value + (y - at) / scale for _, y in bar]
        assert ends == pytest.approx([interval.low, interval.high], abs=0.01)
    ((other, _),) = drawn_points(path, "h2o")[0]
    assert other == pytest.approx(x1)


def test_a_needle_run_has_curves_of_its_accuracies_in_files_and_on_the_page(
    tmp_path: Path,
) -> None:
    cells = {(500, 0): 1.0, (500, 100): 0.5}
    made = needle_records("fullkv", cells) + needle_records("snapkv@0.2", cells)
    head = needle_header(["fullkv", "snapkv@0.2"], [500], [0, 100])
    write_shard(tmp_path, head, made)
    table = table_of(tmp_path)
    assert drawn_columns(table)[0].name == "accuracy"
    names = {path.name for path in curve_figures([table], tmp_path / "figures")}
    assert names == {"scores.png", "scores.pdf", "scores.svg"}
    text = report(tmp_path, Look("html"))
    assert "Score against share of bytes, accuracy" in text and "Heatmaps of needle" in text


def test_two_tables_of_a_folder_have_a_figure_each(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_shard(folder, header(tasks=["qasper"], model={**MODEL}), records(ONE))
    names = {path.stem for path in curve_figures(tables_of(folder), tmp_path / "figures")}
    assert names == {"scores", "scores-2"}


MODEL = {"name": "other", "path": "other", "dtype": "float32", "revision": None}
ONE = {"fullkv": {"qasper": [0.5]}, "snapkv@0.2": {"qasper": [0.25]}}


def test_what_cannot_be_drawn_is_one_line(tmp_path: Path) -> None:
    write_shard(tmp_path / "run", header(), records({"fullkv": {"qasper": [0.5]}}))
    done = cli("report", "--published", "windowkv/table1", "--figures")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "--figures draws a run" in done.stderr
    (tmp_path / "run" / "overlap.csv").write_text("panel,layer,other layer,value\na,0,0,1\n")
    for shard in (tmp_path / "run").glob("*.jsonl"):
        shard.unlink()
    done = cli("report", str(tmp_path / "run"), "--figures")
    assert done.exit_code == 2 and "holds an analysis and no scores" in done.stderr
    assert figure_files(tmp_path / "run") == []
