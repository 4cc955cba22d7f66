"""kvbench evaluates KV cache compression methods on real models.

What is named here is the public surface; each name is imported when it is first used, so that
`import kvbench` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbench.base.version import __version__

_HOMES = {
    "evaluate": "kvbench.api",
    "load_model": "kvbench.api",
    "wrap": "kvbench.api",
    "load_run": "kvbench.report.run",
    "list_methods": "kvbench.config.catalog",
    "Run": "kvbench.report.run",
    "Model": "kvbench.api",
    "Method": "kvbench.compress.method",
    "ScoringMethod": "kvbench.compress.scoring",
    "Needs": "kvbench.prefill.needs",
    "Budget": "kvbench.compress.budget",
    "LayerState": "kvbench.prefill.state",
    "Prefill": "kvbench.prefill.state",
    "Record": "kvbench.records.record",
    "UserError": "kvbench.base.errors",
}
"""Public name -> the module that defines it."""

__all__ = [
    "Budget",
    "LayerState",
    "Method",
    "Model",
    "Needs",
    "Prefill",
    "Record",
    "Run",
    "ScoringMethod",
    "UserError",
    "__version__",
    "evaluate",
    "list_methods",
    "load_model",
    "load_run",
    "wrap",
]

if TYPE_CHECKING:
    from kvbench.api import Model, evaluate, load_model, wrap
    from kvbench.base.errors import UserError
    from kvbench.compress.budget import Budget
    from kvbench.compress.method import Method
    from kvbench.compress.scoring import ScoringMethod
    from kvbench.config.catalog import list_methods
    from kvbench.prefill.needs import Needs
    from kvbench.prefill.state import LayerState, Prefill
    from kvbench.records.record import Record
    from kvbench.report.run import Run, load_run


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvbench' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
