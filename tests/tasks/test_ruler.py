"""RULER's synthetic tasks: what they hide, how long they are, how answers score."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvbench.records.reader import distinct, read_shards
from kvbench.tasks.prompt import PromptRules, render
from kvbench.tasks.ruler import FAMILIES, Ruler, match_all, match_part
from kvbench.tasks.task import Sample
from support.cases import slow
from support.cli import cli, done
from support.tokenizers import TOKENIZERS

LENGTH = 9000
BYTES = TOKENIZERS["bytes"]


def samples(family: str, tokenizer: Any = BYTES, **fields: Any) -> list[Sample]:
    suite = Ruler(**{"families": [family], "lengths": LENGTH, "samples_each": 2, **fields})
    (task,) = suite.tasks()
    source = suite.source("", hub_repo="", revision=None)
    return list(suite.samples(task, source, None, lambda: tokenizer))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["bytes", "metaspace"])
def test_prompt_and_answer_fill_the_length_and_no_more(family: str, name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for sample in samples(family, tokenizer):
        prompt = render(sample, tokenizer, PromptRules())
        used = len(prompt) + sample.task.max_new_tokens
        assert LENGTH - 1200 < used <= LENGTH
        text = tokenizer.decode(prompt.ids)
        assert text.endswith(sample.answer_prefix)
        for span, (start, end) in sample.spans.items():
            first, last = prompt.spans[span]
            assert sample.context[start:end] in tokenizer.decode(prompt.ids[first:last])


def test_a_chain_of_assignments_leads_from_the_value_to_every_variable() -> None:
    for sample in samples("vt"):
        found = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", sample.context))
        assert tuple(found) == sample.answers  # in the order of the chain, none else
        for name in sample.answers:
            while name in found:
                name = found[name]
            assert name == sample.input


def test_ten_words_stand_thirty_times_and_the_others_three() -> None:
    for sample in samples("cwe"):
        times = Counter(re.findall(r"\d+\. (\S+)", sample.context))
        assert {times.pop(word) for word in sample.answers} == {30}
        assert len(sample.answers) == 10
        assert set(times.values()) == {3}


def test_the_three_most_frequent_coded_words_are_asked_for_and_no_tie_decides() -> None:
    for sample in samples("fwe"):
        times = Counter(sample.context.split()).most_common()
        assert times[0][0] == "...."
        assert tuple(word for word, _ in times[1:4]) == sample.answers
        counts = [n for _, n in times]
        assert counts[1] > counts[2] > counts[3] > counts[4]


def test_the_gold_passage_stands_once_among_the_documents() -> None:
    places = set()
    for sample in samples("qa", samples_each=6):
        (start, end) = sample.spans["passage"]
        passage = sample.context[start:end]
        assert sample.context.count(passage) == 1
        assert sample.answers[0].lower() in passage.lower()
        places.add(start)
    assert len(places) == 6


def test_the_users_own_passages_are_asked_about(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"passage": "Otters hold hands.", "question": "Who hold hands?", "answers": ["Otters"]}\n',
        encoding="utf-8",
    )
    for sample in samples("qa", passages=str(file)):
        assert (sample.input, sample.answers) == ("Who hold hands?", ("Otters",))
        assert sample.context.count("Otters hold hands.") == 1


@pytest.mark.slow
def test_equal_seeds_make_equal_samples() -> None:
    for family in FAMILIES:
        first, second = samples(family), samples(family)
        assert [s.context for s in first] == [s.context for s in second]
        assert first[0].context != first[1].context
        assert samples(family, seed=1)[0].context != first[0].context


def scored(rule: Any, prediction: str, *answers: str) -> float:
    (task, *_) = Ruler().tasks()
    return float(next(iter(rule(prediction, Sample(task, "", "", "", answers)).values())))


def test_all_answers_count_by_share_and_any_answer_whole() -> None:
    assert scored(match_all, "abc and DEF", "ABC", "def", "ghi", "jkl") == 0.5
    assert scored(match_part, "the Herring Oil.", "gas", "herring oil") == 1.0
    assert scored(match_part, "tallow", "gas", "herring oil") == 0.0


def test_a_run_makes_a_column_for_each_length(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "method=streamingllm", "task=ruler"]
    words += ["ruler.families=[vt,qa]", "ruler.lengths=[1500,2500]", "ruler.samples_each=1"]
    out = tmp_path / "run"
    assert "8 results recorded, 0 of them failed" in done(*words, f"out={out}")
    records = [r for _, r in distinct(read_shards(out))]
    assert {r.task for r in records} == {"vt_1500", "vt_2500", "qa_1500", "qa_2500"}
    assert all(r.span_kept for r in records)
    text = done("report", str(out), "--format", "markdown")
    assert "RULER's synthetic tasks" in text
    assert "| RULER 1500 | RULER 2500 | AVG of 4 tasks |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        slow(["ruler.lengths=-1"], "ruler.lengths=-1 is out of range"),
        (["ruler.lengths=[300]"], "too few: give larger ones"),
        (["ruler.lengths=9000"], "give smaller ruler.lengths"),
        (["ruler.families=[vt,abc]"], "ruler.families=abc is unknown"),
        slow(["ruler.families=[]"], "ruler.families is empty"),
        slow(["ruler.samples_each=0"], "ruler.samples_each=0"),
        slow(["ruler.passages=nowhere.jsonl"], "ruler.passages=nowhere.jsonl cannot be read"),
        (["ruler.passages=bad.jsonl"], "line 1: field 'answers' is empty"),
        slow(["haystack=nowhere"], "haystack=nowhere is not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = '{"passage": "p", "question": "q", "answers": []}'
    (tmp_path / "bad.jsonl").write_text(bad, encoding="utf-8")
    chosen = ["model=tiny-random", "task=ruler", "ruler.families=[vt]", "ruler.samples_each=1"]
    named = {word.partition("=")[0] for word in words}
    kept = [word for word in chosen if word.partition("=")[0] not in named]
    result = cli("run", *kept, *words, "out=run")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("kvbench: ") and result.stderr.count("\n") == 1
    assert said in result.stderr
    assert not (tmp_path / "run").exists()
