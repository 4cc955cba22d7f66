"""Write the generated documents: methods/README.md, and the table of methods in README.md."""

from __future__ import annotations

from pathlib import Path

from kvbench.config.methods_document import methods_document, methods_table

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- methods: generated -->\n", "<!-- end of methods -->\n"


def readme_with_table(text: str) -> str:
    """Return the README's text with its table of methods as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + methods_table() + END + after


if __name__ == "__main__":
    (ROOT / "methods" / "README.md").write_text(methods_document(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(readme_with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
