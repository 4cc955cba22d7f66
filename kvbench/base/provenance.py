"""What produced a run: library versions, the commit of the code, the machine.

Facts only, JSON-able, for the run header.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kvbench.base.version import __version__

_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "datasets",
    "huggingface-hub",
    "hydra-core",
    "lm_eval",
    "rouge",
    "rouge-score",
    "jieba",
    "rapidfuzz",
)


def versions() -> dict[str, str | None]:
    """Return the versions of kvbench, Python and the libraries that can move a number."""
    found: dict[str, str | None] = {
        "kvbench": __version__,
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state() -> dict[str, Any]:
    """Return the commit of kvbench's own checkout and whether files differ from it.

    Both are None where kvbench is installed outside a checkout.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changes)}


def machine(devices: Sequence[object] = ()) -> dict[str, Any]:
    """Return what the run's timings depend on.

    Args:
        devices: where the model is, as torch names them; none: not known yet.
    """
    import torch

    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "device": ", ".join(map(str, devices)) or None,
        "gpu": None,
    }
    gpus = [str(device) for device in devices if str(device).startswith("cuda")]
    if gpus:
        names = Counter(torch.cuda.get_device_name(gpu) for gpu in gpus)
        shown = [name if count == 1 else f"{count} x {name}" for name, count in names.items()]
        facts["gpu"] = ", ".join(shown)
    return facts


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_gib() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    return round(total / 2**30, 1)
