"""Batched decoding: the same tokens as alone, stop rules, merging, fed tokens, freed memory."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest
import torch

from kvbench.cache.codebook import CodebookStore
from kvbench.cache.store import Compressed, Tail
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget, keep_whole
from kvbench.decode.batch import Batch
from kvbench.decode.greedy import Stop, continuation_logits, decode
from kvbench.methods.adakv import AdaKV
from kvbench.methods.h2o import H2O
from kvbench.methods.pyramidkv import PyramidKV
from kvbench.methods.quantized import Quantized
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.methods.streamingllm import StreamingLLM
from kvbench.model.hooks import recording_pre_rope
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill

NEEDS = Needs(window=64, pre_rope_keys=True)
NEVER = frozenset[int]()


def _ids(tokens: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 200, (tokens,), generator=torch.Generator().manual_seed(seed))


def _variants(prefill: Prefill) -> list[Compressed]:
    tried = [
        (SnapKV(window=8), 0.3),
        (SnapKV(window=8, heads="query"), 0.3),
        (SnapKV(window=8, heads="query", store="repeat"), 0.5),
        (PyramidKV(), 0.2),
        (StreamingLLM(), 0.1),
        (StreamingLLM(positions="cache"), 0.4),
        (SpindleKV(window=8, merge_every=3), 0.5),
        (SpindleKV(window=8, heads="kv", scope="layer", merge_every=0), 0.5),
    ]
    kept = [fit_budget(method, prefill, Budget(fraction=r)) for method, r in tried]
    return [keep_whole(prefill), *kept]


def _tokens(model: LoadedModel, prefill: Prefill, caches: list[Compressed], **changes):
    settings = {"first_logits": prefill.last_logits, **changes}
    stop = settings.pop("stop", Stop(NEVER, 12))
    return [g.ids for g in decode(model, list(caches), prefill.tokens, stop, **settings)]


@pytest.fixture(scope="module")
def prefill(tiny: LoadedModel) -> Prefill:
    return capture(tiny, _ids(130), NEEDS)


@pytest.mark.parametrize("feed", [(), (5,), (9, 8, 7, 6, 5)], ids=["none", "one", "question"])
def test_batched_variants_equal_the_same_variants_alone(tiny, prefill, feed):
    caches = _variants(prefill)
    together = _tokens(tiny, prefill, caches, feed=feed)
    for cache, expected in zip(caches, together, strict=True):
        assert _tokens(tiny, prefill, [cache], feed=feed) == [expected]
    assert len(set(together)) > 1, "the variants must not all say the same"


def test_a_wider_batch_is_padded_and_changes_nothing(tiny, prefill):
    caches = _variants(prefill)[:3]
    exact = _tokens(tiny, prefill, caches)
    assert _tokens(tiny, prefill, caches, width=7) == exact
    assert len(exact) == 3


def test_at_a_fixed_width_a_row_is_bitwise_independent_of_neighbors_and_slot(tiny, prefill):
    caches = _variants(prefill)
    seen = []

    def logits_of(batch: list[Compressed], slot: int) -> torch.Tensor:
        positions = torch.full((len(batch), 1), prefill.tokens)
        with torch.inference_mode():
            run = Batch(len(batch), tiny.geometry.layers)
            for row, cache in enumerate(batch):
                run.join(row, cache, 4)
            run.begin(range(len(batch)), positions)
            out = tiny.network(
                input_ids=torch.full((len(batch), 1), 42),
                position_ids=positions,
                use_cache=False,
                kvbench=run,
            )
        return out.logits[slot, -1]

    seen = [
        logits_of([caches[1], caches[0], caches[2], caches[4]], 0),
        logits_of([caches[3], caches[4], caches[1], caches[0]], 2),
        logits_of([caches[0], caches[1], caches[1], caches[1]], 3),
    ]
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_fullkv_decodes_as_stock_greedy_generation(tiny, prefill):
    ids = _ids(130)
    network = tiny.network
    expected = []
    for _ in range(12):
        logits = network(input_ids=torch.cat([ids, torch.tensor(expected, dtype=ids.dtype)])[None])
        expected.append(int(logits.logits[0, -1].argmax()))
    assert _tokens(tiny, prefill, [keep_whole(prefill)]) == [tuple(expected)]


def test_feeding_the_last_token_after_an_uncompressed_prefill_changes_nothing(tiny, prefill):
    shorter = capture(tiny, _ids(130)[:-1], NEEDS)
    fed = decode(tiny, [keep_whole(shorter)], 129, Stop(NEVER, 12), feed=[int(_ids(130)[-1])])
    assert [g.ids for g in fed] == _tokens(tiny, prefill, [keep_whole(prefill)])


def test_each_row_ends_at_its_own_stop_token(tiny, prefill):
    caches = _variants(prefill)
    free = _tokens(tiny, prefill, caches)
    stop_id = free[0][5]
    ended = decode(
        tiny, list(caches), 130, Stop(frozenset({stop_id}), 12), first_logits=prefill.last_logits
    )
    for generation, ids in zip(ended, free, strict=True):
        cut = ids.index(stop_id) if stop_id in ids else None
        assert generation.ids == ids[:cut]
        assert generation.stopped is (cut is not None)


def test_a_minimum_length_keeps_the_first_token_from_being_a_stop(tiny, prefill):
    caches = [keep_whole(prefill)]
    first = _tokens(tiny, prefill, caches)[0][0]
    stop = Stop(frozenset({first}), 3)
    assert _tokens(tiny, prefill, caches, stop=stop) == [()]
    longer = _tokens(tiny, prefill, caches, stop=Stop(frozenset({first}), 3, min_new_tokens=1))
    assert len(longer[0]) >= 1
    assert longer[0][0] != first


def test_the_caches_are_handed_over_so_that_stores_can_be_freed(tiny, prefill):
    caches = _variants(prefill)
    decode(tiny, caches, 130, Stop(NEVER, 2), first_logits=prefill.last_logits)
    assert caches == []


def test_merging_while_decoding_equals_absorbing_step_by_step(tiny, prefill):
    """A slow twin: after each forward rebuild everything from the stores."""
    every = 3
    method = SpindleKV(window=8, merge_every=every, theta_key=0.9, theta_value=0.85)
    cache = fit_budget(method, prefill, Budget(fraction=0.5))
    (fast,) = _tokens(tiny, prefill, [cache], stop=Stop(NEVER, 14))

    caches = cache
    written = [int(prefill.last_logits.argmax())]
    pending: list[int] = []
    position = 130
    while len(written) < 14:
        pending.append(written[-1])
        # Tokens since the last merge are fed again in one go, behind the store's rows.
        state = _Fed(tiny, caches, pending, position)
        written.append(state.chosen)
        if len(pending) == every:
            caches = Compressed(
                tuple(s.absorb(t) for s, t in zip(caches.layers, state.tails, strict=True))
            )
            position += every
            pending = []
    assert fast == tuple(written)
    grown = caches.layers[0]
    assert isinstance(grown, CodebookStore)
    assert grown.positions[0][-every:].tolist() == list(range(position - every, position))


def _listening(store: CodebookStore, told: list[Tail]) -> CodebookStore:
    """The store, which notes a tail where it would absorb it."""

    class Listening(CodebookStore):
        def absorb(self, tail: Tail) -> Listening:
            told.append(tail)
            return self

    return Listening(**{f.name: getattr(store, f.name) for f in fields(store)})


class _Fed:
    """One forward of several tokens over a cache, and the tails it leaves."""

    def __init__(self, model: LoadedModel, cache: Compressed, ids: list[int], start: int) -> None:
        self.tails: list[Tail] = []
        full = [replace(store, absorb_every=len(ids)) for store in cache.layers]
        layers = tuple(_listening(store, self.tails) for store in full)
        at = torch.arange(start, start + len(ids))[None]
        with torch.inference_mode(), recording_pre_rope(model.network) as recorder:
            run = Batch(1, model.geometry.layers)
            run.join(0, Compressed(layers), len(ids))
            run.recorder = recorder
            run.begin([0], at)
            output = model.network(
                input_ids=torch.tensor([ids]), position_ids=at, use_cache=False, kvbench=run
            )
            run.finish()
        self.chosen = int(output.logits[0, -1].argmax())


def test_the_tail_counts_what_followed_compression(tiny, prefill):
    geometry = tiny.geometry
    per_token = geometry.layers * geometry.kv_heads * geometry.head_dim * 2 * 4
    caches = [keep_whole(prefill), fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.3))]
    out = decode(tiny, caches, 130, Stop(NEVER, 6), first_logits=prefill.last_logits)
    # The last token generated is never fed.
    assert [g.tail_bytes for g in out] == [5 * per_token] * 2


@pytest.mark.slow
def test_batched_equals_alone_on_the_embedded_model(smollm2):
    text = "The harbour master kept a ledger of every ship. " * 12 + "What did the master keep?"
    ids = smollm2.tokenizer(text, return_tensors="pt").input_ids[0]
    prefill = capture(smollm2, ids, NEEDS)
    caches = _variants(prefill)
    stop = Stop(smollm2.eos_ids, 16)

    def texts(batch: list[Compressed]) -> list[tuple[int, ...]]:
        out = decode(smollm2, list(batch), len(ids), stop, first_logits=prefill.last_logits)
        return [g.ids for g in out]

    together = texts(caches)
    assert [texts([c])[0] for c in caches] == together


@pytest.mark.slow
def test_every_reader_says_on_the_embedded_model_what_rebuilt_rows_say(smollm2):
    text = "The harbour master kept a ledger of every ship. " * 20 + "What did the master keep?"
    ids = smollm2.tokenizer(text, return_tensors="pt").input_ids[0]
    needs = Needs(window=64, pre_rope_keys=True, column_sums=True)
    prefill = capture(smollm2, ids, needs)
    tried = [
        SnapKV(window=8),
        SnapKV(window=8, heads="query"),
        AdaKV(),
        SpindleKV(window=8, merge_every=6),
        SpindleKV(window=8, heads="kv", scope="layer"),
        Quantized(),
        H2O(during_decode=True, heads="query"),
        StreamingLLM(during_decode=True, positions="cache"),
    ]
    caches = [fit_budget(method, prefill, Budget(fraction=0.4)) for method in tried]
    stop = Stop(NEVER, 24)
    stored, rebuilt = (
        decode(
            smollm2,
            list(caches),
            len(ids),
            stop,
            first_logits=prefill.last_logits,
            as_stored=as_stored,
        )
        for as_stored in (True, False)
    )
    assert [g.ids for g in stored] == [g.ids for g in rebuilt]
    assert {g.reader.split(" (")[0] for g in stored} == {"rows", "union", "codebook", "quantized"}


def _followers(tiny: LoadedModel, prefill: Prefill) -> tuple[list[Compressed], list[Compressed]]:
    """Variants that leave their rows alone while decoding, and variants that merge or evict."""
    summed = capture(tiny, _ids(130), Needs(window=64, pre_rope_keys=True, column_sums=True))
    evicting = fit_budget(H2O(during_decode=True), summed, Budget(fraction=0.3))
    caches = [*_variants(prefill), evicting]
    moving = [c for c in caches if c.layers[0].absorb_every]
    return [c for c in caches if not c.layers[0].absorb_every], moving


@pytest.mark.parametrize("moving", [False, True], ids=["still", "merging or evicting"])
def test_logits_of_a_fed_generation_name_the_tokens_that_were_generated(tiny, prefill, moving):
    caches = _followers(tiny, prefill)[moving]
    written = _tokens(tiny, prefill, caches)
    lengths = [len(ids) - 1 - i for i, ids in enumerate(written)]  # ragged
    feeds = [ids[:n] for ids, n in zip(written, lengths, strict=True)]
    found = continuation_logits(tiny, caches, prefill.tokens, feeds)
    for logits, ids, n in zip(found, written, lengths, strict=True):
        assert logits.shape == (n, tiny.network.config.vocab_size)
        assert tuple(logits.argmax(-1).tolist()) == ids[1 : n + 1]


@pytest.mark.parametrize("moving", [False, True], ids=["still", "merging or evicting"])
def test_logits_of_ragged_feeds_are_those_of_each_feed_alone(tiny, prefill, moving):
    caches = _followers(tiny, prefill)[moving]
    feeds = [_ids(1 + 4 * i, seed=i).tolist() for i in range(len(caches))]
    together = continuation_logits(tiny, caches, prefill.tokens, feeds)
    for cache, feed, logits in zip(caches, feeds, together, strict=True):
        (alone,) = continuation_logits(tiny, [cache], prefill.tokens, [feed])
        assert torch.allclose(logits, alone, atol=1e-4)


def test_logits_over_the_whole_cache_are_those_of_the_stock_model(tiny, prefill):
    feeds = [_ids(n, seed=n).tolist() for n in (7, 1, 63)]
    found = continuation_logits(tiny, [keep_whole(prefill)] * 3, 130, feeds)
    for feed, logits in zip(feeds, found, strict=True):
        ids = torch.cat([_ids(130), torch.tensor(feed)])[None]
        with torch.inference_mode():
            expected = tiny.network(input_ids=ids).logits[0, 130:]
        assert torch.allclose(logits, expected, atol=1e-4)


def test_a_generation_ends_where_its_ids_say_and_keeps_the_last_one(tiny, prefill):
    (free,) = _tokens(tiny, prefill, [keep_whole(prefill)])
    stop = Stop(NEVER, 12, ends=lambda ids: len(ids) == 5)
    assert _tokens(tiny, prefill, [keep_whole(prefill)], stop=stop) == [free[:5]]


def test_the_minimum_length_ends_with_the_last_token_it_asks_for(tiny, prefill):
    (free,) = _tokens(tiny, prefill, [keep_whole(prefill)])
    at = next(i for i, token in enumerate(free) if i and token not in free[:i])
    stop = Stop(frozenset({free[at]}), 12, min_new_tokens=at)
    assert _tokens(tiny, prefill, [keep_whole(prefill)], stop=stop) == [free[:at]]


def test_rows_that_decode_together_divide_the_time_of_their_steps(tiny, prefill):
    caches = [keep_whole(prefill) for _ in range(4)]
    started = time.perf_counter()
    ended = decode(tiny, caches, 130, Stop(NEVER, 12), first_logits=prefill.last_logits)
    whole = time.perf_counter() - started
    assert 0 < sum(generation.seconds for generation in ended) <= whole


def test_leading_stop_tokens_go_on_until_something_else_is_written():
    stop = Stop(frozenset({1, 2, 3}), 12, leading_ids=frozenset({1, 2}))
    assert not stop.stops_at(1, []) and not stop.stops_at(1, [2]) and not stop.stops_at(2, [1, 1])
    assert stop.stops_at(3, []) and stop.stops_at(3, [1]) and stop.stops_at(1, [7])
    assert not stop.stops_at(7, [1])


def test_bytes_held_while_decoding_are_the_cache_and_every_token_since(tiny, prefill):
    cache = fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.3))
    held = cache.nbytes
    (ended,) = decode(tiny, [cache], 130, Stop(NEVER, 60), first_logits=prefill.last_logits)
    token = sum(2 * layer.k[:, 0].nbytes for layer in prefill.layers)
    # The last token generated is not fed; head-room is a quarter or sixteen tokens.
    assert ended.tail_bytes == 59 * token
    assert held + ended.tail_bytes <= ended.decode_bytes <= held + (60 * 5 // 4 + 16) * token
