"""One prefill: the same function serves every family, and what it keeps is what they computed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from kvbench.base.errors import UserError
from kvbench.model import hooks
from kvbench.model.hooks import (
    attention_layers,
    feed_forward_in_blocks,
    feed_forwards,
    is_plain,
    recording_pre_rope,
)
from kvbench.model.loading import LoadedModel
from kvbench.prefill.capture import capture, query_statistics
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill
from support.families import WITHOUT_ROPE

ALL = Needs(window=8, pre_rope_keys=True, column_sums=True)


def prompt(tokens: int) -> torch.Tensor:
    return torch.randint(3, 96, (tokens,), generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
def test_prefill_logits_equal_stock_eager_attention(
    family: tuple[LoadedModel, Any], tokens: int
) -> None:
    model, eager = family
    ids = prompt(tokens)
    expected = eager(ids[None], use_cache=False).logits[0, -1]
    logits = capture(model, ids, Needs()).last_logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_keys_and_values_equal_a_stock_cache(family: tuple[LoadedModel, Any]) -> None:
    model, eager = family
    ids = prompt(70)
    # Built without a config, the stock cache keeps all rows of sliding layers too.
    cache = eager(ids[None], past_key_values=DynamicCache(), use_cache=True).past_key_values
    prefill = capture(model, ids, Needs())
    for state, stock in zip(prefill.layers, cache.layers, strict=True):
        torch.testing.assert_close(state.k, stock.keys[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(state.v, stock.values[0], atol=1e-4, rtol=0)
        assert state.k.is_contiguous() and state.v.is_contiguous()


def test_rotating_the_keys_before_rope_gives_the_keys_bitwise(
    family: tuple[LoadedModel, Any],
) -> None:
    model, _ = family
    prefill = capture(model, prompt(70), ALL)
    for state in prefill.layers:
        assert state.k_pre is not None and state.rotary is not None
        positions = torch.arange(70).expand(state.kv_heads, -1)
        assert torch.equal(state.rotary.rotate(state.k_pre, positions), state.k)
        unturned = WITHOUT_ROPE.get(model.spec.name) == state.index
        assert torch.equal(state.k_pre, state.k) is unturned


def test_rotating_a_selection_gives_the_rows_at_their_own_positions(
    family: tuple[LoadedModel, Any],
) -> None:
    model, _ = family
    state = capture(model, prompt(70), ALL).layers[-1]
    assert state.k_pre is not None and state.rotary is not None
    positions = torch.tensor([[3, 41, 69], [0, 5, 68]])
    rows = positions.unsqueeze(-1).expand(-1, -1, state.k.shape[-1])
    rotated = state.rotary.rotate(state.k_pre.gather(1, rows), positions)
    assert torch.equal(rotated, state.k.gather(1, rows))


def test_the_column_sums_equal_eager_attention_weights(family: tuple[LoadedModel, Any]) -> None:
    model, eager = family
    ids = prompt(150)
    weights = eager(ids[None], use_cache=False, output_attentions=True).attentions
    for state, layer in zip(capture(model, ids, ALL).layers, weights, strict=True):
        assert state.column_sums is not None
        torch.testing.assert_close(state.column_sums, layer[0].sum(dim=1), atol=2e-4, rtol=1e-4)


def test_the_window_queries_give_eager_attention_weights(
    family: tuple[LoadedModel, Any],
) -> None:
    from kvbench.compress.scores import window_attention

    model, eager = family
    ids = prompt(70)
    weights = eager(ids[None], use_cache=False, output_attentions=True).attentions
    for state, layer in zip(capture(model, ids, ALL).layers, weights, strict=True):
        assert state.q_win.shape[1] == 8
        torch.testing.assert_close(
            window_attention(state, 8), layer[0, :, -8:], atol=1e-5, rtol=1e-4
        )


def test_a_window_longer_than_the_prompt_keeps_every_query(tiny: LoadedModel) -> None:
    state = capture(tiny, prompt(5), Needs(window=32)).layers[0]
    assert state.q_win.shape == (4, 5, 16)


def test_nothing_is_kept_that_no_method_asked_for(tiny: LoadedModel) -> None:
    state = capture(tiny, prompt(40), Needs()).layers[0]
    assert state.q_win.shape[1] == 0
    assert state.k_pre is None and state.rotary is None and state.column_sums is None


def test_kept_tensors_hold_no_larger_storage(tiny: LoadedModel) -> None:
    prefill = capture(tiny, prompt(200), ALL)
    for state in prefill.layers:
        for kept in (state.k, state.v, state.q_win, state.k_pre):
            assert kept is not None
            assert kept.untyped_storage().nbytes() == kept.nbytes


def test_the_same_prompt_gives_the_same_prefill_bitwise(tiny: LoadedModel) -> None:
    first, second = (capture(tiny, prompt(90), ALL) for _ in range(2))
    assert torch.equal(first.last_logits, second.last_logits)
    for a, b in zip(first.layers, second.layers, strict=True):
        assert torch.equal(a.k, b.k) and torch.equal(a.v, b.v) and torch.equal(a.q_win, b.q_win)


def test_a_forward_without_a_run_is_plain_causal_attention(
    family: tuple[LoadedModel, Any],
) -> None:
    model, eager = family
    ids = prompt(70)[None]
    torch.testing.assert_close(
        model.network(ids, use_cache=False).logits,
        eager(ids, use_cache=False).logits,
        atol=1e-4,
        rtol=0,
    )


def test_a_ready_made_mask_is_refused(tiny: LoadedModel) -> None:
    with pytest.raises(ValueError, match="takes no mask"):
        tiny.network(prompt(4)[None], attention_mask=torch.zeros(1, 1, 4, 4), use_cache=False)


def test_the_rotation_is_restored_when_the_forward_fails(tiny: LoadedModel) -> None:
    module = sys.modules[type(attention_layers(tiny.network)[0]).__module__]
    original = module.apply_rotary_pos_emb
    with pytest.raises(KeyError), recording_pre_rope(tiny.network):
        assert module.apply_rotary_pos_emb is not original
        raise KeyError
    assert module.apply_rotary_pos_emb is original


def test_a_layer_that_does_not_rotate_is_noticed(tiny: LoadedModel) -> None:
    with pytest.raises(RuntimeError, match="fired 1 times for 3"):  # noqa: SIM117
        with recording_pre_rope(tiny.network) as recorder:
            k = torch.zeros(1, 2, 4, 16)
            cos = torch.ones(1, 4, 16)
            module = sys.modules[type(attention_layers(tiny.network)[0]).__module__]
            module.apply_rotary_pos_emb(k, k, cos, cos)
            assert recorder.take()[0] is k
            with pytest.raises(RuntimeError, match="did not call"):
                recorder.take()


def test_a_prompt_longer_than_the_context_is_one_clear_line(tiny: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"9000 .* exceeds the context of tiny-random \(8192\)"):
        capture(tiny, torch.zeros(9000, dtype=torch.long), Needs())


@pytest.mark.slow
def test_the_embedded_model_is_captured_like_stock_eager(smollm2: LoadedModel) -> None:
    text = "The capital of France is Paris. The capital of Italy is"
    ids = torch.tensor(smollm2.tokenizer(text).input_ids)
    prefill = capture(smollm2, ids, ALL)
    assert smollm2.tokenizer.decode(int(prefill.last_logits.argmax())).strip() == "Rome"
    for state in prefill.layers:
        assert state.k_pre is not None and state.rotary is not None
        positions = torch.arange(len(ids)).expand(3, -1)
        assert torch.equal(state.rotary.rotate(state.k_pre, positions), state.k)


@pytest.mark.parametrize(
    ("projection", "named"), [("k_proj", "keys of layer 1"), ("v_proj", "values of layer 1")]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_by_layer(
    tiny: LoadedModel, projection: str, named: str, value: float
) -> None:
    weight = getattr(attention_layers(tiny.network)[1], projection).weight
    kept = weight[3, 5].clone()
    weight[3, 5] = value
    try:
        with pytest.raises(FloatingPointError, match=named):
            capture(tiny, prompt(20), Needs())
    finally:
        weight[3, 5] = kept
    capture(tiny, prompt(20), Needs())


def same(a: Prefill, b: Prefill) -> bool:
    pairs = zip(a.layers, b.layers, strict=True)
    return torch.equal(a.last_logits, b.last_logits) and all(
        torch.equal(x.k, y.k) and torch.equal(x.v, y.v) for x, y in pairs
    )


@pytest.mark.parametrize("tokens", [1025, 2049, 3001])
def test_feed_forward_layers_in_blocks_change_no_bit(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    in_blocks = capture(tiny, prompt(tokens), Needs())
    monkeypatch.setattr(hooks, "BLOCK", tokens)
    assert same(in_blocks, capture(tiny, prompt(tokens), Needs()))


def test_no_block_of_a_family_is_longer_than_said(
    family: tuple[LoadedModel, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = family
    whole = capture(model, prompt(100), Needs())
    monkeypatch.setattr(hooks, "BLOCK", 33)
    feed_forward_in_blocks(model.network)  # once more is no more
    given = []
    handles = [
        linear.register_forward_pre_hook(lambda _, args: given.append(args[0].shape[1]))
        for mlp in filter(is_plain, feed_forwards(model.network))
        for linear in mlp.modules()
        if isinstance(linear, torch.nn.Linear)
    ]
    in_blocks = capture(model, prompt(100), Needs())
    for handle in handles:
        handle.remove()
    # The prompt goes in four times 25 tokens, but whole to the experts of a router.
    assert set(given) <= {25} and bool(given) == bool(handles)
    assert handles or "num_experts_per_tok" in vars(model.network.config)
    assert same(whole, in_blocks)


def test_a_router_is_given_the_whole_prompt() -> None:
    config = AutoConfig.for_model(
        "mixtral", vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
    )
    (experts,) = feed_forwards(AutoModelForCausalLM.from_config(config))
    assert not is_plain(experts)


def test_query_statistics_of_some_heads_at_a_time_are_those_of_all() -> None:
    rng = torch.Generator().manual_seed(0)
    queries = torch.randn(130, 6, 16, generator=rng).transpose(0, 1)
    whole, parts = query_statistics(queries, 4), query_statistics(queries, 4, groups=3)
    assert torch.equal(whole.mean, parts.mean)
    assert torch.equal(whole.covariance, parts.covariance)
