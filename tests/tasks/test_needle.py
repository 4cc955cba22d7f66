"""Needles: where they go in, what is asked, how answers score, what a run records."""

from __future__ import annotations

import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from kvbench.base.errors import UserError
from kvbench.config.words import hydra_words
from kvbench.decode.greedy import Stop
from kvbench.records.reader import distinct, read_shards
from kvbench.records.record import Record
from kvbench.tasks.haystack import SAMPLE_HAYSTACK, Hay, grid_of
from kvbench.tasks.needle import FAMILIES, Needle
from kvbench.tasks.needle_metrics import classic_scores, digits, number_scores
from kvbench.tasks.prompt import PromptRules, render
from kvbench.tasks.task import Sample
from support.cases import slow
from support.cli import cli
from support.paths import ROOT
from support.tokenizers import TOKENIZERS

PROSE = (
    "The cat sat down. It was late! Was it? Nobody asked (not even Mrs. Hale.) and the rain, at"
    " 3.14 a minute, went on falling until the lamps were lit.\n\nThen it stopped. "
) * 4
UNBROKEN = "on and on without an end and never a stop " * 12
TINY = ["run", "model=tiny-random", "method=streamingllm", "budget=0.3", "task=needle"]
SMALL = ["needle.lengths=[400,600]", "needle.depths=[0,100]"]


def naive_place(text: str, tokenizer: Any, tokens: int, depth: int) -> int:
    """As the published code steps back: one token at a time, until the text before ends a sentence.

    Found with decoded text alone: no offsets, no set of places.
    """
    ids = tokenizer(text, add_special_tokens=False).input_ids[:tokens]
    count = len(ids) if depth == 100 else int(len(ids) * depth / 100)
    while depth != 100 and count:
        before, after = tokenizer.decode(ids[:count]), text[len(tokenizer.decode(ids[:count])) :]
        sentence = before.rstrip()
        closed = sentence.rstrip(")")
        gap = before != sentence or after[:1].isspace() or not after
        if closed.endswith((".", "!", "?")) and gap:
            break
        count -= 1
    return len(tokenizer.decode(ids[:count]))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", [PROSE, UNBROKEN], ids=["prose", "unbroken"])
@pytest.mark.parametrize("tokens", [7, 63, 101])
def test_a_needle_goes_where_the_published_code_steps_back_to(
    name: str, text: str, tokens: int
) -> None:
    tokenizer = TOKENIZERS[name]
    hay = Hay.tokenized(text, 120, tokenizer)
    for depth in (0, 1, 11, 33, 50, 78, 99, 100):
        assert hay.place(tokens, depth) == naive_place(text, tokenizer, tokens, depth), depth


def test_depth_0_begins_and_depth_100_ends_the_text() -> None:
    hay = Hay.tokenized(PROSE, 80, TOKENIZERS["bytes"])
    first, spans = hay.with_sentences(80, [(0, "A needle.")])
    last, _ = hay.with_sentences(80, [(100, "A needle.")])
    assert first == f"\nA needle.\n{PROSE[:80]}"
    assert last == f"{PROSE[:80]}\nA needle.\n"
    assert first[slice(*spans[0])] == "A needle."


def test_a_depth_at_a_sentence_end_stays_there_and_one_inside_goes_back_to_it() -> None:
    text = "a" * 49 + ". " + "b" * 49
    hay = Hay.tokenized(text, 100, TOKENIZERS["bytes"])
    assert [hay.place(100, depth) for depth in (49, 50, 51, 52, 99)] == [0, 50, 51, 51, 51]


def test_text_without_a_boundary_takes_the_needle_at_its_start() -> None:
    hay = Hay.tokenized(UNBROKEN, 90, TOKENIZERS["merges"])
    assert {hay.place(90, depth) for depth in (0, 50, 99)} == {0}
    assert hay.place(90, 100) == len(hay.text)


def test_numbers_and_abbreviated_names_inside_a_word_end_no_sentence() -> None:
    hay = Hay.tokenized("Pi is 3.14 here and so on", 20, TOKENIZERS["bytes"])
    assert hay.place(20, 80) == 0


def test_a_short_haystack_is_repeated_until_it_is_long_enough() -> None:
    hay = Hay.tokenized("One. Two.", 50, TOKENIZERS["bytes"])
    assert hay.text == ("One. Two.\n" * 5)


def samples(tokenizer: Any, **fields: Any) -> list[Sample]:
    suite = Needle(**{"lengths": [900, 1100], "depths": [0, 50, 100], "reserve": 60, **fields})
    source = suite.source("", hub_repo="", revision=None)
    return list(suite.samples(suite.tasks()[0], source, None, lambda: tokenizer))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("profile", ["classic", "chat"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_needle_is_in_the_prompt_once_and_its_span_is_known(
    name: str, profile: str, family: str
) -> None:
    tokenizer = TOKENIZERS[name]
    for sample in samples(tokenizer, family=family, profile=profile):
        prompt = render(sample, tokenizer, PromptRules())
        text = tokenizer.decode(prompt.ids)
        assert prompt.spans.keys() == sample.spans.keys()
        for span, (start, end) in sample.spans.items():
            needle = sample.context[start:end]
            assert text.count(needle) == 1
            first, last = prompt.spans[span]
            assert tokenizer.decode(prompt.ids[first:last]).strip() == needle
            assert needle not in tokenizer.decode(prompt.ids[:first])
            assert last <= prompt.context_end


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_haystack_and_the_needles_fill_the_length_up_to_the_reserve(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for sample in samples(tokenizer, family="multi_key"):
        tokens = len(tokenizer(sample.context, add_special_tokens=False).input_ids)
        assert abs(tokens - (sample.fields["length"] - 60)) <= 12  # seams join or split tokens


def test_the_same_cell_is_the_same_sample_whatever_the_grid() -> None:
    tokenizer = TOKENIZERS["merges"]
    whole = {s.id: s for s in samples(tokenizer, family="single")}
    (alone,) = samples(tokenizer, family="single", lengths=[900], depths=[50])
    again = whole[alone.id]
    assert (again.context, again.answers) == (alone.context, alone.answers)
    other = samples(tokenizer, family="single", lengths=[900], depths=[50], seed=1)[0]
    assert other.answers != alone.answers


@pytest.mark.parametrize(
    ("family", "needles", "answers"),
    [("single", 1, 1), ("multi_key", 4, 1), ("multi_value", 4, 4), ("multi_query", 4, 4)],
)
def test_number_needles_hold_their_answers_under_the_keys_asked_for(
    family: str, needles: int, answers: int
) -> None:
    for sample in samples(TOKENIZERS["bytes"], family=family):
        hidden = [sample.context[a:b] for a, b in sample.spans.values()]
        assert (len(hidden), len(sample.answers)) == (needles, answers)
        for needle, answer in zip(hidden, sample.answers, strict=False):
            key = needle.removeprefix("One of the special magic numbers for ").partition(" ")[0]
            assert needle.endswith(f"is: {answer}.")
            assert key in sample.input and key in sample.answer_prefix
        for distractor in hidden[answers:]:
            assert not any(answer in distractor for answer in sample.answers)
        places = [a for a, _ in sample.spans.values()]
        assert len(set(places)) == needles


def test_the_answer_prefix_ends_the_prompt_after_the_templates_cue() -> None:
    tokenizer = TOKENIZERS["merges"]
    stem = "The best thing to do in San Francisco is"
    chat, plain, own = (
        tokenizer.decode(render(samples(tokenizer, **f)[0], tokenizer, PromptRules()).ids)
        for f in ({}, {"profile": "classic"}, {"profile": "classic", "answer_prefix": "It is"})
    )
    assert chat.endswith(f"<|assistant|>\n{stem}")
    assert plain.endswith(
        f"</book>.\n Based on the content of the book, Question: {stem}: \nAnswer:"
    )
    assert own.endswith("\nAnswer: It is")
    assert "<|assistant|>" not in plain


# methods.md, T9.
NEEDLE = Needle().needle
ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."


def scored(response: str) -> dict[str, float]:
    (task,) = Needle().tasks()
    sample = Sample(task, "", "", "", (ANSWER,), {"needles": [NEEDLE]})
    return dict(classic_scores(response, sample))


def test_a_perfect_short_answer_overlaps_whole_and_gets_rouge_of_0_727() -> None:
    scores = scored(ANSWER)
    assert list(scores) == ["overlap", "rouge1", "contains"]
    assert scores["overlap"] == scores["contains"] == 1.0
    assert scores["rouge1"] == pytest.approx(0.72727, abs=1e-5)


def test_the_last_dot_is_part_of_a_word() -> None:
    scores = scored(ANSWER.removesuffix("."))
    assert scores["overlap"] == pytest.approx(10 / 11)
    assert scores["contains"] == 0.0


def test_nothing_scores_nothing_and_the_whole_needle_everything() -> None:
    assert set(scored("").values()) == {0.0}
    assert set(scored(NEEDLE).values()) == {1.0}


def test_only_the_first_line_counts_and_newlines_before_it_do_not() -> None:
    assert scored(f"\n\n{ANSWER}\nNo, wait.") == scored(ANSWER)
    assert scored(f"I do not know.\n{ANSWER}") == scored("I do not know.")


def test_numbers_score_by_those_found_and_by_their_first_digits() -> None:
    (task,) = Needle(family="multi_value").tasks()
    fields = {"needles": ["a: 1234567.", "b: 7654321."]}
    sample = Sample(task, "", "", "", ("1234567", "7654321"), fields)
    scores = number_scores("They are 1234567 and 7650000.", sample)
    assert scores["contains"] == 0.5
    assert scores["digits"] == pytest.approx((1 + 3 / 7) / 2)
    assert digits("", ("12",)) == 0.0
    assert number_scores(":\n1234567\n7654321", sample)["contains"] == 1.0


def test_a_leading_newline_is_passed_over_and_a_later_one_ends() -> None:
    stop = Stop(frozenset({1, 9}), 30, leading_ids=frozenset({9}))
    assert not stop.stops_at(9, [])
    assert not stop.stops_at(9, [9, 9])
    assert stop.stops_at(9, [9, 4])
    assert stop.stops_at(1, [])
    assert not stop.stops_at(4, [])


def test_a_grid_is_a_list_or_a_range_that_includes_its_end() -> None:
    assert grid_of("x", "1000:8000:100") == tuple(range(1000, 8001, 100))
    assert len(grid_of("x", "400:32000:400")) == 80
    assert grid_of("x", [3, 1, 3]) == (1, 3)
    assert grid_of("x", 5) == (5,)
    for wrong in ("1:2", "a:b:c", "5:1:1", "1:5:0", [], [1.5], [True], None):
        with pytest.raises(UserError, match="x="):
            grid_of("x", wrong)


def test_the_published_grids_have_710_and_800_cells(tmp_path: Path) -> None:
    shown = {name: cli("show", f"task=needle_{name}").stdout for name in ("llama3", "mistral")}
    assert "lengths: 1000:8000:100" in shown["llama3"]
    assert "lengths: 400:32000:400" in shown["mistral"]
    for lengths, cells in (("1000:8000:100", 710), ("400:32000:400", 800)):
        suite = Needle(lengths=lengths)
        assert len(list(itertools.product(*suite.grid))) == cells


def recorded(out: Path) -> dict[tuple[str, str], Record]:
    return {(r.task + r.sample, r.variant): r for _, r in distinct(read_shards(out))}


def test_a_run_records_spans_lengths_and_what_each_layer_keeps(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert cli(*TINY, *SMALL, f"out={out}").exit_code == 0
    records = recorded(out)
    assert len(records) == 8
    for (_, variant), record in records.items():
        (start, end) = record.spans["needle"]
        length, depth = record.scored_fields["length"], record.scored_fields["depth"]
        assert end - start == len(NEEDLE)  # one token a byte
        assert abs(record.prompt_tokens - length) < 30
        assert record.tokens_cut == 0
        kept = record.span_kept["needle"]
        assert len(kept) == 3
        if variant == "fullkv":
            assert kept == [1.0] * 3
        elif depth == 0:
            assert kept == [0.0] * 3
        else:  # the newest tokens: exactly those of the needle that streamingllm holds
            first = record.prefill_tokens - (round(record.kept_tokens[0]) - 4)
            assert kept[0] == pytest.approx(
                max(0, end - max(start, first)) / (end - start), abs=1e-4
            )


@pytest.mark.slow
def test_a_rerun_of_the_same_grid_does_nothing_and_a_wider_one_the_rest(tmp_path: Path) -> None:
    words = [*TINY, f"out={tmp_path / 'run'}", "needle.lengths=[400]"]
    assert "4 results recorded" in cli(*words, "needle.depths=[0,50]").stdout
    assert (
        "0 results recorded, 0 of them failed, 4 known"
        in cli(*words, "needle.depths=[0,50]").stdout
    )
    assert "2 results recorded" in cli(*words, "needle.depths=[0,50,100]").stdout


def test_a_field_alone_chooses_its_task() -> None:
    assert hydra_words(["needle.lengths=[500]"]) == ["task=needle", "++task.lengths=[500]"]
    assert hydra_words(["haystack=a"]) == ["task=needle", "++task.haystack=a"]
    assert hydra_words(["ruler.seed=1"]) == ["task=ruler", "++task.seed=1"]
    chosen = ["task=needle_single", "needle.seed=1"]
    assert hydra_words(chosen) == ["task=needle_single", "++task.seed=1"]
    assert hydra_words(hydra_words(["needle.seed=1"])) == ["task=needle", "++task.seed=1"]


@pytest.mark.slow
def test_families_are_swept_together_with_fields_that_longbench_lacks(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "method=streamingllm", "task=needle_single,needle"]
    done = cli(*words, "needle.lengths=[500]", "needle.depths=[0]", f"out={tmp_path / 'run'}")
    assert "4 results recorded, 0 of them failed" in done.stdout
    assert {record.task for record in recorded(tmp_path / "run").values()} == {
        "needle_single",
        "needle",
    }


@pytest.mark.slow
def test_a_folder_of_the_users_own_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    folder = tmp_path / "essays"
    folder.mkdir()
    (folder / "b.txt").write_text("Second essay. " * 40, encoding="utf-8")
    (folder / "a.txt").write_text("First essay. " * 10, encoding="utf-8")
    (folder / "c.md").write_text("Not read.", encoding="utf-8")
    text = Needle(haystack=str(folder)).source("", hub_repo="", revision=None).text()
    assert text.startswith("First essay.") and "Second essay." in text and "Not" not in text
    out = tmp_path / "run"
    assert cli(*TINY, *SMALL, f"haystack={folder}", f"out={out}").exit_code == 0
    (shard,) = read_shards(out)
    assert shard.header.data.setting == "needle-essays"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["needle.lengths=[8390]"], "more than the model's 8192: give smaller needle.lengths"),
        (["needle.lengths=[9000]"], "positions for 8192: give a smaller needle.lengths"),
        (["needle.depths=[0,101]"], "needle.depths=101 is outside 0 to 100"),
        slow(["needle.depths=[-1]"], "needle.depths=-1 is outside 0 to 100"),
        (["haystack=empty"], "haystack=empty is empty"),
        slow(["haystack=bare"], "haystack=bare holds no .txt file"),
        slow(["haystack=nowhere"], "haystack=nowhere is not a folder"),
        (["needle.lengths=[250]"], "needle.lengths=250 has no room for a needle of"),
        slow(["needle.lengths=-1"], "needle.lengths=-1 is out of range: give 1 or more"),
        slow(["needle.lengths=[0,500]"], "needle.lengths=0 is out of range: give 1 or more"),
        slow(["needle.lengths=many"], "needle.lengths=many lists no whole numbers"),
        (["needle.lenghts=[500]"], "lengths"),
        (["haystack=holding"], "holds the needle"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, text in (("empty", " \n"), ("bare", None), ("holding", NEEDLE)):
        (tmp_path / folder).mkdir()
        if text is not None:
            (tmp_path / folder / "a.txt").write_text(text, encoding="utf-8")
    depths = [] if words[0].startswith("needle.depths=") else ["needle.depths=[50]"]
    result = cli(*TINY, *depths, *words, "out=run")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("kvbench: ") and result.stderr.count("\n") == 1
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"family": "double"}, "needle.family=double is unknown"),
        ({"profile": "plain"}, "needle.profile=plain is unknown"),
        ({"reserve": -1}, "needle.reserve=-1"),
        ({"needle": "Elsewhere."}, "give needle.answer"),
        ({"needle": "The cat sat.", "answer": "dog"}, "needle.answer=dog does not stand"),
    ],
)
def test_fields_that_make_no_needle_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Needle(**fields)


def test_the_default_haystack_is_what_its_script_makes_and_repeats_nothing() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make_haystack.py"))["haystack"]()
    (path,) = SAMPLE_HAYSTACK.glob("*.txt")
    assert path.read_text(encoding="utf-8") == made
    sentences = re.split(r"(?<=[.!?])\s+", made.strip())
    assert len(set(sentences)) == len(sentences) > 1000
    words = re.findall(r"[\w'-]+", made.lower())
    grams = [tuple(words[i : i + 12]) for i in range(len(words) - 11)]
    assert len(set(grams)) == len(grams)
    assert not re.search("francisco|sandwich|magic number|dolores", made.lower())
