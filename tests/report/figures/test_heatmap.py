"""Reports of needle runs: accuracies, grids with holes, figures."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kvbench.report.figures import heatmap
from kvbench.report.figures import style as figures
from kvbench.report.look import Look
from kvbench.report.render import report
from kvbench.report.table.needle import (
    accuracy,
    before_the_end,
    cell_scores,
    grids,
    is_needle,
    kept_by_layer,
)
from kvbench.report.table.table import Table, tables_of
from support.cli import cli
from support.needles import needle_header, needle_records
from support.runs import header, records, write_shard

FORMS = ("png", "pdf", "svg")


FULL = {(500, 0): 1.0, (500, 100): 1.0, (1000, 0): 1.0, (1000, 100): 1.0}
HOLED = {(500, 0): 0.0, (500, 100): 1.0, (1000, 0): 0.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = needle_records("fullkv", FULL) + needle_records("snapkv@0.2", HOLED)
    head = needle_header(["fullkv", "snapkv@0.2"], "500:1000:500", [0, 100])
    write_shard(tmp_path / "run", head, made)
    return tmp_path / "run"


def table_of(folder: Path) -> Table:
    (table,) = tables_of(folder)
    return table


def test_accuracy_is_the_mean_over_cells_done_with_and_without_depth_100(folder: Path) -> None:
    table = table_of(folder)
    (grid,) = grids(table)
    scores = cell_scores(table.rows[1], grid)
    assert accuracy(scores) == 0.5
    assert accuracy(scores, before_the_end) == 0.25
    assert accuracy({}) is None


def test_the_grid_is_what_was_asked_for_and_a_hole_is_none(folder: Path) -> None:
    table = table_of(folder)
    (grid,) = grids(table)
    assert (grid.lengths, grid.depths, grid.metric) == ((500, 1000), (0, 100), "overlap")
    assert heatmap.matrix(table.rows[1], grid) == [[0.0, 0.5], [1.0, None]]


def test_jobs_with_a_length_each_make_one_grid(tmp_path: Path) -> None:
    for length in (500, 1000):
        cells = {(length, 0): 0.5}
        write_shard(
            tmp_path, needle_header(["fullkv"], [length], [0]), needle_records("fullkv", cells)
        )
    (grid,) = grids(table_of(tmp_path))
    assert (grid.lengths, grid.depths) == ((500, 1000), (0,))


def test_what_each_layer_keeps_is_a_mean_over_lengths_and_needles_asked_for(tmp_path: Path) -> None:
    first, second = needle_records("snapkv@0.2", {(500, 0): 1.0, (1000, 0): 1.0})
    kept = {"needle": [1.0, 0.0], "needle_2": [0.0, 0.0], "distractor_1": [1.0, 1.0]}
    made = [replace(first, span_kept=kept), replace(second, span_kept={"needle": [0.5, 0.3]})]
    write_shard(tmp_path, needle_header(["snapkv@0.2"], [500, 1000], [0, 50]), made)
    table = table_of(tmp_path)
    assert kept_by_layer(table.rows[0], grids(table)[0]) == {0: pytest.approx([0.5, 0.1])}


def test_the_table_has_both_accuracies_and_marks_what_lacks_cells(folder: Path) -> None:
    text = report(folder, Look("markdown"))
    assert "m on Needle-in-a-Haystack" in text
    assert "| accuracy | accuracy without depth 100 | rouge1 |" in text
    assert "| fullkv | 1.0 | 0.210 | 100.00 | 100.00 | 50.00 |" in text
    assert "50.00\\* | 25.00\\* | 25.00\\* |" in text
    assert "snapkv@0.2 lacks 1 of 4 in needle" in text
    assert "4 cells, 500 to 1000 tokens x depths 0 to 100%, profile chat; accuracy" in text
    assert "prompts made to their length and never cut" in text


@pytest.mark.slow
def test_report_writes_each_figure_in_three_forms_says_where_and_repeats_its_bytes(
    folder: Path, tmp_path: Path
) -> None:
    result = cli("report", str(folder))
    assert result.exit_code == 0
    assert result.stderr == (f"kvbench: 15 figure files (PNG, PDF, SVG) in {folder / 'figures'}\n")
    stems = ["heatmap-fullkv", "heatmap-snapkv-0.2", "heatmaps", "kept", "lines"]
    expected = {f"needle-{stem}.{form}" for stem in stems for form in FORMS}
    assert {p.name for p in (folder / "figures").iterdir()} == expected
    for path in (folder / "figures").glob("*.png"):  # a column of a paper holds them
        assert Image.open(path).width == round(figures.COLUMN_INCHES * figures.DPI)
    for path in heatmap.needle_figures(tables_of(folder), tmp_path):  # the same bytes again
        data = (folder / "figures" / path.name).read_bytes()
        assert path.read_bytes() == data
        assert b"CreationDate" not in data and b"dc:date" not in data


def pixels(drawn: Any) -> np.ndarray:
    out = io.BytesIO()
    drawn.savefig(out, format="png", dpi=figures.DPI)
    return np.asarray(Image.open(out).convert("RGB"))


def share_of(image: np.ndarray, color: str) -> float:
    rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return float((np.abs(image.astype(int) - rgb).max(-1) <= 3).mean())


def test_zero_is_red_half_amber_one_green_and_a_missing_cell_hatched(folder: Path) -> None:
    table = table_of(folder)
    (grid,) = grids(table)
    with figures.style():
        image = pixels(heatmap.one_heatmap(table, grid, table.rows[1]))
    cells = [share_of(image, color) for color in (heatmap.RED, heatmap.AMBER, heatmap.GREEN)]
    assert max(cells) - min(cells) < 0.02 and min(cells) > 0.1
    assert share_of(image, "#888888") > 0.001


def test_other_suites_beside_a_needle_keep_their_table_and_get_no_figure(folder: Path) -> None:
    write_shard(folder, header(), records({"fullkv": {"qasper": [0.5]}}))
    text = report(folder, Look("terminal"))
    assert "LongBench" in text and "Needle-in-a-Haystack" in text
    assert not heatmap.needle_figures([t for t in tables_of(folder) if not is_needle(t)], folder)


def test_a_run_without_needles_draws_nothing(tmp_path: Path) -> None:
    write_shard(tmp_path, header(), records({"fullkv": {"qasper": [0.5]}}))
    result = cli("report", str(tmp_path))
    assert result.exit_code == 0 and result.stderr == ""
    assert not (tmp_path / "figures").exists()


def test_an_unwritable_figures_folder_is_one_line(folder: Path) -> None:
    (folder / "figures").write_text("a file", encoding="utf-8")
    result = cli("report", str(folder))
    assert result.exit_code == 2
    assert "cannot write figures" in result.stderr and result.stderr.count("\n") == 1


def test_labels_make_plain_file_names() -> None:
    assert figures.file_name("snapkv@0.2[window=8]") == "snapkv-0.2-window-8"
    assert figures.file_name("kvcrush@0.5[base=h2o,base.a=1]") == "kvcrush-0.5-base-h2o-base.a-1"


def test_the_page_shows_the_heatmaps(folder: Path) -> None:
    text = report(folder, Look("html"))
    assert text.count('aria-label="Heatmaps of') == 1
    assert "needle: overlap" in text and "<pattern" in text
    assert "Best at each budget" in text and report(folder, Look("html")) == text
