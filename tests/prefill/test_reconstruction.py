"""What repeating a context reads of its cache, against one softmax over all; and its room."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.compress.budget import Budget
from kvbench.methods.kvzip import KVzip
from kvbench.model.attention import AttentionRule, attention_with_lse, merged_attention
from kvbench.model.loading import LoadedModel
from kvbench.model.random import byte_tokenizer
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs, Reconstruction
from kvbench.prefill.reconstruction import (
    LEAST_CHUNK,
    Around,
    passes_of,
    read_cache,
    reconstruction_scores,
    within,
)
from kvbench.prefill.state import LayerState
from support.rehearsal import Claimed, claimed, rehearsing

PLAIN = (None, None)
SETTINGS = Reconstruction(1000, "Repeat:", "Repeat from: ", 8, None)
AROUND = Around(5, "!")


def random_layer(
    tokens: int, fed: int, heads: tuple[int, int], dim: int = 16, dtype: torch.dtype = torch.float32
) -> tuple[tuple[Tensor, Tensor, Tensor], LayerState]:
    """Queries, keys and values of fed tokens, laid out as a network's are, and a cached layer."""
    rng = torch.Generator().manual_seed(tokens + fed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    q, k, v = (randn(1, fed, h, dim).transpose(1, 2) for h in (heads[0], heads[1], heads[1]))
    cached = LayerState(
        k=randn(heads[1], tokens, dim),
        v=randn(heads[1], tokens, dim),
        q_win=randn(heads[0], 0, dim),
        rule=AttentionRule(dim**-0.5),
    )
    return (2 * q, k, v), cached


def naive_read(
    fed: tuple[Tensor, Tensor, Tensor],
    cached: LayerState,
    rule: AttentionRule,
    visible: int,
    chunk: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """`read_cache` from the whole matrix of every head, in float64."""
    q, k, v = (x[0].double() for x in fed)
    group, tokens = q.shape[0] // k.shape[0], cached.tokens
    keys = torch.cat([cached.k.double(), k], 1).repeat_interleave(group, 0)
    values = torch.cat([cached.v.double(), v], 1).repeat_interleave(group, 0)
    logits = q @ keys.transpose(1, 2) * rule.scaling
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    key_at = torch.arange(keys.shape[1])
    query_at = tokens + torch.arange(q.shape[1])[:, None]
    seen = key_at <= query_at
    if rule.sliding_window is not None:
        seen &= key_at > query_at - rule.sliding_window
    logits = logits.masked_fill(~seen, -torch.inf)
    sharing = (key_at < visible) | (key_at >= tokens)
    sharing |= (key_at >= chunk[0]) & (key_at < chunk[1])
    shares = logits.masked_fill(~sharing, -torch.inf).softmax(-1)
    most = shares[..., chunk[0] : chunk[1]].reshape(k.shape[0], -1, chunk[1] - chunk[0])
    return (logits.softmax(-1) @ values)[None], most.amax(1)


@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("rule", [PLAIN, (24, None), (150, None), (None, 2.0), (40, 2.0)], ids=str)
@pytest.mark.parametrize(
    ("tokens", "fed", "visible", "chunk"),
    [
        (1, 1, 0, (0, 1)),
        (7, 3, 2, (2, 7)),
        (63, 129, 5, (5, 35)),
        (63, 40, 5, (35, 63)),
        (257, 300, 2, (100, 200)),
        (257, 131, 0, (200, 257)),
    ],
)
def test_what_is_read_equals_one_softmax_over_everything(tokens, fed, visible, chunk, rule, heads):
    layer, cached = random_layer(tokens, fed, heads)
    rule = AttentionRule(0.25, *rule)
    out, most = read_cache(*layer, cached, rule, visible, chunk)
    expected, expected_most = naive_read(layer, cached, rule, visible, chunk)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(most.double(), expected_most, atol=1e-6, rtol=1e-5)
    assert most.dtype == torch.float32 and float(most.max()) <= 1


@pytest.mark.parametrize("rule", [PLAIN, (24, None), (None, 2.0)], ids=str)
def test_scores_are_float32_arithmetic_for_half_precision_models(rule):
    layer, cached = random_layer(63, 129, (4, 2), dtype=torch.bfloat16)
    rule = AttentionRule(0.25, *rule)
    out, most = read_cache(*layer, cached, rule, 5, (5, 35))
    expected, expected_most = naive_read(layer, cached, rule, 5, (5, 35))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=0)
    torch.testing.assert_close(most.double(), expected_most, atol=1e-6, rtol=1e-4)


def test_where_no_kernel_gives_sums_what_is_read_is_the_same():
    layer, cached = random_layer(63, 129, (4, 2), dtype=torch.float64)
    assert attention_with_lse(*layer, 0.25) is None
    out, most = read_cache(*layer, cached, AttentionRule(0.25), 5, (5, 35))
    expected, expected_most = naive_read(layer, cached, AttentionRule(0.25), 5, (5, 35))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(most.double(), expected_most, atol=1e-6, rtol=1e-5)


def test_a_chunk_behind_every_window_receives_nothing():
    layer, cached = random_layer(200, 20, (4, 2))
    _, most = read_cache(*layer, cached, AttentionRule(0.25, 30), 2, (2, 100))
    assert torch.equal(most, torch.zeros(2, 98))


@pytest.mark.parametrize("heads", [(4, 2), (3, 3)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_log_sum_exps_are_those_of_the_logits(heads, causal):
    (q, k, v), _ = random_layer(1, 77, heads)
    found = attention_with_lse(q, k, v, 0.3, causal=causal)
    assert found is not None
    logits = q @ k.repeat_interleave(heads[0] // heads[1], 1).transpose(-1, -2) * 0.3
    if causal:
        logits = logits.masked_fill(~torch.ones(77, 77, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(found[1], logits.logsumexp(-1), atol=1e-5, rtol=1e-5)
    assert found[0].shape == q.shape


def test_parts_whose_sums_lie_far_apart_are_joined():
    """One part's weight beside the other's is below what float32 can say."""
    (q, k, v), _ = random_layer(1, 9, (2, 2))
    parts = [attention_with_lse(q, x, v, 0.3) for x in (100 * k, k)]
    both = merged_attention([part for part in parts if part is not None])
    keys, values = torch.cat([100 * k, k], 2), torch.cat([v, v], 2)
    expected = (q @ keys.transpose(-1, -2) * 0.3).softmax(-1) @ values
    torch.testing.assert_close(both, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [PLAIN, (24, None), (None, 2.0)], ids=str)
def test_on_cuda_the_same_is_read_and_no_block_is_waited_for(rule, dtype):
    fed, cached = random_layer(63, 300, (4, 2), dtype=dtype)
    rule = AttentionRule(0.25, *rule)
    expected = read_cache(*fed, cached, rule, 5, (5, 35))
    with rehearsing() as rehearsal:
        there = torch.device("cuda", 1)
        names = ("k", "v", "q_win")
        layer = replace(cached, **{n: Claimed(getattr(cached, n), there) for n in names})
        queries, keys, values = (Claimed(x, there) for x in fed)
        with rehearsal.counting() as counted:
            found = read_cache(queries, keys, values, layer, rule, 5, (5, 35))
    assert counted["waits"] == counted["sent"] == counted["moved"] == 0, counted
    for x, y in zip(found, expected, strict=True):
        assert isinstance(x, Claimed) and x.device == there
        torch.testing.assert_close(x.inner, y)
    fused = any("attention" in name for name in counted if "scaled_dot" in name)
    assert fused == (rule.softcap is None)


@pytest.mark.parametrize("devices", [1, 2])
def test_layers_on_several_devices_keep_the_same_pairs(tiny: LoadedModel, devices: int) -> None:
    ids = torch.randint(3, 90, (300,), generator=torch.Generator().manual_seed(1))
    method = KVzip(chunk_tokens=200)
    expected = method.compress(capture(tiny, ids, method.needs), Budget(fraction=0.3))
    with rehearsing() as rehearsal, claimed(tiny, devices) as model:
        prefill = capture(model, ids, method.needs)
        with rehearsal.counting() as counted:
            cache = method.compress(prefill, Budget(fraction=0.3))
        places = [s.segments()[0][0].k.device.index for s in cache.layers]
        found = [b.positions.inner.tolist() for s in cache.layers for b in s.materialize()]
    assert places == [0, 0, 0] if devices == 1 else [0, 0, 1]
    assert found == [b.positions.tolist() for s in expected.layers for b in s.materialize()]
    assert counted["waits"] == 1, counted
    assert counted["sent"] == 0
    # The scores of a layer that lies elsewhere come here, and its rows' places go there.
    assert counted["moved"] == 2 * (devices - 1), counted


@pytest.mark.parametrize(
    ("room", "chunk"),
    [(9999, 1000), (303, 1000), (302, 280), (200, 178), (87, 65), (86, 64), (50, 64), (0, 64)],
)
def test_chunks_shrink_until_what_is_fed_fits(room, chunk):
    tokenizer = byte_tokenizer(512)
    ids = list(range(30, 60)) * 10
    fitting = within(tokenizer, ids, AROUND, SETTINGS, room)
    assert fitting == replace(SETTINGS, chunk_tokens=chunk)
    longest = max(len(fed) for _, fed in passes_of(tokenizer, ids, AROUND, fitting))
    assert longest <= room or chunk == LEAST_CHUNK


def test_chunks_that_are_asked_to_be_short_stay_as_they_are():
    short = replace(SETTINGS, chunk_tokens=20)
    assert within(byte_tokenizer(512), list(range(90)), AROUND, short, 5) == short


@pytest.mark.parametrize(
    ("context", "last", "facts"),
    [
        (700, 607, {}),  # the first request, the turn's end, and the whole prompt
        (608, 607, {}),
        (500, 485, {"chunk_tokens": 178}),
        (330, 385, {"chunk_tokens": LEAST_CHUNK, "past_context": 56}),
    ],
)
def test_nothing_is_fed_past_the_context_or_the_record_says_so(
    tiny: LoadedModel, context: int, last: int, facts: dict[str, int]
) -> None:
    model = replace(tiny, geometry=replace(tiny.geometry, context=context))
    method = KVzip(first_prompt="Repeat:", later_prompt="Repeat from: ")
    ids = torch.randint(3, 90, (300,), generator=torch.Generator().manual_seed(1))
    fed_at: list[int] = []

    def watch(_: object, args: object, given: dict[str, Tensor]) -> None:
        assert given["position_ids"].shape == given["input_ids"].shape
        fed_at.append(int(given["position_ids"].max()))

    hook = model.network.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        prefill = capture(model, ids, method.needs)
    finally:
        hook.remove()
    assert max(fed_at) == last
    found = dict(method.compress(prefill, Budget(fraction=0.5)).facts)
    assert found.pop("protected_tokens") == 0
    assert found == facts
    assert float(prefill.layers[0].reconstructions[method.reconstruction].amin(0).max()) > 0


def test_chunks_shrink_before_a_models_rotation_changes(tiny: LoadedModel) -> None:
    """A longrope model that would rotate the prompt's keys otherwise is not refused."""
    ids = torch.randint(3, 90, (300,), generator=torch.Generator().manual_seed(1))
    layers = capture(tiny, ids, Needs()).layers

    def chunk_tokens(rescaled_beyond: int) -> int:
        geometry = replace(tiny.geometry, rescaled_beyond=rescaled_beyond)
        model = replace(tiny, geometry=geometry)
        return reconstruction_scores(model, ids, layers, AROUND, SETTINGS)[1].chunk_tokens

    assert chunk_tokens(500) == 178
    assert chunk_tokens(250) == 1000, "the prompt itself is beyond"
    with pytest.raises(UserError, match="crosses 330, where"):
        chunk_tokens(330)
