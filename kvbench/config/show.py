"""What `kvbench show` prints: every key with its meaning; a choice as it resolves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any, TypeGuard

import hydra
import yaml
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
from kvbench.tasks.needle import Needle
from kvbench.tasks.ruler import Ruler

_GROUPS = ("method", "model", "task", "protocol", "experiment")
_CLASSES: Mapping[str, type] = {"model": ModelSpec, "protocol": Protocol}
_PARTS: Mapping[str, type] = {**_CLASSES, "needle": Needle, "ruler": Ruler}
"""What has keys of its own beside those of `conf/config.yaml`."""


def shown(words: Sequence[str]) -> str:
    """Return the resolved fields of the first word's choice, one a line.

    Args:
        words: `group=choice`, then overrides such as `method.beta=0.1`; or a part of the
            configuration alone, such as `needle`; none: every key.

    Raises:
        UserError: the group, the choice or a field is unknown, or a value is refused.
    """
    parts = _documented_keys()
    if not words:
        choosable = [f"  {g}={name}" for g, name in _chosen().items()]
        heads = ["choices, of which kvbench show GROUP=NAME says more", *choosable]
        return "\n".join([*heads, *itertools.chain(*parts.values())]) + "\n"
    if len(words) == 1 and words[0] in parts:
        return "\n".join(parts[words[0]]) + "\n"
    group, equals, name = words[0].partition("=")
    if group not in _GROUPS or not equals:
        known = ", ".join(f"{g}=NAME" for g in _GROUPS)
        raise UserError(
            f"{words[0]!r} names no choice and no part: give one of {known}, {', '.join(parts)}"
        )
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


_LINE = re.compile(r"(?P<indent> *)(?P<key>\w+):(?: (?P<value>.*?))??(?:  # (?P<meaning>.*))?")


def _documented_keys() -> dict[str, list[str]]:
    """Part of the configuration -> a line for each of its keys, with its value and meaning."""
    parts = {"run": ["run"]}
    inside = ""
    text = _config_text()
    for line in text[text.index("\nbudget:") : text.index("\nhydra:")].splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        key, value, meaning = found["key"], found["value"], found["meaning"]
        if not found["indent"]:
            inside = "" if value else key
            if inside:
                parts[inside] = [f"{inside}  # {meaning}" if meaning else inside]
                continue
        name = f"{inside}.{key}" if inside else key
        parts[inside or "run"].append(_key_line(name, str(value), meaning))
    for part, cls in _PARTS.items():
        sources, node = field_sources(cls), _defaults(part)
        parts[part] = [part] + [
            _key_line(f"{part}.{f.name}", _shown(node.get(f.name, f.default)), sources.get(f.name))
            for f in fields(cls)
            if f.name in node or isinstance(f.default, _PLAIN)
        ]
    return parts


_PLAIN = (bool, int, float, str, tuple, type(None))


def _key_line(name: str, value: str, meaning: str | None) -> str:
    left = f"  {name}: {value}"
    return f"{left:<44}  # {meaning}" if meaning else left


def _config_text() -> str:
    return resources.files("kvbench.conf").joinpath("config.yaml").read_text(encoding="utf-8")


def _chosen() -> dict[str, str]:
    """Group -> what is chosen in it unless a word says otherwise."""
    defaults = yaml.safe_load(_config_text())["defaults"]
    return {
        g: _shown(d[g]) for d in defaults if isinstance(d, dict) for g in _GROUPS if g in d
    }


def _defaults(part: str) -> Mapping[str, Any]:
    """What the YAML chosen by default states of a part; nothing of a suite's."""
    name = _chosen().get(part)
    return next((c.config for c in choices(part) if c.name == name), {})


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
    return str(list(value) if isinstance(value, tuple) else value)
