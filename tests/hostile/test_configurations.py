"""Nothing in a configuration runs foreign code unless the command line consents."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvbench.base.errors import UserError
from kvbench.cli.main import app
from kvbench.config.objects import instantiated
from support.cases import slow, slow_unless

Run = Callable[..., Result]


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module `foreign` makes as soon as it is imported."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "it-ran"
    code = (
        "import pathlib\n"
        f"pathlib.Path({str(made)!r}).touch()\n"
        "from hydra.experimental.callback import Callback\n"
        "class Foreign(Callback):\n"
        "    pass\n"
    )
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "foreign.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.delitem(sys.modules, "foreign", raising=False)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def with_words(*words: str) -> Result:
        small = ["model=tiny-random", "task=hotpotqa", "limit=1", "method=streamingllm"]
        return CliRunner().invoke(app, ["run", *small, *words])

    return with_words


def assert_refused(result: Result, marker: Path) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("kvbench: ")
    assert any(word in result.stderr for word in ("outside kvbench", "comes from a file", "pickle"))
    assert not marker.exists()


WORDS = [
    "+hydra.callbacks.x._target_=foreign.Foreign",
    slow("+hydra.callbacks.x.deep._target_=foreign.Foreign"),
    "hydra.launcher._target_=foreign.Foreign",
    slow("+hydra.launcher.extra._target_=foreign.Foreign"),
    "hydra.sweeper._target_=foreign.Foreign",
    slow("+hydra.sweeper.extra._target_=foreign.Foreign"),
    slow("+hydra.sweeper.extra=[{_target_:foreign.Foreign}]"),
    "+hydra.job_logging.handlers.x.class=foreign.Foreign",
    slow("+hydra.job_logging.handlers.x.class=logging.os.system"),
    slow(
        "+hydra.hydra_logging.handlers.x={class:logging.StreamHandler,stream:'ext://foreign.Foreign'}"
    ),
    slow("+task.extra._target_=foreign.Foreign"),
    "task._target_=foreign.Foreign",
    slow("task._target_=kvbench.methods.spindlekv.torch.os.system"),
    "task._target_=kvbench.tasks.haystack.Path",
    slow("+method.extra._target_=foreign.Foreign"),
    slow("method._target_=foreign.Foreign"),
    "method._target_=kvbench.methods.spindlekv.torch.load",
    "+method.base._target_=foreign.Foreign",
    slow("+method.evict={_target_:kvbench.methods.snapkv.SnapKV,base:{_target_:foreign.Foreign}}"),
    slow("+task._partial_={_target_:foreign.Foreign}"),
    "+task._args_=[{_target_:foreign.Foreign}]",
    "hydra.searchpath=[pkg://foreign]",
    "--experimental-rerun=pickle.pkl",
    slow("--experimental-r"),
]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_names_foreign_code_is_refused(run: Run, marker: Path, word: str) -> None:
    assert_refused(run(word), marker)


EXPERIMENTS = {
    "callback": "hydra: {callbacks: {x: {_target_: foreign.Foreign}}}",
    "interpolated": "code: foreign.Foreign\nhydra: {callbacks: {x: {_target_: '${code}'}}}",
    "whole node": "code: {x: {_target_: foreign.Foreign}}\nhydra: {callbacks: '${code}'}",
    "log factory": "hydra: {hydra_logging: {root: {}, handlers: {x: {(): foreign.Foreign}}}}",
    "logging": "hydra: {job_logging: {root: {}, handlers: {x: {class: foreign.Foreign}}}}",
    "Slurm's shell": (
        "defaults: [override /hydra/launcher: submitit_slurm]\n"
        "hydra: {launcher: {setup: [touch it-ran]}}"
    ),
    "log file": (
        "hydra: {hydra_logging: {root: {handlers: [x]}, handlers: {x: {class: logging.FileHandler,"
        " filename: it-ran}}}}"
    ),
    "log formatter": "hydra: {job_logging: {formatters: {x: {class: foreign.Foreign}}}}",
    "environment": "hydra: {job: {env_set: {PATH: theirs}}}",
    "files elsewhere": "hydra: {output_subdir: ../.config}",
    "Slurm's flags": (
        "defaults: [override /hydra/launcher: submitit_slurm]\n"
        "hydra: {launcher: {additional_parameters: {prolog: ./theirs}}}"
    ),
    "a line in Slurm's script": (
        "defaults: [override /hydra/launcher: submitit_slurm]\n"
        'hydra: {launcher: {comment: "a\\ntouch it-ran\\n"}}'
    ),
    "another's cluster": (
        "defaults: [override /hydra/launcher: ray]\nhydra: {launcher: {address: theirs:6379}}"
    ),
    "method": "method: {_target_: foreign.Foreign}",
    "base": "method: {base: {_target_: foreign.Foreign}}",
    "own consent": "allow_targets: true\nmethod: {_target_: foreign.Foreign}",
    "swept consent": "hydra: {sweeper: {params: {allow_targets: 'true'}}}",
    "added consent": "hydra: {sweeper: {params: {++allow_targets: 'true'}}}",
    "swept environment": "hydra: {sweeper: {params: {+hydra.job.env_set.PATH: theirs}}}",
    "consent in the record of words": (
        "method: {_target_: foreign.Foreign}\n"
        "allow_targets: true\n"
        "hydra: {overrides: {task: [allow_targets=true]},"
        " callbacks: {x: {_target_: foreign.Foreign}}}"
    ),
}


# One of each way in; the others come in by the same ways.
WAYS = {"callback", "interpolated", "log factory", "Slurm's shell", "log file", "environment"}
WAYS |= {"method", "own consent", "swept consent", "consent in the record of words"}


@pytest.mark.parametrize("name", slow_unless(WAYS.__contains__, EXPERIMENTS))
def test_a_file_of_somebody_elses_neither_runs_code_nor_consents(
    run: Run, marker: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "theirs" / "experiment"
    folder.mkdir(parents=True)
    text = f"# @package _global_\n{EXPERIMENTS[name]}\n"
    (folder / "evil.yaml").write_text(text, encoding="utf-8")
    assert_refused(run("experiment=evil", "--config-dir", str(folder.parent)), marker)


def test_a_swept_file_of_somebody_elses_runs_no_code(
    run: Run, marker: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "theirs" / "experiment"
    folder.mkdir(parents=True)
    text = f"# @package _global_\n{EXPERIMENTS['logging']}\n"
    (folder / "evil.yaml").write_text(text, encoding="utf-8")
    for sweeper in ("kvbench", "basic"):
        words = ("experiment=first-table,evil", f"hydra/sweeper={sweeper}")
        assert_refused(run(*words, "--config-dir", str(folder.parent)), marker)


def test_the_command_line_can_consent(run: Run, marker: Path) -> None:
    result = run("+hydra.callbacks.x._target_=foreign.Foreign", "allow_targets=true")
    assert result.exit_code == 0, result.output
    assert marker.exists()


@pytest.mark.slow
def test_hydras_own_logging_and_launchers_need_no_consent(tmp_path: Path) -> None:
    words = ["model=tiny-random", "task=hotpotqa", "limit=1", "method=streamingllm"]
    words += ["hydra/job_logging=stdout", "hydra/hydra_logging=default", "launcher=basic"]
    # In a process of its own, whose logging it sets up.
    command = [sys.executable, "-c", "from kvbench.cli.main import main; main()", "run", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_target_is_named_by_the_module_that_defines_it() -> None:
    with pytest.raises(UserError, match="outside kvbench"):
        instantiated({"_target_": "kvbench.methods.pyramidkv.dataclass"}, "method", False)
    assert instantiated({"_target_": "kvbench.methods.snapkv.SnapKV"}, "method", False)
