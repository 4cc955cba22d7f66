"""KVzip: its passes against attention recomputed by hand, and what each level keeps."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.methods.kvzip import KVzip, best_pairs
from kvbench.model.loading import LoadedModel
from kvbench.model.random import byte_tokenizer
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs, Reconstruction
from kvbench.prefill.reconstruction import (
    Around,
    chunks,
    passes_of,
    reconstruction_scores,
    template_around,
)
from support import naive
from support.cases import slow_unless
from support.families import FAMILY_SETTINGS, window_of

PROMPT = torch.randint(3, 90, (80,), generator=torch.Generator().manual_seed(5))
SETTINGS = Reconstruction(30, "Repeat:", "Repeat_from:", 8, None)
AROUND = Around(prefix_tokens=5, closing="!")  # letters of the families' small vocabulary only


def _kept(cache):
    return [[p.tolist() for b in s.materialize() for p in b.positions] for s in cache.layers]


# T11
def test_exactly_the_floor_of_the_budget_is_kept():
    rising = torch.arange(10).div(10).view(1, 1, 10)
    assert best_pairs(rising, 3, "pair")[0, 0].nonzero()[:, 0].tolist() == [7, 8, 9]
    tied = torch.tensor([1.0] * 3 + [0.5] * 7).view(1, 1, 10)
    assert best_pairs(tied, 3, "pair")[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2]
    heads = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]).view(5, 1, 1).repeat(1, 1, 100)
    assert best_pairs(heads, 60, "head").sum((1, 2)).tolist() == [100, 100, 100, 0, 0]
    assert best_pairs(torch.rand(4, 2, 10), 3.5, "uniform").sum(-1).unique().tolist() == [3]
    assert best_pairs(torch.rand(4, 2, 10), 3.5, "layer").sum((1, 2)).unique().tolist() == [7]
    assert int(best_pairs(torch.rand(4, 2, 10), 3.5, "pair").sum()) == 28


@pytest.mark.parametrize("level", ["pair", "head", "layer", "uniform"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (5, 3, 63), (2, 1, 257)], ids=str)
def test_the_best_pairs_are_the_first_of_a_stable_sort(level, shape):
    layers, heads, tokens = shape
    rng = torch.Generator().manual_seed(tokens)
    rivals = {"pair": layers * heads, "head": layers * heads, "layer": heads, "uniform": 1}[level]
    for values in (2, 9, 10**6):  # few values are many ties
        scores = torch.randint(0, values, shape, generator=rng).float()
        scores[:, :, : tokens // 5] = torch.inf
        for mean in {0.5, 1.0, tokens / 10, tokens / 2, float(tokens)}:
            expected = torch.zeros(layers * heads, tokens, dtype=torch.bool)
            for first in range(0, layers * heads, rivals):
                of_group = scores.view(-1, tokens)[first : first + rivals]
                # Position by position, so that ties go to the lower one, then to the earlier head.
                ranked = sorted(
                    ((p, h) for p in range(tokens) for h in range(rivals)),
                    key=lambda at, of_group=of_group: -float(of_group[at[1], at[0]]),
                )
                for position, head in ranked[: int(mean * rivals)]:
                    expected[first + head, position] = True
            found = best_pairs(scores, mean, level).reshape(-1, tokens)
            assert torch.equal(found, expected)


def test_equal_scores_go_to_the_lower_position_in_every_head():
    kept = best_pairs(torch.zeros(2, 2, 10), 3, "pair")
    assert kept.nonzero()[:, 2].tolist() == [0, 1, 2] * 4


# T11
def test_chunks_by_hand():
    assert chunks(0, 4500, 2000) == [(0, 2000), (2000, 4000), (4000, 4500)]
    assert chunks(7, 4507, 2000) == [(7, 2007), (2007, 4007), (4007, 4507)]
    assert chunks(5, 5, 2000) == []


def test_what_is_fed_asks_for_the_chunk_and_then_gives_it():
    tokenizer = byte_tokenizer(512)
    text = "0123456789abcdefghijklmnopqrstuvwxyz"
    ids = [0, *tokenizer(text, add_special_tokens=False).input_ids]
    settings = Reconstruction(15, "\n\nRepeat.", "\n\nRepeat from ", 8, None)
    fed = list(passes_of(tokenizer, ids, Around(1, "[/user]"), settings))
    assert [place for place, _ in fed] == [(1, 16), (16, 31), (31, 37)]
    assert [tokenizer.decode(x) for _, x in fed] == [
        "\n\nRepeat.[/user]0123456789abcde",
        "\n\nRepeat from 789abcde[/user]fghijklmnopqrst",
        "\n\nRepeat from mnopqrst[/user]uvwxyz",
    ]


def test_the_template_is_found_at_the_start_of_the_prompt():
    tokenizer = byte_tokenizer(512)
    turn = [{"role": "user", "content": "Hello there"}]
    chat = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)

    def found(text, **special):
        return template_around(tokenizer, tokenizer(text, **special).input_ids)

    assert found(chat, add_special_tokens=False) == Around(8, "</s>[assistant] ")
    assert found("[INST] Hello there [/INST]") == Around(8, " [/INST]")
    assert found("Hello there") == Around(1, "\n")
    assert found("Hello there", add_special_tokens=False) == Around(0, "\n")
    # The template's last token may have merged with the text behind it.
    assert found("<s>[user]Hello there", add_special_tokens=False) == Around(7, "</s>[assistant] ")
    tokenizer.chat_template = None
    assert found(chat, add_special_tokens=False) == Around(1, "\n")


def by_hand(eager: Any, ids: list[int], fed: list[int], keys: list[int]) -> list[Tensor]:
    """Scores of `keys` from one stock forward over prompt and fed tokens: per layer [G, keys]."""
    seen: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
    n, t = len(ids) + len(fed), len(fed)

    def recording(module: Any, q: Tensor, k: Tensor, v: Tensor, _: object, **kw: Any) -> Any:
        seen.append((q[0], k[0], {**kw, "sliding_window": window_of(module, kw)}))
        at = torch.arange(n)
        visible = at[None, :] <= at[:, None]
        if (window := window_of(module, kw)) is not None:
            visible &= at[None, :] > at[:, None] - window
        mask = torch.zeros(1, 1, n, n).masked_fill(~visible, float("-inf"))
        stock = sys.modules[type(module).__module__].eager_attention_forward
        return stock(module, q, k, v, mask, **kw)

    AttentionInterface.register("eager_recording", recording)
    eager.set_attn_implementation("eager_recording")
    try:
        eager(torch.tensor([[*ids, *fed]]), use_cache=False)
    finally:
        eager.set_attn_implementation("eager")
    scores = []
    for q, k, kw in seen:
        group = q.shape[0] // k.shape[0]
        most = torch.zeros(k.shape[0], len(keys))
        for head in range(q.shape[0]):
            for query in range(n - t, n):
                logits = []
                for key in [*keys, *range(n - t, query + 1)]:
                    x = float(q[head, query].double() @ k[head // group, key].double())
                    x *= kw["scaling"]
                    if kw.get("softcap") is not None:
                        x = kw["softcap"] * math.tanh(x / kw["softcap"])
                    if kw.get("sliding_window") is not None and key <= query - kw["sliding_window"]:
                        x = -math.inf
                    logits.append(x)
                top = max(logits)
                weights = [math.exp(x - top) for x in logits]
                for i in range(len(keys)):
                    share = weights[i] / sum(weights)
                    most[head // group, i] = max(float(most[head // group, i]), share)
        scores.append(most)
    return scores


@pytest.mark.parametrize(
    "family",
    slow_unless(lambda f: f in ("llama", "gemma2", "qwen2_moe", "cohere2"), FAMILY_SETTINGS),
    indirect=True,
)
@pytest.mark.parametrize("sinks", [None, 2])
def test_the_scores_equal_attention_recomputed_by_hand(
    family: tuple[LoadedModel, Any], sinks: int | None
) -> None:
    model, eager = family
    settings = replace(SETTINGS, sinks=sinks)
    prefill = capture(model, PROMPT, Needs())
    found, _ = reconstruction_scores(model, PROMPT, prefill.layers, AROUND, settings)
    visible = [*range(5 if sinks is None else 2)]
    ids = PROMPT.tolist()
    fed = list(passes_of(model.tokenizer, ids, AROUND, settings))
    assert [place for place, _ in fed] == [(5, 35), (35, 65), (65, 80)]
    for scores in found:
        assert torch.equal(scores[:, :5], torch.zeros(2, 5))
    for (start, end), tokens in (fed[0], fed[2]):
        expected = by_hand(eager, ids, tokens, [*visible, *range(start, end)])
        for scores, most in zip(found, expected, strict=True):
            torch.testing.assert_close(
                scores[:, start:end], most[:, len(visible) :], atol=1e-5, rtol=1e-4
            )
    assert max(float(s.max()) for s in found) > 0.05


def test_the_passes_leave_the_prefill_as_it_was(tiny: LoadedModel) -> None:
    plain, scored = (capture(tiny, PROMPT, needs) for needs in (Needs(), KVzip().needs))
    assert torch.equal(plain.last_logits, scored.last_logits)
    for a, b in zip(plain.layers, scored.layers, strict=True):
        assert torch.equal(a.k, b.k)
        assert torch.equal(a.v, b.v)
        assert b.reconstructions.keys() == {KVzip().reconstruction}
        assert b.k.shape[1] == 80


def test_methods_with_equal_passes_share_them_and_others_have_their_own(tiny: LoadedModel) -> None:
    short = KVzip(chunk_tokens=20)
    needs = KVzip().needs | KVzip(level="uniform").needs | short.needs
    assert len(needs.reconstructions) == 2
    layer = capture(tiny, PROMPT, needs).layers[1]
    alone = capture(tiny, PROMPT, short.needs).layers[1]
    (key,) = short.needs.reconstructions
    assert torch.equal(layer.reconstructions[key], alone.reconstructions[key])
    assert not torch.equal(*layer.reconstructions.values())


@pytest.mark.parametrize("level", ["pair", "layer", "uniform", "head"])
@pytest.mark.parametrize("budget", [0.15, 0.3, 0.65])
def test_what_is_kept_is_the_budget_to_the_pair_and_the_rest_is_freed(level, budget):
    prefill = naive.random_prefill(200, layers=5, dim=16)
    cache = fit_budget(KVzip(level=level), prefill, Budget(fraction=budget))
    pairs = round(budget * 200) * 5 * 2
    assert cache.nbytes == pairs * 2 * 16 * 4
    found = ledger(prefill, cache)
    assert found.ratio_bytes == pytest.approx(budget)
    lengths = [[len(p) for p in layer] for layer in _kept(cache)]
    if level == "uniform":
        assert {n for layer in lengths for n in layer} == {round(budget * 200)}
    elif level == "layer":
        assert {sum(layer) for layer in lengths} == {2 * round(budget * 200)}
        assert len({n for layer in lengths for n in layer}) > 1
    elif level == "pair":
        assert len({sum(layer) for layer in lengths}) > 1
    else:
        partial = [n for layer in lengths for n in layer if n not in (0, 200)]
        assert len(partial) <= 1


def test_the_pairs_kept_are_those_with_the_highest_scores():
    prefill = naive.random_prefill(100, layers=3)
    scores = torch.stack([s.reconstructions[None] for s in prefill.layers])
    kept = _kept(KVzip().compress(prefill, Budget(fraction=0.4)))
    threshold = scores.flatten().sort(descending=True).values[239]
    for layer in range(3):
        for head in range(2):
            expected = (scores[layer, head] >= threshold).nonzero()[:, 0].tolist()
            assert kept[layer][head] == expected


@pytest.mark.parametrize("level", ["pair", "layer", "uniform", "head"])
def test_the_template_prefix_is_never_evicted_and_counts_in_the_budget(level):
    prefill = replace(naive.random_prefill(100), template_tokens=7)
    for value in (0.1, 0.5):
        cache = KVzip(level=level).compress(prefill, Budget(fraction=value))
        assert all(set(range(7)) <= set(head) for layer in _kept(cache) for head in layer)
        assert ledger(prefill, cache).ratio_bytes == pytest.approx(value)
    tight = KVzip(level=level).compress(prefill, Budget(tokens=3))
    assert _kept(tight) == [[[0, 1, 2]] * 2] * 3


def test_with_sinks_only_they_are_protected():
    prefill = replace(naive.random_prefill(100), template_tokens=7)
    for state in prefill.layers:
        state.reconstructions[None][:, :7] = 0  # never repeated
    cache = KVzip(sinks=4).compress(prefill, Budget(fraction=0.5))
    for layer in _kept(cache):
        for head in layer:
            assert head[:4] == [0, 1, 2, 3]
            assert not set(head) & {4, 5, 6}


def test_given_head_scores_need_no_passes():
    method = KVzip(level="head", head_scores=[[0.1, 0.9], [0.8, 0.2], [0.3, 0.4]])
    assert method.needs == Needs(template_prefix=True)
    prefill = naive.random_prefill(50)
    bare = replace(prefill, layers=tuple(replace(s, reconstructions={}) for s in prefill.layers))
    lengths = [[len(p) for p in x] for x in _kept(method.compress(bare, Budget(fraction=0.5)))]
    assert lengths == [[0, 50], [50, 0], [0, 50]]
    with pytest.raises(UserError, match=r"has \[2\] scores: give one per KV head of each of the 3"):
        KVzip(level="head", head_scores=[[1, 2]]).compress(bare, Budget(fraction=0.5))


def test_a_prompt_of_template_alone_is_kept_from_its_start(tiny: LoadedModel) -> None:
    ids = torch.tensor(tiny.tokenizer("<s>[user] ", add_special_tokens=False).input_ids)
    prefill = capture(tiny, ids, KVzip().needs)
    assert prefill.template_tokens == len(ids)
    cache = fit_budget(KVzip(), prefill, Budget(tokens=2))
    assert _kept(cache) == [[[0, 1]] * 2] * 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"level": "all"}, r"method\.level='all' is unknown: give pair or"),
        ({"chunk_tokens": 0}, r"method\.chunk_tokens=0 .*give"),
        ({"overlap_tokens": -1}, r"method\.overlap_tokens=-1 .*give"),
        ({"sinks": -1}, r"method\.sinks=-1 .*give"),
        ({"head_scores": [[1.0]]}, r"method\.level='pair' is unknown: give head"),
    ],
)
def test_a_field_out_of_range_is_refused_with_value_and_remedy(fields, said):
    with pytest.raises(UserError, match=said):
        KVzip(**fields)
