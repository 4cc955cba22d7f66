"""Decoding over compressed rows equals stock eager attention with keep masks, in every family.

The reference recomputes the whole sequence with the family's own `eager_attention_forward`; what a
head has evicted is hidden from the tokens after the prompt, and from them only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from kvbench.cache.ledger import ledger
from kvbench.cache.rows import RowStore
from kvbench.cache.store import Band, Compressed
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget, keep_whole
from kvbench.decode.greedy import Generation, Stop, decode
from kvbench.model.attention import AttentionRule, causal_attention
from kvbench.model.hooks import RotaryRecorder, recording_pre_rope, rotary_function
from kvbench.model.loading import LoadedModel
from kvbench.model.spec import FAMILIES
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill
from support.families import FAMILY_SETTINGS, WITHOUT_ROPE, window_of
from support.methods import CHOICES, METHODS, composed

TOKENS, STEPS = 70, 6
QUERY_HEADS, KV_HEADS = 4, 2
PROMPT = torch.randint(3, 96, (TOKENS,), generator=torch.Generator().manual_seed(1))


def random_keep(layers: int, heads: int, seed: int) -> list[Tensor]:
    """Per layer [heads, T] bool; every head of every layer keeps another number of rows."""
    generator = torch.Generator().manual_seed(seed)
    keep = []
    for layer in range(layers):
        share = torch.linspace(0.3, 0.8, heads)[:, None] - 0.05 * layer
        rows = torch.rand(heads, TOKENS, generator=generator) < share
        rows[:, -1] = True
        keep.append(rows)
    return keep


def evicted(prefill: Prefill, keep: list[Tensor]) -> Compressed:
    """The cache that holds the kept rows of each head and nothing else."""
    stores = []
    for state, rows in zip(prefill.layers, keep, strict=True):
        bands = []
        for head, kept in enumerate(rows):
            at = kept.nonzero()[:, 0]
            source = head * KV_HEADS // len(rows)
            bands.append(Band(state.k[source, at][None], state.v[source, at][None], at[None].int()))
        stores.append(RowStore(tuple(bands)))
    return Compressed(tuple(stores))


@contextmanager
def hidden_from_later_tokens(network: Any, keep: list[Tensor]) -> Iterator[None]:
    """Stock eager attention in which tokens after the prompt see only kept rows of the prompt."""

    def masked(module: Any, q: Tensor, k: Tensor, v: Tensor, _: object, **kw: Any) -> Any:
        n = q.shape[2]
        at = torch.arange(n)
        visible = (at[None, :] <= at[:, None]).repeat(QUERY_HEADS, 1, 1)
        if (window := window_of(module, kw)) is not None:
            visible &= at[None, :] > at[:, None] - window
        rows = keep[module.layer_idx]
        per_query_head = rows.repeat_interleave(QUERY_HEADS // len(rows), dim=0)
        visible[:, TOKENS:, :TOKENS] &= per_query_head[:, None]
        mask = torch.zeros(1, QUERY_HEADS, n, n).masked_fill(~visible, float("-inf"))
        stock = sys.modules[type(module).__module__].eager_attention_forward
        return stock(module, q, k, v, mask, **kw)

    AttentionInterface.register("eager_with_keep_masks", masked)
    network.set_attn_implementation("eager_with_keep_masks")
    try:
        yield
    finally:
        network.set_attn_implementation("eager")


def decoded_logits(
    model: LoadedModel, caches: list[Compressed], steps: int = STEPS, **options: Any
) -> tuple[list[Generation], Tensor]:
    """Generations, and the logits [V, forwards, vocabulary] of every forward.

    A question is fed to each row in a forward of its own.
    """
    rows = len(caches)
    seen: list[Tensor] = []
    hook = model.network.register_forward_hook(lambda _m, _a, out: seen.append(out.logits[:, -1]))
    try:
        written = decode(model, caches, TOKENS, Stop(frozenset(), steps), **options)
    finally:
        hook.remove()
    alone = [logits for logits in seen if len(logits) < rows]
    together = [logits for logits in seen if len(logits) == rows]
    if alone:
        together.insert(0, torch.cat(alone))
    return written, torch.stack(together, dim=1)


@pytest.mark.parametrize("feed", [[], [7], [11, 5, 42, 8, 23]], ids=["none", "one", "question"])
def test_ragged_eviction_decodes_as_eager_attention_with_keep_masks(
    family: tuple[LoadedModel, Any], feed: list[int]
) -> None:
    model, eager = family
    prefill = capture(model, PROMPT, Needs())
    layers = model.geometry.layers
    everything = [torch.ones(KV_HEADS, TOKENS, dtype=torch.bool)] * layers
    keeps = [
        everything,
        random_keep(layers, KV_HEADS, seed=1),
        random_keep(layers, QUERY_HEADS, seed=2),
        random_keep(layers, KV_HEADS, seed=3),
    ]
    caches = [evicted(prefill, keep) for keep in keeps]
    written, logits = decoded_logits(
        model, caches, first_logits=None if feed else prefill.last_logits, feed=feed
    )
    full = eager(PROMPT[None], use_cache=False).logits[0, -1]
    forwards = STEPS if feed else STEPS - 1
    assert logits.shape[:2] == (len(keeps), forwards)
    differ = []
    for row, (keep, generation) in enumerate(zip(keeps, written, strict=True)):
        ids = torch.cat([PROMPT, torch.tensor([*feed, *generation.ids])])
        with hidden_from_later_tokens(eager, keep):
            reference = eager(ids[None, :-1], use_cache=False).logits[0]
        expected = reference[-forwards:]
        torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=0)
        assert list(generation.ids) == [
            int(x) for x in reference[TOKENS - 1 + len(feed) :].argmax(-1)
        ]
        if not feed:
            assert generation.ids[0] == int(full.argmax())
        differ.append(float((logits[row] - logits[0]).abs().max()))
    assert min(differ[1:]) > 1e-2  # eviction is visible, so the comparison has something to see


def test_every_covered_family_has_a_network_here() -> None:
    assert sorted(FAMILY_SETTINGS) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILY_SETTINGS, indirect=True)
def test_the_full_cache_writes_what_generate_writes(family: tuple[LoadedModel, Any]) -> None:
    model, eager = family
    ids = PROMPT[:41]
    stock = eager.generate(
        ids[None],
        attention_mask=torch.ones_like(ids[None]),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    first, *later = (logits[0] for logits in stock.logits)
    prefill = capture(model, ids, Needs())
    torch.testing.assert_close(prefill.last_logits, first, atol=1e-4, rtol=0)
    stop = Stop(frozenset({1}), 12, min_new_tokens=12)
    seen: list[Tensor] = []
    hook = model.network.register_forward_hook(lambda _m, _a, out: seen.append(out.logits[0, -1]))
    try:
        (written,) = decode(model, [keep_whole(prefill)], 41, stop, first_logits=first)
    finally:
        hook.remove()
    assert list(written.ids) == stock.sequences[0, 41:].tolist()
    torch.testing.assert_close(torch.stack(seen), torch.stack(later), atol=1e-4, rtol=0)


RUN = [
    composed("method=snapkv"),
    composed("method=spindlekv", "method.window=8", "method.merge_every=8"),
    composed("method=quantized"),
    composed("method=h2o_official"),
    composed("method=streamingllm_official"),
    composed("method=kvzip"),
]
"""Evicts, shares entries and merges while decoding, quantizes, evicts while decoding, turns keys
to new positions, scores by rebuilding the prompt."""


def test_methods_run_and_are_read_as_stored_as_when_rebuilt(
    family: tuple[LoadedModel, Any],
) -> None:
    model, _ = family
    prefill = capture(model, PROMPT, reduce(or_, (method.needs for method in RUN)))
    seen = []
    for as_stored in (True, False):
        caches = [fit_budget(method, prefill, Budget(fraction=0.4)) for method in RUN]
        assert all(ledger(prefill, cache).ratio_bytes < 0.5 for cache in caches)
        caches.append(keep_whole(prefill))
        seen.append(
            decoded_logits(model, caches, 12, first_logits=prefill.last_logits, as_stored=as_stored)
        )
    (stored, logits), (rebuilt, expected) = seen
    assert [g.ids for g in stored] == [g.ids for g in rebuilt]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    # Where every layer has a window, what lies before it is no loss.
    assert float((logits[:-1] - logits[-1]).abs().max()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["cohere2", "exaone4", "glm4", "smollm3"], indirect=True)
@pytest.mark.parametrize("choice", CHOICES)
def test_every_method_serves_layers_without_rope_and_other_rotations(
    family: tuple[LoadedModel, Any], choice: str
) -> None:
    model, _ = family
    method, budget = METHODS[choice], Budget(fraction=0.4)
    schedule = method.pruning_schedule(TOKENS, model.geometry.layers, budget)
    needs = Needs() if schedule is not None else method.needs
    prefill = capture(model, PROMPT, needs, schedule)
    prefill = replace(prefill, task_types=dict.fromkeys(needs.classifiers, "localization"))
    written = []
    for as_stored in (True, False):
        caches = [fit_budget(method, prefill, budget)]
        generations, _ = decoded_logits(
            model, caches, 10, first_logits=prefill.last_logits, as_stored=as_stored
        )
        written.append(generations[0].ids)
    assert written[0] == written[1]


def test_kernels_turn_keys_by_halves_and_no_others(family: tuple[LoadedModel, Any]) -> None:
    model, _ = family
    dim = model.geometry.head_dim
    for state in capture(model, PROMPT, Needs(pre_rope_keys=True)).layers:
        assert state.rotary is not None
        interleaved = model.spec.name in ("glm", "glm4", "cohere2")
        assert state.rotary.turns_halves(dim) is not interleaved


class Taking:
    """Attends plainly and keeps what was recorded beside the keys of each layer."""

    def __init__(self, recorder: RotaryRecorder) -> None:
        self.recorder = recorder
        self.layers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        self.layers.append((k, *self.recorder.take()))
        return causal_attention(q, k, v, rule)


def test_the_keys_of_tokens_fed_later_are_recorded_before_rope(
    family: tuple[LoadedModel, Any],
) -> None:
    model, _ = family
    with torch.inference_mode(), recording_pre_rope(model.network) as recorder:
        taking = Taking(recorder)
        ids, at = PROMPT[:6].view(2, 3), torch.tensor([[90, 91, 92], [7, 8, 9]])
        model.network(ids, position_ids=at, use_cache=False, kvbench=taking)
    turn = rotary_function(model.network)
    assert len(taking.layers) == model.geometry.layers
    for index, (k, k_pre, cos, sin) in enumerate(taking.layers):
        assert torch.equal(turn(k_pre, cos, sin), k)
        assert torch.equal(k_pre, k) is (WITHOUT_ROPE.get(model.spec.name) == index)
