from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.report.paper.drawing import draw
from kvbench.report.paper.figure import FigurePart, FigureSpec, figure_csv, figure_sheets, parts
from kvbench.report.table.table import Table, tables_of
from support.runs import header, records, write_shard

ALONE = "kvcrush@512[base=h2o_kvf_published,share=0.0]"
SCORES = {
    "fullkv": {"qasper": [1.0, 0.9, 0.8], "trec": [1.0, 1.0]},
    ALONE: {"qasper": [0.5, 0.5, 0.5], "trec": [1.0, 0.0]},
    "kvcrush@512[base=h2o_kvf_published]": {"qasper": [0.6, 0.8, 0.7], "trec": [1.0, 0.0]},
    "kvcrush@512[base=h2o_kvf_published,share=0.9]": {
        "qasper": [0.1, 0.2, 0.6],
        "trec": [1.0, 1.0],
    },
}

GAINS = FigureSpec(
    title="KVCrush, Fig. 5",
    x="share",
    y="gain over H2O alone",
    over=["kvcrush[base=h2o_kvf_published,share=0.0]"],
    per_task=True,
    series={
        "KVCrush": {
            "0.25": ["kvcrush[base=h2o_kvf_published]"],
            "0.9": ["kvcrush[base=h2o_kvf_published,share=0.9]"],
        }
    },
)
CHANGES = replace(
    GAINS,
    over=["fullkv"],
    seconds=True,
    series={
        "alone": {"none": ["kvcrush[base=h2o_kvf_published,share=0.0]"]},
        "KVCrush": GAINS.series["KVCrush"],
    },
)


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    head = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=3)
    head["tasks"][1]["samples"] = 2
    write_shard(tmp_path / "run", head, records(SCORES))
    return tables_of(tmp_path / "run")


def values(part: FigurePart) -> dict[tuple[str, str, str], float | None]:
    return {
        (point.series, point.x, column.name): point.value
        for row in part.points
        for column, point in zip(part.columns, row, strict=True)
    }


def test_a_gain_is_the_mean_of_the_pairs(tables: list[Table]) -> None:
    (part,) = parts(tables, GAINS)
    assert part.title == "m, budget 512"
    found = values(part)
    for x, label in (
        ("0.25", "kvcrush@512[base=h2o_kvf_published]"),
        ("0.9", "kvcrush@512[base=h2o_kvf_published,share=0.9]"),
    ):
        by_task = {
            task: 100 * fmean(a - b for a, b in zip(mine, SCORES[ALONE][task], strict=True))
            for task, mine in SCORES[label].items()
        }
        for task, gain in by_task.items():
            assert found["KVCrush", x, task] == pytest.approx(gain)
        average = found["KVCrush", x, "AVG of 2 tasks"]
        assert average == pytest.approx(fmean(by_task.values()))


def test_intervals_of_gains_are_paired_and_p_is_corrected_for_the_part(tables: list[Table]) -> None:
    (part,) = parts(tables, GAINS)
    (qasper, *_), *_ = part.points
    assert qasper.interval is not None and qasper.value is not None
    assert qasper.interval.low <= qasper.value <= qasper.interval.high
    smallest = min(point.p for row in part.points for point in row if point.p is not None)
    assert 0 < smallest <= 1


def test_a_panel_of_seconds_has_no_gain_and_no_interval(tables: list[Table]) -> None:
    (part,) = parts(tables, CHANGES)
    assert part.columns[-1].name == "seconds to compress"
    assert [row[-1].value for row in part.points] == pytest.approx([0.1] * 3)
    assert part.baseline[-1] is None
    (sheet,) = figure_sheets([part], tables, CHANGES, Path("figure.svg"))
    assert [row.cells[-1].text for row in sheet.rows] == ["0.100"] * 3


def test_each_budget_is_a_part_and_rows_stand_at_their_own(tmp_path: Path) -> None:
    scores = {f"snapkv@{b}": {"qasper": [v, v]} for b, v in (("64", 0.25), ("512", 0.5))}
    write_shard(tmp_path, header(labels=list(scores), tasks=["qasper"], samples=2), records(scores))
    spec = FigureSpec(title="t", x="x", series={"s": {"8": ["snapkv"]}})
    found = parts(tables_of(tmp_path), spec)
    assert [(part.title, part.points[0][0].value) for part in found] == [
        ("m, budget 64", 25.0),
        ("m, budget 512", 50.0),
    ]


def test_a_series_over_bytes_is_in_the_order_of_what_it_holds(tmp_path: Path) -> None:
    scores = {f"snapkv@{b}": {"qasper": [0.5]} for b in ("0.4", "0.2")}
    lines = [replace(r, ratio_bytes=0.41 if "0.4" in r.variant else 0.22) for r in records(scores)]
    write_shard(tmp_path, header(labels=list(scores), tasks=["qasper"]), lines)
    spec = FigureSpec(title="t", x="ratio_bytes", series={"SnapKV": {"all": ["snapkv"]}})
    (part,) = parts(tables_of(tmp_path), spec)
    assert [row[0].x for row in part.points] == ["0.220", "0.410"]


@pytest.mark.parametrize("spec", [GAINS, CHANGES], ids=["lines", "bars"])
def test_the_same_points_give_the_same_files(
    spec: FigureSpec, tables: list[Table], tmp_path: Path
) -> None:
    found = parts(tables, spec)
    for folder in ("one", "two"):
        paths = draw(found, spec, tmp_path / folder, "figure")
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    assert [path.suffix for path in paths] == [".png", ".pdf", ".svg"]
    svg = paths[-1].read_text(encoding="utf-8")
    for word in ("qasper", "trec", "gain over H2O alone"):
        assert word in svg


def test_csv_has_a_line_for_every_point_of_every_panel(tables: list[Table]) -> None:
    lines = list(csv.DictReader(io.StringIO(figure_csv(parts(tables, GAINS), GAINS))))
    assert len(lines) == 2 * 3
    (trec,) = (x for x in lines if (x["share"], x["panel"]) == ("0.9", "trec"))
    assert float(trec["gain over H2O alone"]) == 50.0


def test_report_of_a_figure_draws_it_and_prints_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=3)
    write_shard(Path("results/runs/kvcrush-figure5"), head, records(SCORES))
    done = CliRunner().invoke(app, ["report", "experiment=kvcrush/figure5"])
    assert done.exit_code == 0, done.output
    assert "+20.00" in done.stdout and "Drawn in" in done.stdout
    drawn = Path("results/runs/kvcrush-figure5/figures")
    assert sorted(p.name for p in drawn.iterdir()) == [
        f"figure5.{form}" for form in ("pdf", "png", "svg")
    ]


def test_a_folder_without_the_figures_rows_is_one_line(tmp_path: Path) -> None:
    scores = {"snapkv@0.2": {"qasper": [0.5]}}
    write_shard(tmp_path, header(labels=list(scores), tasks=["qasper"]), records(scores))
    done = CliRunner().invoke(app, ["report", "experiment=kvcrush/figure5", f"out={tmp_path}"])
    assert done.exit_code == 2
    assert "holds no row of experiment=kvcrush/figure5" in done.stderr
