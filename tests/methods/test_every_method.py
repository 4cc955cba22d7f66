"""Invariants of every method: each YAML in conf/method is found here and tested as it stands."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import or_
from statistics import fmean

import pytest
import torch
import yaml

from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget, keep_whole
from kvbench.compress.method import Method
from kvbench.decode.greedy import Stop, decode
from kvbench.methods.fullkv import FullKV
from kvbench.methods.pyramidkv import PyramidKV
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.methods.streamingllm import StreamingLLM
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from support import naive
from support.methods import CHOICES, METHODS, composed
from support.paths import CONF


@pytest.fixture(params=CHOICES)
def choice(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def method(choice: str) -> Method:
    return METHODS[choice]


def _prefill(method, tokens, budget, **shape):
    """A random prefill as the method would be given it; deep where it prunes between layers."""
    if method.acts_after_prefill:
        return naive.random_prefill(tokens, **shape)
    prefill = naive.random_prefill(tokens, layers=24, **shape)
    return naive.pruned(prefill, method.pruning_schedule(tokens, 24, budget))


def where(holds: Callable[[Method], bool]) -> pytest.MarkDecorator:
    """Run a test on the choices whose method it is about; there must be some."""
    chosen = [c for c in CHOICES if holds(METHODS[c])]
    assert chosen
    return pytest.mark.parametrize("choice", chosen)


def _rotates_anew(method: Method) -> bool:
    return getattr(method, "positions", "original") == "cache"


def _stores_plain_rows(method: Method) -> bool:
    """Whether vectors are held as they were: no codebook entries, no quantized numbers."""
    budget = Budget(fraction=0.3)
    parts = fit_budget(method, _prefill(method, 60, budget), budget).layers[0].bytes_by_part
    return set(parts) <= {"rows", "indices", "positions", "scores"}


compresses = where(lambda m: not isinstance(m, FullKV))


def _positions(cache):
    return [[list(p) for b in s.materialize() for p in b.positions.tolist()] for s in cache.layers]


def test_the_yaml_states_every_field_and_the_dataclass_default(choice, method):
    node = yaml.safe_load((CONF / "method" / f"{choice}.yaml").read_text(encoding="utf-8"))
    preset = "_target_" not in node
    stated = {k: v for k, v in node.items() if k not in ("_target_", "defaults")}
    defaults = vars(type(method)())
    if preset:
        assert stated.keys() <= defaults.keys()
        head = (CONF / "method" / f"{choice}.yaml").read_text(encoding="utf-8").splitlines()[0]
        assert head.startswith("# "), "a preset names its source in its first line"
    else:
        wrapped = {k: v for k, v in defaults.items() if isinstance(v, Method)}
        assert stated == {k: v for k, v in defaults.items() if k not in wrapped}
        assert {k: getattr(method, k) for k in wrapped} == wrapped
        assert type(method).__name__.lower() == choice.replace("_", "")


@compresses
@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
@pytest.mark.parametrize("value", [0.05, 0.2, 0.5, 0.9, 1, 40, 300])
def test_what_is_kept_stays_within_the_budget(method, tokens, value):
    budget = Budget.parse(value)
    prefill = _prefill(method, tokens, budget)
    cache = fit_budget(method, prefill, budget)
    found = ledger(prefill, cache)
    if cache.facts.get("floor"):
        # The first layer is never pruned and alone exceeds the budget: the rest keep one token.
        assert sum(found.kept_tokens) == tokens + len(prefill.layers) - 1
    elif cache.facts.get("over_budget"):
        # Nothing is evicted, and even the fewest bits take more: the record says so.
        assert found.kept_ratio == 1.0
    elif budget.keeps_whole(tokens):
        assert found.ratio_bytes == 1.0
    elif budget.tokens is not None and found.kept_ratio == 1.0:
        # Where nothing is evicted, tokens stand for the bytes of as many.
        assert found.ratio_bytes <= budget.tokens / tokens
    elif budget.tokens is not None:
        # Released schedules round up, or keep the observation window on top of the budget.
        on_top = 32 if getattr(method, "suffix", "inside") == "outside" else 1
        assert fmean(found.kept_tokens) <= budget.tokens + on_top
    else:
        one_token = max(1.0, 0.05 * tokens) / tokens  # and the search's tolerance
        assert found.ratio_bytes <= budget.fraction + max(0.01, 2 * one_token)


def test_rows_are_ascending_unique_and_inside_the_prompt(method):
    for value in (0.1, 0.5):
        budget = Budget(fraction=value)
        for layer in _positions(fit_budget(method, _prefill(method, 120, budget), budget)):
            for head in layer:
                assert head == sorted(set(head))
                assert set(head) <= set(range(120))


# Codebooks and quantization change vectors, and cache positions rotate keys: tested on their own.
@where(lambda m: _stores_plain_rows(m) and not _rotates_anew(m))
def test_rows_hold_the_keys_and_values_of_their_positions(method):
    budget = Budget(fraction=0.3)
    prefill = _prefill(method, 120, budget)
    cache = fit_budget(method, prefill, budget)
    for layer, store in zip(prefill.layers, cache.layers, strict=True):
        fed = torch.arange(120) if layer.positions is None else layer.positions
        bands = store.materialize()
        heads = sum(len(b.k) for b in bands)
        head = 0
        for band in bands:
            for k, v, at in zip(band.k, band.v, band.positions.long(), strict=True):
                source = head // (heads // layer.kv_heads)
                place = torch.searchsorted(fed, at)
                assert torch.equal(fed[place], at)
                assert torch.equal(k, layer.k[source, place])
                assert torch.equal(v, layer.v[source, place])
                head += 1


@compresses
def test_evicted_rows_are_gone_from_memory(method):
    """Every tensor held is a copy of what it needs: no view keeps the whole capture alive."""
    budget = Budget(fraction=0.2)
    prefill = _prefill(method, 200, budget)
    cache = fit_budget(method, prefill, budget)
    # A prefill that pruned holds no other rows, so it may be shared.
    whole = prefill.layers if method.acts_after_prefill else ()
    captured = {s.untyped_storage().data_ptr() for x in whole for s in (x.k, x.v)}
    held = 0
    for store in cache.layers:
        for tensors in store.tensors().values():
            for tensor in tensors:
                assert tensor.untyped_storage().data_ptr() not in captured
                held += tensor.numel() * tensor.element_size()
    assert held == cache.nbytes
    assert held <= 0.21 * prefill.nbytes or cache.facts["over_budget"]


@where(lambda m: m.keeps_newest and not _rotates_anew(m))
def test_the_newest_tokens_survive_the_smallest_budget(method):
    prefill = _prefill(method, 200, Budget(tokens=1))
    for layer in _positions(fit_budget(method, prefill, Budget(tokens=1))):
        for head in layer:
            assert head[-1] == 199


@where(lambda m: getattr(m, "window", None) is not None)
def test_the_window_survives_wherever_it_fits(method):
    window = method.window
    prefill = naive.random_prefill(300)
    for layer in _positions(fit_budget(method, prefill, Budget(tokens=window + 20))):
        for head in layer:
            assert set(range(300 - window, 300)) <= set(head)


def test_same_inputs_same_rows_and_inputs_unchanged(method):
    prefill = _prefill(method, 120, Budget(fraction=0.3), distinct=30)
    before = copy.deepcopy([(s.k, s.v, s.q_win, s.k_pre) for s in prefill.layers])
    first = fit_budget(method, prefill, Budget(fraction=0.3))
    again = fit_budget(method, prefill, Budget(fraction=0.3))
    assert _positions(first) == _positions(again)
    for layer, (k, v, q, pre) in zip(prefill.layers, before, strict=True):
        assert torch.equal(layer.k, k)
        assert torch.equal(layer.v, v)
        assert torch.equal(layer.q_win, q)
        assert torch.equal(layer.k_pre, pre)


def _flattened(prefill, flat: Callable[[torch.Tensor], torch.Tensor]):
    """A prefill whose vectors are made alike; scores that the capture sums are tied."""
    layers = []
    for state in prefill.layers:
        changes = {name: flat(getattr(state, name)) for name in ("k", "v", "q_win")}
        changes["k_pre"] = None if state.k_pre is None else flat(state.k_pre)
        sums = state.column_sums
        changes["column_sums"] = None if sums is None else torch.ones_like(sums)
        level = torch.ones(state.query_heads, state.tokens)
        changes["last_block_sums"] = defaultdict(lambda level=level: level)
        tied = defaultdict(lambda like=state.k: torch.ones(like.shape[:2]))
        layers.append(replace(state, reconstructions=tied, **changes))
    return replace(prefill, layers=tuple(layers))


@pytest.mark.parametrize(
    "flat",
    [torch.zeros_like, lambda x: x[:, :1].expand_as(x).contiguous()],
    ids=["all-zero vectors", "identical tokens"],
)
@compresses
def test_vectors_that_are_all_alike_are_kept_within_the_budget_and_finite(method, flat):
    budget = Budget(fraction=0.3)
    prefill = _flattened(_prefill(method, 63, budget), flat)
    cache = fit_budget(method, prefill, budget)
    found = ledger(prefill, cache)
    assert found.ratio_bytes <= 0.3 + 0.05 or cache.facts.get("over_budget")
    for layer, store in zip(_positions(cache), cache.layers, strict=True):
        for head in layer:
            assert head == sorted(set(head))
            assert set(head) <= set(range(63))
        for band in store.materialize():
            assert band.k.isfinite().all() and band.v.isfinite().all()


def test_tied_scores_go_to_the_lower_position():
    prefill = naive.random_prefill(100)
    flat = [replace(s, q_win=torch.zeros_like(s.q_win)) for s in prefill.layers]
    cache = SnapKV(window=10).compress(
        type(prefill)(tuple(flat), prefill.last_logits), Budget(tokens=30)
    )
    assert _positions(cache)[0][0] == [*range(20), *range(90, 100)]


# T13
def test_streamingllm_by_hand():
    prefill = naive.random_prefill(20)
    kept = _positions(StreamingLLM().compress(prefill, Budget(tokens=12)))
    assert kept[0][0] == [0, 1, 2, 3, *range(12, 20)]
    prefill = naive.random_prefill(100)
    kept = _positions(StreamingLLM(recent=32).compress(prefill, Budget(tokens=64)))
    assert kept[0][0] == [*range(32), *range(68, 100)]


@pytest.mark.parametrize("positions", ["original", "cache"])
@pytest.mark.parametrize("tokens", [7, 100, 257])
def test_streamingllm_repeated_per_query_head_pays_for_the_copies(tokens, positions):
    prefill = naive.random_prefill(tokens)  # four query heads, two KV heads
    repeat = StreamingLLM(store="repeat", positions=positions)
    found = fit_budget(repeat, prefill, Budget(fraction=0.4))
    native = StreamingLLM(positions=positions).compress(prefill, Budget(fraction=0.2))
    assert found.nbytes == 2 * native.nbytes
    for ours, theirs in zip(found.layers, native.layers, strict=True):
        (a,), (b,) = ours.materialize(), theirs.materialize()
        for name in ("k", "v", "positions"):
            assert torch.equal(getattr(a, name), getattr(b, name).repeat_interleave(2, 0))
    asked = Budget(tokens=min(5, tokens))
    assert ledger(prefill, repeat.compress(prefill, asked)).kept_tokens[0] == asked.tokens


def test_the_baselines_of_spindlekvs_table_8_hold_as_many_tokens_at_a_budget():
    rows = yaml.safe_load((CONF / "experiment/spindlekv/table8.yaml").read_text("utf-8"))["rows"]
    prefill = naive.random_prefill(400)
    methods = [composed(*row) for row in rows if "method=spindlekv" not in row]
    found = [fit_budget(m, prefill, Budget(fraction=0.4)) for m in methods]
    assert len({fmean(ledger(prefill, cache).kept_tokens) for cache in found}) == 1


@pytest.mark.parametrize(
    ("choice", "task_type", "newest"),
    [
        ("streamingllm_windowkv", "localization", 16),
        ("streamingllm_windowkv", "aggregation", 32),
        ("streamingllm_windowkv_qwen2.5", "localization", 4),
        ("streamingllm_windowkv_qwen2.5", "aggregation", 16),
    ],
)
def test_streamingllm_keeps_windowkvs_alpha_newest_tokens(choice, task_type, newest):
    prefill = replace(naive.random_prefill(100), task_types={"oracle": task_type})
    kept = _positions(METHODS[choice].compress(prefill, Budget(tokens=64)))
    assert kept[0][0] == [*range(64 - newest), *range(100 - newest, 100)]
    assert METHODS[choice].needs.classifiers == {"oracle"}


def test_streamingllm_rotates_keys_to_their_place_in_the_cache():
    prefill = naive.random_prefill(20)
    layer = prefill.layers[0]
    cache = StreamingLLM(positions="cache").compress(prefill, Budget(tokens=12))
    (band,) = cache.layers[0].materialize()
    rows = torch.tensor([0, 1, 2, 3, *range(12, 20)])
    expected = layer.rotary.rotate(layer.k_pre[:, rows], torch.arange(12).expand(2, -1))
    torch.testing.assert_close(band.k, expected)
    assert cache.next_position == 12


# T14
def test_pyramidkv_with_beta_one_is_snapkv():
    prefill = naive.random_prefill(200)
    pyramid = PyramidKV(beta=1, window=8).compress(prefill, Budget(fraction=0.3))
    snap = SnapKV(window=8).compress(prefill, Budget(fraction=0.3))
    assert _positions(pyramid) == _positions(snap)


def test_pyramidkv_mean_is_the_budget_to_the_token():
    prefill = naive.random_prefill(400, layers=7)
    found = ledger(prefill, PyramidKV().compress(prefill, Budget(fraction=0.25)))
    assert sum(found.kept_tokens) == 7 * 100
    assert found.kept_tokens[0] > found.kept_tokens[-1]


def test_spindlekv_keeping_all_with_thresholds_near_one_is_fullkv_up_to_rounding():
    prefill = naive.random_prefill(90)
    method = SpindleKV(theta_key=0.999999, theta_value=0.999999, heads="kv")
    cache = method.compress(prefill, Budget(fraction=1.0))
    for layer, store in zip(prefill.layers, cache.layers, strict=True):
        (band,) = store.materialize()
        torch.testing.assert_close(band.k, layer.k, atol=1e-5, rtol=0)
        torch.testing.assert_close(band.v, layer.v, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("r", [0.15, 0.3, 0.6])
def test_spindlekv_lands_on_the_budget_in_bytes(scope, r):
    prefill = naive.random_prefill(600, distinct=300)
    found = ledger(prefill, fit_budget(SpindleKV(scope=scope), prefill, Budget(fraction=r)))
    assert found.ratio_bytes == pytest.approx(r, abs=0.005)


def test_spindlekv_says_saturated_where_the_codebook_saves_more_than_asked():
    prefill = naive.random_prefill(300, distinct=10, dim=64)
    cache = fit_budget(SpindleKV(heads="kv"), prefill, Budget(fraction=0.8))
    assert cache.facts["saturated"] is True
    assert cache.facts["nominal"] == 1.0
    assert cache.nbytes / prefill.nbytes < 0.8


def test_spindlekv_match_eviction_uses_the_budget_as_eviction_ratio():
    prefill = naive.random_prefill(332)
    cache = fit_budget(SpindleKV(match="eviction"), prefill, Budget(fraction=0.4))
    context = ledger(prefill, cache).kept_tokens
    assert sum(context) / 3 == pytest.approx(0.4 * 332, abs=1)
    assert "nominal" not in cache.facts


def test_spindlekv_without_eviction_meets_the_budget_through_the_thresholds():
    prefill = naive.random_prefill(400, distinct=350, dim=16)
    cache = fit_budget(SpindleKV(evict=False), prefill, Budget(fraction=0.5))
    found = ledger(prefill, cache)
    assert found.kept_ratio == 1.0
    assert found.ratio_bytes == pytest.approx(0.5, abs=0.01)
    assert cache.facts["theta_key"] < 0.98


@pytest.mark.parametrize("changed", [{}, {"heads": "kv"}, {"magnitude": False}, {"evict": False}])
@pytest.mark.parametrize("r", [0.2, 0.4])
def test_spindlekv_meets_formula15_as_printed_where_asked(changed, r):
    prefill = naive.random_prefill(400, distinct=200, dim=32)
    method = SpindleKV(match="formula15", **changed)
    cache = fit_budget(method, prefill, Budget(fraction=r))
    found = ledger(prefill, cache)
    assert cache.facts["saturated"] is False
    assert found.ratio_formula15_printed == pytest.approx(r, abs=0.005)
    assert found.ratio_bytes > found.ratio_formula15_printed, "it leaves out norms and positions"


@pytest.mark.parametrize("budget", [Budget(fraction=0.4), Budget(tokens=100)])
def test_spindlekv_without_eviction_uses_the_thresholds_as_given_where_asked(budget):
    prefill = naive.random_prefill(400, distinct=350, dim=16)
    cache = fit_budget(SpindleKV(evict=False, match="eviction"), prefill, budget)
    assert (cache.facts["theta_key"], cache.facts["theta_value"]) == (0.98, 0.95)
    assert ledger(prefill, cache).kept_ratio == 1.0


@pytest.mark.parametrize("match", ["bytes", "formula15"])
def test_spindlekv_without_eviction_meets_a_budget_in_tokens_as_their_share(match):
    prefill = naive.random_prefill(400, distinct=350, dim=16)
    method = SpindleKV(evict=False, match=match)
    cache = fit_budget(method, prefill, Budget(tokens=200))
    found = ledger(prefill, cache)
    share = found.ratio_bytes if match == "bytes" else found.ratio_formula15_printed
    assert share == pytest.approx(0.5, abs=0.005)
    assert cache.facts["evaluations"] > 1


def test_spindlekv_ablations_change_what_they_name():
    prefill = naive.random_prefill(300, distinct=100)
    budget = Budget(fraction=0.5)
    plain = SpindleKV().compress(prefill, budget)
    assert (
        SpindleKV(magnitude=False).compress(prefill, budget).layers[0].bytes_by_part["norms"]
        == 0
        < plain.layers[0].bytes_by_part["norms"]
    )
    assert SpindleKV(heads="kv").compress(prefill, budget).layers[0].heads == 2
    inside = SpindleKV(window_in_codebook=True).compress(prefill, budget)
    assert inside.layers[0].bytes_by_part["rows"] == 0


def test_union_storage_holds_each_shared_row_once():
    prefill = naive.random_prefill(200)
    budget = Budget(tokens=60)
    union = SnapKV(heads="query", window=8).compress(prefill, budget)
    repeat = SnapKV(heads="query", window=8, store="repeat").compress(prefill, budget)
    assert union.nbytes < repeat.nbytes
    for a, b in zip(union.layers, repeat.layers, strict=True):
        (x,), (y,) = a.materialize(), b.materialize()
        assert torch.equal(x.k, y.k)
        assert torch.equal(x.v, y.v)
        assert torch.equal(x.positions, y.positions)


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (SnapKV, "window", 0),
        (SnapKV, "kernel", 4),
        (SnapKV, "pool", "sum"),
        (SnapKV, "heads", "both"),
        (PyramidKV, "beta", 0.5),
        (SpindleKV, "theta_key", 1.0),
        (SpindleKV, "theta_value", float("nan")),
        (SpindleKV, "merge_every", -1),
        (SpindleKV, "match", "tokens"),
        (StreamingLLM, "sinks", -1),
        (StreamingLLM, "recent", 0),
        (StreamingLLM, "recent_localization", 0),
    ],
)
def test_a_field_out_of_range_is_refused_with_value_and_remedy(cls, field, value):
    from kvbench.base.errors import UserError

    with pytest.raises(UserError, match=rf"method\.{field}=.*{value}.*give") as caught:
        cls(**{field: value})
    assert "\n" not in str(caught.value)


def _decoded(model, prefill, caches, tokens, count=6):
    stop = Stop(frozenset(), count)
    return [
        g.ids for g in decode(model, list(caches), tokens, stop, first_logits=prefill.last_logits)
    ]


@pytest.fixture(scope="module")
def captured(tiny):
    ids = torch.randint(0, 200, (150,), generator=torch.Generator().manual_seed(7))
    every = reduce(or_, (m.needs for m in METHODS.values() if m.acts_after_prefill))
    return capture(tiny, ids, replace(every | Needs(window=64), classifiers=frozenset()))


@where(lambda m: m.acts_after_prefill)
def test_the_first_token_is_fullkvs(method, tiny, captured):
    full, other = _decoded(
        tiny,
        captured,
        [keep_whole(captured), fit_budget(method, captured, Budget(fraction=0.1))],
        150,
    )
    assert other[0] == full[0]


def test_budget_one_decodes_as_fullkv(method, tiny, captured):
    full, other = _decoded(
        tiny, captured, [keep_whole(captured), fit_budget(method, captured, Budget.parse(1.0))], 150
    )
    assert other == full


def test_more_tokens_than_the_prompt_has_decode_as_fullkv(method, tiny, captured):
    full, other = _decoded(
        tiny,
        captured,
        [keep_whole(captured), fit_budget(method, captured, Budget(tokens=151))],
        150,
    )
    assert other == full
