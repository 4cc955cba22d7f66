"""What .ci/run installs, and which skipped tests it takes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.paths import ROOT

LATEX, SLURM = "pdflatex is not installed", "apt-get install slurm-wlm munge"
CHROMIUM = "Chromium is not installed"


def installed(folder: Path, apt_get: str, programs: tuple[str, ...]) -> tuple[str, str]:
    """What .ci/install says on a machine with these programs and this apt-get, for root."""
    apt_get = f"echo $@ >> {folder}/called; {apt_get}"
    scripts = {name: "exit 0" for name in programs} | {"apt-get": apt_get, "id": "echo 0"}
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    for name in ("bash", "timeout"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    text = (ROOT / ".ci" / "install").read_text(encoding="utf-8")
    (folder / "install").write_text(text.replace("PATH=$PATH:/usr/sbin:/sbin\n", ""))
    done = subprocess.run(
        ["/bin/bash", str(folder / "install")],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_what_cannot_be_installed_is_said_and_fails_nothing(tmp_path: Path) -> None:
    said, told = installed(tmp_path, "exit 100", ("chromium",))
    assert said == f"{LATEX},{SLURM}"
    assert "apt-get failed" in told and LATEX in told


def test_what_is_missing_is_installed_and_nothing_may_be_skipped_then(tmp_path: Path) -> None:
    programs = "pdflatex munged slurmctld slurmd chromium"
    made = f'for p in {programs}; do printf "" >> {tmp_path}/$p; /bin/chmod +x {tmp_path}/$p; done'
    assert installed(tmp_path, made, ()) == ("", "")
    asked = (tmp_path / "called").read_text()
    assert "texlive-latex-recommended slurm-wlm munge chromium" in asked


def test_nothing_is_asked_for_where_all_is_there(tmp_path: Path) -> None:
    programs = ("pdflatex", "munged", "slurmctld", "slurmd", "google-chrome")
    assert installed(tmp_path, "exit 100", programs) == ("", "")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("may_skip", "failed"),
    [("", {LATEX, CHROMIUM}), (f"{LATEX},{SLURM}", {CHROMIUM}), (CHROMIUM, {LATEX})],
)
def test_a_skip_fails_unless_its_reason_is_allowed(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, may_skip: str, failed: set[str]
) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    monkeypatch.setenv("KVBENCH_NO_SKIPS", "1")
    monkeypatch.setenv("KVBENCH_MAY_SKIP", may_skip)
    found = set()
    for reason in (LATEX, CHROMIUM, "KVBENCH_DATA names no folder of real records"):
        report = SimpleNamespace(
            skipped=True, outcome="skipped", longrepr=("test_x.py", 1, f"Skipped: {reason}")
        )
        if conftest.without_skips(report).outcome == "failed":
            found.add(reason)
    assert found == failed
