from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvbench.report.latex import latex
from kvbench.report.paper_shape import published_sheets
from kvbench.report.published import published_table
from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow

AWKWARD = Sheet(
    "50% of snapkv_kvf & others {x} ~ ^ \\ #1 $",
    (Heading("method"), Heading("a_b", "a_\nb"), Heading("AVG")),
    (
        SheetRow((Cell("fullkv"), Cell("1.00"), Cell("2.00")), ends_section=True),
        SheetRow((Cell("m@0.2[a=1]"), Cell("-3.00*", "-4..-2"), Cell("4.00~", bold=True))),
    ),
    notes=("p <0.001 → 窗 ²",),
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
    assert r" & \scriptsize -4..-2 &  \\" in text


def test_only_booktabs_is_needed() -> None:
    text = latex([AWKWARD])
    assert text.count("usepackage") == 1 and r"\usepackage{booktabs}" in text
    for command in (r"\multirow", r"\resizebox", r"\rowcolor", r"\cellcolor"):
        assert command not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    sheets = [AWKWARD, *published_sheets(published_table("windowkv/table1"))]
    source = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{latex(sheets)}\n\\end{{document}}\n"
    )
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "t.pdf").stat().st_size > 1000
