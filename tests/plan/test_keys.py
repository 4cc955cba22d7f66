"""Keys keep their promise: what can change a result changes its key, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.base.code import bare_code, reached_modules
from kvbench.plan.keys import ROAD

ROOT = Path(__file__).resolve().parents[2]

KEYS = """
import json, sys
import torch
from kvbench.config.sweeper import plans_of_words
from kvbench.model.loading import load
from kvbench.prefill.disk import prefill_key
from kvbench.run.prepare import read_samples
words = ["model=tiny-random", "model.device=cpu", "task=qasper", "limit=1", "budget=0.2"]
plan, = plans_of_words([*words, "method=snapkv,h2o,spindlekv,quantized,windowkv,kvcrush,adakv"])
_, samples = read_samples(plan)
(sample,) = next(iter(samples.values()))
keys = {v.choice: plan.record_key(v, sample) for v in plan.variants}
keys["prefill cache"] = prefill_key(load(plan.model), torch.arange(5), None)
print(json.dumps(keys))
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code as it is installed, methods and configuration inside the package."""
    tree = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvbench", tree / "kvbench", ignore=skipped)
    shutil.copytree(ROOT / "methods", tree / "kvbench" / "methods", ignore=skipped)
    shutil.copytree(ROOT / "conf", tree / "kvbench" / "conf", ignore=skipped)
    return tree


def keys_of(tree: Path) -> dict[str, str]:
    """The key of one result of each method, and of one kept prefill, as that code makes them."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KEYS], env=environment, cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def before(pristine: Path) -> dict[str, str]:
    return keys_of(pristine)


EVERY = {"fullkv", "snapkv", "h2o", "spindlekv", "quantized", "windowkv", "kvcrush", "adakv"}
PREFILL = {"prefill cache"}


def replaced(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert text.count(old) >= 1, f"{old!r} is not there any more: edit another line"
        return text.replace(old, new, 1)

    return edit


Edit = tuple[str, Callable[[str], str]]

NOTHING: list[Edit] = [
    ("base/progress.py", replaced("60.0", "61.0")),
    ("report/table/stats.py", replaced("import itertools", "import itertools as _i, itertools")),
    ("tasks/metrics.py", replaced("import difflib", "import difflib as _d, difflib")),
]
"""How it is shown and scored changes no result."""

OWN: list[Edit] = [
    ("cache/codebook.py", replaced("best <= self.theta", "best < self.theta")),
    ("cache/cover.py", replaced("BLOCK = ", "BLOCK = 1 * ")),
    ("cache/quantized.py", replaced("top = 2**bits - 1", "top = 2**bits - 2")),
    ("classifier/trained.py", replaced("ENDS = 256", "ENDS = 255")),
    ("methods/h2o.py", replaced("import dataclass", "import dataclass as _d, dataclass")),
]
"""Code that one method each runs through."""

EDITS: dict[str, tuple[Edit, set[str]]] = {
    "top_rows": (
        ("prefill/selection.py", replaced("descending=True, stable=True", "descending=True")),
        EVERY | PREFILL,
    ),
    "the attention": (
        ("model/attention.py", replaced("_QUERY_BLOCK = 128", "_QUERY_BLOCK = 64")),
        EVERY | PREFILL,
    ),
    "the fit": (("compress/fit.py", replaced("TOLERANCE = 0.004", "TOLERANCE = 0.005")), EVERY),
    "the decode loop": (
        ("decode/greedy.py", replaced("logits.argmax(-1)", "logits.argmin(-1)")),
        EVERY,
    ),
    "the rows decoded from": (
        ("decode/batch.py", replaced("_GROWS_BY = 16", "_GROWS_BY = 17")),
        EVERY,
    ),
    "what is read of a store": (
        ("cache/segments.py", replaced("return weights @ self.v", "return -weights @ self.v")),
        EVERY,
    ),
    "the prompt": (("tasks/prompt.py", replaced('f"[INST] {prompt', 'f"[INST]  {prompt')), EVERY),
    "a method that others wrap": (
        ("methods/snapkv.py", replaced("kernel: int = 7", "kernel: int = 7 + 0")),
        {"snapkv", "kvcrush", "adakv"},
    ),
}


def moved_by(edits: list[Edit], pristine: Path, before: dict[str, str], tree: Path) -> set[str]:
    """The results whose keys change when a copy of the code is edited."""
    shutil.copytree(pristine, tree)
    for name, change in edits:
        path = tree / "kvbench" / name
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    after = keys_of(tree)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.slow  # each takes a process of its own
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_recomputes_every_result_that_runs_through_it(
    edit: str, pristine: Path, before: dict[str, str], tmp_path: Path
) -> None:
    change, moved = EDITS[edit]
    assert moved_by([change], pristine, before, tmp_path / "tree") == moved


@pytest.mark.slow
def test_code_of_one_methods_own_recomputes_that_method_alone(
    pristine: Path, before: dict[str, str], tmp_path: Path
) -> None:
    moved = moved_by(OWN, pristine, before, tmp_path / "tree")
    assert moved == {"spindlekv", "quantized", "windowkv", "h2o"}


@pytest.mark.slow
def test_comments_docstrings_scoring_and_looks_recompute_nothing(
    pristine: Path, before: dict[str, str], tmp_path: Path
) -> None:
    def annotated(text: str) -> str:
        text = text.replace('"""', '"""Edited: ', 1) + "\n\n# a comment\n"
        return text.replace("\n\n\n", "\n\n\n\n# another\n\n")

    package = pristine / "kvbench"
    everywhere = [(str(p.relative_to(package)), annotated) for p in package.rglob("*.py")]
    assert moved_by([*NOTHING, *everywhere], pristine, before, tmp_path / "tree") == set()


@pytest.mark.slow
def test_the_same_code_elsewhere_makes_the_same_keys(
    pristine: Path, before: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(pristine, tmp_path / "tree")
    assert keys_of(tmp_path / "tree") == before


def test_what_code_does_is_its_statements_alone() -> None:
    plain = "import torch\nclass A:\n    field: int = 1\n    def f(self): return 'text'\n"
    told = (
        '"""Doc."""\n# why\nimport torch\n\n\nclass A:\n    """Doc."""\n\n    field: int = 1  # why'
        '\n    """Of the field."""\n\n    def f(self):\n        """Doc."""\n        return "text"\n'
    )
    assert bare_code(plain) == bare_code(told)
    assert bare_code(plain) != bare_code(plain.replace("1", "2"))
    assert bare_code(plain) != bare_code(plain.replace("'text'", "'test'"))
    assert bare_code("def f():\n    'doc'") == bare_code("def f(): pass")


def test_the_road_reaches_what_a_result_runs_through_and_nothing_else() -> None:
    road = reached_modules(("kvbench.run.prepare", "kvbench.run.sample"), ROAD)
    assert {
        "kvbench.compress.fit",
        "kvbench.decode.greedy",
        "kvbench.decode.batch",
        "kvbench.model.attention",
        "kvbench.plan.protocol",
        "kvbench.prefill.capture",
        "kvbench.prefill.selection",
        "kvbench.run.caches",
        "kvbench.tasks.prompt",
    } <= set(road)
    others = {"kvbench.cache.codebook", "kvbench.tasks.metrics", "kvbench.base.progress"}
    assert not others & set(road)
    own = reached_modules(("kvbench.methods.pyramidkv",), (*ROAD, "kvbench.methods"))
    assert "kvbench.methods.snapkv" in own, "imports from beside a method are followed"
