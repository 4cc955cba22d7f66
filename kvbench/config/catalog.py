"""What can be chosen in each config group, and where a default comes from.

Reads YAML and source text; listing imports no method.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True)
class Choice:
    """One file of a config group."""

    name: str
    """Its stem, as on the command line."""
    about: str
    """Its leading comment, else the first line of the class it names."""
    config: Mapping[str, Any]
    """The file's content, defaults lists not followed."""


def choices(group: str) -> list[Choice]:
    """Return the files of `conf/<group>`, by name; none where the group is empty.

    Those of a folder inside are named with it: `kvcrush/table2`.
    """
    return _choices(resources.files("kvbench.conf").joinpath(group))


def choices_of_folder(folder: Path, group: str) -> list[Choice]:
    """Return the files of a group in a folder of the user's own, as `choices` does.

    Raises:
        UserError: there is no such folder, or a file is not YAML.
    """
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder} is not a folder: give one that holds {group}/")
    try:
        return _choices(folder / group)
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config-dir {folder} cannot be read: {reason}") from error


def _choices(folder: Traversable) -> list[Choice]:
    if not folder.is_dir():
        return []
    found = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.is_dir():
            inside = _choices(file)
            found += [replace(c, name=f"{file.name}/{c.name}") for c in inside]
        elif file.name.endswith(".yaml"):
            text = file.read_text(encoding="utf-8")
            config = yaml.safe_load(text) or {}
            about = _leading_comment(text) or _class_line(str(config.get("_target_", "")))
            found.append(Choice(file.name.removesuffix(".yaml"), about, config))
    return found


def list_methods() -> list[Choice]:
    """Return the methods and presets that ship with kvbench, by name, each with what it does."""
    return choices("method")


def stated_methods() -> list[str]:
    """Return the methods' names without presets, which only change fields of another."""
    return [choice.name for choice in choices("method") if "_target_" in choice.config]


def named_experiment(words: Sequence[str]) -> Mapping[str, Any]:
    """Content of the preset that the words of a run name; empty where they name none."""
    names = [word.partition("=")[2] for word in words if word.startswith("experiment=")]
    return next((c.config for c in choices("experiment") if c.name in names[-1:]), {})


def check_choice(group: str, name: str) -> None:
    """Raise UserError, naming the nearest, unless `conf/<group>` holds the choice."""
    known = [c.name for c in choices(group)]
    if name not in known:
        raise UserError(f"{group}={name} is unknown: {did_you_mean(name, known)}")


def field_sources(cls: type) -> dict[str, str]:
    """Return each field's source: the comment on its line, or the string below it.

    The comments of a class's bases count too; the class itself wins.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == "builtins":
            continue
        try:
            text = inspect.cleandoc("\n" + inspect.getsource(base))
        except (OSError, TypeError):
            continue
        found |= dict(_sources_in(text))
    return found


def _sources_in(text: str) -> Iterator[tuple[str, str]]:
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(text).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, below in zip(body.body, [*body.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        comment = comments.get(statement.end_lineno or statement.lineno, "")
        yield statement.target.id, comment or _string(below)


def _string(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _leading_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def _class_line(target: str) -> str:
    """First docstring line of a class inside kvbench, read without importing it."""
    module, _, name = target.rpartition(".")
    try:
        spec = util.find_spec(module) if module.startswith("kvbench.") else None
    except ModuleNotFoundError:
        return ""
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
