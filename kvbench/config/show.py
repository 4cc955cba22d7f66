"""What `kvbench show` prints: a choice as it resolves, where its fields' defaults come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard

import hydra
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import OmegaConf

from kvbench.base.errors import UserError
from kvbench.config.catalog import check_choice, choices, field_sources
from kvbench.config.hydra_errors import one_line
from kvbench.config.objects import instantiated
from kvbench.config.words import hydra_words
from kvbench.model.spec import ModelSpec
from kvbench.plan.protocol import Protocol

_GROUPS = ("method", "model", "task", "protocol", "experiment")
_CLASSES: Mapping[str, type] = {"model": ModelSpec, "protocol": Protocol}


def shown(words: Sequence[str]) -> str:
    """Return the resolved fields of the first word's choice, one a line.

    Args:
        words: `group=choice`, then overrides such as `method.beta=0.1`.

    Raises:
        UserError: the group, the choice or a field is unknown, or a value is refused.
    """
    group, equals, name = words[0].partition("=")
    if group not in _GROUPS or not equals:
        known = ", ".join(f"{g}=NAME" for g in _GROUPS)
        raise UserError(f"{words[0]!r} names no choice: give one of {known}")
    check_choice(group, name)
    node = _resolved(group, words)
    about = next(c.about for c in choices(group) if c.name == name)
    target = node.get("_target_")
    cls = _CLASSES.get(group)
    if target is not None:
        instantiated(node, group, targets_allowed=False)  # refuses what a run would refuse
        cls = get_object(str(target))
    lines = [f"{group}={name}" + (f"  ({target})" if target else ""), f"  {about}"]
    return "\n".join([*lines, *_field_lines(node, cls)]) + "\n"


def _resolved(group: str, words: Sequence[str]) -> dict[str, Any]:
    words = hydra_words(words)
    try:
        with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
            config = hydra.compose("config", list(words))
    except HydraException as error:
        raise UserError(one_line(error, words)) from error
    selected = config if group == "experiment" else config[group]
    node = OmegaConf.to_container(selected, resolve=True)
    assert isinstance(node, dict)
    return {str(k): v for k, v in node.items()}


def _field_lines(node: Mapping[str, Any], cls: type | None) -> list[str]:
    values = {k: v for k, v in node.items() if k != "_target_"}
    sources = field_sources(cls) if cls is not None else {}
    defaults = {f.name: f.default for f in fields(cls)} if is_dataclass(cls) else {}
    left = {
        name: f"{name}: {_shown(value)}" for name, value in values.items() if not _is_object(value)
    }
    width = min(40, max((len(text) for text in left.values()), default=0))
    lines = []
    for name, value in values.items():
        if _is_object(value):
            inner = get_object(str(value["_target_"]))
            lines += [f"  {name}: {value['_target_']}"]
            lines += ["  " + line for line in _field_lines(value, inner)]
            continue
        line = f"  {left[name]:<{width}}"
        if name in defaults and type(defaults[name]) in (bool, int, float, str, type(None)):
            line += f"  default {_shown(defaults[name])}" if defaults[name] != value else ""
        if sources.get(name):
            line += f"  # {sources[name]}"
        lines.append(line.rstrip())
    return lines


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and "_target_" in value


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
