"""Whole runs through the command line: records, resumption, sharing, failures, bad input."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kvbench.api import run_words
from kvbench.base.errors import UserError
from kvbench.config.sweeper import JobResult
from kvbench.prefill import capture as capturing
from kvbench.records.reader import distinct, read_shards
from kvbench.records.record import Record
from kvbench.run import loop as running
from support.cases import slow
from support.cli import cli, done
from support.data import record, write_data

TINY = ["model=tiny-random", "model.device=cpu", "model.context=1024"]
SHORT = "protocol.max_new_tokens=12"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two tasks of two and three records, in LongBench's format."""
    return write_data(tmp_path / "data", {"qasper": 2, "trec": 3})


def _run(data: Path, out: Path, *words: str) -> list[JobResult]:
    named = {word.partition("=")[0] for word in words}
    base = [word for word in [*TINY, SHORT] if word.partition("=")[0] not in named]
    return run_words([*base, f"data={data}", f"out={out}", *words])


def _records(out: Path) -> list[Record]:
    return [record for _, record in distinct(read_shards(out))]


def _lines(out: Path) -> int:
    return sum(len(p.read_text().splitlines()) for p in out.glob("*.jsonl"))


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts real prefills: the number of tokens of each."""
    counted: list[int] = []

    def counting(model, ids, needs, plan):
        counted.append(len(ids))
        return capturing.capture(model, ids, needs, plan)

    monkeypatch.setattr(running, "capture", counting)
    return counted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run of two tasks, for the tests that only read it."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_data(folder / "data", {"qasper": 2, "trec": 3})
    _run(data, folder / "run", "task=qasper,trec", "method=snapkv,streamingllm")
    return folder / "run"


def test_one_prefill_serves_every_method_and_budget(data, tmp_path, prefills):
    out = tmp_path / "run"
    _run(data, out, "task=qasper", "method=streamingllm,snapkv,spindlekv", "budget=0.2,0.5")
    records = _records(out)
    assert len(prefills) == 2
    assert len(records) == 2 * 7
    assert {r.variant for r in records} == {
        "fullkv",
        *(f"{m}@{b}" for m in ("streamingllm", "snapkv", "spindlekv") for b in (0.2, 0.5)),
    }
    for r in records:
        assert r.error is None
        assert r.prefill_tokens == r.prompt_tokens == prefills[0]
        if r.method != "fullkv":
            assert r.ratio_bytes == pytest.approx(r.budget, abs=0.01)
        assert len(r.r1) == len(r.r2) == len(r.kept_tokens) == 3
        assert r.decode_width == 14, "all results of the run decode together"
        assert r.prompt_tail is not None and len(r.prompt_tail) == 400
        assert f"on day {r.sample[-1]}?" in r.prompt_tail


def test_a_method_that_prunes_the_prefill_has_its_own_and_decodes_with_the_rest(
    data, tmp_path, prefills
):
    out = tmp_path / "run"
    words = ["task=qasper", "limit=1", "model.random.layers=8", "budget=0.4,0.7"]
    _run(data, out, *words, "method=pyramidinfer,snapkv")
    assert len(prefills) == 3  # FullKV and SnapKV share the ordinary one
    for r in _records(out):
        assert r.error is None
        assert r.decode_width == 5
        if r.method != "fullkv":
            assert r.ratio_bytes == pytest.approx(r.budget, abs=0.01)
        if r.method == "pyramidinfer":
            assert r.facts["strategy"] == ("cosine" if r.budget == 0.7 else "constant")
            assert r.kept_tokens[0] == r.prefill_tokens > r.kept_tokens[-1]


@pytest.mark.parametrize("query_aware", ["true", slow("false")])
def test_reconstruction_passes_share_the_prefill(data, tmp_path, prefills, query_aware):
    out = tmp_path / "run"
    words = ["task=qasper", "limit=1", "budget=0.3", f"protocol.query_aware={query_aware}"]
    _run(data, out, *words, "method=kvzip,kvzip_kvpress,kvzip_uniform,snapkv")
    assert len(prefills) == 1
    records = {r.method: r for r in _records(out)}
    assert len(records) == 5
    for name, r in records.items():
        assert r.error is None
        if name != "fullkv":
            assert r.ratio_bytes == pytest.approx(0.3, abs=0.002)
    assert records["kvzip"].facts["protected_tokens"] == len("<s>[user] ") - 2
    assert records["kvzip_kvpress"].facts["protected_tokens"] == 4
    assert len(set(records["kvzip"].kept_tokens)) > 1
    assert len(set(records["kvzip_uniform"].kept_tokens)) == 1


def test_a_task_sweep_is_two_jobs_in_one_folder(whole):
    assert {r.task for r in _records(whole)} == {"qasper", "trec"}
    assert len(list(whole.glob("*.jsonl"))) == 2


def test_a_rerun_computes_nothing_and_a_new_method_computes_itself_alone(data, tmp_path, prefills):
    out = tmp_path / "run"
    _run(data, out, "task=qasper", "method=snapkv", "budget=0.3")
    before = _lines(out)
    _run(data, out, "task=qasper", "method=snapkv", "budget=0.3")
    assert _lines(out) == before
    assert len(prefills) == 2
    _run(data, out, "task=qasper", "method=snapkv,streamingllm", "budget=0.3")
    assert _lines(out) == before + 1 + 2, "a header and two results"
    assert len(_records(out)) == 6


@pytest.mark.slow
def test_another_protocol_is_another_result(data, tmp_path):
    out = tmp_path / "run"
    _run(data, out, "task=qasper", "method=snapkv", "limit=1")
    _run(data, out, "task=qasper", "method=snapkv", "limit=1", "protocol.first_token=compressed")
    records = _records(out)
    assert len(records) == 4
    assert len({r.key for r in records}) == 4
    assert {r.prompt_tokens - r.prefill_tokens for r in records} == {0, 1}


@pytest.mark.slow
def test_query_aware_false_prefills_the_context_alone(data, tmp_path, prefills):
    _run(data, tmp_path / "run", "task=qasper", "protocol.query_aware=false", "limit=1")
    for r in _records(tmp_path / "run"):
        assert r.prefill_tokens == prefills[0] < r.prompt_tokens
        assert r.query_aware is False
    full = next(r for r in _records(tmp_path / "run") if r.method == "fullkv")
    _run(data, tmp_path / "whole", "task=qasper", "limit=1")
    whole = next(r for r in _records(tmp_path / "whole") if r.method == "fullkv")
    assert full.prediction == whole.prediction, "without eviction the split must not matter"


def test_variants_in_batches_of_two_say_the_same_as_in_one(data, tmp_path):
    # The task's own 128 tokens: a long text to agree on.
    words = [*TINY, "task=qasper", "method=snapkv,streamingllm,spindlekv", "budget=0.3"]
    words += [f"data={data}"]
    run_words([*words, f"out={tmp_path / 'one'}"])
    run_words([*words, f"out={tmp_path / 'two'}", "decode.width=2"])
    one = {r.key: r.prediction for r in _records(tmp_path / "one")}
    two = {r.key: r.prediction for r in _records(tmp_path / "two")}
    assert one == two
    assert {r.decode_width for r in _records(tmp_path / "two")} == {2}


def test_a_failing_method_costs_its_own_results_only(data, tmp_path, monkeypatch):
    from kvbench.methods.snapkv import SnapKV

    original = SnapKV.compress
    calls = []

    def failing(self, prefill, budget):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("planted\nfault")
        return original(self, prefill, budget)

    monkeypatch.setattr(SnapKV, "compress", failing)
    out = tmp_path / "run"
    (job,) = _run(data, out, "task=qasper", "method=snapkv,streamingllm", "budget=0.3")
    assert "\n1 failed with: compress: RuntimeError: planted fault\n" in job.value.text(out)
    assert "1 failed with: compress: RuntimeError: planted fault" in done("status", str(out))
    failed = [r for r in _records(out) if r.error is not None]
    assert len(_records(out)) == 6
    assert [(r.variant, r.prediction, r.score) for r in failed] == [("snapkv@0.3", None, None)]
    assert "planted fault" in failed[0].error
    assert "\n" not in failed[0].error
    _run(data, out, "task=qasper", "method=snapkv,streamingllm", "budget=0.3")
    assert len([r for r in _records(out) if r.error]) == 1, "a rerun leaves failures alone"
    _run(data, out, "task=qasper", "method=snapkv,streamingllm", "budget=0.3", "retry_failed=true")
    assert all(r.error is None for r in _records(out)), "asked to, it mends them"


def test_a_fault_in_a_method_of_the_users_own_has_its_file_and_line(data, tmp_path, monkeypatch):
    code = (
        "from dataclasses import dataclass\n"
        "from kvbench.methods.snapkv import SnapKV\n"
        "@dataclass(frozen=True)\n"
        "class Broken(SnapKV):\n"
        "    def compress(self, prefill, budget):\n"
        "        return prefill.layers[0].k @ prefill.nothing\n"
    )
    (tmp_path / "my_broken.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["method=snapkv", "method._target_=my_broken.Broken", "allow_targets=true"]
    _run(data, tmp_path / "run", "task=qasper", "limit=1", "baseline=false", *words)
    (failed,) = _records(tmp_path / "run")
    assert failed.error.endswith(f"({tmp_path / 'my_broken.py'}:6)")


def test_a_dry_run_counts_and_records_nothing(data, tmp_path):
    out = tmp_path / "run"
    words = [*TINY, SHORT, f"data={data}", f"out={out}", "method=snapkv", "budget=0.3"]
    said = done("run", "--dry-run", *words, "task=qasper,trec")
    assert not out.exists()
    assert f"{out}: 4 results to compute, 0 known already\nvariants: fullkv, snapkv@0.3\n" in said
    assert f"{out}: 6 results to compute, 0 known already\n" in said
    assert "\ntime: about " in said and said.count("\nnothing was recorded\n") == 2
    _run(data, out, "task=qasper", "method=snapkv", "budget=0.3")
    written = _records(out)
    total = sum({r.sample: r.prompt_tokens for r in written}.values())
    assert f"2 prompts of {total} tokens together" in said
    again = done("run", "--dry-run", *words, "task=qasper")
    said = f"tiny-random on qasper, {out}: 0 results to compute, 4 known already\n"
    assert again == said + "nothing was recorded\n"
    assert _records(out) == written


def test_the_header_says_what_made_the_records(whole):
    # Two jobs wrote a shard each within a second, in either order.
    (header,) = (s.header for s in read_shards(whole) if "qasper" in s.header.data.hashes)
    assert header.protocol.name == "official"
    assert header.model.path == "random"
    assert header.versions["torch"]
    assert set(header.git) >= {"commit", "dirty"}
    assert header.stated["budget"] == 0.2
    assert header.data.hashes["qasper"]
    assert [v.label for v in header.variants] == ["fullkv", "snapkv@0.2", "streamingllm@0.2"]


# Bad input: one line, exit code 2, nothing written.
@pytest.mark.parametrize(
    ("words", "said"),
    [
        slow(["method=snapvk"], "snapkv"),
        slow(["task=quasper"], "qasper"),
        slow(["model=tiny-randm"], "tiny-random"),
        slow(["protocol=offical"], "official"),
        slow(["method=snapkv", "method.windw=8"], "window"),
        slow(["bugdet=0.2"], "budget"),
        slow(["budget=0"], "budget 0"),
        slow(["budget=-1"], "budget -1"),
        slow(["budget=1.5"], "budget 1.5"),
        slow(["budget=nan"], "budget nan"),
        slow(["budget='a lot'"], "a lot"),
        (["method=snapkv", "method.window=0"], "window=0"),
        slow(["method=snapkv", "method.window=wide"], "wide"),
        (["method=snapkv", "+method.window=8,16"], "+method.window is there already: write it"),
        (["method=snapkv", "method.window=8,16", "hydra.mode=RUN"], "several values where one"),
        (["method=spindlekv", "method.theta_key=1.2"], "theta_key=1.2"),
        (["limit=0"], "limit=0"),
        slow(["data=/no/such/folder"], "/no/such/folder"),
        (["model.path=/no/such/model"], "/no/such/model"),
        (["protocol.truncation=none", "model.context=64"], "64"),
        slow(["method"], "method"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(data, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    named = {w.split("=")[0] for w in words}
    base = [w for w in [*TINY, f"data={data}", "task=qasper"] if w.split("=")[0] not in named]
    result = cli("run", *base, *words)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("kvbench: ")
    assert said in lines[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def _corrupt(data: Path, text: str) -> None:
    with (data / "qasper.jsonl").open("a", encoding="utf-8") as file:
        file.write(text + "\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"input": ', "line 3"),
        (json.dumps({k: v for k, v in record("qasper", 9).items() if k != "context"}), "context"),
        (json.dumps(record("qasper", 9, answers=[])), "answers"),
    ],
)
def test_a_bad_data_line_is_named_before_anything_runs(data, tmp_path, line, said):
    _corrupt(data, line)
    out = tmp_path / "run"
    with pytest.raises(UserError) as caught:
        _run(data, out, "task=qasper")
    assert "qasper.jsonl" in str(caught.value)
    assert "3" in str(caught.value)
    assert said in str(caught.value)
    assert not out.exists()


def test_a_missing_task_file_is_named(data, tmp_path):
    (data / "trec.jsonl").unlink()
    with pytest.raises(UserError, match="trec"):
        _run(data, tmp_path / "run", "task=trec")


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount to make a read-only folder")
def test_an_unwritable_folder_is_refused_before_the_model_runs(data, tmp_path, prefills):
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
    else:
        locked = Path("/proc/kvbench-run")  # root may write anywhere but in a kernel file system
    with pytest.raises(UserError, match="cannot write"):
        _run(data, locked / "run", "task=qasper")
    assert prefills == []


def test_a_full_disk_is_one_line(data, tmp_path, monkeypatch):
    def full(shard, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="No space left on device"):
        _run(data, tmp_path / "run", "task=qasper")


def test_report_prints_the_table_of_the_run(whole):
    result = cli("report", str(whole))
    assert result.exit_code == 0
    assert "fullkv" in result.output
    assert "snapkv@0.2" in result.output
    assert "protocol official" in result.output


def test_score_finds_the_recorded_scores_again(whole):
    assert json.loads(done("score", str(whole), "--json"))


def test_a_path_alone_is_a_model_of_its_own():
    from kvbench.config.words import hydra_words

    assert hydra_words(["model.path=a/b"]) == ["model=custom", "model.path=a/b"]
    named = ["model=phi-3-mini-4k-instruct", "model.path=./x"]
    assert hydra_words(named) == named
    assert hydra_words(["method/base=h2o"]) == ["method@method.base=h2o"]
