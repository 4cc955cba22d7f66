"""From plain configuration values to checked objects, complaining in the user's terms.

Knows nothing of what the objects are for.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean

_TARGETS = ("kvbench.methods.", "kvbench.tasks.")


def instantiated(node: Mapping[Any, Any], name: str, targets_allowed: bool) -> Any:
    """Build what a config node's `_target_` names.

    Args:
        node: plain values, with `_target_`s.
        name: the config key in complaints, such as `method`.
        targets_allowed: accept targets outside kvbench.

    Raises:
        UserError: a target, a field's name, type or value is wrong.
    """
    check_node(name, node)
    for target in _targets(node):
        if not targets_allowed and not _is_own(target):
            raise UserError(
                f"{name}._target_={target} is outside kvbench: add allow_targets=true to the"
                " command line to run it"
            )
    cls = _class_of(node, name)
    checked = _checked(cls, name, node)
    try:
        return instantiate(checked, _convert_="all")
    except InstantiationException as error:
        raise _unwrapped(error, name) from error


def _is_own(target: str) -> bool:
    """Whether a target names a class of kvbench's, by the module that defines it.

    The prefix alone would let through what a module of kvbench's imports, such as torch.
    """
    try:
        found = resolve_name(target) if target.startswith(_TARGETS) else None
    except (ImportError, AttributeError, ValueError):
        return True  # and runs nothing: it is refused as one that cannot be found
    return isinstance(found, type) and f"{found.__module__}.{found.__qualname__}" == target


def _class_of(node: Mapping[Any, Any], name: str) -> Any:
    target = str(node.get("_target_"))
    try:
        return resolve_name(target)
    except Exception as error:  # whatever a module of the user's own raises
        reason = " ".join(str(error).split())
        package = target.partition(".")[0]
        if Path(f"{package}.py").is_file() or Path(package).is_dir():
            reason += f"; {package} lies in this folder: set PYTHONPATH={Path.cwd()}"
        raise UserError(f"{name}._target_={target} cannot be found: {reason}") from error


def _checked(cls: Any, name: str, node: Mapping[Any, Any]) -> dict[str, Any]:
    """The node with its fields checked against the class that its `_target_` names."""
    values = {str(k): v for k, v in node.items() if k != "_target_"}
    typed = _typed(cls, name, values) if is_dataclass(cls) else values
    return {"_target_": node.get("_target_"), **typed}


def _unwrapped(error: BaseException, name: str) -> UserError:
    """The user's mistake inside Hydra's wrapping."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        innermost, cause = cause, cause.__cause__ or cause.__context__
    return UserError(f"{name}: {' '.join(str(innermost).split())}")


def _targets(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


_T = typing.TypeVar("_T")


def built(cls: type[_T], name: str, values: Mapping[str, Any]) -> _T:
    """Make a dataclass of a config node, its fields' names and types checked."""
    check_node(name, values)
    return cls(**_typed(cls, name, values))


def check_node(name: str, value: object) -> None:
    """Raise UserError unless a value is a node of fields."""
    if not isinstance(value, Mapping):
        raise UserError(f"{name}={value!r} is not a node of fields: choose one with {name}=NAME")


def _typed(cls: Any, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check names and types of a dataclass's fields; whole floats become ints where asked for."""
    hints = typing.get_type_hints(cls)
    known = [f.name for f in fields(cls) if f.init]
    typed = {}
    for key, value in values.items():
        if key not in known:
            raise UserError(f"{name}.{key} is unknown: {did_you_mean(key, known)}")
        typed[key] = _as_hinted(f"{name}.{key}", value, hints[key])
    return typed


def _as_hinted(name: str, value: Any, hint: Any) -> Any:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    simple = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if isinstance(value, Mapping) and "_target_" in value:
        return _as_nested(name, value, options)
    if not all(isinstance(o, type) for o in options):
        return value  # nested structures are their own class's business
    if (value is None and type(None) in options) or type(value) in options:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        if float in options:
            return float(value)
        if int in options and float(value).is_integer():
            return int(value)
    wanted = " or ".join(simple.get(o, "null" if o is type(None) else _noun(o)) for o in options)
    raise UserError(f"{name}={value!r} is not {wanted}")


def _as_nested(name: str, node: Mapping[Any, Any], options: tuple[Any, ...]) -> dict[str, Any]:
    """Check a nested object's fields, and that its class is one that the field takes."""
    cls = _class_of(node, name)
    classes = tuple(o for o in options if isinstance(o, type))
    if not (isinstance(cls, type) and issubclass(cls, classes)):
        wanted = " or ".join(_noun(c) for c in classes)
        raise UserError(f"{name}={node['_target_']} does not fit here: give {wanted}")
    return _checked(cls, name, node)


def _noun(cls: type) -> str:
    return f"a {cls.__name__}"


