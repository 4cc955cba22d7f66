"""Whole runs beyond one quiet process: interruption, actors that are killed, shards, Slurm."""

from __future__ import annotations

import importlib.util
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvbench.api import run_words
from kvbench.base.progress import Progress
from kvbench.cli.main import app
from kvbench.config.sweeper import dealt
from kvbench.records.reader import distinct, read_shards
from kvbench.records.writer import Writer
from kvbench.run.loop import interleaved
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.task import Sample, Task
from support.cases import slow
from support.data import write_data
from support.runs import A_RECORD, typed_header
from support.slurm import PROGRAMS, program, running_slurm

pytestmark = pytest.mark.timeout(1200)  # other processes, which start slowly on busy cores

WORDS = ["model=tiny-random", "model.device=cpu", "method=snapkv,streamingllm", "budget=0.3"]


@pytest.fixture
def short(tmp_path: Path) -> list[str]:
    """Words that lead to two tasks of sixteen short records, answered shortly."""
    data = write_data(tmp_path / "data", {"qasper": 16, "trec": 16})
    return [f"data={data}", "task=qasper,trec", "protocol.max_new_tokens=12"]


def _samples(counts: dict[str, int]) -> list[list[Sample]]:
    like = LongBench(["qasper"]).tasks()[0]
    tasks = [Task(n, "", "{context}", 1, like.score) for n in counts]
    return [
        [Sample(task, f"{i}", "", "", ()) for i in range(count)]
        for task, count in zip(tasks, counts.values(), strict=True)
    ]


def test_every_stretch_of_a_run_holds_the_tasks_in_proportion():
    order = interleaved(_samples({"long": 20, "short": 200, "one": 1}))
    assert len(order) == 221
    for start in range(0, 221, 34):
        seen = Counter(sample.task.name for sample in order[start : start + 34])
        assert abs(seen["long"] - seen["short"] / 10) <= 1.5
    assert [s.id for s in order if s.task.name == "long"] == [str(i) for i in range(20)]


def test_the_time_left_settles_within_the_first_tenth():
    counts = {f"task{i}": count for i, count in enumerate((200, 150, 500, 200, 50, 500))}
    chance = random.Random(5)
    mean_cost = {f"task{i}": cost for i, cost in enumerate((60, 20, 3, 11, 40, 1))}
    costs = [
        mean_cost[s.task.name] * chance.uniform(0.5, 1.5) for s in interleaved(_samples(counts))
    ]
    total = sum(costs)
    for done in range(len(costs) // 10, len(costs)):
        gone = sum(costs[:done])
        assert abs(gone / done * len(costs) - total) < 0.15 * total


def test_a_run_says_who_else_writes_to_its_folder(tmp_path):
    out = tmp_path / "run"
    words = [*WORDS, f"out={out}", "limit=2", "protocol.max_new_tokens=2"]
    first = Writer(out, typed_header())
    first.append(A_RECORD)
    command = [sys.executable, "-m", "kvbench", "run", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert said.count(f"process {os.getpid()} is writing to {out} too") == 1
    assert first.others() == [], "who has ended writes no longer"
    first.close()
    assert Writer(out, typed_header()).others() == []


@pytest.mark.parametrize("columns", [80, 120])
def test_the_display_cuts_what_runs_and_never_the_clock(columns):
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, legacy_windows=False)
    with Progress("smollm2-135m", 4000, console) as progress:
        progress.sample("passage_retrieval_en 0123456789ab")
        progress.advance(10, 1)
        progress.phase("compress spindlekv@0.2[theta_key=0.95,theta_value=0.9]")
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", shown) if "10/4000" in line]
    assert lines and all(re.search(r" 0:00:0\d .* left 1 failed", line) for line in lines)
    assert all(len(line.rstrip()) <= columns and "passage" in line for line in lines)


def test_the_plain_line_is_one_line_and_says_what_runs(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    with Progress("tiny", 40, Console(file=out, width=80)) as progress:
        progress.sample("narrativeqa 0123456789ab")
        progress.advance(10, 1)
        now = 61.0
        progress.phase("compress spindlekv@0.2[theta_key=0.95,theta_value=0.9]")
        progress.phase("decode")
        now = 93.0
        progress.generated(16)
        progress.phase("prefill")
        now = 101.0
        progress.phase("decode")
        now = 125.0
        progress.generated(544)
    lines = out.getvalue().splitlines()
    assert lines[-1] == (
        "tiny narrativeqa 0123456789ab decode, 10 tokens/s decoded: 10 of 40 results,"
        " 2:05 gone, 6:15 left, 1 failed"
    ), "the prefill between is no decoding"
    assert all(re.match(r"tiny narr.* left, 1 failed$", line) for line in lines)


def _started(out: Path, *words: str) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    command = [sys.executable, "-c", "from kvbench.cli.main import main; main()", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *WORDS, f"out={out}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def _wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _recorded(shard: Path) -> int:
    return shard.read_bytes().count(b"\n") - 1


def _all_recorded(out: Path) -> int:
    return sum(max(0, _recorded(shard)) for shard in out.glob("*.jsonl"))


def test_ctrl_c_finishes_the_sample_at_hand_and_the_same_words_go_on(tmp_path, short):
    out = tmp_path / "run"
    process = _started(out, *short, "limit=8")
    _wait_for(lambda: any(_recorded(shard) >= 4 for shard in out.glob("*.jsonl")), process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "finishing the samples at hand" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    before = [record for _, record in distinct(read_shards(out))]
    assert 0 < len(before) < 48
    assert len(before) % 3 == 0, "all variants of each sample"
    run_words([*WORDS, f"out={out}", *short, "limit=8"])
    after = [record for _, record in distinct(read_shards(out))]
    assert len(after) == 48
    assert sum(_recorded(shard) for shard in out.glob("*.jsonl")) == 48, "nothing twice"


KILLS = 4
"""Runs that are killed before one may finish."""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path, short):
    chance = random.Random(3)
    out = tmp_path / "run"
    known: set[str] = set()
    for _ in range(KILLS):
        process = _started(out, *short, "limit=8")
        enough = len(known) + chance.randint(0, 6)
        while process.poll() is None and _all_recorded(out) <= enough:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.communicate()
        for shard in out.glob("*.jsonl"):
            with shard.open("ab") as torn:
                torn.write(b'{"kind":"record","key":"torn')
        found = [record.key for shard in read_shards(out) for record in shard.records]
        assert len(found) == len(set(found)), "nothing twice"
        assert known <= set(found), "nothing lost"
        known = set(found)
    run_words([*WORDS, f"out={out}", *short, "limit=8"])
    found = [record for shard in read_shards(out) for record in shard.records]
    assert len(found) == len({r.key for r in found}) == 48
    assert known <= {r.key for r in found}
    whole = tmp_path / "whole"
    run_words([*WORDS, f"out={whole}", *short, "limit=8"])
    texts = {r.key: r.prediction for _, r in distinct(read_shards(whole))}
    assert {r.key: r.prediction for r in found} == texts, "whoever shared the batch"


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_nothing_is_done_twice(tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'kvbench[ray]'")
    out = tmp_path / "run"
    process = _started(out, "limit=3", "launcher=ray", "launcher.actors=2", "shards=3")
    _wait_for(lambda: any(_recorded(shard) >= 4 for shard in out.glob("*.jsonl")), process)
    shard = next(shard for shard in out.glob("*.jsonl") if _recorded(shard) >= 4)
    killed = int(shard.name.split("-")[2])
    os.kill(killed, signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    records = [record for s in read_shards(out) for record in s.records]
    assert len(records) == len({r.key for r in records})
    assert all(r.error is None for r in records)
    assert _recorded(shard) < len(records) / 3, "its job was unfinished when it was killed"
    status = CliRunner().invoke(app, ["status", str(out)])
    assert f"{len(records)} results done, 0 missing, 0 failed." in status.output


@pytest.mark.slow
def test_shards_share_the_samples_without_overlap(tmp_path, short):
    out = tmp_path / "run"
    run_words([*WORDS, f"out={out}", *short, "limit=4", "shards=3"])
    shards = [[(r.task, r.sample) for r in s.records] for s in read_shards(out)]
    everything = [pair for shard in shards for pair in set(shard)]
    assert len(shards) > 2
    assert len(everything) == len(set(everything))
    whole = tmp_path / "whole"
    run_words([*WORDS, f"out={whole}", *short, "limit=4"])
    assert set(everything) == {(r.task, r.sample) for _, r in distinct(read_shards(whole))}


def test_a_job_that_names_its_shard_is_not_dealt_again():
    assert dealt([["task=trec", "shards=2"]], 1) == [
        ["task=trec", "shards=2", "shard=0"],
        ["task=trec", "shards=2", "shard=1"],
    ]
    assert dealt([["shards=4", "shard=1"]], 8) == [["shards=4", "shard=1"]]
    assert dealt([["task=trec", "shards=1"]], 8) == [["task=trec", "shards=1"]]
    assert dealt([["task=trec"]], 2)[1] == ["task=trec", "shards=2", "shard=1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        slow(["shards=0"], "shards=0"),
        (["shards=2", "shard=2"], "shard=2 is not below shards=2"),
        (["memory=lots"], "memory=lots is not a size"),
        slow(["prefill_cache_size=null"], "prefill_cache_size=null"),
        (["retry_failed=maybe"], "retry_failed='maybe' is neither true nor false"),
        slow(["launcher=condor"], "launcher=condor is unknown"),
        (["launcher=ray", "launcher.actors=0"], "launcher.actors=0"),
    ],
)
def test_a_wrong_engine_setting_is_one_line(tmp_path, words, said):
    result = CliRunner().invoke(app, ["run", *WORDS, f"out={tmp_path / 'run'}", *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_ray_without_its_extra_is_one_line_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # what an import finds where it is not installed
    result = CliRunner().invoke(app, ["run", *WORDS, f"out={tmp_path / 'run'}", "launcher=ray"])
    assert result.exit_code == 2
    assert result.stderr == (
        "kvbench: launcher=ray needs Ray, which is not installed: pip install 'kvbench[ray]'\n"
    )


@pytest.mark.slow
def test_prefills_kept_on_disk_serve_tomorrows_method(tmp_path, monkeypatch):
    from kvbench.prefill import capture as capturing

    counted = []
    real = capturing.capture
    monkeypatch.setattr(
        "kvbench.prefill.disk.capture", lambda *a: counted.append(len(a[1])) or real(*a)
    )
    words = ["model=tiny-random", "model.device=cpu", "task=qasper", "limit=1", "budget=0.3"]
    words.append("protocol.max_new_tokens=12")
    kept = f"prefill_cache={tmp_path / 'prefills'}"
    run_words([*words, kept, "method=streamingllm", f"out={tmp_path / 'run'}"])
    run_words([*words, kept, "method=snapkv", f"out={tmp_path / 'run'}"])
    assert len(counted) == 1
    again = ["run", *words, kept, "method=snapkv", f"out={tmp_path / 'again'}"]
    said = CliRunner().invoke(app, again).stdout
    assert "\nprefill_cache: 1 prefills read from it, 0 computed\n" in said

    run_words([*words, "method=snapkv", f"out={tmp_path / 'plain'}"])
    from_disk, plain = (
        {r.variant: r.prediction for _, r in distinct(read_shards(tmp_path / name))}
        for name in ("run", "plain")
    )
    assert from_disk["snapkv@0.3"] == plain["snapkv@0.3"]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment that leads to a Slurm of one node."""
    for name in PROGRAMS:
        if program(name) is None:
            pytest.skip(f"{name} is not installed: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="pip install kvbench[slurm]"
    )
    with running_slurm(tmp_path / "slurm") as environment:
        yield environment


@pytest.mark.slow
def test_slurm_runs_each_shard_as_a_task_of_an_array(slurm, tmp_path, monkeypatch):
    out = tmp_path / "run"
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    words = ["task=qasper,trec", "limit=2", "launcher=slurm", f"hydra.sweep.dir={tmp_path}"]
    process = _started(out, *words)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    shards = read_shards(out)
    assert len(shards) == 2
    assert {r.task for shard in shards for r in shard.records} == {"qasper", "trec"}
    assert "results recorded, 0 of them failed" in said
