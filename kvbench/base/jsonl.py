"""Reads JSONL so that a bad line is named: file, line, field.

Lines end at LF only, and one CR before it is dropped. Text mode would do worse: universal newlines
change what is inside, and `str.splitlines` also splits at U+2028 and its like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kvbench.base.errors import UserError

LONGEST_LINE = 2**26
"""Bytes of a line beyond which it is foreign; LongBench's longest take some 500 KB."""


def objects_of_file(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a file's objects as `parse_objects` does.

    Raises:
        OSError: it cannot be read.
        UserError: as of `parse_objects`.
    """
    with path.open("rb") as file:
        yield from parse_objects(file, str(path))


def parse_objects(file: IO[bytes], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's JSON object with its place, such as `qasper.jsonl, line 3`.

    Empty lines are skipped, and a byte order mark at the start. No more than a line is held.

    Args:
        file: UTF-8.
        name: the file, as an error should name it.

    Raises:
        UserError: a line is too long, not UTF-8, not JSON, or not an object.
    """
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        place = f"{name}, line {number}"
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            raise UserError(f"{place}: more than {LONGEST_LINE} bytes: one JSON object a line")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield place, _object(line.removesuffix(b"\n").removesuffix(b"\r"), place)


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} is not UTF-8"
        raise UserError(f"{place}: {problem}: save it as UTF-8") from error
    except json.JSONDecodeError as error:
        problem = f"bad JSON at column {error.colno} ({error.msg})"
        raise UserError(f"{place}: {problem}: repair it") from error
    except ValueError as error:  # Python reads whole numbers of up to 4300 digits
        raise UserError(f"{place}: a number has too many digits: shorten it") from error
    except RecursionError as error:
        raise UserError(f"{place}: JSON nested too deep: one flat object a line") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise UserError(f"{place}: holds a {kind}: one JSON object a line is expected")
    return value


def field(record: dict[str, Any], key: str, place: str) -> Any:
    """Return `record[key]`.

    Raises:
        UserError: the record lacks the field.
    """
    if key not in record:
        raise UserError(f"{place}: field {key!r} is missing: add it")
    return record[key]


def text_field(record: dict[str, Any], key: str, place: str) -> str:
    """Return a field that must be text which UTF-8 can encode."""
    return _checked_text(field(record, key, place), key, place)


def answers_field(record: dict[str, Any], place: str) -> list[str]:
    """Return `answers`, which must be a list of at least one text."""
    answers = field(record, "answers", place)
    if not isinstance(answers, list):
        kind = type(answers).__name__
        raise UserError(f"{place}: field 'answers' is a {kind}: a list of texts is expected")
    if not answers:
        raise UserError(f"{place}: field 'answers' is empty: give at least one answer")
    for answer in answers:
        _checked_text(answer, "answers", place)
    return answers


def classes_field(record: dict[str, Any], place: str, required: bool) -> list[str] | None:
    """Return `all_classes`: a list of names, or None where no class names are required."""
    classes = field(record, "all_classes", place)
    if classes is None and not required:
        return None
    if not isinstance(classes, list) or (required and not classes):
        raise UserError(f"{place}: field 'all_classes' must be a list of class names")
    for name in classes:
        _checked_text(name, "all_classes", place)
    return classes


def length_field(record: dict[str, Any], place: str) -> int:
    """Return `length`, a whole number >= 0."""
    length = field(record, "length", place)
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise UserError(f"{place}: field 'length' is {length!r}: a whole number >= 0 is expected")
    return length


def _checked_text(value: Any, key: str, place: str) -> str:
    """Return `value` if it is text without lone surrogates, which no tokenizer can encode."""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise UserError(f"{place}: field {key!r} holds a {kind}: text is expected")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"half a surrogate pair at character {error.start + 1}"
        raise UserError(f"{place}: field {key!r} holds {problem}: remove it") from error
    return value
