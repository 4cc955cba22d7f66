from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kvbench.report.forms.latex import latex
from kvbench.report.look import Look
from kvbench.report.paper.figure import FigureSpec, figure_sheets, parts
from kvbench.report.paper.published import published_tables
from kvbench.report.paper.scores import ScoreNumbers
from kvbench.report.paper.shape import published_sheets
from kvbench.report.paper.table import Beside, paper_sheets
from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow
from kvbench.report.sheets.scores import sheets_of
from kvbench.report.table.table import tables_of
from support.runs import header, records, write_shard

TABLES = published_tables()

AWKWARD = Sheet(
    "50% of snapkv_kvf & others {x} ~ ^ \\ #1 $",
    (Heading("method"), Heading("a_b", "a_\nb"), Heading("AVG")),
    (
        SheetRow((Cell("fullkv"), Cell("1.00"), Cell("2.00")), ends_section=True),
        SheetRow((Cell("m@0.2[a=1]"), Cell("-3.00*", "-4..-2"), Cell("4.00~", bold=True))),
    ),
    notes=("p <0.001 → 窗 ²", "*: a star", "[1] a bracket"),
)


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(r"\\") and "&" in line]


def test_a_table_has_its_rules_and_as_many_cells_in_every_row() -> None:
    text = latex([AWKWARD])
    for rule, times in ((r"\toprule", 1), (r"\midrule", 2), (r"\bottomrule", 1)):
        assert text.count(rule) == times
    assert r"\begin{tabular}{lrr}" in text
    escaped = [row.replace(r"\&", "") for row in rows_of(text)]
    assert [row.count("&") for row in escaped] == [2] * 5


def test_signs_of_latex_are_escaped() -> None:
    text = latex([AWKWARD])
    assert r"50\% of snapkv\_kvf \& others \{x\} \textasciitilde{}" in text
    assert r"\textasciicircum{} \textbackslash{} \#1 \$" in text
    assert r"$<$0.001 $\rightarrow$ ? $^2$" in text


def test_numbers_have_their_minus_bold_face_and_interval() -> None:
    text = latex([AWKWARD])
    assert r"m@0.2[a=1] & $-$3.00* & \textbf{4.00\textasciitilde{}} \\" in text
    assert r" & \tiny -4..-2 &  \\" in text


def test_signs_at_the_beginning_of_a_note_are_no_part_of_the_break_before_it() -> None:
    assert "\\\\{}\n*: a star \\\\{}\n[1] a bracket" in latex([AWKWARD])


def test_only_booktabs_is_needed() -> None:
    text = latex([AWKWARD])
    assert text.count("usepackage") == 1 and r"\usepackage{booktabs}" in text
    for command in (r"\multirow", r"\resizebox", r"\rowcolor", r"\cellcolor"):
        assert command not in text


SCORES = {
    "fullkv": {"qasper": [1.0, 0.5], "trec": [1.0, 0.0]},
    "snapkv_kvf@0.2": {"qasper": [0.7, 0.5], "trec": [1.0, 0.0]},
    "spindlekv@0.2[beta=0.1,heads=kv]": {"qasper": [0.8, 0.6], "trec": [0.0, 0.0]},
}


def score_sheets(folder: Path, look: Look) -> list[Sheet]:
    head = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=2)
    write_shard(folder / "run", head, records(SCORES))
    return sheets_of(tables_of(folder / "run")[0], look)


def experiment_sheets(folder: Path, name: str) -> list[Sheet]:
    """A paper's table in whose cells ours, published and difference stand."""
    beside = Beside.of({"published": name, "rows": {"FullKV": ["fullkv"]}})
    assert beside is not None
    tasks = [t for t in dict.fromkeys(f.task for f in beside.published.figures) if t != "AVG"]
    write_shard(
        folder / "run",
        header(labels=["fullkv"], tasks=tasks),
        records({"fullkv": {task: [0.5] for task in tasks}}),
    )
    return paper_sheets(beside, ScoreNumbers(tables_of(folder / "run")))


def a_figures_sheets(folder: Path) -> list[Sheet]:
    write_shard(
        folder / "run",
        header(labels=list(SCORES), tasks=["qasper", "trec"], samples=2),
        records(SCORES),
    )
    rows = {"25%": ["snapkv_kvf"], "75%": ["spindlekv[beta=0.1,heads=kv]"]}
    spec = FigureSpec(title="Fig. 6", x="share", over=["fullkv"], series={"K & V": rows})
    tables = tables_of(folder / "run")
    return figure_sheets(parts(tables, spec), tables, spec, Path("f.svg"))


SHAPES: dict[str, Callable[[Path], list[Sheet]]] = {
    "awkward": lambda _: [AWKWARD],
    "scores": lambda folder: score_sheets(folder, Look()),
    "tasks": lambda folder: score_sheets(folder, Look(per_task=True)),
    "everything": lambda folder: score_sheets(
        folder, Look(intervals=True, differences=True, ratios=True)
    ),
    "experiment": lambda folder: experiment_sheets(folder, "kvcrush/table3"),
    "figure": a_figures_sheets,
    **{name: partial(lambda table, _: published_sheets(table), t) for name, t in TABLES.items()},
}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_table_compiles_with_booktabs_alone(shape: str, tmp_path: Path) -> None:
    source = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{latex(SHAPES[shape](tmp_path))}\n\\end{{document}}\n"
    )
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-800:]
    assert (tmp_path / "t.pdf").stat().st_size > 1000
    assert b"Missing character" not in done.stdout
