"""The shipped models' specs."""

from __future__ import annotations

from typing import Any

import yaml

from kvbench.model.spec import ModelSpec
from support.paths import CONF


def shipped_spec(name: str, **changes: Any) -> ModelSpec:
    """The spec of conf/model/<name>.yaml, with changes."""
    settings = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    return ModelSpec(**{**settings, **changes})
