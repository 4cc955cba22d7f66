"""The presets of papers: what they set, which printed numbers they find, whether they run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from kvbench.config.catalog import Choice, choices
from kvbench.config.planning import plan_from_config
from kvbench.config.sweeper import folded_jobs
from kvbench.config.words import hydra_words
from kvbench.plan.plan import Plan
from kvbench.records.reader import read_shards
from kvbench.report.paper.figure import FigureSpec
from kvbench.report.paper.published import published_table
from kvbench.report.paper.scores import ScoreNumbers
from kvbench.report.paper.table import Beside, paper_csv
from kvbench.report.table.table import tables_of
from support.cases import slow_unless
from support.cli import done
from support.runs import header, records, write_shard

EXPERIMENTS = {
    choice.name: choice
    for choice in choices("experiment")
    # Those of `kvbench lm-eval` are tested with it.
    if "/" in choice.name and "lm_eval" not in choice.config
}
SPEEDS = [n for n, choice in EXPERIMENTS.items() if choice.config.get("analysis") == "speed"]
CLASSIFIERS = ["windowkv/table4"]
MODELS = {choice.name for choice in choices("model")}


def is_figure(choice: Choice) -> bool:
    """Whether our scores are drawn as a paper's figure."""
    return "figure" in choice.config.get("experiment", {})


def plans_of(choice: Choice, *words: str) -> list[Plan]:
    """One plan a job, as the sweeper makes them."""
    params = choice.config.get("hydra", {}).get("sweeper", {}).get("params", {})
    swept = hydra_words([*(f"{axis}={values}" for axis, values in params.items()), *words])
    parsed = OverridesParser.create().parse_overrides([f"experiment={choice.name}", *swept])
    return [plan_from_config(hydra.compose("config", job), job) for job in folded_jobs(parsed)]


@cache
def planned(name: str) -> list[Plan]:
    """A preset's plans."""
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        return plans_of(EXPERIMENTS[name])


# Of each paper one table and what else is unlike it; the others are more of the same.
QUICK = {"kvcrush/table3", "pyramidkv/needle", "spindlekv/table2", "spindlekv/table9"}
QUICK |= {"windowkv/table1", "windowkv/table4"}


@pytest.mark.parametrize("name", slow_unless(QUICK.__contains__, EXPERIMENTS))
def test_a_preset_sets_what_its_paper_did(name: str) -> None:
    choice, plans = EXPERIMENTS[name], planned(name)
    printed = choice.config.get("experiment", {}).get("published")
    for plan in plans:
        assert plan.model.name in MODELS - {"smollm2-135m", "tiny-random", "custom"}
        assert plan.protocol.name == "paper"
        assert plan.out == Path("results", "runs", name.replace("/", "-"))
        assert plan.variants[0].choice == "fullkv"
        assert plan.limit is None or plan.analysis is not None
    if printed:
        table = published_table(printed)
        if name not in CLASSIFIERS:  # whose models are no language models
            assert {plan.model.name for plan in plans} <= set(table.models)
        tasks = {figure.task for figure in table.figures} - {"AVG", "cache_memory_MB"}
        if tasks and name not in SPEEDS + CLASSIFIERS:
            assert tasks == {task.name for task in plans[0].tasks}


def test_spindlekvs_own_experiments_count_memory_as_the_paper_prints_it() -> None:
    rows = [
        (name, row)
        for name, choice in EXPERIMENTS.items()
        for row in choice.config.get("rows", [])
        if name.startswith("spindlekv/") and "method=spindlekv" in row
    ]
    assert len({name for name, _ in rows}) == 12
    assert all("method.match=formula15" in row for _, row in rows)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_preset_begins_with_its_source(name: str) -> None:
    paper, _, part = name.partition("/")
    assert EXPERIMENTS[name].about.lower().startswith(paper)
    number = part.partition("_")[0].lstrip("tablefigur")
    roman = {"kvcrush/table3": "III"}.get(name, number)
    assert roman in EXPERIMENTS[name].about


@pytest.mark.parametrize(
    "name",
    slow_unless(
        QUICK.__contains__,
        [
            name
            for name, choice in EXPERIMENTS.items()
            if "published" in choice.config.get("experiment", {})
            and "analysis" not in choice.config
        ],
    ),
)
def test_every_printed_number_has_a_row_of_ours(name: str, tmp_path: Path) -> None:
    choice = EXPERIMENTS[name]
    beside = Beside.of(choice.config["experiment"])
    assert beside is not None
    models = set()
    for plan in planned(name):
        models.add(plan.model.name)
        tasks = [task.name for task in plan.tasks]
        labels = [variant.label for variant in plan.variants]
        model = {"name": plan.model.name, "path": "p", "dtype": "float32", "revision": None}
        # A needle's task is none of LongBench's: one of these stands in for it.
        known = ["qasper"] if tasks == ["needle"] else tasks
        head = header(labels=labels, tasks=known, model=model)
        head["config"]["limit"] = None
        for described, task in zip(head["tasks"], tasks, strict=True):
            described["name"] = task
        for described, variant in zip(head["variants"], plan.variants, strict=True):
            described["budget"] = str(variant.budget)
        made = records({label: {task: [0.5] for task in known} for label in labels})
        made = [replace(r, task=task) for r in made for task in tasks if task in (r.task, "needle")]
        write_shard(tmp_path, head, made)
    lines = csv.DictReader(io.StringIO(paper_csv(beside, ScoreNumbers(tables_of(tmp_path)))))
    wanted = [
        line for line in lines if line["model"] in models and line["task"] != "cache_memory_MB"
    ]
    assert wanted and all(line["ours"] in ("50.00", "0.500") for line in wanted)


@pytest.mark.usefixtures("composing")
@pytest.mark.parametrize(
    "name",
    slow_unless("kvcrush/figure6".__eq__, [c.name for c in choices("experiment") if is_figure(c)]),
)
def test_every_point_of_a_figure_is_a_row_that_its_preset_runs(name: str) -> None:
    (choice,) = (c for c in choices("experiment") if c.name == name)
    spec = FigureSpec.of(choice.config["experiment"])
    assert spec is not None
    plan = plans_of(choice)[0]
    run = {v.label.replace(f"@{v.budget}", "", 1) for v in plan.variants}
    drawn = {row for places in spec.series.values() for rows in places.values() for row in rows}
    assert drawn | set(spec.over) <= run
    assert run - {"fullkv"} <= drawn | set(spec.over)


@pytest.mark.usefixtures("composing")
def test_words_of_the_user_win_over_the_presets() -> None:
    words = ["model=tiny-random", "task=qasper", "limit=2", "budget=0.1,32", "protocol=official"]
    (plan,) = plans_of(EXPERIMENTS["spindlekv/table1"], *words)
    assert (plan.model.name, plan.limit, plan.protocol.name) == ("tiny-random", 2, "official")
    assert [task.name for task in plan.tasks] == ["qasper"]
    assert [variant.label for variant in plan.variants] == [
        "fullkv",
        *(
            f"{method}@{b}{changed}"
            for b in (0.1, 32)
            for method, changed in (
                ("pyramidinfer", ""),
                ("pyramidkv_kvf", ""),
                ("spindlekv", "[match=formula15]"),
            )
        ),
    ]


@pytest.mark.usefixtures("composing")
@pytest.mark.parametrize("word", ["method=snapkv", "method=snapkv,tova"])
def test_methods_of_the_user_replace_the_presets(word: str) -> None:
    (plan,) = plans_of(EXPERIMENTS["spindlekv/table2"], word)
    assert {variant.choice for variant in plan.variants[1:]} == set(word[7:].split(","))


def test_list_and_show_know_the_presets_by_paper() -> None:
    text = done("list", "experiments")
    assert "spindlekv/table10" in text and "Appendix D.1".lower() in text.lower()
    assert "spindlekv-table10" in done("show", "experiment=spindlekv/table10")


def short_records(task: str) -> Iterator[str]:
    story = " ".join(f"On day {d} the {task} clerk wrote {d * d} in the book." for d in range(14))
    classes = ["Number", "Person"] if task in ("trec", "lsht") else None
    line = {"_id": f"{task}-0", "input": "What did the clerk write?", "context": story}
    line |= {"answers": ["Paragraph 1"], "all_classes": classes, "length": len(story.split())}
    yield json.dumps({**line, "dataset": task, "language": "en"})


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_preset_runs_scaled_down_and_its_report_renders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for task in [f.task for f in published_table("spindlekv/table1").figures][:16]:
        Path("data", f"{task}.jsonl").write_text("\n".join(short_records(task)) + "\n")
    words = ["model=tiny-random", "model.random.layers=8", "limit=1", "data=data"]
    suites = str(EXPERIMENTS[name].config["defaults"])
    if "needle" not in suites and "wiki" not in suites:
        words.append("task=hotpotqa")  # one short task of its many
    if "needle" in suites:
        words.append("model.random.context=40960")  # the longest of a needle's lengths must fit
    if name in SPEEDS:
        words += ["speed.context=512", "speed.generate=3", "speed.repeats=1"]
    if name in CLASSIFIERS:
        words = ["model=tiny-random", "limit=2", "classifier.encoder=null"]
    done("run", f"experiment={name}", *words)
    folder = Path("results", "runs", name.replace("/", "-"))
    shards = read_shards(folder)
    assert all(record.error is None for shard in shards for record in shard.records)
    report = done("report", f"experiment={name}")
    if "needle" in suites:
        assert list(folder.glob("figures/*-heatmaps.png"))
    if name in SPEEDS + CLASSIFIERS:
        assert "† cannot be compared: other" in report
    elif not shards:
        assert list(folder.glob("figures/*.svg")) and "Drawn in" in report
    elif "published" in EXPERIMENTS[name].config.get("experiment", {}):
        assert "† cannot be compared: other model" in report
    elif is_figure(EXPERIMENTS[name]):
        assert list(folder.glob("figures/figure*.png")) and "Drawn in" in report
    else:
        assert "fullkv" in report
