"""The attention sums against naive twins that build the whole matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.base.errors import UserError
from kvbench.model.attention import (
    IMPLEMENTATION,
    AttentionRule,
    attention_at,
    causal_attention,
    column_sums,
    column_sums_last_block,
    dispatch,
    packed_attention,
    register,
)
from support.cli import one_line
from support.families import random_network

LENGTHS = [1, 7, 63, 257]
VARIANTS = [(None, None), (16, None), (None, 2.0), (16, 2.0)]


def naive_weights(
    q: Tensor, k: Tensor, scaling: float, window: int | None, softcap: float | None
) -> Tensor:
    """[Q, T, T] softmax weights, one query at a time, in float64."""
    heads, tokens, _ = q.shape
    weights = torch.zeros(heads, tokens, tokens, dtype=torch.float64)
    for head in range(heads):
        keys = k[head * k.shape[0] // heads].double()
        for at in range(tokens):
            first = 0 if window is None else max(0, at - window + 1)
            logits = keys[first : at + 1] @ q[head, at].double() * scaling
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            weights[head, at, first : at + 1] = logits.softmax(0)
    return weights


def random_qkv(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(4, tokens, 16, generator=generator)
    k = torch.randn(2, tokens, 16, generator=generator)
    v = torch.randn(2, tokens, 16, generator=generator)
    return q, k, v


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize(("window", "softcap"), VARIANTS)
def test_causal_attention_equals_its_naive_twin(
    tokens: int, window: int | None, softcap: float | None
) -> None:
    q, k, v = random_qkv(tokens)
    weights = naive_weights(q, k, 0.3, window, softcap)
    expected = weights @ v.double().repeat_interleave(2, dim=0)
    out = causal_attention(q[None], k[None], v[None], AttentionRule(0.3, window, softcap))
    torch.testing.assert_close(out[0].double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize(("window", "softcap"), VARIANTS)
def test_column_sums_equal_their_naive_twin(
    tokens: int, window: int | None, softcap: float | None
) -> None:
    q, k, _ = random_qkv(tokens)
    expected = naive_weights(q, k, 0.3, window, softcap).sum(dim=1)
    sums = column_sums(q, k, AttentionRule(0.3, window, softcap))
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), expected, atol=1e-5, rtol=1e-5)


def test_column_sums_of_zero_logits_are_harmonic_tails() -> None:
    sums = column_sums(torch.zeros(2, 4, 8), torch.zeros(1, 4, 8), AttentionRule(1.0))
    expected = torch.tensor([25 / 12, 13 / 12, 7 / 12, 1 / 4]).expand(2, 4)
    torch.testing.assert_close(sums, expected)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("block", [1, 8, 200])
def test_column_sums_under_a_mask_of_the_last_block_equal_their_naive_twin(
    tokens: int, block: int
) -> None:
    q, k, _ = random_qkv(tokens)
    expected = torch.zeros(len(q), tokens, dtype=torch.float64)
    for head in range(len(q)):
        for at in range(tokens):
            seen = at + 1 if at >= tokens - block else tokens
            logits = 0.3 * k[head // 2, :seen].double() @ q[head, at].double()
            expected[head, :seen] += logits.softmax(0)
    sums = column_sums_last_block(q, k, AttentionRule(0.3, sliding_window=4), block)
    torch.testing.assert_close(sums.double(), expected, atol=1e-5, rtol=1e-5)


def test_without_a_mask_zero_logits_give_every_key_the_same() -> None:
    sums = column_sums_last_block(torch.zeros(2, 4, 8), torch.zeros(1, 4, 8), AttentionRule(1.0), 1)
    torch.testing.assert_close(sums, torch.ones(2, 4))


def test_column_sums_are_float32_arithmetic_for_half_precision_models() -> None:
    q, k, _ = random_qkv(63)
    half_q, half_k = q.bfloat16(), k.bfloat16()
    exact = column_sums(half_q.float(), half_k.float(), AttentionRule(0.3))
    assert torch.equal(column_sums(half_q, half_k, AttentionRule(0.3)), exact)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (64, None), (64, 2.0)])
def test_causal_attention_of_a_long_prompt_holds_no_square_matrix(
    window: int | None, softcap: float | None
) -> None:
    tokens, heads = 2048, 4
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, heads, tokens, 8, generator=generator)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        causal_attention(q, q, q, AttentionRule(0.3, window, softcap))
    largest = max(abs(event.cpu_memory_usage) for event in profile.events())
    assert largest < heads * tokens * tokens * 4 / 8


def test_bfloat16_attention_stays_near_float32() -> None:
    q, k, v = (x[None] for x in random_qkv(257))
    rule = AttentionRule(0.3, 16, 2.0)
    exact = causal_attention(q, k, v, rule)
    half = causal_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), rule)
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.05
    assert math.isfinite(float(half.sum()))


def network_of(family: str, **settings: Any) -> Any:
    """A random network of a family that is not covered, with kvbench's attention."""
    register()
    common = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 50, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = AutoConfig.for_model(family, **{**common, **heads, **settings})
    return AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION).eval()


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "GptOssAttention .* s_aux"),
        (
            "deepseek_v3",
            {
                "num_key_value_heads": 2,
                "n_routed_experts": 2,
                "n_group": 1,
                "topk_group": 1,
                "num_experts_per_tok": 1,
                "kv_lora_rank": 8,
                "q_lora_rank": 8,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 16,
                "v_head_dim": 16,
            },
            "DeepseekV3Attention has keys of 24 numbers and values of 16",
        ),
        ("gemma3_text", {"use_bidirectional_attention": True}, "Gemma3Attention looks ahead"),
    ],
)
def test_attention_of_another_kind_is_refused(
    family: str, settings: dict[str, Any], said: str
) -> None:
    network = network_of(family, **settings)
    with pytest.raises(UserError, match=said) as error:
        network(torch.tensor([[3, 4, 5]]), use_cache=False)
    assert "family" in one_line(error)


def test_dropout_and_unknown_words_are_refused_and_harmless_ones_are_not() -> None:
    module = random_network("llama").model.layers[0].self_attn
    q, k, v = (x[None] for x in random_qkv(5))

    def attend(**words: Any) -> Tensor:
        return dispatch(module, q, k, v, None, scaling=0.3, **words)[0]

    expected = causal_attention(q, k, v, AttentionRule(0.3)).transpose(1, 2)
    harmless = {"position_ids": torch.arange(5), "cache_position": None, "use_cache": True}
    assert torch.equal(attend(dropout=0.0, **harmless, some_word=None), expected)
    with pytest.raises(UserError, match=r"dropout=0\.1"):
        attend(dropout=0.1)
    with pytest.raises(UserError, match="is given some_word"):
        attend(some_word=torch.ones(4))
    with pytest.raises(UserError, match="is_causal=False"):
        attend(is_causal=False)


def test_a_network_in_training_that_drops_weights_is_refused() -> None:
    network = network_of("llama", attention_dropout=0.25).train()
    with pytest.raises(UserError, match=r"LlamaAttention drops weights .*dropout=0\.25"):
        network(torch.tensor([[3, 4, 5]]), use_cache=False)


@pytest.mark.parametrize(("t", "n"), [(1, 1), (1, 63), (7, 33), (63, 64), (128, 257)])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_packed_heads_equal_plain_ones(t: int, n: int, group: int) -> None:
    generator = torch.Generator().manual_seed(t * n)
    q = torch.randn(2, 2 * group, t, 16, generator=generator)
    k, v = torch.randn(2, 2, 2, n, 16, generator=generator)
    query_at, key_at = torch.arange(n - t, n), torch.arange(n)
    rule = AttentionRule(0.3, sliding_window=24)
    seen = (key_at <= query_at[:, None]) & (key_at > query_at[:, None] - 24)
    packed = packed_attention(q, k, v, rule.scaling, seen)
    plain = attention_at(q, k, v, query_at, key_at, rule)
    assert packed.shape == plain.shape
    torch.testing.assert_close(packed, plain, atol=2e-6, rtol=1e-5)
