"""Whether lines of a run folder hold what readers take for granted; the folder may be anybody's."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from kvbench.errors import UserError


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value has a field's type; a whole number is a float too."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is types.UnionType:
        return any(fits(value, option) for option in arguments)
    if origin is dict:
        return isinstance(value, dict) and all(fits(v, arguments[1]) for v in value.values())
    if origin is list:
        return isinstance(value, list) and all(fits(v, arguments[0]) for v in value)
    if hint is int:  # what a float can hold
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint is float:  # what a mean can be taken of
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) < sys.float_info.max / 2**32  # type: ignore[arg-type]
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


_HEADER: Mapping[str, Any] = {
    "run": str,
    "started": str,
    "suite": str,
    "versions": dict[str, Any],
    "git": dict[str, Any],
    "machine": dict[str, Any],
    "model": dict[str, Any],
    "protocol": dict[str, Any],
    "data": dict[str, Any],
    "config": dict[str, Any],
    "variants": list[dict[str, Any]],
    "tasks": list[dict[str, Any]],
}
_NAMED: Mapping[str, Any] = {"name": str}
_DATA: Mapping[str, Any] = {"setting": str, "description": str, "hashes": dict[str, Any]}
_VARIANT: Mapping[str, Any] = {"label": str, "method": str, "budget": str}
_TASK: Mapping[str, Any] = {
    "name": str,
    "group": str,
    "samples": int,
    "max_new_tokens": int,
    "one_token_answers": bool,
}
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\x7f.][^/\\\x00-\x1f\x7f]{0,199}")
_NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


def check_header(path: Path, header: Mapping[str, Any]) -> None:
    """Refuse a header that lacks what readers read, or has it wrong.

    Raises:
        UserError: naming the file and the entry.
    """
    nodes: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [(header, _HEADER)]
    if all(fits(header.get(name), hint) for name, hint in _HEADER.items()):
        nodes += [(header[name], _NAMED) for name in ("model", "protocol")]
        nodes += [(header["data"], _DATA)]
        nodes += [(variant, _VARIANT) for variant in header["variants"]]
        nodes += [(task, _TASK) for task in header["tasks"]]
    for node, hints in nodes:
        for name, hint in hints.items():
            if not fits(node.get(name), hint) or node[name] == []:
                raise _damaged(path, name, node.get(name))
    for task in header["tasks"]:
        if not _FILE_NAME.fullmatch(task["name"]):  # figures are files with the task's name
            raise _damaged(path, "name", task["name"])
    for variant in header["variants"]:
        if not _NUMBER.fullmatch(variant["budget"]):
            raise _damaged(path, "budget", variant["budget"])


def _damaged(path: Path, name: str, value: object) -> UserError:
    return UserError(f"{path} has a damaged header ({name} is {value!r:.80}): move the file away")
