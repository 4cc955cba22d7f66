"""What of a configuration may run: kvbench's own code, unless the command line itself consents.

Hydra builds launchers, sweepers, callbacks and log handlers from whatever a YAML names, and logging
imports what a handler's `class`, `()` or `ext://` names. A file in `--config-dir` is somebody
else's: it can neither name such code nor say `allow_targets=true` for its reader.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from kvbench.errors import UserError

_WORD = re.compile(r"\+{0,2}allow_targets=true", re.IGNORECASE)

_BUILT = ("launcher", "sweeper", "callbacks", "hydra_logging", "job_logging")
"""What of the hydra node becomes objects."""

_PLUGIN = re.compile(r"(hydra_plugins|hydra\._internal\.core_plugins)\.[\w.]+")
_LOG_CLASS = re.compile(r"logging\.(handlers\.)?[A-Z]\w*")
_STREAM = re.compile(r"ext://sys\.std(out|err)")


def consents(words: Sequence[str]) -> bool:
    """Whether the words of a command line allow code outside kvbench."""
    return any(_WORD.fullmatch(word) for word in words)


@contextmanager
def checked_compositions() -> Iterator[None]:
    """Check every configuration that Hydra composes inside the block, before it builds from it."""
    # Hydra has no hook between composing and building: callbacks and logging come first.
    load = ConfigLoaderImpl.load_configuration

    @functools.wraps(load)
    def checked(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        try:
            config = load(self, *args, **kwargs)
        except (TypeError, ValueError) as error:  # such as Hydra's of model=null
            raise UserError(" ".join(str(error).split())) from error
        for plugin in ("launcher", "sweeper"):
            if not isinstance(config.hydra[plugin], DictConfig):
                raise UserError(f"hydra.{plugin}={config.hydra[plugin]} is no node: leave it out")
        overrides = config.hydra.overrides
        if not consents([*overrides.task, *overrides.hydra]):
            check_hydra_node(config.hydra)
        return config

    ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]


def check_hydra_node(hydra: DictConfig) -> None:
    """Refuse foreign code in Hydra's own node.

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


def _is_own(path: tuple[str, ...], value: object) -> bool:
    """Whether a value of the hydra node runs nothing, or nothing but Hydra's and kvbench's code."""
    text = str(value)
    if path[:2] == ("sweeper", "params"):
        return "allow_targets" not in path[-1]
    if path in (("launcher", "_target_"), ("sweeper", "_target_")):
        return _PLUGIN.fullmatch(text) is not None
    if path[-1] == "class":
        return _LOG_CLASS.fullmatch(text) is not None
    if path[:2] == ("launcher", "setup"):  # lines of shell, run by Slurm
        return value is None
    if path[-1] in ("_target_", "()"):
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
