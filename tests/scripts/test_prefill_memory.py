"""What a prefill takes at its peak is what the estimate says, for every need, at odd lengths."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch

from kvbench.model.loading import LoadedModel, ModelSpec, load
from kvbench.model.random import RandomShape
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.run.memory import prefill_bytes
from support.paths import ROOT


def _script() -> ModuleType:
    path = ROOT / "scripts" / "prefill_memory.py"
    spec = importlib.util.spec_from_file_location("prefill_memory", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    found: LoadedModel = SCRIPT.model_of(2, 8192, vocabulary=512)
    capture(found, torch.arange(64), Needs())
    return found


LONGER = [pytest.param(name, 2500, marks=pytest.mark.slow) for name in SCRIPT.NEEDS]


@pytest.mark.parametrize(("needs", "tokens"), [*((name, 700) for name in SCRIPT.NEEDS), *LONGER])
def test_the_estimate_is_within_5_percent_of_the_peak(
    model: LoadedModel, needs: str, tokens: int
) -> None:
    said = prefill_bytes(model, tokens, SCRIPT.NEEDS[needs]).total()
    assert SCRIPT.measured(model, tokens, SCRIPT.NEEDS[needs]) == pytest.approx(said, rel=0.05)


@pytest.mark.slow
def test_32768_tokens_stay_within_the_estimate() -> None:
    shape = RandomShape(2, 2, 1, 32, context=32768, intermediate=192)  # as wide, fewer heads
    model = load(ModelSpec("random", "random", device="cpu", random=shape))
    needs = Needs(32, pre_rope_keys=True, query_statistics=frozenset({4}))
    most = SCRIPT.measured(model, 32768, needs)
    assert 0.95 <= most / prefill_bytes(model, 32768, needs).total() <= 1.01
