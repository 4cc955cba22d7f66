"""LongBench's tasks carry the benchmark's wording and limits, and hand out checked samples."""

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from kvbench.base.errors import UserError
from kvbench.data.source import open_source
from kvbench.tasks.longbench import LONGBENCH_16, LONGBENCH_E, LONGBENCH_ZH, LongBench
from kvbench.tasks.suite import Suite
from support.paths import CONF

DATA = os.environ.get("KVBENCH_DATA")
ALL = LONGBENCH_16 + LONGBENCH_ZH

# dataset2maxlen.json
MAX_NEW_TOKENS = [128, 128, 64, 32, 32, 32, 512, 512, 512, 64, 32, 128, 32, 32, 64, 64]
MAX_NEW_TOKENS_ZH = [64, 128, 512, 64, 32]


def suite_of(name: str) -> Suite:
    suite: Suite = instantiate(OmegaConf.load(CONF / "task" / f"{name}.yaml"))
    return suite


def record(task: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input": "question?",
        "context": "a\r\nb",
        "answers": ["Paragraph 3" if task.startswith("passage_retrieval_en") else "段落3"],
        "length": 5,
        "dataset": task,
        "language": "en",
        "all_classes": ["City", "段落3"],
        "_id": f"id{number}",
    }
    return {**fields, **changes}


def written(folder: Path, task: str, *records: dict[str, Any]) -> Path:
    text = "".join(json.dumps(r) + "\n" for r in records)
    (folder / f"{task}.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_the_templates_are_the_published_ones_to_the_character() -> None:
    # Digest of the 21 values of dataset2prompt.json in table order.
    tasks = LongBench(ALL).tasks()
    digest = hashlib.blake2b("\0".join(t.template for t in tasks).encode(), digest_size=16)
    assert digest.hexdigest() == "d7d4b45a373cb7675f7028a104f717cd"
    assert tasks[0].template.count("asconcisely") == 2
    assert tasks[0].template.endswith("Question: {input}\n\nAnswer:")


def test_every_template_takes_the_context_once() -> None:
    for task in LongBench(ALL).tasks():
        assert task.template.count("{context}") == 1
        assert task.template.format(context="", input="").count("{") == 0


def test_generation_limits_are_the_published_ones() -> None:
    assert [t.max_new_tokens for t in LongBench(LONGBENCH_16).tasks()] == MAX_NEW_TOKENS
    assert [t.max_new_tokens for t in LongBench(LONGBENCH_ZH).tasks()] == MAX_NEW_TOKENS_ZH


def test_groups_are_those_of_the_papers_tables() -> None:
    groups = [t.group for t in LongBench(LONGBENCH_16).tasks()]
    assert groups == (
        ["Single-Document QA"] * 3
        + ["Multi-Document QA"] * 3
        + ["Summarization"] * 3
        + ["Few-shot Learning"] * 3
        + ["Synthetic"] * 2
        + ["Code"] * 2
    )


def test_few_shot_and_code_tasks_take_no_chat_template_and_samsum_stops_at_a_newline() -> None:
    tasks = LongBench(ALL).tasks()
    plain = {t.name for t in tasks if not t.chat_template}
    assert plain == {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert [t.name for t in tasks if t.stop_at_newline] == ["samsum"]
    assert [t.name for t in tasks if t.one_token_answers] == ["passage_count"]
    assert {t.name for t in tasks if t.language == "zh"} == set(LONGBENCH_ZH)


@pytest.mark.parametrize("name", ALL)
def test_each_task_has_a_configuration_of_its_own(name: str) -> None:
    assert [t.name for t in suite_of(name).tasks()] == [name]


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("longbench", LONGBENCH_16),
        ("longbench_zh", LONGBENCH_ZH),
        ("longbench_e", tuple(f"{t}_e" for t in LONGBENCH_E)),
    ],
)
def test_the_suites_keep_the_order_of_the_tables(name: str, tasks: tuple[str, ...]) -> None:
    assert tuple(t.name for t in suite_of(name).tasks()) == tasks


def test_a_sample_keeps_its_record_as_read(tmp_path: Path) -> None:
    one = record("qasper", source="arXiv")
    suite = LongBench(["qasper"])
    (sample,) = suite.samples(suite.tasks()[0], open_source(written(tmp_path, "qasper", one)))
    assert sample.fields == one
    assert (sample.id, sample.context, sample.input) == ("id1", "a\r\nb", "question?")
    assert sample.answers == ("段落3",)


def test_longbench_e_reads_its_own_files_and_scores_as_the_plain_task(tmp_path: Path) -> None:
    suite = LongBench(["qasper"], extended=True)
    (task,) = suite.tasks()
    written(tmp_path, "qasper_e", record("qasper", answers=["the answer"]))
    (sample,) = suite.samples(task, open_source(tmp_path))
    assert task.name == "qasper_e"
    assert task.score("An answer", sample) == {"qa_f1": 1.0}


def test_limit_takes_the_first_records_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    suite = LongBench(["qasper"])
    (task,) = suite.tasks()
    folder = written(tmp_path, "qasper", *(record("qasper", n) for n in range(3)))
    samples = list(suite.samples(task, open_source(folder), 2))
    assert [s.id for s in samples] == ["id0", "id1"]
    assert len(list(suite.samples(task, open_source(folder), 9))) == 3
    written(tmp_path, "qasper", record("qasper", 1), record("qasper", 2, answers=[]))
    with pytest.raises(UserError, match=r"qasper\.jsonl, line 2: field 'answers' is empty"):
        next(suite.samples(task, open_source(folder), 1))
    with pytest.raises(UserError, match="limit 0 is out of range"):
        next(suite.samples(task, open_source(folder), 0))


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("trec", {"all_classes": None}, "all_classes"),
        ("lsht", {"all_classes": []}, "all_classes"),
        ("passage_retrieval_en", {"answers": ["12"]}, "answers"),
        ("passage_retrieval_zh", {"answers": ["Paragraph 12"]}, "answers"),
    ],
)
def test_a_record_its_metric_cannot_score_names_file_line_and_field(
    tmp_path: Path, name: str, changes: dict[str, Any], field: str
) -> None:
    suite = LongBench([name])
    source = open_source(written(tmp_path, name, record(name, 1), record(name, 2, **changes)))
    with pytest.raises(UserError, match=rf"{name}\.jsonl, line 2: field '{field}'"):
        list(suite.samples(suite.tasks()[0], source))


@pytest.mark.parametrize(
    ("names", "extended", "said"),
    [
        (["narativeqa"], False, "'narativeqa' is not in LongBench; the nearest is 'narrativeqa'"),
        (["lsht"], True, "task 'lsht' is not in LongBench-E"),
        (["lcc", "lcc"], False, "task 'lcc' is chosen twice"),
        ([], False, "no task is chosen"),
    ],
)
def test_a_wrong_choice_of_tasks_is_named(names: list[str], extended: bool, said: str) -> None:
    with pytest.raises(UserError) as error:
        LongBench(names, extended)
    assert said in str(error.value)


def test_the_code_backend_reaches_the_metric_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    suite = LongBench(["lcc"])
    one = record("lcc", answers=["while True:"])
    (sample,) = suite.samples(suite.tasks()[0], open_source(written(tmp_path, "lcc", one)))
    values = [
        suite.tasks(backend)[0].score("for i in range(10):", sample)["code_similarity"]
        for backend in ("difflib", "levenshtein")
    ]
    assert values == [0.2, 0.33]
    with pytest.raises(UserError, match="'fuzzy' is unknown: give difflib or levenshtein"):
        suite.tasks("fuzzy")


def test_tasks_travel_to_other_processes() -> None:
    for task in LongBench(ALL).tasks():
        assert pickle.loads(pickle.dumps(task)) is not None


@pytest.mark.skipif(not DATA, reason="KVBENCH_DATA names no folder of real records")
def test_every_real_answer_scores_full_marks_on_its_own_task() -> None:
    source, suite = open_source(Path(DATA or "") / "longbench"), LongBench(ALL)
    for task in suite.tasks():
        if task.group in ("Code", "Summarization"):
            continue  # an answer may be a comment line; repeated words cost ROUGE nothing but time
        for sample in suite.samples(task, source):
            value = next(iter(task.score(sample.answers[0], sample).values()))
            assert value == pytest.approx(1.0, abs=1e-6), (task.name, sample.id)


@pytest.mark.parametrize("name", LONGBENCH_16)
def test_the_sample_suite_has_every_task_in_the_same_format(name: str) -> None:
    suite = LongBench([name])
    assert list(suite.samples(suite.tasks()[0], open_source("sample")))
