"""Generated documents say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

from kvbench.methods_document import methods_document

ROOT = Path(__file__).resolve().parent.parent
REMEDY = "run: python scripts/write_documents.py"


def test_the_document_of_methods_is_up_to_date():
    kept = (ROOT / "methods" / "README.md").read_text(encoding="utf-8")
    assert kept == methods_document(), REMEDY


def test_the_readme_lists_the_methods_as_they_are():
    script = runpy.run_path(str(ROOT / "scripts" / "write_documents.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == script["readme_with_table"](readme), REMEDY


def test_every_method_file_says_where_it_differs():
    for file in (ROOT / "methods").glob("*.py"):
        if file.name != "__init__.py":
            assert "Differs from the paper:" in file.read_text(encoding="utf-8"), file.name
