from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.report.look import Look
from kvbench.report.page.page import page
from kvbench.report.page.view import memory, task_views
from kvbench.report.table.table import Table, tables_of
from support.chromium import in_chromium, needs_chromium
from support.runs import header, records, write_shard

VOID = {"meta", "br", "wbr", "input", "link", "img", "hr"}

SCORES = {
    "fullkv": {"qasper": [1.0, 0.5, 0.8], "trec": [1.0, 0.0]},
    "snapkv@0.2": {"qasper": [0.7, 0.5, 0.1], "trec": [1.0, 0.0]},
    "snapkv@0.4": {"qasper": [0.9, 0.5, 0.4], "trec": [1.0, 1.0]},
    "spindlekv@0.2[beta=0.1]": {"qasper": [0.8, 0.6, 0.3], "trec": [0.0, 0.0]},
}

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> & \"quoted\""


class Outline(HTMLParser):
    """Every element, and whether each was closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)

    def attributes(self, name: str) -> Iterator[str]:
        for _, attributes in self.elements:
            if name in attributes:
                yield attributes[name] or ""


def table_of(folder: Path, **changes: object) -> Table:
    head = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=3)
    head["tasks"][1]["samples"] = 2
    write_shard(folder, head, records(SCORES, **changes))
    (table,) = tables_of(folder)
    return table


def page_of(folder: Path, **changes: object) -> str:
    return page([table_of(folder, **changes)], Look(form="html"))


def test_the_page_is_well_formed_and_holds_every_part(tmp_path: Path) -> None:
    outline = Outline(page_of(tmp_path))
    text = " ".join("".join(outline.text).split())
    for part in ("Best at each budget", "Scores", "Score against memory", "Memory", "Samples"):
        assert part in text
    for fact in ("95% in", "Differences to fullkv", "What is kept", "protocol official", "torch"):
        assert fact in text
    ids = list(outline.attributes("id"))
    assert {"scores", "curves", "memory", "samples", "protocol"} <= set(ids)


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    text = page_of(tmp_path)
    outline = Outline(text)
    assert list(outline.attributes("src")) == []
    links = [*outline.attributes("href"), *outline.attributes("xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", text)
    assert "default-src 'none'" in text


def test_what_a_model_wrote_shows_as_text(tmp_path: Path) -> None:
    text = page_of(tmp_path, prediction=HOSTILE, answers=[HOSTILE], prompt_tail=HOSTILE)
    assert "<script>document" not in text and "<img" not in text
    outline = Outline(text)
    assert sum(tag == "script" for tag, _ in outline.elements) == 1
    assert "".join(outline.text).count(HOSTILE) >= 3


def test_names_of_users_show_as_text(tmp_path: Path) -> None:
    model = {"name": "<b>m</b>", "path": "<i>", "dtype": "float32", "revision": None}
    head = header(labels=["fullkv"], tasks=["qasper"], model=model)
    made = [replace(r, sample="<u>s") for r in records({"fullkv": {"qasper": [1.0]}})]
    write_shard(tmp_path, head, made)
    text = page(tables_of(tmp_path), Look(form="html"))
    assert "<b>m</b>" not in text and "<u>" not in text and "&lt;u&gt;s" in text


def test_every_answer_of_a_sample_stands_beside_the_others(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    qasper, trec = task_views(table, most=25)
    assert (qasper.name, qasper.scored, len(qasper.samples)) == ("qasper", 3, 3)
    assert [p.label for p in qasper.samples[0].predictions] == [row.label for row in table.rows]
    assert [p.score for p in trec.samples[1].predictions] == [0.0, 0.0, 0.0, 1.0]
    assert [p.as_baseline for p in trec.samples[0].predictions] == [False, True, True, True]


def test_the_page_shows_so_many_samples_and_says_of_how_many(tmp_path: Path) -> None:
    table_of(tmp_path / "run")
    out = tmp_path / "page.html"
    words = ["report", str(tmp_path / "run"), "--format", "html", "--samples", "1"]
    CliRunner().invoke(app, [*words, "--output", str(out)], catch_exceptions=False)
    text = out.read_text(encoding="utf-8")
    assert "1 of 3 samples" in text and "1 of 2 samples" in text
    assert text.count('<details class="sample">') == 2


def test_the_end_of_the_prompt_is_shown_where_it_was_kept(tmp_path: Path) -> None:
    assert "… Question: why?" in page_of(tmp_path / "new", prompt_tail="Question: why?")
    assert "not in these records" in page_of(tmp_path / "old")


def test_shares_of_bytes_add_up_to_the_measured_ratio(tmp_path: Path) -> None:
    parts = {"entries": 150, "indices": 60, "tail": 999}
    table = table_of(tmp_path, bytes_by_part=parts, r1=[0.4, 0.2], r2=[0.5, 1.0])
    weighed = memory(table)[1]
    assert [(p.name, p.share) for p in weighed.parts] == [
        ("entries", pytest.approx(0.15)),
        ("indices", pytest.approx(0.06)),
    ]
    assert weighed.share == pytest.approx(table.rows[1].ratio("ratio_bytes"))
    assert weighed.layers == ((pytest.approx(0.2), 0.2), (pytest.approx(0.2), 0.2))


def test_charts_carry_their_methods_and_take_the_pages_colors(tmp_path: Path) -> None:
    outline = Outline(page_of(tmp_path))
    marked = set(outline.attributes("data-series"))
    assert marked == {"fullkv", "snapkv", "spindlekv[beta=0.1]"}
    charts = [a for tag, a in outline.elements if tag == "svg" and a.get("class") is None]
    # AVG and the two groups; the paper's six groups come with their tasks.
    assert [a["aria-label"] for a in charts] == [
        "Score against share of bytes, AVG of 2 tasks",
        "Score against share of bytes, Single-Document QA",
        "Score against share of bytes, Few-shot Learning",
    ]
    assert "#010203" not in page_of(tmp_path / "again")


def test_everything_works_with_the_keyboard(tmp_path: Path) -> None:
    text = page_of(tmp_path)
    outline = Outline(text)
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("details") == tags.count("summary") > 5
    assert all(a.get("type") == "button" for tag, a in outline.elements if tag == "button")
    assert ":focus-visible" in text
    scrollable = [a for _, a in outline.elements if a.get("class") == "scroll"]
    assert scrollable and all(a["tabindex"] == "0" and a["aria-label"] for a in scrollable)


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    look = Look(form="html")
    assert page([table], look) == page([table], look)


def test_a_run_without_fullkv_has_a_page_without_differences(tmp_path: Path) -> None:
    scores = {k: v for k, v in SCORES.items() if k != "fullkv"}
    head = header(labels=list(scores), tasks=["qasper", "trec"], samples=2)
    write_shard(tmp_path, head, records(scores))
    text = page(tables_of(tmp_path), Look(form="html"))
    assert "Differences to" not in text and "snapkv" in text


def test_the_page_of_an_experiment_shows_the_papers_figure_and_numbers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quarter = "kvcrush@64[base=h2o_kvf_published]"
    alone = "kvcrush@64[base=h2o_kvf_published,share=0.0]"
    scores = {alone: {"qasper": [0.5]}, quarter: {"qasper": [0.75]}}
    head = header(labels=list(scores), tasks=["qasper"])
    write_shard(Path("results/runs/kvcrush-figure5"), head, records(scores))
    words = ["report", "experiment=kvcrush/figure5", "--format", "html"]
    text = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    outline = Outline(text)
    shown = "".join(outline.text)
    assert shown.index("Beside the paper") < shown.index("+25.00") < shown.index("Score against")
    assert {"paper", "scores"} <= set(outline.attributes("id"))
    assert "figure5" in set(outline.attributes("aria-label"))


def test_the_page_of_an_analysis_holds_its_figure_and_its_table(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "task=hotpotqa", "limit=1", f"out={tmp_path}"]
    CliRunner().invoke(app, [*words, "analysis=sparsity"], catch_exceptions=False)
    report = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "html"])
    assert report.exit_code == 0, report.output
    outline = Outline(report.stdout)
    assert "tokens outside 95% of the attention" in "".join(outline.text)
    assert "sparsity" in set(outline.attributes("aria-label"))
    assert "scores" not in set(outline.attributes("id"))


PROBE = """<script>
document.querySelectorAll("details").forEach((part) => { part.open = true; });
document.querySelector("button[data-series='snapkv']").click();
const root = document.documentElement;
const found = { wide: root.scrollWidth - root.clientWidth, title: document.title };
found.shown = document.querySelectorAll(".series.shown").length;
found.faint = document.querySelectorAll(".picked .series:not(.shown)").length;
document.body.dataset.found = JSON.stringify(found);
</script>"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [1280, 500])
def test_in_a_browser_nothing_overflows_and_buttons_single_out_a_method(
    tmp_path: Path, width: int
) -> None:
    long = "word" * 200
    text = page_of(tmp_path / "run", prediction=HOSTILE + long, prompt_tail=long)
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    document = in_chromium(path, tmp_path / "profile", width)
    found = Outline(document)
    (facts,) = found.attributes("data-found")
    assert '"wide":0' in facts
    assert "kvbench" in facts and "owned" not in facts
    shown = re.search(r'"shown":(\d+),"faint":(\d+)', facts)
    assert shown is not None
    assert int(shown[1]) >= 6 and int(shown[2]) >= 3
