"""SpindleKV: the hand vector T2, and what the product promises of its own first command."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.data.source import open_source
from kvbench.methods import spindlekv
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture
from kvbench.prefill.state import Prefill
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.prompt import PromptRules, render
from support import naive


# T2: l = 6, l_w = 2; window sums for a = 0..3 are .4, .2, .2, .3.
def test_spindlekv_scores_by_the_window_and_as_printed(monkeypatch):
    sums = torch.tensor([0.4, 0.2, 0.2, 0.3])
    attention = torch.zeros(1, 2, 6)
    attention[0, :, :4] = sums / 2
    monkeypatch.setattr(spindlekv, "window_attention", lambda layer, window: attention)
    layer = naive.random_prefill(6, layers=1, query_heads=1, kv_heads=1).layers[0]

    def order(score: str) -> list[int]:
        method = SpindleKV(window=2, score=score)
        kept = [set(method.rows_to_keep(layer, 2, n)[0].tolist()) for n in range(5)]
        return [(kept[n + 1] - kept[n]).pop() for n in range(4)]

    assert order("window") == [0, 3, 1, 2]
    assert order("literal") == [3, 0, 2, 1]
    assert (sums / torch.tensor([6, 5, 4, 3])).tolist() == pytest.approx(
        [0.0667, 0.04, 0.05, 0.10], abs=1e-4
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("r", [0.15, 0.3, 0.45, 0.6])
def test_spindlekv_lands_on_the_budget_in_bytes(prefills, r):
    measured = []
    for prefill in prefills:
        cache = fit_budget(SpindleKV(), prefill, Budget(fraction=r))
        assert cache.facts["saturated"] is False
        measured.append(ledger(prefill, cache).ratio_bytes)
    assert sum(measured) / len(measured) == pytest.approx(r, abs=0.01)


@pytest.mark.slow
def test_shallow_layers_share_more_than_deep_ones(prefills):
    cache = SpindleKV(heads="kv").compress(prefills[0], Budget(fraction=1.0))
    found = ledger(prefills[0], cache)
    assert found.r2[0] < 0.6
    assert found.r2[0] < found.r2[15] - 0.2


@pytest.mark.parametrize("changed", [{}, {"scope": "layer"}, {"heads": "kv"}, {"evict": False}])
@pytest.mark.parametrize("order", [(0.3, 0.5, 0.7), (0.7, 0.3, 0.5), (0.5, 0.7, 0.3)])
def test_a_budget_gets_the_same_cache_whatever_budgets_came_before(changed, order):
    method = SpindleKV(window=8, **changed)
    swept = naive.random_prefill(257, distinct=40)
    for fraction in order:
        fresh = naive.random_prefill(257, distinct=40)
        once, again = (fit_budget(method, p, Budget(fraction=fraction)) for p in (fresh, swept))
        assert once.facts == again.facts
        for alone, after in zip(once.layers, again.layers, strict=True):
            for name, tensors in alone.tensors().items():
                assert all(map(torch.equal, tensors, after.tensors()[name])), name
    assert all(layer.memo for layer in swept.layers) or changed == {"evict": False}


def test_what_is_remembered_of_a_layer_goes_with_it_and_not_with_its_changed_copies():
    prefill = naive.random_prefill(100)
    SpindleKV(window=8).compress(prefill, Budget(fraction=0.4))
    assert prefill.layers[0].memo
    assert not replace(prefill.layers[0], v=-prefill.layers[0].v).memo
