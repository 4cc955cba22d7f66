"""Hydra's complaints about a command line, each in one line with its remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf

from kvbench.base.suggest import did_you_mean
from kvbench.config.catalog import choices
from kvbench.config.words import quoted, users_words


def one_line(error: HydraException, words: Sequence[str]) -> str:
    """Say in one line what was wrong with the words of a command.

    Args:
        error: what Hydra raised.
        words: the overrides and flags it was given.
    """
    if isinstance(error, OverrideParseException):
        problem = str(error).strip().splitlines()[0]
        name, equals, value = str(error.override).partition("=")
        if equals and problem.startswith("Lexer"):  # a character that Hydra's grammar lacks
            return f"{error.override} has to be quoted twice: give \"{name}={quoted(value)}\""
        return f"{error.override!r} is not an override such as budget=0.2: {problem}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = PurePosixPath(error.missing_cfg_file)
        if str(missing.parent) == ".":
            if f"{missing.name}=" in words:
                return f"{missing.name}= names nothing: give {missing.name}=NAME, or leave it out"
            return f"config file {missing.name!r} does not exist"
        group, *folders = missing.parent.parts
        name = "/".join([*folders, missing.name])
        shipped = [c.name for c in choices(group)] if "@" not in group else []
        beside = ["/".join([*folders, option]) for option in error.options or ()]
        remedy = did_you_mean(name, {*shipped, *beside})
        return f"{group}={name} is unknown: {remedy}"
    there = re.search(r"An item is already at '([^']+)'", str(error))
    if there:
        return f"+{users_words(there[1])} is there already: write it without the +"
    several = re.search(r"Ambiguous value for argument '(.+)'\s*1\.", str(error))
    if several:
        return (
            f"{users_words(several[1])} gives several values where one is wanted: give one, or a"
            " list in brackets; only kvbench run sweeps, with hydra.mode=MULTIRUN"
        )
    field = re.search(
        r"Could not (?:override|append|delete|delete from config) '([^']+)'", str(error)
    )
    if field and field[1].startswith("method@"):
        return f"{users_words(field[1])} is unknown: the chosen method takes no other there"
    if field and "+" + field[1] not in [w.split("=")[0] for w in words]:
        known = _settable(field[1], words)
        if field[1] in known:
            return f"{field[1]} is not a field of all that is swept: run what has it by itself"
        return f"{field[1]} is unknown: {did_you_mean(field[1], known)}"
    cause = error.__cause__ if type(error) is HydraException and error.__cause__ else error
    return users_words(" ".join(str(cause).split()))


def _settable(name: str, words: Sequence[str]) -> list[str]:
    """Keys beside `name` that the command could have set: same depth, same parent if there is."""
    group = r"\+?(model|task|method(@[\w.]+)?|protocol|experiment)=[^,]*$"
    chosen = [w for w in words if re.match(group, w)]
    parent, _, _ = name.rpartition(".")
    try:
        config = OmegaConf.to_container(_composed(chosen))
    except HydraException:
        return []
    assert isinstance(config, Mapping)
    node: object = config
    for part in parent.split(".") if parent else []:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        parent, node = "", config
    keys = [str(k) for k in node if not str(k).startswith("_")]
    return [f"{parent}.{k}" if parent else k for k in keys]


def _composed(words: Sequence[str]) -> object:
    if GlobalHydra.instance().is_initialized():
        return hydra.compose("config", list(words))
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        return hydra.compose("config", list(words))
