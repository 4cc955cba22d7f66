"""What Hydra makes of a variant's words; variants that differ in the budget are composed once.

Composing takes Hydra some 60 ms, and a budget is a plain value that can be put in afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from kvbench.config.objects import check_node


@dataclass(frozen=True)
class Composition:
    """The part of a configuration that makes a variant, as plain values."""

    method: Mapping[str, Any]
    """The node of the method, nested methods with their `_target_`."""
    budget: object
    choices: Mapping[str, str | None]
    """Hydra's choice in each config group."""


_known: WeakKeyDictionary[Any, dict[tuple[str, ...], DictConfig]] = WeakKeyDictionary()
"""Per Hydra instance, which has its own search path: words without the budget -> configuration."""

_keys: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def composed(words: Sequence[str]) -> Composition:
    """Compose the configuration of these words, with Hydra initialized.

    Args:
        words: overrides as Hydra spells them; of several budgets the last one counts.

    Raises:
        HydraException: a word is wrong.
    """
    known = _known.setdefault(GlobalHydra.instance().hydra, {})
    budgets = [word for word in words if word.startswith("budget=")]
    others = tuple(word for word in words if word not in budgets)
    if others not in known:
        known[others] = hydra.compose("config", list(others), return_hydra_config=True)
    config = known[others]
    preset = config.budget
    if budgets:
        config.budget = OverridesParser.create().parse_override(budgets[-1]).value()
    method = config.method
    if OmegaConf.is_config(method):
        method = OmegaConf.to_container(method, resolve=True)
    check_node("method", method)
    assert isinstance(method, dict)
    found = Composition(
        {str(name): value for name, value in method.items()},
        config.budget,
        dict(config.hydra.runtime.choices),
    )
    config.budget = preset
    return found


def known_keys() -> frozenset[str]:
    """The keys of `conf/config.yaml` and of what Hydra adds to them, with Hydra initialized."""
    instance = GlobalHydra.instance().hydra
    if instance not in _keys:
        _keys[instance] = frozenset(str(key) for key in hydra.compose("config"))
    return _keys[instance]
