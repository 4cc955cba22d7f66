"""PyramidInfer: its schedules by hand, its pruning prefill against one written out by hand."""

from __future__ import annotations

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
from kvbench.compress.fit import fit_budget, keep_whole
from kvbench.compress.scores import window_attention
from kvbench.decode.greedy import Stop, decode
from kvbench.methods.pyramidinfer import PyramidInfer, Schedule
from kvbench.methods.snapkv import SnapKV
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.selection import top_rows
from support.families import window_of
from support.methods import composed
from support.rehearsal import claimed, rehearsing

PROMPT = torch.randint(3, 96, (80,), generator=torch.Generator().manual_seed(3))


# T10
def test_the_released_cosine_schedule_by_hand():
    released = Schedule("cosine", recent_ratio=0.2, decay=0.9, min_context=64)
    fed = [n + released.tail(1000) for n in released.context(1000, 32)]
    assert fed[:12] == [1000, 1000, 999, 998, 996, 992, 987, 980, 971, 959, 945, 928]
    assert fed[-2:] == [392, 373]
    assert released.kept_ratio(1000, 32) == pytest.approx(0.76275)
    assert released.context(8000, 32)[-1] + released.tail(8000) == 3014
    assert released.kept_ratio(8000, 32) == pytest.approx(0.766422, abs=1e-6)
    short = Schedule("cosine", recent_ratio=0.2, decay=0.5, min_context=64)
    assert [n + short.tail(1000) for n in short.context(1000, 4)] == [1000, 1000, 941, 756]


@pytest.mark.parametrize(
    ("recent_ratio", "decay", "mean"), [(0.05, 0.8, 0.2), (0.1, 0.85, 0.287), (0.2, 0.9, 0.441)]
)
def test_a_constant_share_reaches_what_the_cosine_cannot(recent_ratio, decay, mean):
    constant = Schedule("constant", recent_ratio, decay, 64)
    assert constant.kept_ratio(8000, 32) == pytest.approx(mean, abs=0.005)
    assert Schedule("cosine", 0.2, 0.0, 64).kept_ratio(8000, 32) == pytest.approx(0.47, abs=0.005)
    assert Schedule("cosine", 0.0, 0.0, 0).kept_ratio(8000, 32) == pytest.approx(0.332, abs=0.005)


@pytest.mark.parametrize(
    ("choice", "layers", "budget", "decay"),
    [
        ("pyramidinfer", 32, 0.766, 0.9),
        ("pyramidinfer_13b", 40, 0.724, 0.8),
        ("pyramidinfer_70b", 80, 0.782, 0.9),
    ],
)
def test_the_released_setting_is_what_its_own_mean_asks_for(choice, layers, budget, decay):
    method = composed(f"method={choice}")
    found = method.schedule(8000, layers, Budget(fraction=budget))
    assert (found.strategy, found.recent_ratio) == ("cosine", 0.2)
    assert found.decay == pytest.approx(decay, abs=0.003)
    theirs = replace(method, decay=decay).schedule(8000, layers, Budget(fraction=0.2))
    assert theirs.kept_ratio(8000, layers, method.interval) == pytest.approx(budget, abs=0.001)


@pytest.mark.parametrize(("budget", "over"), [(0.6, True), (0.98, False)])
def test_a_decay_that_is_given_holds_at_every_budget(tiny, budget, over):
    method, ids = PyramidInfer(decay=0.5, min_context=8), PROMPT.repeat(5)
    allowed = Budget(fraction=budget)
    plan = method.pruning_schedule(400, 3, allowed)
    assert plan.context == Schedule("cosine", 0.2, 0.5, 8).context(400, 3)
    cache = fit_budget(method, capture(tiny, ids, Needs(), plan), allowed)
    assert (cache.facts["decay"], cache.facts["over_budget"]) == (0.5, over)
    assert "floor" not in cache.facts
    constant = PyramidInfer(decay=0.5, strategy="constant", min_context=8)
    assert constant.pruning_schedule(400, 3, allowed).context == (319, 159, 79)


@pytest.mark.parametrize("layers", [16, 30, 32, 80])
@pytest.mark.parametrize("tokens", [257, 1000, 2048, 8000])
def test_budgets_from_a_seventh_to_nine_tenths_are_met(tokens, layers):
    for percent in (15, 20, 25, 30, 40, 45, 48, 60, 75, 90):
        budget = Budget(fraction=percent / 100)
        found = PyramidInfer().schedule(tokens, layers, budget)
        ratio = found.kept_ratio(tokens, layers)
        assert percent / 100 - 0.01 <= ratio <= percent / 100


def test_pruning_every_third_layer_meets_the_budget_too():
    found = PyramidInfer(interval=3).schedule(4000, 80, Budget(fraction=0.6))
    fed = found.context(4000, 80, interval=3)
    assert found.kept_ratio(4000, 80, interval=3) == pytest.approx(0.6, abs=0.01)
    assert all(fed[i + 1] == fed[i] for i in range(79) if i % 3)


def test_whole_token_budgets_are_shares_of_the_prompt():
    method = PyramidInfer()
    assert method.pruning_schedule(1000, 32, Budget(tokens=600)) == method.pruning_schedule(
        1000, 32, Budget(fraction=0.6)
    )


def test_a_prompt_that_fits_is_not_pruned():
    method = PyramidInfer()
    assert method.pruning_schedule(100, 32, Budget(tokens=100)) is None
    assert method.pruning_schedule(100, 32, Budget(fraction=1.0)) is None


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("value", [1, 0.05, 0.5])
def test_the_shortest_prompts_keep_their_newest_token(tiny, tokens, value):
    method, budget = PyramidInfer(), Budget.parse(value)
    plan = method.pruning_schedule(tokens, 3, budget)
    prefill = capture(tiny, PROMPT[:tokens], Needs(), plan)
    cache = fit_budget(method, prefill, budget)
    for store in cache.layers:
        (band,) = store.materialize()
        assert int(band.positions[0, -1]) == tokens - 1


class ByHand:
    """Stock eager layers fed one after the other, the tokens to drop chosen in plain loops."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.weights = torch.empty(0)
        self.at = torch.empty(0)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor, _: object, **kw: Any) -> Any:
        """Stock eager attention under a mask made of true positions."""
        at = self.at
        visible = at[None, :] <= at[:, None]
        if (window := window_of(module, kw)) is not None:
            visible &= at[None, :] > at[:, None] - window
        mask = torch.zeros(1, 1, len(at), len(at)).masked_fill(~visible, float("-inf"))
        stock = sys.modules[type(module).__module__].eager_attention_forward
        out, weights = stock(module, q, k, v, mask, **kw)
        self.weights = weights[0]
        self.seen.append((k[0], v[0]))
        return out, weights

    def logits(self, ids: Tensor, plan: PruningSchedule) -> tuple[Tensor, list[list[int]]]:
        """Logits of the tokens left at the end, and the prompt positions each layer was fed.

        Tokens behind the prompt are fed to every layer and choose nothing.
        """
        network = self.network
        calls: list[tuple[Tensor, dict[str, Any]]] = []
        hooks = [
            layer.register_forward_pre_hook(
                lambda _m, args, named: calls.append((args[0], named)), with_kwargs=True
            )
            for layer in network.model.layers
        ]
        AttentionInterface.register("eager_by_hand", self.attend)
        network.set_attn_implementation("eager_by_hand")
        try:
            self.at = torch.arange(len(ids))
            network(ids[None], use_cache=False)
            for hook in hooks:
                hook.remove()
            hidden, fed = calls[0][0], []
            self.seen = []
            for i, layer in enumerate(network.model.layers):
                cos, sin = calls[i][1]["position_embeddings"]
                hidden = layer(
                    hidden,
                    position_ids=self.at[None],
                    position_embeddings=(cos[:, self.at], sin[:, self.at]),
                )
                fed.append([p for p in self.at.tolist() if p < plan.tokens])
                if i + 1 < len(network.model.layers):
                    kept = self._kept(plan, plan.context[i + 1])
                    hidden, self.at = hidden[:, kept], self.at[kept]
        finally:
            network.set_attn_implementation("eager")
        logits = network.lm_head(network.model.norm(hidden))[0]
        # Granite divides, Cohere multiplies.
        logits = logits / getattr(network.config, "logits_scaling", 1.0)
        logits = logits * getattr(network.config, "logit_scale", 1.0)
        bound = getattr(network.config, "final_logit_softcapping", None)
        return logits if bound is None else torch.tanh(logits / bound) * bound, fed

    def _kept(self, plan: PruningSchedule, context: int) -> list[int]:
        n = sum(p < plan.tokens for p in self.at.tolist())
        before = n - plan.tail
        received = [0.0] * before
        for token in range(before):
            for i in range(plan.tail):
                line = i / (plan.tail - 1) if plan.tail > 1 else 0.0
                weight = 1 + (plan.distance_weight - 1) * line
                received[token] += weight * float(self.weights[:, before + i, token].mean())
            if self.at[token] < plan.sinks:
                received[token] = float("inf")
        best = sorted(range(before), key=lambda token: (-received[token], token))[:context]
        return sorted(best) + list(range(before, len(self.at)))


PLAN = PruningSchedule(context=(63, 40, 21), tail=17, sinks=4, distance_weight=1.2)


def test_the_pruning_prefill_equals_layers_run_by_hand(family: tuple[LoadedModel, Any]) -> None:
    model, eager = family
    prefill = capture(model, PROMPT, Needs(), PLAN)
    by_hand = ByHand(eager)
    logits, fed = by_hand.logits(PROMPT, PLAN)
    assert [state.positions.tolist() for state in prefill.layers] == fed
    assert [len(f) for f in fed] == [80, 57, 38]
    assert all(f[:4] == [0, 1, 2, 3] and f[-17:] == list(range(63, 80)) for f in fed)
    for state, (k, v) in zip(prefill.layers, by_hand.seen, strict=True):
        torch.testing.assert_close(state.k, k, atol=1e-4, rtol=0)
        torch.testing.assert_close(state.v, v, atol=1e-4, rtol=0)
        assert state.k.is_contiguous() and state.k.untyped_storage().nbytes() == state.k.nbytes
    torch.testing.assert_close(prefill.last_logits, logits[-1], atol=1e-4, rtol=0)
    ordinary = capture(model, PROMPT, Needs()).last_logits
    assert float((prefill.last_logits - ordinary).abs().max()) > 1e-2


def test_decoding_goes_on_from_each_layers_own_tokens(family: tuple[LoadedModel, Any]) -> None:
    model, eager = family
    prefill = capture(model, PROMPT, Needs(), PLAN)
    cache = keep_whole(prefill)
    seen: list[Tensor] = []
    hook = model.network.register_forward_hook(lambda _m, _a, out: seen.append(out.logits[0, -1]))
    try:
        stop = Stop(frozenset(), 6)
        (written,) = decode(model, [cache], 80, stop, first_logits=prefill.last_logits)
    finally:
        hook.remove()
    ids = torch.cat([PROMPT, torch.tensor(written.ids[:-1])])
    expected, _ = ByHand(eager).logits(ids, PLAN)
    torch.testing.assert_close(torch.stack(seen), expected[-5:], atol=1e-4, rtol=0)


def test_no_layer_pruned_is_the_ordinary_prefill(tiny: LoadedModel) -> None:
    plan = PruningSchedule(context=(63, 63, 63), tail=17)
    pruned, ordinary = (capture(tiny, PROMPT, Needs(), p) for p in (plan, None))
    assert torch.equal(pruned.last_logits, ordinary.last_logits)
    for a, b in zip(pruned.layers, ordinary.layers, strict=True):
        assert torch.equal(a.k, b.k)
        assert torch.equal(a.v, b.v)


def test_a_steep_distance_weight_leaves_the_choice_to_the_newest_query(tiny: LoadedModel) -> None:
    steep = capture(tiny, PROMPT, Needs(), PruningSchedule((78, 20, 10), 2, 0, 1e9)).layers[1]
    newest = window_attention(capture(tiny, PROMPT, Needs(window=1)).layers[0], 1)
    alone = top_rows(newest[:, 0, :78].mean(0, keepdim=True), 20)[0]
    assert steep.positions[:20].tolist() == alone.tolist()


def test_two_variants_of_one_plan_give_the_same_prefill_bitwise(tiny: LoadedModel) -> None:
    first, second = (capture(tiny, PROMPT, Needs(), PLAN) for _ in range(2))
    assert torch.equal(first.last_logits, second.last_logits)
    for a, b in zip(first.layers, second.layers, strict=True):
        assert torch.equal(a.positions, b.positions)


def test_the_ledger_divides_by_the_whole_prompt_in_every_layer(tiny: LoadedModel) -> None:
    method, budget = PyramidInfer(), Budget(fraction=0.7)
    prompt = PROMPT.repeat(5)
    plan = method.pruning_schedule(400, 3, budget)
    prefill = capture(tiny, prompt, Needs(), plan)
    cache = fit_budget(method, prefill, budget)
    found = ledger(prefill, cache)
    assert found.native_bytes == capture(tiny, prompt, Needs()).nbytes
    assert found.kept_tokens == tuple(n + plan.tail for n in plan.context)
    assert found.r1 == tuple(n / 400 for n in found.kept_tokens)
    assert found.ratio_bytes == found.kept_ratio == pytest.approx(plan.kept_ratio)
    assert 0.69 <= found.ratio_bytes <= 0.7
    assert cache.facts["strategy"] in ("cosine", "constant")
    assert not cache.facts["floor"]


def test_layers_on_several_devices_prune_as_on_one(tiny: LoadedModel) -> None:
    ids = torch.randint(3, 250, (90,), generator=torch.Generator().manual_seed(3))
    schedule = PruningSchedule((80, 40, 20), 10)
    plain = capture(tiny, ids, Needs(), schedule)
    # The second layer of a device is fed by one that lies there too, unlike the rotary tables.
    for devices in (1, 2, 3):
        with rehearsing(), claimed(tiny, devices) as model:
            spread = capture(model, ids, Needs(), schedule)
            for mine, theirs, device in zip(
                spread.layers, plain.layers, model.layer_devices, strict=True
            ):
                assert mine.k.device == mine.positions.device == device
                assert torch.equal(mine.positions.inner, theirs.positions)
                torch.testing.assert_close(mine.k.inner, theirs.k)
            assert spread.last_logits.device == model.device
            torch.testing.assert_close(spread.last_logits.inner, plain.last_logits)


def test_a_budget_below_the_first_layer_says_so(tiny: LoadedModel) -> None:
    method, budget = PyramidInfer(), Budget(fraction=0.2)
    prefill = capture(tiny, PROMPT, Needs(), method.pruning_schedule(80, 3, budget))
    cache = fit_budget(method, prefill, budget)
    assert cache.facts["floor"]
    assert ledger(prefill, cache).kept_tokens == (80, 1, 1)


def test_another_plans_prefill_is_refused(tiny: LoadedModel) -> None:
    ordinary = capture(tiny, PROMPT, Needs())
    with pytest.raises(ValueError, match="prefill of its own pruning"):
        PyramidInfer().compress(ordinary, Budget(fraction=0.7))


def test_pruned_and_unpruned_variants_decode_as_one_batch(tiny: LoadedModel) -> None:
    method, budget = PyramidInfer(), Budget(fraction=0.6)
    pruned = capture(tiny, PROMPT, Needs(), method.pruning_schedule(80, 3, budget))
    ordinary = capture(tiny, PROMPT, Needs(window=32))

    def caches():
        return [
            keep_whole(ordinary),
            fit_budget(method, pruned, budget),
            fit_budget(SnapKV(), ordinary, budget),
        ]

    logits = [ordinary.last_logits, pruned.last_logits, ordinary.last_logits]
    stop = Stop(frozenset(), 8)
    together = decode(tiny, caches(), 80, stop, first_logits=torch.stack(logits), width=5)
    for i in range(3):
        (alone,) = decode(tiny, [caches()[i]], 80, stop, first_logits=logits[i], width=5)
        assert together[i].ids == alone.ids
    assert together[1].ids != together[0].ids


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recent_ratio", -0.1),
        ("recent_ratio", 1.5),
        ("strategy", "linear"),
        ("decay", 1.5),
        ("min_context", -1),
        ("interval", 0),
        ("sinks", -1),
        ("distance_weight", float("nan")),
    ],
)
def test_a_field_out_of_range_is_refused_with_value_and_remedy(field, value):
    with pytest.raises(UserError, match=rf"method\.{field}=.*{value}.*give"):
        PyramidInfer(**{field: value})
