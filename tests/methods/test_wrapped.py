"""Methods that wrap another: how the words compose, what labels and fingerprints say."""

from __future__ import annotations

from dataclasses import replace

import hydra
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from kvbench.api import run_words
from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.compress.method import Method
from kvbench.config.objects import instantiated
from kvbench.config.planning import plan_from_config
from kvbench.config.sweeper import folded_jobs
from kvbench.config.words import hydra_words
from kvbench.methods.adakv import AdaKV, blended_shares, free_shares
from kvbench.methods.h2o import H2O
from kvbench.methods.knorm import Knorm
from kvbench.methods.pyramidkv import PyramidKV
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from support import naive
from support.cli import one_line
from support.outside import LastRowsScored
from support.paths import CONF


def planned(*words: str) -> Plan:
    words = ("model=tiny-random", "task=qasper", "baseline=false", *hydra_words(words))
    config = hydra.compose("config", list(words))
    return plan_from_config(config, list(words))


def only_variant(*words: str) -> Variant:
    (variant,) = planned(*words).variants
    return variant


def test_a_nested_method_is_spelled_as_a_packaged_group():
    words = ["method/base=h2o,snapkv", "+method/base/base=h2o", "~method/evict", "method=a"]
    assert hydra_words(words) == [
        "method@method.base=h2o,snapkv",
        "+method@method.base.base=h2o",
        "~method@method.evict",
        "method=a",
    ]
    assert hydra_words(["data=/method/base=x", "method.base.window=8"]) == [
        "data=/method/base=x",
        "method.base.window=8",
    ]


@pytest.mark.slow
def test_every_method_yaml_that_scores_rows_can_be_a_base(composing):
    names = [p.stem for p in (CONF / "method").glob("*.yaml")]
    bases = {}
    for name in names:
        words = hydra_words(["method=adakv", f"method/base={name}"])
        node = OmegaConf.to_container(hydra.compose("config", words).method, resolve=True)
        alone = OmegaConf.to_container(hydra.compose("config", [f"method={name}"]).method)
        assert node["base"] == alone
        bases[name] = node["base"]
    assert {"snapkv", "snapkv_kvpress", "pyramidkv"} <= bases.keys()


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "h2o"])
def test_the_wrapper_composes_over_the_bases_that_its_paper_names(composing, name):
    for wrapper in ("adakv", "kvcrush"):
        method = only_variant(f"method={wrapper}", f"method/base={name}").method
        assert type(method.base).__name__.lower() == name


def test_words_reach_the_wrapped_method(composing):
    method = only_variant("method=adakv", "method/base=pyramidkv", "method.base.window=9").method
    assert method == AdaKV(base=PyramidKV(window=9))


def test_a_sweep_of_bases_folds_into_variants(composing):
    words = hydra_words(["method=adakv", "method/base=pyramidkv,snapkv", "limit=1"])
    (job,) = folded_jobs(OverridesParser.create().parse_overrides(words))
    labels = [v.label for v in planned(*job).variants]
    assert labels == ["adakv@0.2[base=pyramidkv]", "adakv@0.2"]


def test_labels_say_which_base_and_which_of_its_fields_changed(composing):
    assert only_variant("method=adakv").label == "adakv@0.2"
    label = only_variant(
        "method=adakv", "method/base=pyramidkv", "method.base.beta=5", "method.alpha=0.1"
    ).label
    assert label == "adakv@0.2[base=pyramidkv,base.beta=5,alpha=0.1]"
    assert only_variant("method=adakv_kvpress").label == "adakv_kvpress@0.2"


def test_the_record_key_follows_the_base(composing):
    words = [[], ["method/base=pyramidkv"], ["method.base.window=8"]]
    digests = {only_variant("method=adakv", *w).digest for w in words}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["method=adakv", "method/base=snapkx"], "snapkx is unknown: did you mean snapkv"),
        (["method=snapkv", "method/base=snapkv"], "method/base is unknown"),
        (["method=adakv", "method/base=fullkv"], "fullkv.FullKV does not fit here: give a Scor"),
        (["method=adakv", "method.base.windw=8"], "did you mean method.base.window"),
        (["method=adakv", "method.base.window=x"], "method.base.window='x' is not a whole number"),
        (["method=adakv", "method.base=3"], "method.base=3 is not a ScoringMethod"),
        (["method=adakv", "method.base.heads=query"], "give repeat"),
        (["method=spindlekv", "method/evict=adakv"], "does not fit here: give a bool or a Scor"),
    ],
)
def test_a_wrong_base_is_refused_in_one_line(words, told, tmp_path):
    with pytest.raises(UserError) as caught:
        run_words(["model=tiny-random", "task=qasper", f"out={tmp_path}", *words])
    assert told in one_line(caught)


def test_a_nested_target_outside_kvbench_needs_leave():
    node = {
        "_target_": "kvbench.methods.adakv.AdaKV",
        "base": {"_target_": "support.outside.LastRowsScored"},
    }
    with pytest.raises(UserError, match="outside kvbench"):
        instantiated(node, "method", targets_allowed=False)
    method = instantiated(node, "method", targets_allowed=True)
    assert isinstance(method.base, LastRowsScored)


def _lengths(cache) -> list[list[int]]:
    return [[b.k.shape[1] for b in s.materialize() for _ in b.k] for s in cache.layers]


def test_adakv_shares_rows_among_heads_by_score():
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.5, 0.1, 0.2, 0.3]])
    assert free_shares(scores, 2) == [4, 0]
    assert free_shares(scores, 2, least=1) == [3, 1]
    assert blended_shares(scores, 2, 0.5) == [3, 1]
    assert blended_shares(scores, 2, 1.0) == [2, 2]
    assert free_shares(torch.ones(2, 4), 2) == [2, 2]


@pytest.mark.parametrize("safeguard", ["blend", "minimum"])
def test_adakv_holds_the_budget_in_ragged_heads_and_frees_the_rest(safeguard):
    prefill = naive.random_prefill(200, kv_heads=4, query_heads=8)
    method = AdaKV(base=SnapKV(window=8), safeguard=safeguard)
    cache = method.compress(prefill, Budget(fraction=0.3))
    found = ledger(prefill, cache)
    assert found.ratio_bytes == 0.3
    assert any(len(set(lengths)) > 1 for lengths in _lengths(cache))


@pytest.mark.parametrize("safeguard", ["blend", "minimum"])
def test_adakv_keeps_a_row_of_every_head_at_least_as_kvpress_does(safeguard):
    prefill = naive.random_prefill(200, kv_heads=4, query_heads=8, layers=1)
    # Keys of the first two heads are far the shortest: key norm gives these all rows.
    scale = torch.tensor([0.01, 0.01, 1.0, 1.0])[:, None, None]
    layer = replace(prefill.layers[0], k=prefill.layers[0].k * scale)
    prefill = replace(prefill, layers=(layer,))
    method = AdaKV(base=Knorm(), alpha=0.05, safeguard=safeguard)
    ((*lengths,),) = _lengths(method.compress(prefill, Budget(tokens=6)))
    assert lengths[2:] == [1, 1] and sum(lengths) == 24
    ((*lengths,),) = _lengths(replace(method, alpha=0.0).compress(prefill, Budget(tokens=6)))
    assert lengths[2:] == [0, 0] and sum(lengths) == 24


def test_adakv_with_alpha_one_is_its_base():
    prefill = naive.random_prefill(200)
    for base in (SnapKV(), PyramidKV()):
        ours = AdaKV(base=base, alpha=1.0).compress(prefill, Budget(fraction=0.3))
        theirs = base.compress(prefill, Budget(fraction=0.3))
        for a, b in zip(ours.layers, theirs.layers, strict=True):
            kept = [p.tolist() for band in a.materialize() for p in band.positions]
            assert kept == b.materialize()[0].positions.tolist()


def test_adakv_selects_per_query_head_where_each_stores_its_own_rows():
    prefill = naive.random_prefill(200)
    method = AdaKV(base=SnapKV(heads="query", store="repeat", window=8))
    cache = method.compress(prefill, Budget(fraction=0.3))
    assert len(_lengths(cache)[0]) == 4
    assert ledger(prefill, cache).ratio_bytes == pytest.approx(0.3, abs=0.006)


def test_a_wrapper_is_a_method_of_its_own():
    assert isinstance(AdaKV(), Method)
    assert AdaKV(base=SnapKV(window=5)).needs == SnapKV(window=5).needs


def test_spindlekvs_codebooks_take_another_methods_rows(composing):
    variant = only_variant("method=spindlekv", "method/evict=snapkv", "method.evict.window=8")
    assert variant.label == "spindlekv@0.2[evict=snapkv,evict.window=8]"
    assert variant.method == SpindleKV(evict=SnapKV(window=8))
    assert only_variant("method=spindlekv", "method.evict=false").method == SpindleKV(evict=False)


@pytest.mark.parametrize(
    "evict", [SnapKV(window=8), PyramidKV(heads="query"), H2O(recent=5), H2O(recent=0)], ids=str
)
def test_the_codebooks_hold_exactly_the_rows_of_the_wrapped_eviction(evict):
    prefill = naive.random_prefill(200)
    budget = Budget(tokens=60)
    ours = SpindleKV(evict=evict).compress(prefill, budget)
    theirs = evict.compress(prefill, budget)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        (x,), (y,) = a.materialize(), b.materialize()
        assert x.positions.tolist() == y.positions.tolist()
    narrow = SpindleKV(evict=evict, theta_key=0.999999, theta_value=0.999999)
    for a, b in zip(narrow.compress(prefill, budget).layers, theirs.layers, strict=True):
        (x,), (y,) = a.materialize(), b.materialize()
        torch.testing.assert_close(x.k, y.k, atol=1e-5, rtol=0)
        torch.testing.assert_close(x.v, y.v, atol=1e-5, rtol=0)


def test_wrapped_codebooks_meet_the_budget_in_bytes():
    prefill = naive.random_prefill(400, distinct=200)
    for evict in (SnapKV(), PyramidKV(), H2O()):
        found = ledger(prefill, fit_budget(SpindleKV(evict=evict), prefill, Budget(fraction=0.4)))
        assert found.ratio_bytes == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("wrap", [lambda m: AdaKV(base=m), lambda m: SpindleKV(evict=m)])
def test_a_method_that_evicts_while_decoding_cannot_be_wrapped(wrap):
    with pytest.raises(UserError, match="during_decode=true does not reach through: give false"):
        wrap(H2O(during_decode=True))


def test_h2o_in_a_wrapper_splits_the_wrappers_budget():
    prefill = naive.random_prefill(200)
    cache = AdaKV(base=H2O(), alpha=1.0).compress(prefill, Budget(tokens=40))
    kept = [p.tolist() for band in cache.layers[0].materialize() for p in band.positions]
    assert all(set(range(180, 200)) <= set(head) and len(head) == 40 for head in kept)
