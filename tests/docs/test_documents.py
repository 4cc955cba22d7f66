"""Generated documents say what the code says."""

from __future__ import annotations

import importlib
import re
import runpy

import pytest

from kvbench.compress.budget import Budget
from kvbench.config.methods_document import methods_document
from kvbench.model.spec import FAMILIES, WRAPPERS
from support import naive
from support.paths import ROOT

REMEDY = "run: python scripts/write_documents.py"


def test_the_document_of_methods_is_up_to_date():
    kept = (ROOT / "methods" / "README.md").read_text(encoding="utf-8")
    assert kept == methods_document(), REMEDY


@pytest.mark.slow
def test_the_readme_lists_the_methods_as_they_are():
    script = runpy.run_path(str(ROOT / "scripts" / "write_documents.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == script["readme_with_table"](readme), REMEDY


def test_the_readme_names_the_covered_families():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Models")[2].partition("\n## ")[0]
    listed = section.partition("`model_type`:")[2].partition("; of")[0]
    assert re.findall(r"`(\w+)`", listed) == list(FAMILIES)
    assert all(f"`{wrapper}`" in section for wrapper in WRAPPERS)


def test_every_method_file_says_where_it_differs():
    for file in (ROOT / "methods").glob("*.py"):
        if file.name != "__init__.py":
            assert "Differs from the paper:" in file.read_text(encoding="utf-8"), file.name


def test_the_readmes_own_method_keeps_what_is_said_of_it(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = readme.partition("```python\n# methods/strided.py\n")[2].partition("```")[0]
    (tmp_path / "strided_read.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    method = importlib.import_module("strided_read").Strided()
    prefill = naive.random_prefill(100)
    steps, others = list(range(0, 68, 4)), [at for at in range(68) if at % 4]
    for more in (0, 5, len(steps), 30):  # kept before the window of 32
        cache = method.compress(prefill, Budget(tokens=32 + more))
        kept = cache.layers[0].materialize()[0].positions[0].tolist()
        assert kept == sorted((steps + others)[:more]) + list(range(68, 100))


def test_the_readmes_own_method_runs_from_outside(tmp_path, monkeypatch):
    """The file and the YAML as printed, in another package, through --config-dir."""
    from kvbench.api import run_words
    from kvbench.records.reader import distinct, read_shards

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = readme.partition("```python\n# methods/strided.py\n")[2].partition("```")[0]
    settings = readme.partition("```yaml\n# conf/method/strided.yaml\n")[2].partition("```")[0]
    (tmp_path / "strided_outside.py").write_text(code, encoding="utf-8")
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "strided.yaml").write_text(
        settings.replace("kvbench.methods.strided", "strided_outside"), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run_words(
        [
            *("model=tiny-random", "model.device=cpu", "task=qasper", "method=strided", "limit=1"),
            *("budget=0.3", f"out={tmp_path / 'run'}", "allow_targets=true"),
            *("--config-dir", str(tmp_path)),
        ]
    )
    records = [r for _, r in distinct(read_shards(tmp_path / "run"))]
    assert [r.error for r in records] == [None, None]
    (own,) = (r for r in records if r.method == "strided")
    assert abs(own.ratio_bytes - 0.3) < 0.01
