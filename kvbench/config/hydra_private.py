"""What kvbench uses of Hydra that Hydra does not document, in one place.

Hydra has no hook between composing a configuration and building its callbacks and logging, no way
to register a plugin without a package `hydra_plugins`, and a job's result prints before it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.plugin import Plugin
from omegaconf import DictConfig

from kvbench.base.errors import UserError

SEEN = ("1.3.2", "1.3.8")
"""The first and the last release of Hydra in which these names were seen."""

PACKAGE = "hydra_plugins.kvbench"
"""Where configurations name kvbench's plugins; there is no such package."""


def register_plugins(plugins: Iterable[type[Plugin]]) -> None:
    """Make classes known to Hydra as `hydra_plugins.kvbench.NAME`; safe to call again."""
    for plugin in plugins:
        Plugins.instance().class_name_to_class[f"{PACKAGE}.{plugin.__name__}"] = plugin


def failure_of(job: JobReturn) -> BaseException:
    """Return what a failed job raised; the public property would print a line first."""
    error = job._return_value
    assert isinstance(error, BaseException)
    return error


@contextmanager
def intercepted_compositions(
    check_config: Callable[[DictConfig, Sequence[str]], None],
    check_searchpath: Callable[[DictConfig | None, Sequence[Override]], None],
) -> Iterator[None]:
    """Look at every configuration that Hydra composes inside the block.

    Args:
        check_config: told each configuration, before anything is built from it, and its words.
        check_searchpath: told the primary configuration and the words, before the packages and
            folders of the search path are looked into.
    """
    load = ConfigLoaderImpl.load_configuration
    process_searchpath = ConfigLoaderImpl._process_config_searchpath

    @functools.wraps(load)
    def checked(
        self: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *args: Any, **kw: Any
    ) -> DictConfig:
        try:
            config = load(self, config_name, overrides, *args, **kw)
        except (TypeError, ValueError) as error:  # such as Hydra's of model=null
            raise UserError(" ".join(str(error).split())) from error
        check_config(config, overrides)
        return config

    @functools.wraps(process_searchpath)
    def checked_searchpath(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[Override],
        repo: CachingConfigRepository,
    ) -> None:
        primary = repo.load_config(config_name) if config_name is not None else None
        node = None if primary is None else primary.config
        check_searchpath(node if isinstance(node, DictConfig) else None, overrides)
        process_searchpath(self, config_name, overrides, repo)

    ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]
    ConfigLoaderImpl._process_config_searchpath = checked_searchpath  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]
        ConfigLoaderImpl._process_config_searchpath = process_searchpath  # type: ignore[method-assign]
