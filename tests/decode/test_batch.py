"""Eviction and merging while decoding equal a step-by-step model over explicit lists of rows.

The model over lists is `naive_decode`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.cache.store import Compressed
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.compress.method import Method
from kvbench.decode.batch import Batch
from kvbench.decode.greedy import Stop, decode
from kvbench.methods.h2o import H2O
from kvbench.methods.pyramidinfer import PyramidInfer
from kvbench.methods.spindlekv import SpindleKV
from kvbench.methods.streamingllm import StreamingLLM
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from support import naive
from support.cases import slow
from support.naive_decode import (
    GROUP,
    KV_HEADS,
    NaiveBlocks,
    NaiveBook,
    NaiveH2O,
    NaiveHead,
    NaiveStream,
    Row,
    lists_of_rows,
    naive_decode,
)

TOKENS = 60
PROMPT = torch.randint(3, 250, (TOKENS,), generator=torch.Generator().manual_seed(11))


def fast_decode(model: LoadedModel, cache: Compressed, feed, first_logits, steps):
    """Logits of every forward, and positions of all rows after each."""
    logits: list[Tensor] = []
    held: list[list[list[list[int]]]] = []
    hook = model.network.register_forward_hook(lambda _m, _a, out: logits.append(out.logits[0, -1]))

    finish = Batch.finish

    def watched(batch: Batch) -> dict[int, Exception]:
        failed = finish(batch)
        heads = model.geometry.query_heads
        held.append([[p.tolist() for p in layer] for layer in batch.positions(0, heads)])
        return failed

    try:
        Batch.finish = watched  # type: ignore[method-assign]
        count = steps if feed else steps + 1
        (written,) = decode(
            model,
            [cache],
            TOKENS,
            Stop(frozenset(), count),
            first_logits=None if feed else first_logits,
            feed=feed,
        )
    finally:
        Batch.finish = finish  # type: ignore[method-assign]
        hook.remove()
    return logits, held, written


@pytest.fixture(scope="module")
def prefill(tiny):
    return capture(tiny, PROMPT, Needs(window=16, pre_rope_keys=True, column_sums=True))


FEEDS = {"none": (), "one": (7,), "question": (11, 5, 42, 8, 23)}
# A question of one token lies between the others.
EACH_FEED = pytest.mark.parametrize(
    "feed", [slow(ids) if name == "one" else ids for name, ids in FEEDS.items()], ids=FEEDS
)
STEPS = 40


@EACH_FEED
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"heads": "query"},
        {"heads": "query", "store": "repeat"},
        {"recent": 3},
        {"recent": 0},
        {"normalize": "visible"},
    ],
    ids=str,
)
def test_h2o_evicts_at_each_step_as_a_naive_model_does(tiny, prefill, settings, feed):
    method = H2O(during_decode=True, **settings)
    budget = 20
    cache = method.compress(prefill, Budget(tokens=budget))
    window, context = method.context_rows(prefill, Budget(tokens=budget))[0]
    held, newest = window + context - 1, max(0, window - 1)
    visible = method.normalize == "visible"
    layers = [
        NaiveH2O(heads, held, newest, visible) for heads in lists_of_rows(prefill, cache, "sums")
    ]
    position = iter(range(TOKENS, 10**6))
    expected = naive_decode(
        tiny.network, layers, feed, prefill.last_logits, STEPS, lambda: next(position)
    )
    logits, rows, _ = fast_decode(tiny, cache, feed, prefill.last_logits, STEPS)
    for got, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert rows[-1] == [[[r.position for r in h.rows] for h in x.heads] for x in layers]
    assert max(len(h) for step in rows for layer in step for h in layer) == held < budget
    prompt_rows = [sum(p < TOKENS for p in h) for layer in rows[-1] for h in layer]
    if visible:
        assert min(prompt_rows) < held - newest, "some heavy hitters were generated"
    else:
        assert max(prompt_rows) > 0, "raw sums favor the prompt"


@EACH_FEED
@pytest.mark.parametrize("positions", ["original", "cache"])
@pytest.mark.parametrize("recent", [None, 7])
def test_streamingllm_evicts_at_each_step_as_a_naive_model_does(
    tiny, prefill, positions, recent, feed
):
    budget = 16
    method = StreamingLLM(positions=positions, recent=recent, during_decode=True)
    cache = method.compress(prefill, Budget(tokens=budget))
    sinks = 4 if recent is None else budget - recent
    kept = [*range(sinks), *range(TOKENS - (budget - sinks), TOKENS)]

    def turned(k_pre: Tensor, index: int) -> Tensor:
        cos, sin = tiny.network.model.rotary_emb(k_pre, torch.tensor([[index]]))
        return naive.rotate_half(k_pre[None, None, None], cos, sin)[0, 0, 0]

    layers = []
    for state in prefill.layers:
        heads = [
            NaiveHead(
                list(range(g * GROUP, (g + 1) * GROUP)),
                [Row(p, state.k_pre[g, p], state.k[g, p], state.v[g, p]) for p in kept],
            )
            for g in range(KV_HEADS)
        ]
        layers.append(NaiveStream(heads, sinks, budget, turned if positions == "cache" else None))
    true_positions = iter(range(TOKENS, 10**6))

    def next_position() -> int:
        if positions == "original":
            return next(true_positions)
        return len(layers[0].heads[0].rows)

    expected = naive_decode(tiny.network, layers, feed, prefill.last_logits, STEPS, next_position)
    logits, rows, _ = fast_decode(tiny, cache, feed, prefill.last_logits, STEPS)
    for got, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert {len(h) for step in rows for layer in step for h in layer} == {budget}
    if positions == "cache":
        assert rows[-1][0][0] == list(range(budget))
    else:
        last = TOKENS + STEPS + max(0, len(feed) - 1)
        assert rows[-1][0][0] == [*range(sinks), *range(last - (budget - sinks), last)]


@EACH_FEED
@pytest.mark.parametrize("block", [4, 16])
def test_pyramidinfer_thins_out_generated_blocks_as_a_naive_model_does(tiny, block, feed):
    method = PyramidInfer(during_decode=True, decode_block=block, recent_ratio=0.1)
    budget = Budget(fraction=0.6)
    plan = method.pruning_schedule(TOKENS, 3, budget)
    pruned = capture(tiny, PROMPT, Needs(), plan)
    cache = method.compress(pruned, budget)
    layers, prompt_rows = [], []
    for state, kept in zip(pruned.layers, method.block_kept(3), strict=True):
        heads = []
        for g in range(KV_HEADS):
            places = enumerate(state.positions.tolist())
            rows = [Row(p, state.k[g, i], state.k[g, i], state.v[g, i]) for i, p in places]
            heads.append(NaiveHead(list(range(g * GROUP, (g + 1) * GROUP)), rows))
        layers.append(NaiveBlocks(heads, kept, block, plan.tail))
        prompt_rows.append(state.tokens)
    position = iter(range(TOKENS, 10**6))
    expected = naive_decode(
        tiny.network, layers, feed, pruned.last_logits, STEPS, lambda: next(position)
    )
    logits, rows, _ = fast_decode(tiny, cache, feed, pruned.last_logits, STEPS)
    for got, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert rows[-1] == [[[r.position for r in h.rows] for h in x.heads] for x in layers]
    for before, layer in zip(prompt_rows, rows[-1], strict=True):
        assert sum(p < TOKENS for p in layer[0]) == before, "the prompt's rows are never touched"
        assert len(layer[0]) < before + STEPS + max(0, len(feed) - 1)


# T10
def test_pyramidinfer_keeps_fewer_of_a_block_in_deeper_layers():
    kept = PyramidInfer().block_kept(32)
    assert [kept[i] for i in (0, 8, 16, 24, 31)] == [14, 12, 7, 3, 1]


@EACH_FEED
@pytest.mark.parametrize("heads", ["query", "kv"])
@pytest.mark.parametrize("every", [1, 4])
def test_spindlekv_merges_generated_tokens_as_a_naive_model_does(tiny, prefill, heads, every, feed):
    thetas = (0.6, 0.5)
    method = SpindleKV(
        window=8, heads=heads, merge_every=every, theta_key=thetas[0], theta_value=thetas[1]
    )
    cache = method.compress(prefill, Budget(fraction=0.5))

    def turned(k_pre: Tensor, position: int) -> Tensor:
        cos, sin = tiny.network.model.rotary_emb(k_pre, torch.tensor([[position]]))
        return naive.rotate_half(k_pre[None, None, None], cos, sin)[0, 0, 0]

    layers = []
    for state, store in zip(prefill.layers, cache.layers, strict=True):
        (band,) = store.materialize()
        heads_of = []
        for i in range(len(band.k)):
            g = i * KV_HEADS // len(band.k)
            readers = [i] if heads == "query" else list(range(g * GROUP, (g + 1) * GROUP))
            rows = [
                Row(int(p), state.k_pre[g, p], k, v)
                for p, k, v in zip(band.positions[i], band.k[i], band.v[i], strict=True)
            ]
            heads_of.append(NaiveHead(readers, rows))
        books = [
            (list(store.key_books[g].entries), list(store.value_books[g].entries))
            for g in range(KV_HEADS)
        ]
        layers.append(NaiveBook(heads_of, books, every, thetas, turned))
    entries = len(layers[0].books[0][0])
    position = iter(range(TOKENS, 10**6))
    expected = naive_decode(
        tiny.network, layers, feed, prefill.last_logits, STEPS, lambda: next(position)
    )
    logits, rows, _ = fast_decode(tiny, cache, feed, prefill.last_logits, STEPS)
    for got, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert sorted(rows[-1][0][0]) == [r.position for r in layers[0].heads[0].rows]
    fed = STEPS + max(0, len(feed) - 1)
    assert 0 < len(layers[0].books[0][0]) - entries < fed, "some rows match, some do not"


def memory(method: Method, prefill, budget: Budget, model, steps: int) -> tuple[int, int]:
    """Bytes of the compressed prompt, and of everything held after `steps` tokens."""
    cache = fit_budget(method, prefill, budget)
    before = cache.nbytes
    (written,) = decode(
        model, [cache], TOKENS, Stop(frozenset(), steps), first_logits=prefill.last_logits
    )
    return before, before + written.tail_bytes


@pytest.mark.parametrize(
    "method",
    [
        H2O(during_decode=True),
        H2O(during_decode=True, heads="query"),
        StreamingLLM(during_decode=True),
        StreamingLLM(during_decode=True, positions="cache"),
    ],
    ids=str,
)
def test_memory_does_not_grow_with_the_answer(tiny, prefill, method):
    before, after = memory(method, prefill, Budget(fraction=0.3), tiny, 80)
    # A union's size follows the data; plain rows stay to the byte.
    assert after <= (before * 1.15 if method == H2O(during_decode=True, heads="query") else before)
    assert before <= 0.31 * prefill.nbytes
    _, grown = memory(replace(method, during_decode=False), prefill, Budget(fraction=0.3), tiny, 80)
    assert grown > 1.5 * after


def test_the_batch_gives_each_evicting_variant_what_it_gives_it_alone(tiny, prefill):
    tried = [
        H2O(during_decode=True),
        H2O(during_decode=True, heads="query"),
        StreamingLLM(during_decode=True),
        StreamingLLM(during_decode=True, positions="cache"),
        StreamingLLM(),
        SpindleKV(window=8, merge_every=4),
    ]
    caches = [fit_budget(m, prefill, Budget(fraction=0.4)) for m in tried]

    def ids(batch: list[Compressed], feed: tuple[int, ...]) -> list[tuple[int, ...]]:
        stop = Stop(frozenset(), 30)
        done = decode(tiny, list(batch), TOKENS, stop, first_logits=prefill.last_logits, feed=feed)
        return [g.ids for g in done]

    for feed in FEEDS.values():
        assert ids(caches, feed) == [ids([c], feed)[0] for c in caches]
