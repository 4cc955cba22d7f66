"""A page as a browser makes it, where Chromium is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
)


def in_chromium(path: Path, folder: Path, width: int) -> str:
    """The page's document after its scripts ran."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += [f"--user-data-dir={folder}", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *flags, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout
