"""The embedded model on the sample suite: what the product promises of its own first command."""

from __future__ import annotations

import pytest
import torch

from kvbench.budget import Budget
from kvbench.capture import capture
from kvbench.fit import fit
from kvbench.ledger import ledger
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model import LoadedModel
from kvbench.prefill import Prefill
from kvbench.prompt import PromptRules, render
from kvbench.sources import open_source
from kvbench.tasks.longbench import LongBench

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prefills(smollm2: LoadedModel) -> list[Prefill]:
    """Two prompts of one task of the sample suite."""
    suite = LongBench(["hotpotqa"])
    (task,) = suite.tasks()
    found = []
    for sample in suite.samples(task, open_source("sample"), 2):
        prompt = render(sample, smollm2.tokenizer, PromptRules(), context_limit=8192)
        found.append(capture(smollm2, torch.tensor(prompt.ids), SpindleKV().needs))
    return found


@pytest.mark.parametrize("r", [0.15, 0.3, 0.45, 0.6])
def test_spindlekv_lands_on_the_budget_in_bytes(prefills, r):
    measured = []
    for prefill in prefills:
        cache = fit(SpindleKV(), prefill, Budget(fraction=r))
        assert cache.facts["saturated"] is False
        measured.append(ledger(prefill, cache).ratio_bytes)
    assert sum(measured) / len(measured) == pytest.approx(r, abs=0.01)


def test_shallow_layers_share_more_than_deep_ones(prefills):
    cache = SpindleKV(heads="kv").compress(prefills[0], Budget(fraction=1.0))
    found = ledger(prefills[0], cache)
    assert found.r2[0] < 0.6
    assert found.r2[0] < found.r2[15] - 0.2
