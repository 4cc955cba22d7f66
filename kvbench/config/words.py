"""The words of a command line as Hydra spells them.

A method that wraps another takes it from the same config group, in a package of its own:
`method/base=h2o` is Hydra's `method@method.base=h2o`. `needle.lengths=X`, `ruler.lengths=X` and
`haystack=X` are fields of the task, and choose it where no other is chosen. A path without a
model's name is a model of its own: `model.path=X` alone says `model=custom` too, not another path
for the default model. `launcher` is short for `hydra/launcher`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvbench.base.errors import UserError

_NESTED = re.compile(r"^(\+{0,2}|~)method/([\w/]+)(?==|$)")
_TASK_FIELD = re.compile(r"^\+{0,2}(?:(needle|ruler)\.(\w+)|haystack)(?==)")

_LAUNCHER = re.compile(r"^(\+{0,2})launcher([=.])")
_PIECES = re.compile(r"([\[\],])")
"""What parts the values of a word: commas of a sweep, brackets of a list."""

_JOINT = {"=": "/", ".": "."}  # a group is chosen as hydra/launcher=, its fields are below a dot


def hydra_words(words: Iterable[str]) -> list[str]:
    """Spell nested methods and task fields as Hydra does, and name the model of a lone path.

    Args:
        words: overrides such as `method/base=snapkv,h2o` or `budget=0.2`, and flags.
    """
    words = [_readable(word) for word in words]
    spelled = [_NESTED.sub(lambda m: f"{m[1]}{nested_group(m[2])}", word) for word in words]
    spelled = [
        _LAUNCHER.sub(lambda m: f"{m[1]}hydra{_JOINT[m[2]]}launcher{m[2]}", word)
        for word in spelled
    ]
    # Hydra first composes without swept choices: `++` where the default task has no such field.
    spelled = [_TASK_FIELD.sub(lambda m: f"++task.{m[2] or 'haystack'}", w) for w in spelled]
    named = any(word.startswith(("model=", "experiment=")) for word in spelled)
    lone_path = not named and any(word.startswith("model.path=") for word in spelled)
    return [*["model=custom"] * lone_path, *_task_of_fields(words), *spelled]


def refuse_repeats(words: Iterable[str]) -> None:
    """Refuse two values for one word, of which Hydra would silently take the last.

    Raises:
        UserError: naming both.
    """
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.lstrip("+").partition("=")
        if not equals or name.startswith("-"):
            continue
        before = given.setdefault(name, value)
        if before != value:
            raise UserError(
                f"{name}={before} and {name}={value} contradict each other: give one, or both with"
                f" a comma, {name}={before},{value}"
            )


def _readable(word: str) -> str:
    """Quote the values that Hydra's grammar cannot read bare: those with other than ASCII."""
    name, equals, value = word.partition("=")
    if word.isascii() or not equals or word.startswith("-") or set(value) & set("'\"{}()"):
        return word
    pieces = (
        piece if piece.isascii() else piece.replace(piece.strip(), quoted(piece.strip()))
        for piece in _PIECES.split(value)
    )
    return f"{name}={''.join(pieces)}"


def _task_of_fields(words: Sequence[str]) -> list[str]:
    """`task=needle` or `task=ruler`, where only fields of it are given."""
    suites = [match[1] or "needle" for match in map(_TASK_FIELD.match, words) if match]
    named = any(word.startswith(("task=", "experiment=")) for word in words)
    return [] if named else [f"task={suite}" for suite in suites[:1]]


def nested_group(path: str) -> str:
    """Hydra's name of the group that fills a field of the method: `base` or `base/base`."""
    return f"method@method.{path.replace('/', '.')}"


def users_words(text: str) -> str:
    """Hydra's spelling of a nested method inside a text, as the user writes it."""
    return re.sub(r"method@method\.([\w.]+)", lambda m: "method/" + m[1].replace(".", "/"), text)


def quoted(word: str) -> str:
    """A text as Hydra reads it back unchanged, whatever it holds."""
    # Hydra unescapes a quote after backslashes, and halves only the backslashes before a quote.
    parts = word.split("'")
    escaped = [p + "\\" * (len(p) - len(p.rstrip("\\"))) for p in parts]
    return "'" + "\\'".join(escaped) + "'"
