"""The document on all methods, generated from their files: what each keeps, where it differs.

Reads modules, docstrings and YAML; knows no method by name.
"""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import fields
from typing import Any

from kvbench.config.catalog import Choice, choices, field_sources

_HEAD = """# Methods

Generated from the method files by `python scripts/write_documents.py`; do not edit.
Each method is one file here and one YAML of the same name in `conf/method/`. A preset is a YAML
that sets another project's values under a name of its own.
"""


def methods_document() -> str:
    """Return the document as Markdown: every method, then every preset."""
    methods, presets = _split()
    parts = [_HEAD, *(_section(choice) for choice in methods), "## Presets\n", _presets(presets)]
    return "\n".join(parts)


def methods_table() -> str:
    """Return the short table of methods as Markdown: name, what it keeps, paper, presets."""
    methods, presets = _split()
    lines = ["| method | keeps | paper | presets |", "|---|---|---|---|"]
    for choice in methods:
        cls = _class(choice)
        named = [p.name for p in presets if _root(p) == choice.name]
        cells = [f"`{choice.name}`", choice.about.rstrip("."), _paper(cls), ", ".join(named)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _split() -> tuple[list[Choice], list[Choice]]:
    found = choices("method")
    return (
        [c for c in found if "_target_" in c.config],
        [c for c in found if "_target_" not in c.config],
    )


def _class(choice: Choice) -> Any:
    module, _, name = str(choice.config["_target_"]).rpartition(".")
    return getattr(importlib.import_module(module), name)


def _root(preset: Choice) -> str:
    """The method whose values a preset changes: the first plain name of its defaults."""
    first = next(d for d in preset.config["defaults"] if isinstance(d, str) and d != "_self_")
    parent = next(c for c in choices("method") if c.name == first)
    return parent.name if "_target_" in parent.config else _root(parent)


def _paper(cls: Any) -> str:
    """Title of the paper, from the line of the module's docstring that begins with `Paper:`."""
    text = " ".join((inspect.getmodule(cls).__doc__ or "").split())
    _, found, rest = text.partition("Paper: ")
    return rest.partition("),")[0] + ")" if found and ")," in rest else ""


def _section(choice: Choice) -> str:
    cls = _class(choice)
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    sources = field_sources(cls)
    values = {**choice.config, **_bases(choice)}
    rows = [
        f"| `{f.name}` | {_shown(values.get(f.name, f.default))} | {sources.get(f.name, '')} |"
        for f in fields(cls)
    ]
    table = ["| field | default | source |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {choice.name}\n", module, "", *table])


def _bases(choice: Choice) -> dict[str, str]:
    """Field -> method that a wrapper takes by default: `/method@base: snapkv` in its defaults."""
    nested = [d for d in choice.config.get("defaults", []) if isinstance(d, dict)]
    return {k.partition("@")[2]: v for d in nested for k, v in d.items()}


def _presets(presets: list[Choice]) -> str:
    lines = []
    for preset in presets:
        changed = {k: v for k, v in preset.config.items() if k != "defaults"}
        values = ", ".join(f"`{k}={_shown(v)}`" for k, v in changed.items())
        lines.append(f"- `{preset.name}`: {preset.about} Sets {values or 'nothing more'}.")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "..."
    if isinstance(value, str) and value.split() != value.split(" "):
        return json.dumps(value)  # line ends and outer spaces would be lost in a table
    return str(value)
