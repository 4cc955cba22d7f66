from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from kvbench.base.errors import UserError
from kvbench.cli.main import app
from kvbench.config.catalog import choices, stated_methods
from kvbench.gate import check as gate
from kvbench.gate.texts import junit, verdict_lines, verdict_summary
from kvbench.gate.verdict import Tolerance, Verdict, judged
from kvbench.records.reader import read_shards
from kvbench.records.record import Record
from support.paths import ROOT
from support.runs import A_RECORD, header, records, write_shard

LABELS = ("fullkv", "snapkv@0.2")


def run_of(folder: Path, lines: Sequence[Record], labels: Sequence[str] = LABELS) -> Path:
    write_shard(folder, header(labels=labels, tasks=["qasper"], samples=20), lines)
    return folder


def results(value: float = 1.0, samples: int = 20) -> list[Record]:
    made = records({label: {"qasper": [value] * samples} for label in LABELS})
    return [replace(record, scores={"qa_f1": value}) for record in made]


def verdict_of(tmp_path: Path, after: Sequence[Record], before: Sequence[Record] = ()) -> Verdict:
    baseline = run_of(tmp_path / "baseline", before or results())
    return judged(baseline, run_of(tmp_path / "run", after), Tolerance())


def failed(verdict: Verdict) -> dict[tuple[str, str], str]:
    return {(c.variant, c.comparison): " ".join(c.problems) for c in verdict.failed}


def changed(lines: Sequence[Record], count: int, **fields: object) -> list[Record]:
    """The first `count` of the compressed variant's records with other fields."""
    at = [i for i, record in enumerate(lines) if record.variant == "snapkv@0.2"][:count]
    return [replace(r, **fields) if i in at else r for i, r in enumerate(lines)]  # type: ignore[arg-type]


def test_a_run_holds_beside_itself(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, results())
    assert not verdict.failed and verdict.changed_predictions == 0
    assert len(verdict.checks) == 2 * 3
    lines = verdict_lines(verdict, Path("b"), Path("r"))
    assert lines == ["holds: 40 results of 2 variants beside b, 0 predictions differ"]


@pytest.mark.parametrize(
    "field, value",
    [
        ("prompt_tokens", 101),
        ("prefill_tokens", 99),
        ("tokens_cut", 2),
        ("native_bytes", 1001),
        ("method_config", {"window": 16}),
        ("kept_ratio", 0.2001),
        ("ratio_bytes", 0.2101),
        ("ratio_formula15_printed", 0.2001),
        ("kept_tokens", [21.0, 19.0]),
        ("kept_tokens", [20.0]),
    ],
)
def test_what_is_kept_must_be_equal(tmp_path: Path, field: str, value: object) -> None:
    found = failed(verdict_of(tmp_path, changed(results(), 1, **{field: value})))
    assert list(found) == [("snapkv@0.2", "exact")]
    assert field in found["snapkv@0.2", "exact"] and "1 of 20" in found["snapkv@0.2", "exact"]


def test_a_searched_budget_may_end_on_the_other_side(tmp_path: Path) -> None:
    before = [replace(r, facts={"evaluations": 2}) for r in results()]
    near, far = (changed(before, 20, ratio_bytes=0.21 + step) for step in (0.009, 0.011))
    assert not verdict_of(tmp_path / "near", near, before).failed
    assert list(failed(verdict_of(tmp_path / "far", far, before))) == [("snapkv@0.2", "exact")]


def test_a_tenth_of_the_predictions_may_differ(tmp_path: Path) -> None:
    two, three = (changed(results(), n, prediction="another cat") for n in (2, 3))
    some = verdict_of(tmp_path / "two", two)
    assert not some.failed and some.changed_predictions == 2
    found = failed(verdict_of(tmp_path / "three", three))
    assert found == {("snapkv@0.2", "tokens"): "3 of 20 predictions differ, 2 are tolerated"}


def test_the_same_text_must_score_the_same(tmp_path: Path) -> None:
    after = changed(results(), 1, scores={"qa_f1": 0.9}, score=0.9)
    (said,) = failed(verdict_of(tmp_path, after)).items()
    assert said[0] == ("snapkv@0.2", "scores") and "1 before, 0.9 after" in said[1]


def fallen(folder: Path, count: int, score: float) -> str | None:
    """What the scores say where `count` of 20 samples score anew, by other texts."""
    after = changed(results(0.5), count, prediction="other", score=score)
    return failed(verdict_of(folder, after, results(0.5))).get(("snapkv@0.2", "scores"))


def test_a_certain_fall_of_the_scores_counts_and_a_rise_does_not(tmp_path: Path) -> None:
    said = fallen(tmp_path / "fall", 20, 0.4)
    assert said is not None and said.startswith("the mean score falls from 50.00 by 10.00")
    assert fallen(tmp_path / "rise", 20, 0.6) is None


def test_an_uncertain_fall_and_one_within_the_margin_do_not_count(tmp_path: Path) -> None:
    assert fallen(tmp_path / "few", 3, 0.0) is None
    assert fallen(tmp_path / "small", 20, 0.495) is None
    assert fallen(tmp_path / "larger", 20, 0.485) is not None


def test_a_missing_result_is_a_regression_and_says_why(tmp_path: Path) -> None:
    after = changed(results(), 2, error="OutOfMemoryError: 3 GiB", prediction=None, score=None)
    said = failed(verdict_of(tmp_path, after))["snapkv@0.2", "exact"]
    assert said == "2 of 20 results are missing: OutOfMemoryError: 3 GiB"
    gone = [r for r in results() if r.variant == "fullkv"]
    assert "20 of 20" in failed(verdict_of(tmp_path / "gone", gone))["snapkv@0.2", "exact"]


def test_a_new_variant_is_said_and_no_regression(tmp_path: Path) -> None:
    before = [r for r in results() if r.variant == "fullkv"]
    verdict = verdict_of(tmp_path, results(), before)
    assert not verdict.failed and verdict.added == ("snapkv@0.2",)
    assert "snapkv@0.2" in verdict_lines(verdict, Path("b"), Path("r"))[-1]


def test_a_narrowed_run_lacks_nothing(tmp_path: Path) -> None:
    baseline = run_of(tmp_path / "baseline", results())
    full = [r for r in results() if r.variant == "fullkv"]
    run = run_of(tmp_path / "run", full, labels=["fullkv"])
    assert judged(baseline, run, Tolerance()).failed
    assert not judged(baseline, run, Tolerance(), narrowed=True).failed
    other = run_of(tmp_path / "other", [replace(A_RECORD, variant="tova@0.2")], labels=["tova@0.2"])
    with pytest.raises(UserError, match="holds nothing of what"):
        judged(baseline, other, Tolerance(), narrowed=True)


def test_junit_has_a_failure_for_each_problem(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, changed(results(), 3, prediction="\x1b<cat>"))
    root = ElementTree.fromstring(junit(verdict).encode())
    assert [(s.get("name"), s.get("tests"), s.get("failures")) for s in root] == [
        ("exact", "2", "0"),
        ("tokens", "2", "1"),
        ("scores", "2", "0"),
    ]
    (failure,) = root.iter("failure")
    assert failure.get("message") == "3 of 20 predictions differ, 2 are tolerated"


def test_the_summary_names_the_command_that_shows_the_samples(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, changed(results(), 3, prediction="another cat"))
    text = verdict_summary(verdict, Path("b"), Path("r"))
    assert text.startswith("### kvbench check: 1 of 2 variants regressed:")
    assert "- the samples: kvbench compare b r\n" in text
    assert "| snapkv@0.2 | 20 | holds | moved | holds | 17/20 | 100.00 | 100.00 | 1.000 |" in text


WORDS = ("model=tiny-random", "task=hotpotqa", "limit=2", "method=streamingllm,knorm")
SHORT = ("budget=0.5", "protocol.max_new_tokens=3")


def checked(*words: str) -> Result:
    return CliRunner().invoke(app, ["check", "--baseline", "base", *words])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the baseline `base`."""
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = checked("--update", *WORDS, *SHORT)
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.slow
def test_a_check_repeats_the_words_of_its_baseline(
    baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(baseline)
    done = checked("--junit", "junit.xml", "--summary", "summary.md")
    assert done.exit_code == 0, done.output
    assert "holds: 6 results of 3 variants beside base, 0 predictions differ" in done.stdout
    assert ElementTree.parse("junit.xml").getroot().get("name") == "kvbench check"
    narrowed = checked("method=knorm", "--summary", "summary.md")
    assert "holds: 4 results of 2 variants" in narrowed.stdout
    assert Path("summary.md").read_text().count("### kvbench check: holds") == 2


@pytest.mark.slow
def test_a_changed_result_exits_1_and_an_update_says_what_moved(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    for file in (baseline / "base").iterdir():
        text = file.read_text().replace('"tokens_cut":0', '"tokens_cut":7')
        (tmp_path / "base" / file.name).write_text(text)
    done = checked()
    assert done.exit_code == 1
    assert "3 of 3 variants regressed" in done.stdout
    assert "kvbench compare base results/checks/" in done.stdout
    updated = checked("--update")
    assert updated.exit_code == 0
    assert "tokens_cut differs on 2 of 2 samples" in updated.stdout
    assert checked().exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "results"]


def test_what_could_not_run_exits_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lacking = checked()
    assert lacking.exit_code == 2
    assert "base is not a baseline: kvbench check --update --baseline base" in lacking.stderr
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "mine.txt").write_text("mine")
    refused = checked("--update", *WORDS, *SHORT)
    assert refused.exit_code == 2 and "is not a baseline, and would be replaced" in refused.stderr
    for text in ("[]", "{", '{"runs": [3]}'):
        (tmp_path / "base" / "check.json").write_text(text)
        odd = checked()
        assert odd.exit_code == 2 and odd.stderr.count("\n") == 1
    assert not (tmp_path / "results" / "runs").exists()
    assert (tmp_path / "base" / "mine.txt").read_text() == "mine"


def test_a_crash_of_the_check_itself_exits_2(
    baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(baseline)

    def broken(words: list[str]) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(gate, "run_words", broken)
    done = checked()
    assert done.exit_code == 2 and "the disk is on fire" in done.stderr


@pytest.mark.slow
def test_no_baseline_is_made_of_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = checked("--update", *WORDS, *SHORT, "memory=1KiB")
    assert done.exit_code == 2, done.output
    assert "no baseline was written" in done.stderr and not (tmp_path / "base").exists()


def test_the_default_sweep_takes_every_method() -> None:
    for (preset, methods), name in zip(gate.default_sweep(), gate.SWEEP, strict=True):
        assert preset == f"experiment={name}"
        assert methods == f"method={','.join(stated_methods())}"
    presets = {choice.name for choice in choices("experiment")}
    assert presets.issuperset(gate.SWEEP)


def test_the_kept_baseline_has_every_method_at_both_budgets() -> None:
    kept = ROOT / "results" / "baselines" / "smollm2-135m"
    labels = {record.variant for shard in read_shards(kept) for record in shard.records}
    methods = [name for name in stated_methods() if name != "fullkv"]
    assert labels == {"fullkv"} | {f"{m}@{budget}" for m in methods for budget in ("0.2", "0.5")}
    assert gate.sweep_of(kept) is None
    assert not judged(kept, kept, Tolerance()).failed


def test_every_fault_to_plant_still_has_its_place() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "planted_faults.py"))
    assert len(script["FAULTS"]) >= 9
    assert len(script["TESTED_FAULTS"]) >= 40
    for fault in (*script["FAULTS"], *script["TESTED_FAULTS"]):
        assert script["faulty"](fault) != (ROOT / fault.path).read_text(encoding="utf-8")
        assert all((ROOT / "tests" / place).exists() for place in fault.tests.split())
