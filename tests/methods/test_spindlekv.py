"""The embedded model on the sample suite: what the product promises of its own first command."""

from __future__ import annotations

import pytest
import torch

from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.data.source import open_source
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture
from kvbench.prefill.state import Prefill
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.prompt import PromptRules, render

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
        cache = fit_budget(SpindleKV(), prefill, Budget(fraction=r))
        assert cache.facts["saturated"] is False
        measured.append(ledger(prefill, cache).ratio_bytes)
    assert sum(measured) / len(measured) == pytest.approx(r, abs=0.01)


def test_shallow_layers_share_more_than_deep_ones(prefills):
    cache = SpindleKV(heads="kv").compress(prefills[0], Budget(fraction=1.0))
    found = ledger(prefills[0], cache)
    assert found.r2[0] < 0.6
    assert found.r2[0] < found.r2[15] - 0.2
