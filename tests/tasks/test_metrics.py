"""The metrics give LongBench's own numbers; literal pairs, the official oracle, and slow twins."""

import difflib
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.tasks import metrics as score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fuzzywuzzy recommends the backend that changes its numbers
    from fuzzywuzzy import fuzz, utils

DATA = os.environ.get("KVBENCH_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KVBENCH_DATA names no folder of real records")

CODE_TEXT = st.text(alphabet="ab =()#`/.\n", max_size=60)


def main_value(task: str, prediction: str, answers: list[str], **options: object) -> float:
    return next(iter(score.score(task, prediction, answers, **options).values()))  # type: ignore[arg-type]


@needs_data
@pytest.mark.parametrize("task", sorted(score.METRIC_OF_TASK))
def test_third_party_predictions_score_exactly_as_officially(task: str) -> None:
    path = Path(DATA or "") / "longbench" / "predictions" / f"{task}.jsonl"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert records
    for r in records:
        values = score.score(task, r["pred"], r["answers"], r["all_classes"])
        assert next(iter(values.values())) == r["score_official"]
        assert values.get("rouge_failed", 0) == 0


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1.0),
        ("a monk", "the Monk", 1.0),
        ("a an the", "the", 0.0),
        ("red red blue", "red", 0.5),
        ("in Paris, France", "Paris", 0.5),
        ("co-operate", "cooperate", 1.0),
        ("", "yes", 0.0),
    ],
)
def test_qa_f1_compares_bare_words(prediction: str, answer: str, value: float) -> None:
    assert score.qa_f1(prediction, answer) == pytest.approx(value, abs=1e-15)


@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
def test_token_f1_equals_pairing_tokens_one_by_one(p: list[str], a: list[str]) -> None:
    left, shared = list(a), 0
    for token in p:
        if token in left:
            left.remove(token)
            shared += 1
    expected = 2 * shared / (len(p) + len(a)) if shared else 0.0
    assert score.token_f1(p, a) == pytest.approx(expected, abs=1e-12)


def test_chinese_f1_drops_punctuation_and_spaces() -> None:
    assert score.chinese_tokens("北京，《北京》 。") == ["北京", "《", "北京"]
    assert score.qa_f1_zh("北京。", "北京") == 1.0
    assert score.qa_f1_zh("上海", "北京") == 0.0


def test_words_added_to_jieba_elsewhere_change_no_score() -> None:
    import jieba

    before = score.chinese_tokens("今天天气真好啊朋友们")
    jieba.add_word("天气真好啊朋友", freq=10**9)
    assert score.chinese_tokens("今天天气真好啊朋友们") == before


def test_rouge_is_that_of_the_package_and_of_unique_words() -> None:
    # The package counts unique words: repeating one costs nothing. p = r = 1.
    assert score.rouge_l("the cat sat sat sat", "the cat sat") == 2 * 1 / (2 + 1e-8)
    # Two of three words in order on each side.
    third = 2 * (2 / 3 * 2 / 3) / (4 / 3 + 1e-8)
    assert score.rouge_l("the dog sat", "the cat sat") == pytest.approx(third, abs=1e-15)
    # Sentences end at each full stop, also inside a number.
    assert score.rouge_l("pi is 3.14", "14") > 0


@pytest.mark.parametrize("prediction", ["", ".", "..."])
def test_a_prediction_without_a_sentence_scores_zero_and_is_no_failure(prediction: str) -> None:
    assert score.rouge_l_attempt(prediction, "a cat sat") == (0.0, False)


def test_a_sentence_of_1500_words_is_scored_at_any_depth_of_the_caller() -> None:
    words = " ".join(f"w{i}" for i in range(1500))

    def deep(frames: int) -> float:
        return deep(frames - 1) if frames else score.rouge_l(words, "w0 w1499")

    limit = sys.getrecursionlimit()
    assert deep(0) == deep(500) > 0
    assert sys.getrecursionlimit() == limit
    assert threading.stack_size() == 0


def test_a_rouge_failure_counts_zero_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "ROUGE_FRAMES", 900)
    long = " ".join(f"w{i}" for i in range(1200))
    values = score.score("gov_report", long, [long.upper(), "w1198 w1199"])
    assert values["rouge_failed"] == 0.5
    assert 0 < values["rouge_l"] < 0.1


def test_chinese_rouge_works_on_words_of_jieba() -> None:
    assert score.rouge_l_zh("北京天气", "北京天气") == pytest.approx(1.0, abs=1e-8)
    assert score.rouge_l_zh("上海", "北京") == 0.0


@pytest.mark.parametrize(
    ("prediction", "answer", "classes", "value"),
    [
        ("Individual", "Individual", ["City", "Individual"], 1.0),
        ("City or Individual", "Individual", ["City", "Individual"], 0.5),
        ("Country", "Individual", ["City", "Country", "Individual"], 0.0),
        ("none of them", "City", ["City"], 0.0),
        # Part of the true name: dropped.
        ("Other number", "Other number", ["number", "Other number"], 1.0),
        # Two parts in a row: the second is skipped while the list shrinks, and stays.
        ("abc", "abc", ["a", "b", "abc"], 0.5),
        ("abc", "abc", ["a", "abc", "b"], 1.0),
    ],
)
def test_classification_drops_parts_of_the_true_name_while_iterating(
    prediction: str, answer: str, classes: list[str], value: float
) -> None:
    assert score.classification(prediction, answer, classes) == value


@given(st.text("abc", max_size=6), st.lists(st.text("abc", min_size=1, max_size=3), unique=True))
def test_classification_equals_an_index_walk(prediction: str, classes: list[str]) -> None:
    answer = classes[0] if classes else "a"
    found = [c for c in classes if c in prediction]
    i = 0
    while i < len(found):
        if found[i] != answer and found[i] in answer:
            del found[i]  # and yet go on: the next name moved to i and is passed over
        i += 1
    expected = 1 / len(found) if answer in found else 0
    assert score.classification(prediction, answer, classes) == expected


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("5", "5", 1.0),
        ("5 or 6", "5", 0.5),
        ("five", "5", 0.0),
        ("05", "5", 0.0),
        ("5 5 4", "5", 2 / 3),
    ],
)
def test_count_is_the_share_of_right_numbers(prediction: str, answer: str, value: float) -> None:
    assert score.count(prediction, answer) == value


def test_retrieval_reads_the_number_of_the_answer() -> None:
    assert score.retrieval("Paragraph 12", "Paragraph 12") == 1.0
    assert score.retrieval("12, maybe 13", "Paragraph 12") == 0.5
    assert score.retrieval_zh("段落3", "段落3") == 1.0
    assert score.retrieval_zh("段落30", "段落3") == 0.0
    with pytest.raises(UserError, match="names no paragraph"):
        score.retrieval("12", "twelve")


@pytest.mark.parametrize(
    ("prediction", "line"),
    [
        ("\n\nx = 1\ny = 2", "x = 1"),
        ("# comment\nx = 1", "x = 1"),
        ("```python\n// c\nx = 1", "x = 1"),
        ("#only\n`these`", ""),
        ("\n  \nx", "  "),
        ("", ""),
    ],
)
def test_code_line_is_the_first_without_comment_marks(prediction: str, line: str) -> None:
    assert score.code_line(prediction) == line


# The numbers in the last column are fuzzywuzzy 0.18 with Levenshtein 0.25.1 installed.
@pytest.mark.parametrize(
    ("prediction", "answer", "official", "levenshtein"),
    [
        ("x = 1", "x = 2", 0.8, 0.8),
        ("return foo(bar)", "return bar(foo)", 0.73, 0.73),
        ("    def a(self):", "    def b(self, x):", 0.86, 0.86),
        ("for i in range(10):", "while True:", 0.2, 0.33),
        ("", "x", 0.0, 0.0),
        ("", "", 1.0, 1.0),
    ],
)
def test_code_backends_give_their_own_numbers(
    prediction: str, answer: str, official: float, levenshtein: float
) -> None:
    assert score.edit_similarity(prediction, answer) == official
    assert score.edit_similarity(prediction, answer, "levenshtein") == levenshtein


@given(CODE_TEXT, CODE_TEXT)
@settings(max_examples=300)
def test_difflib_backend_equals_fuzzywuzzy_in_pure_python(prediction: str, answer: str) -> None:
    assert fuzz.SequenceMatcher is difflib.SequenceMatcher, "python-Levenshtein is installed"
    expected = fuzz.ratio(score.code_line(prediction), answer) / 100
    assert score.edit_similarity(prediction, answer) == expected


def test_long_lines_keep_the_rule_for_popular_characters() -> None:
    answer = "int main(void) { return zero; } " * 12  # above 200 characters autojunk sets in
    prediction = "int main(int argc) { return one; } " * 12
    expected = fuzz.ratio(prediction, answer) / 100
    plain = difflib.SequenceMatcher(None, prediction, answer, autojunk=False).ratio()
    assert score.edit_similarity(prediction, answer) == expected
    assert expected != utils.intr(100 * plain) / 100


@given(CODE_TEXT, CODE_TEXT)
@settings(max_examples=100)
def test_levenshtein_backend_equals_a_table_of_common_subsequences(p: str, answer: str) -> None:
    line = score.code_line(p)
    row = [0] * (len(answer) + 1)
    for x in line:
        diagonal = 0
        for j, y in enumerate(answer, start=1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    longest = row[-1]
    both = len(line) + len(answer)
    share = 1.0 if line == answer else 0.0 if not line or not answer else 2 * longest / both
    # A tie at half a hundredth falls to either side by the last bit of the share.
    assert score.edit_similarity(p, answer, "levenshtein") == pytest.approx(share, abs=0.00501)


def test_an_unknown_code_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="'jaro' is unknown: give difflib or levenshtein"):
        score.edit_similarity("x", "y", "jaro")


@pytest.mark.parametrize("task", sorted(score.FIRST_LINE_TASKS))
def test_only_the_first_line_counts_where_the_benchmark_says_so(task: str) -> None:
    one = main_value(task, "\n\nCity\nCountry", ["City"], all_classes=["City", "Country"])
    assert one == pytest.approx(1.0, abs=1e-8)


def test_later_lines_count_elsewhere() -> None:
    assert main_value("qasper", "\nno\nyes", ["yes"]) == pytest.approx(2 / 3)


def test_a_prediction_is_worth_its_best_reference() -> None:
    assert main_value("triviaqa", "Nadine", ["Cheryl", "Nadine", "Sarah"]) == 1.0


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(0, "0-4k"), (3999, "0-4k"), (4000, "4-8k"), (7999, "4-8k"), (8000, "8k+")],
)
def test_length_buckets_start_at_4000_and_8000(length: int, bucket: str) -> None:
    assert score.length_bucket(length) == bucket


def predictions(folder: Path, task: str, *records: dict[str, object]) -> Path:
    path = folder / f"{task}.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def answered(pred: str, *answers: str, length: int = 10) -> dict[str, object]:
    return {"pred": pred, "answers": list(answers), "all_classes": None, "length": length}


def test_a_prediction_file_scores_its_mean_times_100_rounded_to_2(tmp_path: Path) -> None:
    path = predictions(
        tmp_path, "qasper", answered("a b", "b"), answered("x", "x"), answered("", "z")
    )
    assert score.score_predictions_file(path) == round(100 * 2 / 3, 2)
    assert score.score_predictions_folder(tmp_path) == {"qasper": 66.67}


def test_longbench_e_files_score_by_bucket_and_say_where_one_is_empty(tmp_path: Path) -> None:
    predictions(tmp_path, "qasper_e", answered("x", "x", length=1), answered("", "z", length=9000))
    scores = score.score_predictions_folder(tmp_path, by_length=True)
    assert scores == {"qasper_e": {"0-4k": 100.0, "4-8k": None, "8k+": 0.0}}


@needs_data
def test_a_folder_of_third_party_predictions_scores_the_mean_of_its_records() -> None:
    folder = Path(DATA or "") / "longbench" / "predictions"
    scores = score.score_predictions_folder(folder)
    assert len(scores) == 21
    for task, value in scores.items():
        lines = (folder / f"{task}.jsonl").read_bytes().splitlines()
        official = [json.loads(line)["score_official"] for line in lines]
        assert value == round(100 * sum(official) / len(official), 2)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"answers": ["x"], "all_classes": None}, "qasper.jsonl, line 2: field 'pred' is missing"),
        ({"pred": "x", "all_classes": None}, "line 2: field 'answers' is missing"),
        ({"pred": "x", "answers": [], "all_classes": None}, "line 2: field 'answers' is empty"),
        ({"pred": 3, "answers": ["x"], "all_classes": None}, "field 'pred' holds a int"),
        ({"pred": "x", "answers": ["x"]}, "field 'all_classes' is missing"),
    ],
)
def test_a_bad_prediction_names_file_line_and_field(
    tmp_path: Path, record: dict[str, object], said: str
) -> None:
    path = predictions(tmp_path, "qasper", answered("x", "x"), record)
    with pytest.raises(UserError) as error:
        score.score_predictions_file(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_task_names_the_nearest(tmp_path: Path) -> None:
    path = predictions(tmp_path, "narativeqa", answered("x", "x"))
    with pytest.raises(UserError, match=r"'narativeqa' is not a LongBench task.*'narrativeqa'"):
        score.score_predictions_file(path)


def test_a_folder_without_predictions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no <task>\.jsonl"):
        score.score_predictions_folder(tmp_path)


def test_scoring_imports_no_torch() -> None:
    code = (
        "import sys; from kvbench.tasks import longbench, metrics, suite;"
        "metrics.score('gov_report', 'a b.', ['a c.']); metrics.score('lcc', 'a', ['b']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("task", ["trec", "triviaqa", "samsum", "lsht"])
def test_only_the_first_line_of_these_tasks_counts(task: str) -> None:
    found = score.score(task, "\n\nwrong\nright", ["right"], ["right", "other"])
    assert next(iter(found.values())) == 0.0
    found = score.score(task, "\n\nright\nother", ["right"], ["right", "other"])
    assert next(iter(found.values())) == pytest.approx(1.0, abs=1e-6)
