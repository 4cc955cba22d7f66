"""What of a configuration may run: kvbench's own code, unless the command line itself consents.

Hydra builds launchers, sweepers, callbacks and log handlers from whatever a YAML names, and logging
imports what a handler's `class`, `()` or `ext://` names. A file in `--config-dir` is somebody
else's: it can neither name such code, nor set what the shell, other programs or other files depend
on, nor say `allow_targets=true` for its reader.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvbench.base.errors import UserError
from kvbench.config.hydra_private import intercepted_compositions

_WORD = re.compile(r"\+{0,2}allow_targets=true", re.IGNORECASE)

_BUILT = ("launcher", "sweeper", "callbacks", "hydra_logging", "job_logging")
"""What of the hydra node becomes objects."""

_SETTINGS = {
    "launcher.setup": "lines of shell that Slurm runs",
    "launcher.additional_parameters": "flags of sbatch, some of which name programs",
    "launcher.address": "Ray trusts the cluster it joins",
    "job.env_set": "PATH and its like say what programs run",
    "output_subdir": "files are overwritten there",
}
"""What of the hydra node is plain values and could do harm, and how; a user's own word may."""

_HARMLESS = {"launcher.address": ("auto", "local")}

_PLUGIN = re.compile(
    r"(hydra_plugins\.(kvbench|hydra_submitit_launcher)|hydra\._internal\.core_plugins)\.[\w.]+"
)
_LOG_CLASS = re.compile(r"logging\.(StreamHandler|NullHandler|Formatter)")  # none writes a file
_STREAM = re.compile(r"ext://sys\.std(out|err)")
_SWEPT_CONSENT = re.compile(r"[+~]*(allow_targets|hydra|launcher)\b")
_PACKAGE = re.compile(r"pkg://(?!(kvbench|hydra)\b)")


def consents(words: Sequence[str]) -> bool:
    """Whether the words of a command line allow code outside kvbench."""
    return any(_WORD.fullmatch(word) for word in words)


def checked_compositions() -> AbstractContextManager[None]:
    """Check every configuration that Hydra composes inside the block, before it builds from it."""
    return intercepted_compositions(_check_config, _check_searchpath)


def _check_config(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a configuration whose Hydra node is not what the words and kvbench make of it."""
    for plugin in ("launcher", "sweeper"):
        if not isinstance(config.hydra[plugin], DictConfig):
            raise UserError(f"hydra.{plugin}={config.hydra[plugin]} is not a node: leave it out")
    recorded = OmegaConf.to_container(config.hydra.overrides)
    assert isinstance(recorded, dict)
    if sorted(recorded["hydra"] + recorded["task"]) != sorted(overrides):
        raise UserError("hydra.overrides comes from a file: it is Hydra's record, leave it out")
    if not consents(overrides):
        check_hydra_node(config.hydra, overrides)


def _check_searchpath(primary: DictConfig | None, overrides: Sequence[Override]) -> None:
    """Refuse packages to look for configuration in, which looking there would import."""
    if consents([override.input_line or "" for override in overrides]):
        return
    found: list[object] = [
        override.value() for override in overrides if override.key_or_group == "hydra.searchpath"
    ]
    if primary is not None:
        found.append(OmegaConf.select(primary, "hydra.searchpath"))
    for paths in found:
        if paths is not None and _PACKAGE.search(str(paths)):
            raise UserError(
                f"hydra.searchpath={paths} imports a package that is outside kvbench: give a"
                " folder, or add allow_targets=true to the command line"
            )


def check_hydra_node(hydra: DictConfig, words: Sequence[str] = ()) -> None:
    """Refuse foreign code in Hydra's own node, and harmful settings that no word gives.

    Args:
        hydra: the node.
        words: of the command line.

    Raises:
        UserError: naming the key and its value.
    """
    for part in _BUILT:
        for path, value in _leaves(hydra, part, (part,)):
            if not _is_own(path, value):
                name = ".".join(("hydra", *path))
                raise UserError(
                    f"{name}={value} is outside kvbench: add allow_targets=true to the command"
                    " line to run it"
                )
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    for setting, harm in _SETTINGS.items():
        *nodes, last = setting.split(".")
        parent = functools.reduce(lambda node, name: node[name], nodes, hydra)
        if last not in parent:
            continue
        for path, value in _leaves(parent, last, ("hydra", *nodes, last)):
            name = ".".join(path)
            typed = any(f"{name}.".startswith(f"{key}.") for key in keys)
            if not typed and value is not None and value not in _HARMLESS.get(setting, ()):
                raise UserError(
                    f"{name}={value} comes from a file ({harm}): give it on the command line, or"
                    " add allow_targets=true there"
                )


def _is_own(path: tuple[str, ...], value: object) -> bool:
    """Whether a value of the hydra node runs nothing, or nothing but Hydra's and kvbench's code."""
    text = str(value)
    if path[:2] == ("sweeper", "params"):
        return _SWEPT_CONSENT.match("".join(path[2:3])) is None
    if path in (("launcher", "_target_"), ("sweeper", "_target_")):
        return _PLUGIN.fullmatch(text) is not None
    if path[-1] == "class":
        return _LOG_CLASS.fullmatch(text) is not None
    if path[-1] in ("_target_", "()"):
        return False
    if path[0] == "launcher" and "\n" in text:  # a line of its own in the script that Slurm runs
        return False
    return not text.startswith("ext://") or _STREAM.fullmatch(text) is not None


def _leaves(
    node: DictConfig | ListConfig, key: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the values below a key with their paths, interpolations resolved."""
    try:
        value = node[key]
    except OmegaConfBaseException:
        yield path, "(not resolved)"  # a value that only a job has, such as its folder
        return
    if isinstance(value, DictConfig):
        for inner in value:
            yield from _leaves(value, inner, (*path, str(inner)))
    elif isinstance(value, ListConfig):
        for index in range(len(value)):
            yield from _leaves(value, index, (*path, str(index)))
    else:
        yield path, value
