from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest
import yaml

import kvbench
from kvbench.records.reader import read_shards
from support.cases import slow
from support.cli import cli, done

PREDICTIONS = Path(os.environ.get("KVBENCH_DATA", "")) / "longbench" / "predictions"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_takes_under_half_a_second_and_no_torch() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kvbench", "--help"], check=True, capture_output=True)
        return time.perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.5
    heavy = "{'torch', 'transformers', 'hydra', 'pandas', 'datasets'}"
    code = f"import sys, kvbench.cli.main; sys.exit(len({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_is_the_packages_own() -> None:
    assert done("--version") == f"kvbench {kvbench.__version__}\n"


def test_help_of_run_says_what_words_are() -> None:
    assert "method=spindlekv" in done("run", "--help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=spindlkv"], "did you mean spindlekv?"),
        slow(["task=qaspr"], "did you mean qasper?"),
        slow(["model=smollm2"], "did you mean smollm2-135m?"),
        slow(["protocol=papr"], "did you mean paper?"),
        slow(["experiment=frist-table"], "did you mean first-table?"),
        (["experiment=spindlekv/table99"], "did you mean spindlekv/table"),
        (["method=snapkv", "method=h2o"], "method=snapkv and method=h2o contradict each other"),
        (["limit=1", "+limit=2"], "limit=1 and limit=2 contradict"),
        (["method="], "method= names nothing: give method=NAME"),
        (["out=größe (1)"], "give \"out='größe (1)'\""),
        (["model=tiny-random", "needle.lengths=9000000"], "needle.lengths=9000000 makes prompts"),
        slow(["model=tiny-random", "ruler.lengths=9000000"], "ruler.lengths=9000000 makes prompts"),
        (["metod=snapkv"], "did you mean method?"),
        (["method.theta_kye=0.9"], "did you mean method.theta_key?"),
        slow(["method=streamingllm", "method.sink=1"], "did you mean method.sinks?"),
        slow(["method=streamingllm,snapkw"], "did you mean snapkv?"),
        (["task=qasper,foo"], "task=foo is unknown"),
        (["hydra/launcher=nosuch"], "known: basic"),
        (["budget"], "'budget' is not an override"),
        (["budget=[0.2"], "is not an override"),
        slow(["budget=interval(0,1)"], "can be swept"),
        (["~method"], "method"),
        slow(["~budget"], "budget"),
        slow(["~limit"], "limit"),
        (["budget=0"], "budget 0 is out of range"),
        slow(["budget=-1"], "budget -1 is out of range"),
        slow(["budget=0.2,1.5"], "budget 1.5 is out of range"),
        slow(["budget=nan"], "budget nan is out of range"),
        (["budget=a lot"], "budget 'a lot' is not a number"),
        slow(["method.beta=7"], "method.beta=7"),
        (["model=custom"], "model.path is not set"),
        slow(["model=custom", "model.path=./nowhere"], "./nowhere"),
        (["data=nowhere"], "data=nowhere does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2_and_leaves_nothing(
    elsewhere: Path, words: list[str], said: str
) -> None:
    result = cli("run", *words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("kvbench: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert result.stdout == ""
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own_exits_2_without_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "kvbench", "run", "budget=1.5"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("kvbench: budget 1.5") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_run_folder_is_refused_before_anything_is_recorded(elsewhere: Path) -> None:
    (elsewhere / "file").write_text("x", encoding="utf-8")
    words = ["model=tiny-random", "method=streamingllm", "task=hotpotqa", "limit=1"]
    result = cli("run", *words, "out=file/run")
    assert result.exit_code == 2
    assert "out=PATH" in result.stderr and result.stderr.startswith("kvbench: ")


def test_a_read_only_file_system_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)  # such a mount refuses to take away, too
    words = ["model=tiny-random", "method=streamingllm", "task=hotpotqa", "limit=1"]
    result = cli("run", *words, f"out={tmp_path / 'run'}")
    assert result.exit_code == 2, result.output
    assert "(Read-only file system): give another folder" in result.stderr
    assert result.stderr.count("\n") == 1


def test_values_outside_ascii_work_as_they_are(elsewhere: Path) -> None:
    words = ["model=tiny-random", "task=trec", "limit=1", "method=streamingllm"]
    words += ["protocol.max_new_tokens=2", "out=größe/läufe"]
    assert "größe/läufe: 2 results" in done("run", *words)
    assert [p.suffix for p in (elsewhere / "größe" / "läufe").iterdir()] == [".jsonl"]


@pytest.mark.slow
def test_hydras_own_flags_pass_through(elsewhere: Path) -> None:
    code = "from kvbench.cli.main import main; main()"
    words = [sys.executable, "-c", code, "run", "method=snapkv", "budget=0.4", "--cfg", "job"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "_target_: kvbench.methods.snapkv.SnapKV" in shown and "budget: 0.4" in shown
    assert list(elsewhere.iterdir()) == []


def test_jobs_share_a_run_folder_and_a_rerun_does_nothing(elsewhere: Path) -> None:
    words = ["run", "model=tiny-random", "method=streamingllm", "budget=0.2,64"]
    words += ["task=hotpotqa,musique", "limit=1", "protocol.max_new_tokens=4"]
    out = Path("results/runs/tiny-random-sample-official")
    assert f"{out}: 6 results recorded" in done(*words)
    shards = read_shards(out)
    assert sum(len(s.records) for s in shards) == 6
    assert "0 results recorded, 0 of them failed, 6 known before" in done(*words)
    assert read_shards(out) == shards
    assert "streamingllm@64" in done("report")


def test_an_experiment_is_a_whole_run(elsewhere: Path) -> None:
    words = ["experiment=first-table", "model=tiny-random", "task=hotpotqa", "limit=1"]
    done("run", *words, "method=streamingllm")
    (shard,) = read_shards(Path("results/runs/tiny-random-sample-official"))
    labels = [v.label for v in shard.header.variants]
    assert labels == ["fullkv", "streamingllm@0.2", "streamingllm@0.4"]


def test_a_config_folder_of_the_users_own_adds_choices(elsewhere: Path) -> None:
    (elsewhere / "mine/method").mkdir(parents=True)
    text = "_target_: kvbench.methods.streamingllm.StreamingLLM\nsinks: 9\n"
    (elsewhere / "mine/method/nine.yaml").write_text(text, encoding="utf-8")
    words = ["method=nine", "model=tiny-random", "task=hotpotqa", "limit=1"]
    done("run", *words, "--config-dir", "mine")
    (shard,) = read_shards(Path("results/runs/tiny-random-sample-official"))
    assert shard.header.variants[1].label == "nine@0.2"
    assert shard.header.variants[1].config == {"sinks": 9}


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("methods", ["spindlekv", "snapkv_kvf", "Keep the whole prompt"]),
        ("tasks", ["longbench", "repobench-p", "Its answers are one token"]),
        ("models", ["smollm2-135m", "llama3-8b-instruct", "phi-3-mini-4k-instruct"]),
        ("experiments", ["first-table", "kvcrush/table2"]),
    ],
)
def test_list_names_each_choice_with_a_line_about_it(kind: str, named: list[str]) -> None:
    text = done("list", kind)
    for name in named:
        assert name in " ".join(text.split())
    assert all(len(line.split()) > 1 for line in text.splitlines() if line[0] != " ")


def test_list_sees_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    text = "# Mine, of all the best\n_target_: mine.Mine\n"
    (tmp_path / "method" / "zz_mine.yaml").write_text(text, encoding="utf-8")
    listed = done("list", "methods", "--config-dir", str(tmp_path))
    assert listed.startswith("adakv") and "\nzz_mine " in listed and "Mine, of all" in listed
    assert cli("list", "methods", "--config-dir", str(tmp_path / "none")).exit_code == 2


@pytest.mark.parametrize("columns", [80, 120])
def test_list_wraps_to_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = done("list", "methods").splitlines()
    assert columns - 20 < max(map(len, lines)) <= columns


def test_show_alone_names_every_key_with_its_meaning() -> None:
    shown = done("show")
    config = yaml.safe_load(resources.files("kvbench.conf").joinpath("config.yaml").read_text())
    for key, value in config.items():
        if key in ("defaults", "hydra"):
            continue
        for name in [f"{key}.{inner}" for inner in value] if isinstance(value, dict) else [key]:
            assert f"\n  {name}: " in shown, name
    assert "# seconds" not in shown and "first N records of each task" in shown
    assert "  method=spindlekv\n" in shown and "  protocol.query_aware: true " in shown
    part = done("show", "needle")
    assert part in shown and "needle.lengths: [512, 1024, 2048]" in part
    assert "limit" not in part
    refused = cli("show", "nedle")
    assert refused.exit_code == 2 and "needle" in refused.stderr


def test_help_of_run_names_the_common_words_and_three_examples() -> None:
    said = done("run", "--help")
    for word in ("model=", "task=", "method=", "budget=", "protocol=", "limit=", "out="):
        assert f"\n  {word}" in said or f", {word}" in said
    assert said.count("\n  kvbench run ") == 3


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("li", {"list"}),
        ("run met", {"method="}),
        ("run method = snap", {"snapkv", "snapkv_kvf", "snapkv_kvpress"}),
        ("run budget = 0.2 model = tiny", {"tiny-random"}),
        ("run experiment = windowkv/table1_", {"windowkv/table1_qwen2.5"}),
        ("list ta", {"tasks"}),
        ("show task = qas", {"qasper"}),
    ],
)
def test_bash_completes_commands_and_words(typed: str, offered: set[str]) -> None:
    asked = {"_KVBENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"kvbench {typed}"}
    asked["COMP_CWORD"] = str(len(typed.split()))
    command = [sys.executable, "-m", "kvbench"]
    said = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert set(said.stdout.split()) == offered, said.stderr


def test_zsh_completes_the_last_of_several_choices() -> None:
    asked = {"_KVBENCH_COMPLETE": "complete_zsh"}
    asked["_TYPER_COMPLETE_ARGS"] = "kvbench run method=h2o,ad"
    command = [sys.executable, "-m", "kvbench"]
    said = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert '"method=h2o,adakv"' in said.stdout


def test_show_gives_each_field_its_value_default_and_source() -> None:
    text = done("show", "method=spindlekv", "method.theta_key=0.9")
    assert "theta_key: 0.9 " in text and "default 0.98  # Table 3" in text
    fields = [line for line in text.splitlines() if line.startswith("  ") and ": " in line]
    assert all("# " in line for line in fields)


@pytest.mark.parametrize(
    "words", [["model=llama2-7b-chat"], ["model=custom"], ["protocol=paper"], ["task=longbench"]]
)
def test_show_knows_every_group(words: list[str]) -> None:
    assert done("show", *words).startswith(words[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["spindlekv"], "names no choice"),
        (["method=spindle"], "did you mean spindlekv?"),
        (["method=snapkv", "method.widnow=3"], "did you mean method.window?"),
        (["method=streamingllm", "method.sinks=-3"], "method.sinks=-3"),
    ],
)
def test_show_refuses_what_a_run_would_refuse(words: list[str], said: str) -> None:
    result = cli("show", *words)
    assert result.exit_code == 2
    assert said in result.stderr and result.stderr.count("\n") == 1


def test_score_reads_a_file_or_folder_in_longbenchs_own_format(tmp_path: Path) -> None:
    line = {"pred": "The cat", "answers": ["cat"], "all_classes": None, "length": 9}
    (tmp_path / "qasper.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    for path in (tmp_path, tmp_path / "qasper.jsonl"):
        assert json.loads(done("score", str(path), "--json")) == {"qasper": 100.0}
    assert done("score", str(tmp_path)) == " 100.00  qasper\n"
    buckets = json.loads(done("score", str(tmp_path), "--by-length", "--json"))
    assert buckets == {"qasper": {"0-4k": 100.0, "4-8k": None, "8k+": None}}


def test_score_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        result = cli("score", str(path))
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


@pytest.mark.skipif(
    not PREDICTIONS.is_dir(), reason="KVBENCH_DATA does not name the folder of real predictions"
)
def test_third_party_predictions_score_on_the_command_line() -> None:
    scores = json.loads(done("score", str(PREDICTIONS), "--json"))
    for path in PREDICTIONS.glob("*.jsonl"):
        lines = [json.loads(x) for x in path.read_text(encoding="utf-8").split("\n") if x]
        mean = sum(line["score_official"] for line in lines) / len(lines)
        official = mean * (100 if max(line["score_official"] for line in lines) <= 1 else 1)
        assert scores[path.stem] == pytest.approx(official, abs=0.006)
